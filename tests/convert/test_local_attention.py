"""A ModernBERT that transformers saved is trained on by one command, and written back by another."""

import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax import train
from spanjax.convert import main as convert
from spanjax.pretrained.load import load_model
from spanjax.torch_format.folder import read_folder
from tests.convert.continued import continuing, rows_of
from tests.torch_format.references import REASON, saved, tensors


@pytest.mark.slow
def test_continue_a_modernbert_and_write_it_back(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No flag of the architecture: kinds of layers, window, bases and types are those of the weights."""
    theirs = saved("modernbert_local", tmp_path / "theirs")
    words = continuing(tmp_path / "theirs", rows_of(tmp_path), tmp_path / "run")
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
