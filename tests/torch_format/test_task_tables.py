"""Fine-tuned models of three families and three kinds: every name comes back, scores are those of transformers."""

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.nn.config import EncoderConfig
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, module_params
from spanjax.tasks.base import HfHead, Task
from spanjax.tasks.glue import Glue
from spanjax.tasks.ner import Ner
from spanjax.tasks.rows import Row, TaskRows
from spanjax.tasks.squad import Questions
from spanjax.torch_format.families import BERT, FAMILIES, MODERNBERT
from spanjax.torch_format.tables import tensors_to_hf
from spanjax.torch_format.task_tables import CLASSES, HEADS, OUTPUTS, head_from_hf, head_of, needed, with_heads
from spanjax.training.state import abstract_module
from tests.torch_format.references import saved, tensors

LABELS = {0: "no", 1: "perhaps", 2: "yes"}
MEAN = "modernbert_sequence_mean"
TUNED = [*(f"{family}_{kind}" for family in FAMILIES for kind in HEADS[family]), MEAN]


@pytest.fixture(scope="module", params=TUNED)
def tuned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Model]:
    """Its name, transformers' model, and what is read from the folder that transformers wrote."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    labels = {} if name.endswith("question") else {"id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    labels |= {"classifier_pooling": "mean"} if name == MEAN else {}
    name = name.removesuffix("_mean")
    return name, saved(name, folder, **labels), load_model(folder)


def batch_of_rows(encoder: EncoderConfig) -> dict[str, np.ndarray]:
    """Rows as tasks make them, of one and two segments, padded."""
    random = np.random.default_rng(0)
    rows = []
    for number, (first, second) in enumerate(((9, 6), (14, 0), (2, 1), (1, 0))):
        tokens = random.integers(5, encoder.vocab_size, first + second).astype(np.int32)
        types = np.repeat([0, int(encoder.types > 1)], [first, second]).astype(np.int32)
        rows.append(Row(tokens, types, number, {"label_B": np.int32(0)}))
    packed = TaskRows(rows, max(0, encoder.position_offset - 1), lambda _: (16,))
    return packed.batch(np.arange(len(rows)), np.arange(len(rows)), 16)


def our_scores(model: Model, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Scores of the module that a task of this kind trains."""
    task = task_of(model)
    structure, abstract = abstract_module(task, model.encoder)
    module = nnx.merge(structure, jax.tree.map(jnp.asarray, module_params(model, abstract)))
    return np.asarray(scores(task, module, batch))


def task_of(model: Model) -> Task:
    """A task that computes the model's scores."""
    kept = {name: value for name, value in (model.task or {}).items() if name in ("pooler", "pooling")}
    if model.kind == "question":
        return Questions(**kept)
    return (Glue if model.kind == "sequence" else Ner)(labels=tuple(LABELS.values()), **kept)


def scores(task: Task, module: Any, batch: dict[str, np.ndarray]) -> jax.Array:
    """The task's scores of a batch; those of starts and ends side by side."""
    outputs = task.outputs(module, {name: jnp.asarray(each) for name, each in batch.items()})
    return jnp.stack([*outputs.values()], axis=-1) if isinstance(task, Questions) else next(iter(outputs.values()))


def transformers_scores(theirs: Any, batch: dict[str, np.ndarray]) -> np.ndarray:
    return torch_scores(theirs, batch).detach().numpy()


def torch_scores(theirs: Any, batch: dict[str, np.ndarray]) -> Any:
    """The scores of a class of transformers, as a tensor with its gradient."""
    import torch

    types = {"token_type_ids": torch.from_numpy(batch["types_BL"]).long()}
    output = theirs(
        input_ids=torch.from_numpy(batch["tokens_BL"]).long(),
        attention_mask=torch.from_numpy(batch["segments_BL"]).long(),
        **(types if theirs.config.model_type not in ("distilbert", "modernbert") else {}),
    )
    return torch.stack([output.start_logits, output.end_logits], dim=-1) if "start_logits" in output else output.logits


def test_scores_are_those_of_transformers(tuned: tuple[str, Any, Model]) -> None:
    name, theirs, model = tuned
    assert f"{model.family.model_type}_{model.kind}" == name
    batch = batch_of_rows(model.encoder)
    with jax.default_matmul_precision("highest"):
        ours, expected = our_scores(model, batch), transformers_scores(theirs, batch)
    used = batch["segments_BL"] > 0 if ours.ndim > 2 else slice(None)
    assert ours.shape == expected.shape and np.abs(expected[used]).max() > 0.1
    np.testing.assert_allclose(ours[used], expected[used], atol=1e-5)


def test_every_name_is_consumed_and_comes_back(tuned: tuple[str, Any, Model]) -> None:
    name, theirs, model = tuned
    names, family = tensors(theirs), model.family
    assert model.loaded is not None and {*model.loaded.loaded} | {*model.loaded.buffers} == {*names}
    back = dict(tensors_to_hf(model.params, model.encoder, with_heads(family, model.kind)))
    assert back.keys() == {*model.loaded.loaded}
    assert all(np.array_equal(array, names[each]) for each, array in back.items())
    assert model.task is not None and model.task.get("labels") == (
        None if model.kind == "question" else [*LABELS.values()]
    )


def test_older_files_of_roberta_hold_a_pooler_that_computes_nothing(tmp_path: pathlib.Path) -> None:
    """As roberta-large-mnli does: `roberta.pooler` beside a classifier of two layers."""
    from safetensors.numpy import save_file

    theirs = saved("roberta_sequence", tmp_path)
    stale = {
        f"roberta.pooler.dense.{name}": np.ones((48, 48) if name == "weight" else 48, "f")
        for name in ("weight", "bias")
    }
    save_file({**tensors(theirs), **stale}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load_model(tmp_path)
    assert any("roberta.pooler.dense.weight skipped: RobertaForSequenceClassification" in line for line in model.notes)
    np.testing.assert_array_equal(
        model.params["pooler"]["dense"]["bias"], theirs.classifier.dense.bias.detach().numpy()
    )


def test_the_search_of_answers_of_xlnet_is_refused(tmp_path: pathlib.Path) -> None:
    saved("xlnet_question", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("ForQuestionAnsweringSimple", "ForQuestionAnswering"))
    with pytest.raises(
        ValueError, match="XLNetForQuestionAnswering computes .*, XLNetForQuestionAnsweringSimple does not"
    ):
        load_model(tmp_path)


def test_a_modernbert_without_its_class_is_refused(tmp_path: pathlib.Path) -> None:
    """Its classes have the same names, and a guess would give answers for tags."""
    saved("modernbert_question", tmp_path)
    config = tmp_path / "config.json"
    whole = json.loads(config.read_text())
    for listed, words in (
        (None, "architectures is None: expected one of ModernBertForSequenceClassification, .*; name the class"),
        (["ModernBertForMultipleChoice"], r"missing \(1\): decoder.bias"),
    ):
        config.write_text(json.dumps(whole | {"architectures": listed}))
        with pytest.raises(ValueError, match=words):
            load_model(tmp_path)


def test_a_decoder_left_next_to_modernberts_classifier_is_skipped(tmp_path: pathlib.Path) -> None:
    """A program that fine-tunes all of a ForMaskedLM's parameters keeps the bias and the tied table."""
    from safetensors.numpy import save_file

    theirs = saved("modernbert_token", tmp_path)
    found = tensors(theirs)
    size = len(found["model.embeddings.tok_embeddings.weight"])
    stale = {"decoder.bias": np.ones(size, "f"), "decoder.weight": found["model.embeddings.tok_embeddings.weight"]}
    save_file({**found, **stale}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load_model(tmp_path)
    assert model.parts == {"encoder", "prediction_head", "classifier"}
    assert any("decoder.bias skipped: ModernBertForTokenClassification" in line for line in model.notes)


def test_the_kind_is_told_by_class_then_by_names() -> None:
    listed: tuple[tuple[dict[str, Any], set[str], HfHead | None], ...] = (
        ({"architectures": ["BertForTokenClassification"]}, {"classifier.weight", "bert.pooler.dense.weight"}, "token"),
        ({"architectures": ["BertForMultipleChoice"]}, {"classifier.weight"}, None),
        ({"architectures": "BertForTokenClassification"}, {"qa_outputs.weight"}, "question"),
        ({}, {"classifier.weight", "bert.pooler.dense.weight"}, "sequence"),
        ({}, {"classifier.weight"}, "token"),
        ({}, {"classifier.out_proj.weight"}, "sequence"),
        ({"architectures": ["BertForMaskedLM"]}, {"cls.predictions.bias", "bert.pooler.dense.weight"}, None),
    )
    for config, names, kind in listed:
        assert head_from_hf(config, names, BERT) == kind, (config, names)
    ours: tuple[tuple[set[str], dict[str, Any], HfHead | None], ...] = (
        ({"encoder", "qa", "pooler"}, {"class": "Questions"}, "question"),
        ({"encoder", "classifier"}, {"class": "Ner"}, "token"),
        ({"encoder", "classifier", "pooler"}, {"class": "Relation"}, "sequence"),
        ({"encoder", "mlm", "pooler"}, {}, None),
    )
    for parts, task, kind in ours:
        assert head_of(parts, task) == kind, (parts, task)


def test_tables_are_whole() -> None:
    """What a kind needs is in its table; no name of theirs stands for two parameters."""
    assert all(heads.keys() == CLASSES.keys() for heads in HEADS.values())
    assert HEADS.keys() == FAMILIES.keys() and CLASSES.keys() == OUTPUTS.keys()
    for name, family in FAMILIES.items():
        for kind in HEADS[name]:
            entries = with_heads(family, kind).entries
            assert {*needed(family, kind)} <= {entry.ours.split("/")[0] for entry in entries}
            for side in ("ours", "theirs"):
                names = [(getattr(entry, side), entry.part[0]) for entry in entries]
                assert len(names) == len({*names}), (name, kind, side)
    assert not any(entry.ours.startswith("mlm/") for entry in with_heads(MODERNBERT, "token").entries)
