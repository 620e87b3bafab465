"""ONNX folders: every graph in onnxruntime equals the model in JAX; int8; files, card and tokenizer of the folder."""

import dataclasses
import json
import pathlib
import re
import sys
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

pytest.importorskip("onnxruntime", reason="pip install 'spanjax[onnx]'")
import onnx
from onnx import numpy_helper

import spanjax
from spanjax.convert import main as convert
from spanjax.convert import onnx_graph
from spanjax.convert.compare import SENTENCES, make_inputs
from spanjax.convert.onnx_export import (
    GRAPH,
    INT8,
    compare_graph,
    int8_loss,
    of_task,
    open_session,
    rows_of,
    run_graph,
    save,
)
from spanjax.convert.options import ToOnnx
from spanjax.nn.encoder import Encoder
from spanjax.nn.heads import BoundaryHead, DetectionHead, Pooler, PredictionHead, TokenHead
from spanjax.nn.layer import linear
from spanjax.objectives.electra import generator_encoder
from spanjax.pretrained.model import Model
from spanjax.storage.outputs import files_below
from tests.made import tiny_encoder
from tests.running import ROOT
from tests.torch_format.references import REASON, vocabulary

MODERN = {"norm_first": True, "rope_theta": 1e4, "gated_mlp": True, "biases": False, "types": 0}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"position_offset": 1, "types": 1, "norm_epsilon": 1e-5},
    "albert": {"layers": 4, "num_layer_groups": 2, "embedding_size": 8, "activation": "gelu_tanh"},
    "electra": {"embedding_size": 8},
    "modernbert": MODERN,
    "modernbert local": {**MODERN, "layers": 3, "local_window": 4, "global_every": 2, "local_rope_theta": 50.0},
    "rotary alone": {"rope_theta": 1e4, "activation": "relu"},
    "norms first, with types and biases": {"norm_first": True},
}
GLUE = {"class": "Glue", "labels": ["no", "perhaps", "yes"], "length": 32}
NER = {"class": "Ner", "labels": ["O", "B-PER", "I-PER"], "length": 32}
QUESTIONS = {"class": "Questions", "max_answer": 30}
HEADED = {"pooler": "prediction_head"}
Heads = dict[str, Any]


def made_model(heads: str = "", task: dict[str, Any] | None = None, **settings: Any) -> Model:
    """A model with random weights, large enough that every position has scores of its own, and these heads."""
    encoder = tiny_encoder(vocab_size=vocabulary().size, initializer_std=0.3, **settings)
    rngs, size = nnx.Rngs(1), encoder.hidden_size
    makers = {
        "mlm": lambda: TokenHead(encoder, rngs),
        "sbo": lambda: BoundaryHead(encoder, 6, 3, rngs),
        "rtd": lambda: DetectionHead(encoder, rngs),
        "pooler": lambda: Pooler(encoder, rngs),
        "pre_classifier": lambda: linear(size, size, encoder, rngs),
        "pre_classifier_relu": lambda: linear(size, size, encoder, rngs),
        "classifier": lambda: linear(size, 3, encoder, rngs),
        "prediction_head": lambda: PredictionHead(encoder, rngs),
        "qa": lambda: linear(size, 2, encoder, rngs),
    }
    parts = {"encoder": Encoder(encoder, nnx.Rngs(0)), **{name: makers[name]() for name in heads.split()}}
    random = np.random.default_rng(2)
    # norms and biases differ from 1 and 0 too
    params = {
        name: jax.tree.map(
            lambda leaf: (np.asarray(leaf) + random.normal(0, 0.1, leaf.shape)).astype(np.float32),
            nnx.to_pure_dict(nnx.state(part)),
        )
        for name, part in parts.items()
    }
    return Model(encoder, params, vocabulary(), pathlib.Path("made"), task=task)


def exported(model: Model, folder: pathlib.Path, **options: Any) -> Model:
    """Writes the folder; returns the part of the model that it computes."""
    part = of_task(model, options.get("task", "auto"))
    save(part, ToOnnx("made", str(folder), **options))
    return part


def same_and_varied(model: Model, folder: pathlib.Path) -> set[str]:
    """Asserts that the graph equals JAX and that its outputs differ between positions or rows; returns their names."""
    found = {line.what: line.largest for line in compare_graph(model, folder)[1]}
    types_SL = rows_of(model).types_SL
    assert types_SL is not None and types_SL.any() == (model.encoder.types > 1)
    # LayerNorms over 8 and 16 numbers of small variance enlarge rounding: measured 1.6e-5 at logits of 5
    assert found.pop("tokenizer ids") == 0 and max(found.values()) < 3e-5
    for name, scores in run_graph(open_session(folder / GRAPH), rows_of(model)).items():
        assert scores.reshape(-1, scores.shape[-1]).std(axis=0).max() > 0.1, name
    return {*found}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("roberta", "electra", "modernbert") else name
        for name in ENCODERS
    ],
)
def test_encoders_and_both_heads_of_tokens(name: str, tmp_path: pathlib.Path) -> None:
    """Sentences of several lengths, every second one a pair, with masked spans in all."""
    model = exported(made_model("mlm sbo", **ENCODERS[name]), tmp_path / "out", sbo=True)
    assert same_and_varied(model, tmp_path / "out") == {"logits", "sbo_logits"}


@pytest.mark.parametrize(
    ("heads", "task", "settings"),
    [
        ("pooler classifier", GLUE, {}),
        ("pre_classifier classifier", {**GLUE, "pooler": "gelu"}, {}),
        ("pre_classifier_relu classifier", {**GLUE, "pooler": "relu"}, {"types": 0}),
        ("classifier", {**GLUE, "pooler": "none"}, MODERN),
        ("classifier", NER, ENCODERS["roberta"]),
        ("qa", QUESTIONS, ENCODERS["albert"]),
        ("prediction_head classifier", {**GLUE, **HEADED, "pooling": "mean"}, ENCODERS["modernbert local"]),
        ("prediction_head classifier", {**NER, **HEADED}, {**MODERN, "positions": 32}),
        ("prediction_head qa", {**QUESTIONS, **HEADED}, {**MODERN, "positions": 32}),
    ],
    ids=["pooler", "gelu", "relu", "bare", "tokens", "questions", "mean", "headed tokens", "headed questions"],
)
def test_heads_of_tasks(heads: str, task: dict, settings: dict, tmp_path: pathlib.Path) -> None:
    model = exported(made_model(heads, task, **settings), tmp_path / "out")
    outputs = {"start_logits", "end_logits"} if "qa" in heads else {"logits"}
    assert same_and_varied(model, tmp_path / "out") == outputs
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    if "qa" not in heads:
        assert list(config["id2label"].values()) == task["labels"]
    # transformers has no class for the bare one
    assert ("model_type" in config) == (settings != MODERN)


def test_the_encoder_of_a_model_with_heads(tmp_path: pathlib.Path) -> None:
    model = exported(made_model("mlm pooler classifier", GLUE), tmp_path / "out", task="encoder")
    assert same_and_varied(model, tmp_path / "out") == {"last_hidden_state"}
    stored = {each.name for each in onnx.load(tmp_path / "out" / GRAPH).graph.initializer}
    assert not [name for name in stored if name.startswith(("mlm", "pooler", "classifier"))]


def test_a_detector_fills_masks_by_its_generator(tmp_path: pathlib.Path) -> None:
    detector = made_model("rtd", embedding_size=8)
    own = made_model("mlm", embedding_size=8, intermediate_size=16)
    assert generator_encoder(detector.encoder, 16, 2, 16) == own.encoder
    layers = {name: part for name, part in own.params["encoder"].items() if name != "embeddings"}
    part = {**layers, "widen": own.params["encoder"]["embeddings"]["widen"], "mlm": own.params["mlm"]}
    both = dataclasses.replace(detector, params={**detector.params, "generator": part})
    model = exported(both, tmp_path / "out", task="fill-mask")
    assert same_and_varied(model, tmp_path / "out") == {"logits"}
    model = exported(both, tmp_path / "detector")
    assert same_and_varied(model, tmp_path / "detector") == {"last_hidden_state"}


def test_rows_do_not_see_padding(tmp_path: pathlib.Path) -> None:
    """A row alone, in a batch with padding behind it, and with padding in front; a row of padding alone is finite."""
    model = exported(made_model(), tmp_path / "out")
    session, inputs = open_session(tmp_path / "out" / GRAPH), make_inputs(model, SENTENCES)
    together = run_graph(session, inputs)["last_hidden_state"]
    for row, size in enumerate(inputs.used_SL.sum(axis=1)):
        cut = {name: getattr(inputs, name)[row : row + 1, :size] for name in ("tokens_SL", "used_SL", "types_SL")}
        alone = run_graph(session, inputs._replace(**cut))["last_hidden_state"]
        np.testing.assert_allclose(alone[0], together[row, :size], atol=1e-5)
        moved = {name: np.pad(each, [(0, 0), (3, 0)]) for name, each in cut.items()}
        behind = run_graph(session, inputs._replace(**moved))["last_hidden_state"]
        np.testing.assert_allclose(behind[:, 3:], alone, atol=1e-5)
    nothing = inputs._replace(used_SL=np.zeros_like(inputs.used_SL))
    assert np.isfinite(run_graph(session, nothing)["last_hidden_state"]).all()


def test_int8_is_smaller_and_near(tmp_path: pathlib.Path) -> None:
    model = exported(made_model("mlm", hidden_size=64, intermediate_size=256), tmp_path / "out", int8=True)
    sizes = json.loads((tmp_path / "out" / "conversion.json").read_text())["bytes"]
    # the table is stored twice: for lookups, and transposed for the head
    assert sizes[INT8] < 0.45 * sizes[GRAPH]
    loss = int8_loss(model, tmp_path / "out")
    assert 1e-4 < loss["mean"] < loss["largest"] and 0.98 < loss["cosine"] < 1
    kinds = {node.op_type for node in onnx.load(tmp_path / "out" / INT8).graph.node}
    assert {"DynamicQuantizeLinear", "MatMulInteger"} <= kinds and "Gemm" not in kinds
    stored = {each.name: numpy_helper.to_array(each) for each in onnx.load(tmp_path / "out" / INT8).graph.initializer}
    # a scale for each of the 3 x 64 columns, and numbers of 7 bits
    assert stored["layer.0.qkv.kernel_scale"].shape == (192,)
    assert 60 < np.abs(stored["layer.0.qkv.kernel_quantized"].astype(int)).max() <= 64


def test_large_models_have_their_parameters_in_a_second_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made_model("mlm")
    monkeypatch.setattr(onnx_graph, "ONE_FILE", 1000)
    exported(model, tmp_path / "out", int8=True)
    assert {onnx_graph.EXTERNAL, f"{INT8}.data"} <= files_below(tmp_path / "out")
    assert same_and_varied(of_task(model, "auto"), tmp_path / "out") == {"logits"}
    assert int8_loss(of_task(model, "auto"), tmp_path / "out")["cosine"] > 0.9
    exported(model, tmp_path / "out", overwrite=True)  # all of these files count as written by spanjax
    assert INT8 not in files_below(tmp_path / "out")


def test_layers_that_share_parameters_are_stored_once(tmp_path: pathlib.Path) -> None:
    exported(made_model("mlm", layers=4, num_layer_groups=1), tmp_path / "out")
    stored = onnx.load(tmp_path / "out" / GRAPH).graph.initializer
    tables = [each for each in stored if each.dims == [vocabulary().size, 16]]
    assert len(tables) == 1 and sum(each.name.endswith("qkv.kernel") for each in stored) == 1


def test_the_command_verifies_and_refuses(
    run_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A run of SpanBERT; then a graph with one weight that was changed on its way."""
    words = ["to-onnx", str(run_folder), str(tmp_path / "out"), "--sbo", "--int8", "--verify"]
    assert convert(words) == 0
    said = capsys.readouterr().out
    assert "sbo_logits" in said and "all within 0.0001" in said and re.search(r"cosine 0\.\d+", said)
    assert convert(words) == 2 and "exists already" in capsys.readouterr().err

    def damaged(model: Model, boundaries: bool) -> Any:
        graph = onnx_graph.onnx_model(model, boundaries)
        tensor = next(each for each in graph.graph.initializer if each.name == "layer.1.output.bias")
        moved = numpy_helper.to_array(tensor) + np.linspace(0, 0.1, 16, dtype=np.float32)
        tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
        return graph

    monkeypatch.setattr("spanjax.convert.onnx_export.onnx_model", damaged)
    assert convert([*words, "--overwrite"]) == 1
    assert "above 0.0001: logits, sbo_logits" in capsys.readouterr().out


def test_without_its_packages_the_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "spanjax.convert.onnx_export")
    assert convert(["to-onnx", "runs/mine", "out"]) == 2
    assert "onnxruntime is not installed, which this needs: pip install 'spanjax[onnx]'" in capsys.readouterr().err


def test_the_card_and_the_page_run(
    run_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python of the card and of docs/deployment.md, on the folder of a run."""
    pytest.importorskip("transformers", reason=REASON)
    monkeypatch.chdir(tmp_path)
    words = ["--name", "Mine", "--license", "mit", "--language", "de"]
    assert convert(["to-onnx", str(run_folder), "exported", "--sbo", *words]) == 0
    card = (tmp_path / "exported" / "README.md").read_text()
    assert {"license: mit", "language: de", "# Mine", 'folder = "exported"'} <= {*card.splitlines()}
    for page, names in (
        (tmp_path / "exported" / "README.md", ["logits"]),
        (ROOT / "docs" / "deployment.md", ["found", "both"]),
    ):
        snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        made: dict[str, Any] = {}
        for snippet in snippets:
            exec(compile(snippet, str(page), "exec"), made)
        assert snippets and all(name in made for name in names)
    (span,) = spanjax.load(run_folder).spans("The [MASK] [MASK] sat.", top=1)
    expected = [one[0][1] for one in span.fills["both"].candidates]
    logs = made["both"] - np.log(np.exp(made["both"]).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(np.exp(logs.max(axis=-1)), expected, rtol=1e-4)


def test_a_folder_without_model_type_has_a_tokenizer(tmp_path: pathlib.Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    model = exported(made_model("mlm", norm_first=True), tmp_path / "out")
    assert "model_type" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert "names no class" in (tmp_path / "out" / "conversion.json").read_text()
    tokenizer, specials = transformers.AutoTokenizer.from_pretrained(tmp_path / "out"), vocabulary().specials
    assert model.vocabulary is not None
    expected = [specials.cls, *model.vocabulary.encode(["the cat"])[0].tolist(), specials.sep]
    assert tokenizer("the cat")["input_ids"] == expected
