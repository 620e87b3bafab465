"""python -m benchmarks.coreference [--check] [--json FILE] [--size small|base]: coreference by the length of documents.

Seconds of one prediction and of one training step on two cores for made documents of 1,000 to 20,000 words, weights drawn at
random, and the most memory of the process, for both heads; then 150,000 words in windows with a memory of 2,000 spans. Each
length runs in a process of its own; compilation is not in the times.
"""

import argparse
import json
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


def one(words: int, size: str, repeats: int, training: bool, head: str, memory: int) -> dict[str, Any]:
    """Seconds, pieces and memory of one document, in this process; in windows where a memory of spans is above 0."""
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

    names = [*(f"w{n}" for n in range(4000)), *(f"n{n}" for n in range(30))]
    vocabulary = WordPieceVocabulary([*SPECIAL_PIECES, *names], lower_case=False)
    model = CoreferenceConfig(hidden_size=HIDDEN[size], head=head)  # pyright: ignore[reportArgumentType]
    segments = 1000 if training else 3
    task = Coref(length=384, max_segments=segments, model=model, genres=("nw",), memory=memory)
    encoder = EncoderConfig(vocab_size=vocabulary.size, positions=512, **SIZES[size])
    run = with_defaults(Run(objective=task, encoder=encoder, batch_size=1, steps=100))
    mesh = make_mesh(run.mesh, jax.devices()[:1])
    built = build(run, task.length, mesh)
    state = built.fresh_state()
    given = EncodedExamples.of(task, [made_document(words)], vocabulary)
    pieces = int((given.rows[0].fields["sentence_BL"] > 0).sum())
    if training:
        step = built.train_step()
        batch = to_global(given.packed.batch(np.array([0]), np.array([0]), len(given.rows[0].tokens_T)), mesh)

        def work() -> None:
            nonlocal state
            state, shown = step(state, batch)
            jax.block_until_ready(shown)
    else:
        predict = predictor(built.builder, task, mesh, 1)

        def work() -> None:
            predict(state.params, given)

    seconds = timing.alternating({"it": work}, 1 if memory else repeats)["it"]
    # time of the CPU tells heads apart on a machine that other work shares
    began = time.process_time()
    work()
    cpu = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found = {"words": words, "pieces": pieces, "head": head, "memory": memory, "seconds": statistics.median(seconds)}
    return {**found, "cpu_seconds": cpu, "all": seconds, "peak_gib": peak}


def in_a_process(words: int, size: str, repeats: int, kind: str, head: str) -> dict[str, Any]:
    """`one` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.coreference", "--one", str(words), "--size", size, "--head", head]
    command += ["--repeats", str(repeats), *(["--training"] if kind == "training" else [])]
    command += ["--memory", str(MEMORY if kind == "windows" else 0)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--size", choices=sorted(SIZES), default="small", help="the encoder")
    parser.add_argument("--one", type=int, default=0, help="measure one length in this process")
    parser.add_argument("--training", action="store_true", help="with --one: a training step instead of a prediction")
    parser.add_argument("--head", choices=HEADS, default=HEADS[0], help="with --one: the head")
    parser.add_argument("--memory", type=int, default=0, help="with --one: remembered spans, 0 for a whole document")
    parser.add_argument("--most", type=int, default=WORDS[-1], help="longest document, in words")
    found = timing.options(__doc__ or "", parser)
    timing.pin(found.cores)
    if found.one:
        print(json.dumps(one(found.one, found.size, found.repeats, found.training, found.head, found.memory)))
        return 0
    lengths = {
        "prediction": [each for each in WORDS if each <= found.most],
        "training": [each for each in WORDS if each <= min(found.most, 5_000)],
        "windows": [NOVEL] if found.most >= WORDS[-1] else [],
    }
    figures: dict[str, list[dict[str, Any]]] = {kind: [] for kind in lengths}
    for head in HEADS:
        for kind, words in [(kind, words) for kind, some in lengths.items() for words in some]:
            began = time.perf_counter()
            row = in_a_process(words, found.size, found.repeats, kind, head)
            figures[kind].append(row)
            rate, took = 1 / row["seconds"], time.perf_counter() - began
            print(
                f"{head:15s}{kind:12s}{words:>8,} words {row['pieces']:>8,} pieces {row['seconds']:>9.3f} s"
                f" {rate:>8.3f} documents/s {row['peak_gib']:>7.2f} GiB   ({took:.0f} s)",
                flush=True,
            )
    longest = [
        *figures["prediction"][len(lengths["prediction"]) - 1 :: len(lengths["prediction"])],
        *figures["windows"],
    ]
    targets = [
        timing.Target(f"memory for {row['words']:,} words, {row['head']}, GiB", row["peak_gib"], most=8)
        for row in longest
    ]
    return timing.report({"size": found.size, **figures}, targets, found)


if __name__ == "__main__":
    sys.exit(main())
