"""python -m benchmarks.convert [--check] [--json FILE]: conversion of SpanBERT base and large, commands in their own processes.

Seconds and peak memory of `to-torch` and `from-torch`, imports and checksums included; beside them transformers loading and
saving the folder that was written, where it is installed. Contenders in turn; the weights are random, so sizes are all that
counts.
"""

import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from benchmarks import timing

PEER = """
import sys, torch, transformers
model = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1], dtype=torch.float32)
model.save_pretrained(sys.argv[2])
"""
WATCHED = """
import json, resource, runpy, sys
from spanjax.convert import main
code = main(sys.argv[1:])
print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
sys.exit(code)
"""


class Measured(NamedTuple):
    """One run of a command."""

    seconds: float
    peak: float  # bytes


def random_run(folder: pathlib.Path, size: str) -> None:
    """A work directory with random weights of this size and a vocabulary of 28,996 pieces."""
    import dataclasses

    import numpy as np

    from configs import encoders
    from spanjax.data.vocab.base import SPECIAL_PIECES
    from spanjax.data.vocab.loading import WordPieceVocabulary
    from spanjax.nn.config import EncoderConfig
    from spanjax.objectives.masked_lm import MaskedPrediction
    from spanjax.pretrained.model import Model, model_meta
    from spanjax.sharding import map_named
    from spanjax.training.checkpoint import write_weights
    from spanjax.training.state import abstract_module

    encoder: EncoderConfig = dataclasses.replace(getattr(encoders, size), vocab_size=28_996)
    random = np.random.default_rng(0)
    shapes = abstract_module(MaskedPrediction(), encoder)[1]
    params = map_named(lambda _, leaf: random.standard_normal(leaf.shape, np.float32), shapes)
    pieces = [*SPECIAL_PIECES, *(f"w{number}" for number in range(encoder.vocab_size - len(SPECIAL_PIECES)))]
    model = Model(encoder, params, WordPieceVocabulary(pieces), folder)
    write_weights(folder, params, model_meta(model))


def command(*words: str) -> Measured:
    """Runs one conversion; RuntimeError with its output where it fails."""
    import json

    begin = time.perf_counter()
    process = subprocess.run([sys.executable, "-c", WATCHED, *words], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise RuntimeError(f"{words} failed:\n{process.stdout}{process.stderr}")
    return Measured(seconds, json.loads(process.stdout.splitlines()[-1])["peak"])


def peer(source: pathlib.Path, target: pathlib.Path) -> float | None:
    """Seconds in which transformers loads a folder and saves it again; None where it is not installed."""
    begin = time.perf_counter()
    process = subprocess.run([sys.executable, "-c", PEER, str(source), str(target)], capture_output=True, check=False)
    return None if process.returncode else time.perf_counter() - begin


def measure(size: str, root: pathlib.Path, repeats: int) -> dict[str, list[float]]:
    """Seconds and peaks of every contender, in turn."""
    run, hf, back = (root / f"{size}-{name}" for name in ("run", "hf", "back"))
    random_run(run, size)
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, words in (
            ("to-torch", ("to-torch", str(run), str(hf), "--overwrite")),
            ("from-torch", ("from-torch", str(hf), str(back), "--overwrite")),
        ):
            each = command(*words)
            found.setdefault(f"{name} seconds", []).append(each.seconds)
            found.setdefault(f"{name} peak GiB", []).append(each.peak / 2**30)
        if (seconds := peer(hf, root / "peer")) is not None:
            found.setdefault("transformers, load and save, seconds", []).append(seconds)
    return found


def main() -> int:
    """Runs everything; the exit code."""
    found = timing.options(__doc__ or "")
    timing.pin(found.cores)
    with tempfile.TemporaryDirectory() as folder:
        figures = {size: measure(size, pathlib.Path(folder), found.repeats) for size in ("BASE", "LARGE")}
    medians = {
        size: {name: statistics.median(values) for name, values in each.items()} for size, each in figures.items()
    }
    for size, each in figures.items():
        for name, values in each.items():
            print(f"{size:6s}{name:40s}{statistics.median(values):8.2f}   ({min(values):.2f} to {max(values):.2f})")
    base, large = medians["BASE"], medians["LARGE"]
    targets = [
        timing.Target("base to-torch, s", base["to-torch seconds"], most=20),
        timing.Target("base from-torch, s", base["from-torch seconds"], most=20),
        timing.Target("base to-torch, peak GiB", base["to-torch peak GiB"], most=3),
        timing.Target("base from-torch, peak GiB", base["from-torch peak GiB"], most=3),
        timing.Target("large to-torch, s", large["to-torch seconds"], most=60),
        timing.Target("large from-torch, s", large["from-torch seconds"], most=60),
    ]
    return timing.report({"sizes": figures}, targets, found)


if __name__ == "__main__":
    sys.exit(main())
