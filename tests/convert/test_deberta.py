"""A DeBERTa that transformers saved is trained on by one command, fine-tuned by another, and both are written back."""

import json
import pathlib

import numpy as np
import pytest

from spanjax import train
from spanjax.convert import main as convert
from spanjax.pretrained.load import load_model
from spanjax.torch_format.folder import EXTRA_HEADS, read_folder
from tests.convert.continued import continuing, rows_of
from tests.experiment.test_finetune import arguments as task_arguments
from tests.experiment.test_finetune import sentences
from tests.torch_format.references import saved, tensors


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with transformers' model in `theirs` and packed rows of 32 in `rows`."""
    folder = tmp_path_factory.mktemp("deberta")
    saved("deberta-v2", folder / "theirs")
    rows_of(folder)
    return folder


@pytest.mark.slow
def test_continue_a_deberta_and_write_it_back(
    rows: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SpanBERT's objective; no flag of the architecture, the settings of distances are those of the weights."""
    words = continuing(rows / "theirs", rows / "rows", tmp_path / "run")
    capsys.readouterr()
    assert train.main(words) == 0
    told = "".join(capsys.readouterr())
    assert "encoder.disentangled_attention both (not none)" in told and "encoder.max_distance 12 (not 0)" in told
    assert "the one for distances" in told and "held-out sbo loss" in told
    assert convert(["to-torch", str(tmp_path / "run"), str(tmp_path / "back"), "--verify"]) == 0
    assert "all within" in capsys.readouterr().out
    assert {"mlm", "sbo"} <= load_model(tmp_path / "back").parts
    before, after = tensors(saved("deberta-v2", tmp_path / "again")), read_folder(tmp_path / "back").tensors
    assert {*after} - {*before} == {name for name in after if name.startswith("cls.pair_target_predictions.")}
    moved = [float(np.abs(after[name] - array).max()) for name, array in before.items() if name in after]
    assert len(moved) > 50 and 0 < max(moved) < 0.01, "two steps from these weights"
    assert (tmp_path / "back" / EXTRA_HEADS).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("pooler", ["dense", "gelu"])
def test_fine_tune_a_deberta_and_write_it_back(
    rows: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], pooler: str
) -> None:
    files = [sentences(tmp_path / f"{seed}.jsonl", 32, seed) for seed in (0, 1)]
    more = ("--objective.epochs=1", f"--objective.pooler={pooler}", "--optimizer.learning-rate=1e-3")
    assert train.main(task_arguments(files, rows / "theirs", tmp_path / "run", *more)) == 0
    capsys.readouterr()
    assert convert(["to-torch", str(tmp_path / "run"), str(tmp_path / "back"), "--verify"]) == 0
    told = capsys.readouterr().out
    assert "all within" in told and "sequence logits" in told
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["architectures"] == ["DebertaV2ForSequenceClassification"]
    assert config["pooler_hidden_act"] == {"dense": "tanh", "gelu": "gelu"}[pooler]
