"""python -m benchmarks.family [--check] [--json FILE]: a training step of every system of the family, on the same rows and sizes.

One encoder size, full rows of made text with sentences, fp32, no dropout, AdamW, one device. A step's time beside its model FLOPs
(masked places alone, nothing computed twice) and its memory as compiled. Asked for: no system takes more than 1.35 times as
long as its FLOPs, beside SpanBERT's step, would have it.
"""

import argparse
import dataclasses
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.made import made_blocks, one_device_session

VOCABULARY = 30_000
SENTENCE = 20  # tokens, about
SLACK = 1.35


def systems(width: int, layers: int) -> dict[str, tuple[Any, Any]]:
    """(objective, encoder) of every system at this size."""
    from spanjax.data.feed.masking import Ngrams, Tokens
    from spanjax.data.feed.pairing import FullSentences, NextSentence, SentenceOrder
    from spanjax.nn.config import EncoderConfig
    from spanjax.objectives.electra import ReplacedDetection
    from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary
    from spanjax.objectives.masked_lm import MaskedPrediction
    from spanjax.objectives.xlnet import PermutedPrediction

    bert = EncoderConfig(
        hidden_size=width,
        layers=layers,
        heads=max(1, width // 64),
        intermediate_size=4 * width,
        dropout=0.0,
        attention_dropout=0.0,
        unroll=layers,
    )
    albert = dataclasses.replace(bert, num_layer_groups=1, embedding_size=max(32, width // 4))
    modern = dataclasses.replace(
        bert,
        types=0,
        norm_first=True,
        rope_theta=10_000.0,
        gated_mlp=True,
        biases=False,
        intermediate_size=round(8 * width / 3 / 64) * 64,
    )
    tokens = MaskedPrediction(masking=Tokens(), terms=(MaskedTokens(),))
    pairs = dataclasses.replace(tokens, pairing=NextSentence(), terms=(MaskedTokens(), SentencePair()))
    order = MaskedPrediction(
        masking=Ngrams(), pairing=SentenceOrder(), terms=(MaskedTokens(), SentencePair(name="sop"))
    )
    return {
        "SpanBERT": (MaskedPrediction(), bert),
        "BERT, one sequence": (tokens, bert),
        "BERT": (pairs, bert),
        "RoBERTa": (dataclasses.replace(tokens, pairing=FullSentences()), dataclasses.replace(bert, types=1)),
        "ALBERT": (order, albert),
        "ELECTRA": (ReplacedDetection(), bert),
        "ELECTRA with spans and SBO": (
            ReplacedDetection(masking=MaskedPrediction().masking, boundary=SpanBoundary()),
            bert,
        ),
        "SpanBERT, modern encoder": (MaskedPrediction(), modern),
        "XLNet, no memory": (PermutedPrediction(), dataclasses.replace(bert, relative_attention=True)),
    }


def rows_with_sentences(folder: pathlib.Path, count: int, length: int) -> Any:
    """Rows of one full block each, in which a sentence begins every so many tokens, at a word."""
    from spanjax.data.feed.rows import open_rows
    from spanjax.data.shards.packing import SENTENCE_START
    from spanjax.data.shards.shards import write_rows
    from spanjax.data.vocab.base import SPECIAL_PIECES
    from spanjax.data.vocab.loading import WordPieceVocabulary

    blocks, pieces = made_blocks(np.full(count, length - 2), VOCABULARY)
    words = len(SPECIAL_PIECES) + (VOCABULARY - len(SPECIAL_PIECES)) // 2
    for block in blocks:
        for place in range(0, len(block), SENTENCE):
            begin = place + int(np.argmax(block.ids[place:] < words))
            block.flags[begin] = SENTENCE_START
    write_rows(folder, ([block] for block in blocks), WordPieceVocabulary(pieces), length)
    return open_rows(folder)


class Step:
    """The compiled step of a system with its state and one batch."""

    def __init__(self, objective: Any, encoder: Any, rows: Any, batch: int, length: int):
        from spanjax.sharding import to_global

        encoder = dataclasses.replace(encoder, positions=length)
        self.session = one_device_session(encoder, rows, objective=objective, batch_size=batch)
        feed = self.session.feed(0)
        local = next(feed)
        feed.close()  # pyright: ignore[reportAttributeAccessIssue]
        self.flops = self.session.flops(local)
        self.batch = to_global(local, self.session.mesh)
        self.state = self.session.fresh_state()
        step = self.session.train_step()
        self.compiled, self.seed = step.lower(self.session.abstract, self.batch).compile(), step.seed
        memory = self.compiled.memory_analysis()
        self.memory = memory.argument_size_in_bytes + memory.temp_size_in_bytes

    def run(self) -> None:
        """One update, finished."""
        import jax

        self.state, shown = self.compiled(self.state, self.batch, self.seed)
        jax.block_until_ready(shown)


def main() -> int:
    """Runs everything; the exit code."""
    more = argparse.ArgumentParser(add_help=False)
    for name, value in (("layers", 4), ("width", 256), ("batch", 16), ("length", 128)):
        more.add_argument(f"--{name}", type=int, default=value, help=f"{name} of the model or of its rows")
    found = timing.options(__doc__ or "", more)
    timing.pin(found.cores)
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_with_sentences(pathlib.Path(folder) / "rows", 4 * found.batch, found.length)
        steps = {
            name: Step(objective, encoder, rows, found.batch, found.length)
            for name, (objective, encoder) in systems(found.width, found.layers).items()
        }
        seconds = timing.alternating({name: step.run for name, step in steps.items()}, found.repeats)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    first = next(iter(steps))
    figures: dict[str, Any] = {"sizes": {name: getattr(found, name) for name in ("layers", "width", "batch", "length")}}
    targets = []
    for name, step in steps.items():
        time, work = medians[name] / medians[first], step.flops / steps[first].flops
        figures[name] = {"seconds": seconds[name], "flops": step.flops, "bytes": step.memory}
        print(
            f"{name:28s}{1000 * medians[name]:9.1f} ms a step, {time:.2f} of SpanBERT's;"
            f" {step.flops / 1e9:8.2f} GFLOP, {work:.2f}; {step.memory / 2**20:8.1f} MiB"
        )
        targets.append(timing.Target(f"{name}: time over FLOPs, beside SpanBERT's", time / work, most=SLACK))
    return timing.report(figures, targets, found)


if __name__ == "__main__":
    sys.exit(main())
