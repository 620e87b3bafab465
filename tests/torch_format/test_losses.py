"""Losses and all their gradients beside those of transformers' classes, on random weights of every family."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.nn.heads import DetectionHead
from spanjax.nn.two_streams import CONTEXT
from spanjax.objectives import electra
from spanjax.objectives.loss_terms import canonical
from spanjax.objectives.xlnet import PermutedPrediction
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, module_params
from spanjax.tasks.base import TaskModule
from spanjax.torch_format.configs import config_from_hf
from spanjax.torch_format.names import known_names
from spanjax.torch_format.tables import params_from_hf, tensors_to_hf
from spanjax.torch_format.task_tables import with_heads
from spanjax.training.state import abstract_module
from tests.torch_format.references import reference, saved, tensors
from tests.torch_format.test_task_tables import LABELS, batch_of_rows, scores, task_of, torch_scores

ROWS, LENGTH, SLOTS = 3, 17, 4
LOCAL = ["full_attention", "sliding_attention", "full_attention"]
PAIRS = {"bert_pairs": ("nsp", "next_sentence_label"), "albert_pairs": ("sop", "sentence_order_label")}


def opened(theirs: Any, pair: str = "nsp") -> Model:
    encoder, family = config_from_hf(theirs.config.to_dict(), "config.json")
    found = params_from_hf(known_names(tensors(theirs), family)[0], encoder, family)
    return Model(encoder, found.params, None, source=None, pair=pair)  # pyright: ignore[reportArgumentType]


def rows(pieces: int) -> dict[str, np.ndarray]:
    """Full rows of two segments with targets, and a label a row."""
    random = np.random.default_rng(1)
    slots = np.stack([np.sort(random.choice(LENGTH, SLOTS, replace=False)) for _ in range(ROWS)])
    tokens = random.integers(5, pieces, (ROWS, LENGTH)).astype(np.int32)
    return {
        "tokens_BL": tokens,
        "segments_BL": np.ones_like(tokens),
        "positions_BL": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape),
        "types_BL": np.zeros_like(tokens),
        "row_B": np.arange(ROWS, dtype=np.int32),
        "slot_position_BK": slots.astype(np.int32),
        "slot_target_BK": random.integers(5, pieces, (ROWS, SLOTS)).astype(np.int32),
        "slot_weight_BK": np.ones((ROWS, SLOTS), np.float32),
        "pair_position_BP": np.zeros((ROWS, 1), np.int32),
        "pair_label_BP": np.array([[1], [0], [1]], np.int32),
        "pair_weight_BP": np.ones((ROWS, 1), np.float32),
    }


def compared(theirs: Any, loss: Any, model: Model, ours: Callable[[Any], jax.Array], params: Any) -> None:
    """float32: the loss within 1e-5, every gradient within 1e-4 of its largest."""
    loss.backward()
    with jax.default_matmul_precision("highest"):
        value, gradient = jax.value_and_grad(ours)(jax.tree.map(jnp.asarray, params))
    assert float(value) == pytest.approx(float(loss.detach()), rel=1e-5)
    family = with_heads(model.family, model.kind, model.parts)
    found = dict(tensors_to_hf(canonical(jax.tree.map(np.asarray, gradient)), model.encoder, family))
    named, tied = (
        theirs.named_parameters(),
        model.family.tied,
    )  # XLM-R's class names the shared table by its decoder first
    expected = {tied.get(name, name): each.grad.numpy() for name, each in named if each.grad is not None}
    assert expected.keys() <= found.keys()
    for name, array in found.items():
        wanted = expected.get(name, np.zeros_like(array))
        np.testing.assert_allclose(array, wanted, atol=1e-4 * max(1e-3, np.abs(wanted).max()), err_msg=name)


MASKED = [
    *("bert", "roberta", "xlm-roberta", "camembert", "distilbert"),
    *("albert", "electra", "modernbert", "modernbert_local", "deberta-v2", "deberta-v2_own"),
]


ALIKE = ("roberta", "xlm-roberta", "camembert", "electra", "modernbert", "deberta-v2_own")
"""Kinds that differ from another one in their names or in a setting."""


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=pytest.mark.slow) if each in ALIKE else each for each in (*MASKED, *PAIRS)]
)
def test_masked_tokens_and_pairs(kind: str) -> None:
    import torch

    theirs, (pair, label) = reference(kind), PAIRS.get(kind, ("nsp", ""))
    model = opened(theirs, pair)
    objective, batch = model.objective(), rows(model.encoder.vocab_size)
    given = {name: jnp.asarray(array) for name, array in batch.items()}
    structure, abstract = abstract_module(objective, model.encoder)
    labels = np.full((ROWS, LENGTH), -100)
    np.put_along_axis(labels, batch["slot_position_BK"].astype(int), batch["slot_target_BK"], axis=1)
    more = {label: torch.from_numpy(batch["pair_label_BP"][:, 0]).long()} if label else {}
    expected = theirs(
        input_ids=torch.from_numpy(batch["tokens_BL"]).long(), labels=torch.from_numpy(labels).long(), **more
    ).loss

    def loss(params: Any) -> jax.Array:
        means = objective.measure(nnx.merge(structure, params), given, None)
        parts = [means[name] for name in objective.loss_weights()]
        return jnp.sum(jnp.stack([mean.total / mean.count for mean in parts]))

    compared(theirs, expected, model, loss, module_params(model, abstract))


def test_detection_of_replaced_tokens() -> None:
    import torch

    theirs = reference("electra_detector")
    model, random = opened(theirs), np.random.default_rng(2)
    batch, labels = rows(model.encoder.vocab_size), random.integers(0, 2, (ROWS, LENGTH))
    batch["segments_BL"] = (np.arange(LENGTH) < np.array([[17], [11], [5]])).astype(np.int32)
    expected = theirs(
        input_ids=torch.from_numpy(batch["tokens_BL"]).long(),
        attention_mask=torch.from_numpy(batch["segments_BL"]).long(),
        labels=torch.from_numpy(labels),
    ).loss
    module: Any = TaskModule(model.encoder, nnx.Rngs(0))
    module.rtd = DetectionHead(model.encoder, nnx.Rngs(0))
    structure, state = nnx.split(module)

    def loss(params: Any) -> jax.Array:
        module = nnx.merge(structure, params)
        inputs = (jnp.asarray(batch[f"{name}_BL"]) for name in ("tokens", "segments", "positions", "types"))
        scores = module.rtd(module.encoder(*inputs, None))
        mean = electra._detection(scores, jnp.asarray(labels > 0), jnp.asarray(batch["segments_BL"], jnp.float32))
        return mean["rtd/loss"].total / mean["rtd/loss"].count

    compared(theirs, expected, model, loss, module_params(model, nnx.to_pure_dict(state)))


@pytest.mark.parametrize(
    ("kind", "pooling"), [("sequence", "cls"), ("sequence", "mean"), ("token", ""), ("question", "")]
)
def test_scores_of_a_fine_tuned_modernbert(kind: str, pooling: str, tmp_path: pathlib.Path) -> None:
    """Squares of all scores of ragged rows, so that every score has a gradient; local layers too."""
    import torch

    settings: dict[str, Any] = {"id2label": LABELS} if kind != "question" else {}
    settings |= {"classifier_pooling": pooling} if pooling else {}
    theirs = saved(f"modernbert_{kind}", tmp_path, **settings, layer_types=LOCAL, local_attention=8)
    model = load_model(tmp_path)
    task, batch = task_of(model), batch_of_rows(model.encoder)
    structure, abstract = abstract_module(task, model.encoder)
    used = batch["segments_BL"][..., None] if kind != "sequence" else np.ones((1, 1), np.int32)
    expected = (torch_scores(theirs, batch) * torch.from_numpy(used)).square().sum()

    def loss(params: Any) -> jax.Array:
        return jnp.sum(jnp.square(scores(task, nnx.merge(structure, params), batch) * used))

    compared(theirs, expected, model, loss, module_params(model, abstract))


def test_permuted_tokens() -> None:
    import torch

    theirs = reference("xlnet")
    model = opened(theirs)
    objective, batch = model.objective(), rows(model.encoder.vocab_size)
    assert isinstance(objective, PermutedPrediction)
    batch["types_BL"] = np.repeat((np.arange(LENGTH) > 8)[None].astype(np.int32), ROWS, axis=0)
    given = {name: jnp.asarray(array) for name, array in batch.items()}
    rank = np.asarray(objective.ranks(given, None))
    hidden = rank[:, None, :] >= np.where(rank == CONTEXT, CONTEXT + 1, rank)[:, :, None]
    mapping = np.arange(LENGTH) == batch["slot_position_BK"][:, :, None]
    expected = theirs(
        input_ids=torch.from_numpy(batch["tokens_BL"]).long(),
        token_type_ids=torch.from_numpy(batch["types_BL"]).long(),
        perm_mask=torch.from_numpy(hidden.astype(np.float32)),
        target_mapping=torch.from_numpy(mapping.astype(np.float32)),
        labels=torch.from_numpy(batch["slot_target_BK"]).long(),
    ).loss
    structure, abstract = abstract_module(objective, model.encoder)

    def loss(params: Any) -> jax.Array:
        mean = objective.measure(nnx.merge(structure, params), given, None)["plm/loss"]
        return mean.total / mean.count

    compared(theirs, expected, model, loss, module_params(model, abstract))
