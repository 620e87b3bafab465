"""A written folder in transformers: the classes load it, and say nothing that docs/weights.md does not explain."""

import logging
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from spanjax.convert import main as convert
from spanjax.inference.fill_mask import Filler
from spanjax.pretrained.load import load_model
from tests.torch_format.references import REASON

transformers: Any = pytest.importorskip("transformers", reason=REASON)


@pytest.fixture(scope="module")
def folder(run_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("written") / "hf"
    assert convert(["to-torch", str(run_folder), str(path)]) == 0
    return path


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    """Everything that transformers logs from warnings on."""
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    yield lambda: "\n".join(record.getMessage() for record in caplog.records)
    transformers.logging.set_verbosity(before)
    logger.removeHandler(caplog.handler)


def test_the_masked_language_model_loads_in_silence(folder: pathlib.Path, said: Any) -> None:
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    assert said() == ""
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert str(model.dtype) == "torch.float32" and model.config.vocab_size == 120


def test_the_encoder_alone_reports_the_head_and_the_pooler(folder: pathlib.Path, said: Any) -> None:
    transformers.AutoModel.from_pretrained(folder)
    rows = [line.split("|")[:2] for line in said().splitlines() if re.search(r"\| (UNEXPECTED|MISSING)", line)]
    told = {
        (re.sub(r"\x1b\[[0-9;]*m", "", name).strip(), re.sub(r"\x1b\[[0-9;]*m", "", what).strip())
        for name, what in rows
    }
    assert {name for name, what in told if what == "MISSING"} == {"pooler.dense.bias", "pooler.dense.weight"}
    assert all(name.startswith("cls.predictions.") for name, what in told if what == "UNEXPECTED")


def test_fine_tuning_classes_load(folder: pathlib.Path) -> None:
    for name in ("QuestionAnswering", "TokenClassification", "SequenceClassification"):
        model = getattr(transformers, f"AutoModelFor{name}").from_pretrained(folder)
        table = load_model(folder).params["encoder"]["embeddings"]["token"]["embedding"][:120]
        np.testing.assert_array_equal(model.bert.embeddings.word_embeddings.weight.detach().numpy(), table)


def test_the_pipeline_fills_masks_as_we_do(folder: pathlib.Path, said: Any) -> None:
    pipeline = transformers.pipeline("fill-mask", model=str(folder))
    assert said() == ""
    theirs = pipeline("the long [MASK] was good", top_k=4)
    (ours,) = Filler(load_model(folder)).fill_mask("the long [MASK] was good", top=4)
    vocabulary = load_model(folder).vocabulary
    assert vocabulary is not None
    assert [vocabulary.pieces[each["token"]] for each in theirs] == [piece for piece, _ in ours.candidates]
    np.testing.assert_allclose([each["score"] for each in theirs], [chance for _, chance in ours.candidates], rtol=1e-3)


def test_the_tokenizer_gives_our_ids_in_silence(folder: pathlib.Path, said: Any) -> None:
    tokenizer, vocabulary = transformers.AutoTokenizer.from_pretrained(folder), load_model(folder).vocabulary
    assert vocabulary is not None and tokenizer.model_max_length == 128
    for text in ("the long time was good", "Two sentences. And one more!"):
        expected = [vocabulary.specials.cls, *vocabulary.encode([text])[0].tolist(), vocabulary.specials.sep]
        assert tokenizer(text)["input_ids"] == expected
    assert said() == ""
