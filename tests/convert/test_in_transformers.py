"""A written folder in transformers: the classes load it, and say nothing that docs/weights.md does not explain."""

import logging
import pathlib
import re
import sys
from typing import Any

import numpy as np
import pytest

from spanjax import train
from spanjax.convert import main as convert
from spanjax.inference.fill_mask import Filler
from spanjax.pretrained.load import load_model
from spanjax.torch_format.configs import REMOTE_CODE
from tests.running import ROOT, shrunk
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


def test_the_module_of_the_folder_is_run_only_where_it_is_trusted(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a question nor an import by transformers' own classes, nor by `from-torch`."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asks whether to run the code"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    assert (folder / REMOTE_CODE).is_file()
    before = set(sys.modules)
    for name in ("AutoModelForPreTraining", "AutoModelForMaskedLM", "AutoModel"):
        model = getattr(transformers, name).from_pretrained(folder)
        assert type(model).__module__ == "transformers.models.bert.modeling_bert"
    assert convert(["from-torch", str(folder), str(tmp_path / "back")]) == 0
    assert not (tmp_path / "modules").exists()
    assert not [
        name for name in set(sys.modules) - before if name.startswith("transformers_modules") and "modeling" in name
    ]


@pytest.mark.slow
def test_from_a_run_to_transformers_and_back_to_a_run(
    folder: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    """Loaded with both heads, filled, trained a step there, saved, read again, trained on here without a size flag."""
    import torch

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    model = transformers.AutoModelForPreTraining.from_pretrained(folder, trust_remote_code=True)
    assert said() == "" and type(model).__name__ == "SpanBertForPreTraining"
    tokenizer, text = transformers.AutoTokenizer.from_pretrained(folder), "the long [MASK] [MASK] was good"
    for head in ("mlm", "sbo", "both"):
        (fill,) = model.fill_spans(tokenizer, text, head=head)
        own = Filler(load_model(folder)).spans(text)[0].fills[head]
        assert [best[0][0] for best in fill["candidates"]] == [best[0][0] for best in own.candidates]
        assert fill["log_probability"] == pytest.approx(own.log_probability, abs=1e-4)
    inputs = tokenizer(text, return_tensors="pt")
    labels = torch.where(inputs["input_ids"] == tokenizer.mask_token_id, 17, -100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = model(**inputs, labels=labels)
    before.loss.backward()
    optimizer.step()
    after = model.eval()(**inputs, labels=labels)
    assert after.mlm_loss < before.mlm_loss and after.sbo_loss < before.sbo_loss
    model.save_pretrained(tmp_path / "tuned")
    assert convert(["from-torch", str(tmp_path / "tuned"), str(tmp_path / "back"), f"--vocab={folder}"]) == 0
    back = load_model(tmp_path / "back")
    boundary = model.cls.pair_target_predictions.mlp_layer_norm.linear1.weight.detach().numpy()
    np.testing.assert_array_equal(back.params["sbo"]["dense1"]["kernel"], boundary.T)
    words = shrunk(str(ROOT / "configs/pretrain/tiny.py"), rows_folder, tmp_path / "on", 2, "--data.feed=numpy")
    sizes = ("--encoder.hidden-size", "--encoder.layers", "--encoder.heads", "--encoder.intermediate-size")
    words = [word for word in words if word.partition("=")[0] not in sizes]
    assert train.main([*words, f"--init-from={tmp_path / 'back'}"]) == 0
    assert load_model(tmp_path / "on").parts == {"encoder", "mlm", "sbo"}
