"""A ModernBERT that transformers saved is trained on or fine-tuned by one command, and written back by another."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax import train
from spanjax.convert import main as convert
from spanjax.evaluate import main as evaluate
from spanjax.predict import main as predict
from spanjax.pretrained.load import load_model
from spanjax.torch_format.folder import read_folder
from tests.convert.continued import continuing, rows_of
from tests.experiment.test_finetune import arguments as task_arguments
from tests.experiment.test_finetune import sentences
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


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_fine_tune_a_modernbert_and_use_it_in_transformers(
    pooling: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 steps from a ForMaskedLM; transformers gives the scores of `predict`, and its own folder is evaluated and trained on."""
    import torch
    import transformers

    theirs = saved("modernbert_local", tmp_path / "theirs")
    files = [sentences(tmp_path / f"{seed}.jsonl", 80, seed) for seed in (0, 1)]
    settings = [
        "--objective.pooler=prediction_head",
        f"--objective.pooling={pooling}",
        "--optimizer.learning-rate=3e-3",
    ]
    words = task_arguments(files, tmp_path / "theirs", tmp_path / "run", *settings, "--objective.epochs=4")
    assert train.main([*words, "--dry-run"]) == 0
    assert "prediction_head: starts as the layers of the masked token head" in capsys.readouterr().out
    assert train.main(words) == 0
    assert "finished: 20 steps" in capsys.readouterr().out
    assert convert(["to-torch", str(tmp_path / "run"), str(tmp_path / "hf"), "--verify"]) == 0
    told = capsys.readouterr().out
    assert "sequence logits" in told and "all within" in told
    before, model = tensors(theirs), load_model(tmp_path / "run")
    moved = np.abs(model.params["prediction_head"]["dense"]["kernel"].T - before["head.dense.weight"]).max()
    assert 0 < moved < 0.1, "20 steps from the masked token head"

    texts = ["read the file name", "a", "parse values close write open list values " * 4]
    assert predict(["classify", str(tmp_path / "run"), "--text", *texts]) == 0
    ours = [json.loads(line)["probabilities"] for line in capsys.readouterr().out.splitlines()]
    # rows of up to 32 tokens, as the task reads them
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    encoded = tokenizer(texts, truncation=True, max_length=32, padding=True, return_tensors="pt")
    tuned = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    assert type(tuned).__name__ == "ModernBertForSequenceClassification" and tuned.config.classifier_pooling == pooling
    with torch.no_grad():
        given = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        chances = tuned(**given).logits.softmax(dim=-1).numpy()
    for row, found in zip(chances, ours, strict=True):
        assert [found["no"], found["yes"]] == pytest.approx(row.tolist(), abs=1e-5)
    assert len({round(float(row[0]), 4) for row in chances}) == 3

    scores = []
    for folder in (tmp_path / "run", tmp_path / "again"):
        if folder.name == "again":
            tuned.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        assert evaluate([str(folder), "--data", str(files[1]), "--json"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["scores"])
    assert scores[0] == scores[1]
    words = task_arguments(files, tmp_path / "again", tmp_path / "more", *settings)
    assert train.main([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "loaded classifier, encoder, prediction_head" in told and "drawn fresh" not in told
