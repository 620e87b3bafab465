"""A ModernBERT that transformers saved is trained on by one command, and written back by another."""

import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax import train
from spanjax.convert import main as convert
from spanjax.prepare import main as prepare
from spanjax.pretrained.load import load_model
from spanjax.torch_format.folder import read_folder
from tests.running import ROOT
from tests.torch_format.references import REASON, WORDS, saved, tensors


@pytest.mark.slow
def test_continue_a_modernbert_and_write_it_back(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No flag of the architecture: kinds of layers, window, bases and types are those of the weights."""
    theirs = saved("modernbert_local", tmp_path / "theirs")
    random = np.random.default_rng(0)
    text = "\n\n".join(" ".join(random.choice(WORDS, 60)) + "." for _ in range(40))
    (tmp_path / "text.txt").write_text(text)
    rows = ["--input", str(tmp_path / "text.txt"), "--vocab", str(tmp_path / "theirs"), "--length", "32"]
    assert prepare([*rows, "--holdout", "0.2", "--workers", "1", "--output", str(tmp_path / "rows")]) == 0
    words = [f"--config={ROOT / 'configs/pretrain/continue_spanbert.py'}", f"--init-from={tmp_path / 'theirs'}"]
    words += [f"--rows={tmp_path / 'rows'}", f"--workdir={tmp_path / 'run'}", "--steps=2", "--batch-size=4"]
    words += ["--encoder.positions=64", "--cadence.eval-batches=1", "--data.feed=numpy", "--optimizer.warmup-steps=1"]
    capsys.readouterr()
    assert train.main(words) == 0
    said = "".join(capsys.readouterr())
    assert "encoder.local_window 4 (not 0)" in said and "encoder.types 0 (not 2)" in said
    assert convert(["to-torch", str(tmp_path / "run"), str(tmp_path / "back"), "--verify"]) == 0
    assert "all within" in capsys.readouterr().out
    model, before = load_model(tmp_path / "back"), tensors(theirs)
    encoder = model.encoder
    assert (encoder.local_window, encoder.global_every, encoder.rope_theta, encoder.local_rope_theta) == (
        4,
        3,
        2e4,
        500,
    )
    after: Any = read_folder(tmp_path / "back").tensors
    assert {name: array.shape for name, array in before.items() if name in after} == {
        name: array.shape for name, array in after.items() if name in before
    }
    moved = [float(np.abs(after[name] - array).max()) for name, array in before.items() if name in after]
    assert len(moved) > 20 and 0 < max(moved) < 0.01, "two steps from these weights"
    assert (tmp_path / "back" / "modeling_spanbert.py").is_file(), REASON
