"""Two steps of SpanBERT's objective from weights that transformers saved, on rows of their own vocabulary."""

import pathlib

import numpy as np

from spanjax.prepare import main as prepare
from tests.running import ROOT
from tests.torch_format.references import WORDS


def rows_of(folder: pathlib.Path) -> pathlib.Path:
    """Packed rows of 32 in folder/rows, with the vocabulary of the weights in folder/theirs."""
    random = np.random.default_rng(0)
    text = "\n\n".join(" ".join(random.choice(WORDS, int(count))) + "." for count in random.integers(5, 60, 60))
    (folder / "text.txt").write_text(text)
    words = ["--input", str(folder / "text.txt"), "--vocab", str(folder / "theirs"), "--length", "32"]
    assert prepare([*words, "--holdout", "0.2", "--workers", "1", "--output", str(folder / "rows")]) == 0
    return folder / "rows"


def continuing(weights: pathlib.Path, rows: pathlib.Path, workdir: pathlib.Path) -> list[str]:
    """The arguments of `train`; no flag of the architecture but a smaller table of positions."""
    words = [f"--config={ROOT / 'configs/pretrain/continue_spanbert.py'}", f"--init-from={weights}"]
    words += [f"--rows={rows}", f"--workdir={workdir}", "--steps=2", "--batch-size=4"]
    return [
        *words,
        *("--encoder.positions=64", "--cadence.eval-batches=1", "--data.feed=numpy", "--optimizer.warmup-steps=1"),
    ]
