"""python -m benchmarks.coreference [--check] [--json FILE [--resume]] [--size small|base ...]: coreference by length.

Seconds of one prediction and of one training step on two cores for made documents of 1,000 to 20,000 words, weights drawn at
random, and the most memory of the process, for both heads; then 150,000 words in windows with a memory of 2,000 spans. Each
length runs in a process of its own; compilation is not in the times. Short documents are measured one at a time and in batches,
in turn in one process. The file is written after every length, and `--resume` measures only what it lacks.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks import timing

WORDS = (1_000, 2_000, 5_000, 10_000, 20_000)
SIZES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 256, "layers": 2, "heads": 4, "intermediate_size": 1024},
    "base": {"hidden_size": 768, "layers": 12, "heads": 12, "intermediate_size": 3072},
}
HIDDEN = {"small": 150, "base": 3000}  # of mention and pair scores
HEADS = ("coarse_to_fine", "start_end")
NOVEL, MEMORY = 150_000, 2000
SHORT, DOCUMENTS, BATCH = (100, 300), 16, 8  # words, documents of a round, of a batch
KINDS = ("prediction", "training", "windows", "short_prediction", "short_training")


def made_document(words: int) -> Any:
    """Sentences of about 25 of 4,000 words, every 40th word one of 30 mentions' names."""
    from spanjax.tasks.coref.documents import CorefDocument, sorted_clusters

    random = np.random.default_rng(words)
    ends = np.cumsum(random.integers(10, 40, words // 10))
    names = {place: int(random.integers(30)) for place in range(0, words, 40)}
    text = [f"n{names[place]}" if place in names else f"w{random.integers(4000)}" for place in range(words)]
    bounds = [0, *(int(end) for end in ends if end < words), words]
    sentences = tuple(tuple(text[a:b]) for a, b in zip(bounds, bounds[1:], strict=False))
    clusters = [[(place, place) for place, name in names.items() if name == own] for own in range(30)]
    return CorefDocument("nw/made", 0, sentences, ("",) * words, sorted_clusters(clusters), "nw")


def one(words: int, size: str, repeats: int, kind: str, head: str) -> dict[str, Any]:
    """Seconds, pieces and memory of one length, in this process: of a document, or of each of some short ones."""
    import jax

    from spanjax.data.vocab.base import SPECIAL_PIECES
    from spanjax.data.vocab.loading import WordPieceVocabulary
    from spanjax.experiment.build import build
    from spanjax.experiment.finetune import EncodedExamples, predictor
    from spanjax.nn.config import EncoderConfig
    from spanjax.nn.coreference_parts import CoreferenceConfig
    from spanjax.run import Run, with_defaults
    from spanjax.sharding import make_mesh, to_global
    from spanjax.tasks.coref import Coref

    short, training, memory = kind.startswith("short"), kind.endswith("training"), MEMORY if kind == "windows" else 0
    names = [*(f"w{n}" for n in range(4000)), *(f"n{n}" for n in range(30))]
    vocabulary = WordPieceVocabulary([*SPECIAL_PIECES, *names], lower_case=False)
    model = CoreferenceConfig(hidden_size=HIDDEN[size], head=head)  # pyright: ignore[reportArgumentType]
    segments = 1000 if training and not short else 3
    task = Coref(length=384, max_segments=segments, model=model, genres=("nw",), memory=memory)
    encoder = EncoderConfig(vocab_size=vocabulary.size, positions=512, **SIZES[size])
    documents = [made_document(words + number) for number in range(DOCUMENTS if short else 1)]
    given = EncodedExamples.of(task, documents, vocabulary)
    length = int(given.packed.lengths_N.max())

    def contender(rows: int) -> Any:
        """Takes all documents once, `rows` of them in a batch."""
        run = with_defaults(Run(objective=task, encoder=encoder, batch_size=rows, steps=100))
        mesh = make_mesh(run.mesh, jax.devices()[:1])
        built = build(run, task.length, mesh)
        state = built.fresh_state()
        if not training:
            predict = predictor(built.builder, task, mesh, rows)
            return lambda: predict(state.params, given)
        step = built.train_step()
        parts = np.arange(len(documents)).reshape(-1, rows)
        batches = [to_global(given.packed.batch(part, np.arange(rows), length), mesh) for part in parts]

        def work() -> None:
            nonlocal state
            shown = None
            for batch in batches:
                state, shown = step(state, batch)
            jax.block_until_ready(shown)

        return work

    contenders = {str(rows): contender(rows) for rows in ((1, BATCH) if short else (1,))}
    seconds = timing.alternating(contenders, 1 if memory else repeats)
    # time of the CPU tells heads apart on a machine that other work shares
    cpu = {}
    for name, work in contenders.items():
        began = time.process_time()
        work()
        cpu[name] = time.process_time() - began
    found: dict[str, Any] = {
        "words": words,
        "pieces": int((given.rows[0].fields["sentence_BL"] > 0).sum()),
        "head": head,
        "size": size,
        "memory": memory,
        "seconds": statistics.median(seconds["1"]) / len(documents),
        "cpu_seconds": cpu["1"] / len(documents),
        "all": seconds["1"],
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "load": os.getloadavg()[1],
    }
    if short:
        rates = timing.rates(dict.fromkeys(contenders, float(len(documents))), seconds)
        cpu_rates = {name: len(documents) / value for name, value in cpu.items()}
        found |= {"batch": BATCH, "documents_s": rates, "documents_cpu_s": cpu_rates}
    return found


def in_a_process(words: int, size: str, repeats: int, kind: str, head: str) -> dict[str, Any]:
    """`one` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.coreference", "--one", str(words), "--size", size, "--head", head]
    command += ["--repeats", str(repeats), "--kind", kind]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def lengths(most: int) -> dict[str, list[int]]:
    """Words of the documents of each kind."""
    whole = [each for each in WORDS if each <= most]
    novel = [NOVEL] if most >= WORDS[-1] else []
    training = [each for each in whole if each <= 5_000]
    return dict(zip(KINDS, (whole, training, novel, [*SHORT], [*SHORT]), strict=True))


def line(kind: str, row: dict[str, Any]) -> str:
    """Figures of a length."""
    told = f"{row['size']:6s}{row['head']:15s}{kind:17s}{row['words']:>8,} words {row['seconds']:>9.3f} s"
    rates = [f" {rate['median']:.2f} documents/s by {rows}" for rows, rate in row.get("documents_s", {}).items()]
    return f"{told} {1 / row['seconds']:>8.3f} documents/s {row['peak_gib']:>7.2f} GiB{''.join(rates)}"


def targets_of(figures: dict[str, list[dict[str, Any]]]) -> list[timing.Target]:
    """Memory of the longest documents of every size and head."""
    longest = [row for row in figures["prediction"] + figures["windows"] if row["words"] in (WORDS[-1], NOVEL)]
    return [
        timing.Target(f"memory for {row['words']:,} words, {row['head']}, {row['size']}, GiB", row["peak_gib"], most=8)
        for row in longest
    ]


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--size", choices=sorted(SIZES), nargs="+", default=["small"], help="the encoders")
    parser.add_argument("--one", type=int, default=0, help="measure one length in this process")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help="with --one: the kind of measurement")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=KINDS, help="the kinds of measurement")
    parser.add_argument("--head", choices=HEADS, default=HEADS[0], help="with --one: the head")
    parser.add_argument("--most", type=int, default=WORDS[-1], help="longest document, in words")
    parser.add_argument("--resume", action="store_true", help="keep the figures that the file of --json has")
    found = timing.options(__doc__ or "", parser)
    timing.pin(found.cores)
    if found.one:
        print(json.dumps(one(found.one, found.size[0], found.repeats, found.kind, found.head)))
        return 0
    figures: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    if found.resume and found.json and found.json.exists():
        before = json.loads(found.json.read_text())["figures"]
        # rows of files before --resume do not say the size
        figures = {kind: [row for row in before.get(kind, []) if "size" in row] for kind in KINDS}
    known = {(kind, row["size"], row["head"], row["words"]) for kind, rows in figures.items() for row in rows}
    wanted = lengths(found.most)
    for size, kind, head in itertools.product(found.size, found.kinds, HEADS):
        for words in wanted[kind]:
            if (kind, size, head, words) in known:
                continue
            figures[kind].append(in_a_process(words, size, found.repeats, kind, head))
            print(line(kind, figures[kind][-1]), flush=True)
            timing.report(figures, [], found)
    return timing.report(figures, targets_of(figures), found)


if __name__ == "__main__":
    sys.exit(main())
