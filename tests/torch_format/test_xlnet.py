"""XLNet beside transformers: both streams, memory and segments, on random weights."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.convert import main as convert
from spanjax.nn.two_streams import CONTEXT, Memory, context_of, remembered, two_streams
from spanjax.objectives.xlnet import PermutedPrediction
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import module_params
from spanjax.training.state import abstract_module
from tests.torch_format.references import reference, saved, tensors, vocabulary

ROWS, LENGTH, SLOTS, REMEMBERED = 3, 17, 4, 5
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def theirs() -> Any:
    return reference("xlnet")


@pytest.fixture(scope="module")
def module(theirs: Any, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("xlnet") / "hf"
    saved("xlnet", folder)
    model = load_model(folder)
    structure, abstract = abstract_module(PermutedPrediction(), model.encoder)
    return nnx.merge(structure, jax.tree.map(jnp.asarray, module_params(model, abstract)))


def inputs(seed: int = 0) -> dict[str, np.ndarray]:
    """Rows with a target in every slot, its rank, and types of two segments."""
    rng = np.random.default_rng(seed)
    slots = np.stack([np.sort(rng.choice(np.arange(1, LENGTH), SLOTS, replace=False)) for _ in range(ROWS)])
    rank = np.full((ROWS, LENGTH), CONTEXT)
    for row in range(ROWS):
        rank[row, slots[row]] = rng.permutation(SLOTS)
    types = np.repeat((np.arange(LENGTH) > 9)[None].astype(np.int32), ROWS, axis=0)
    tokens = rng.integers(0, vocabulary().size, (ROWS, LENGTH)).astype(np.int32)
    return {"tokens": tokens, "rank": rank.astype(np.int32), "slots": slots.astype(np.int32), "types": types}


def ours(module: Any, given: dict[str, np.ndarray], memory: Memory | None = None) -> tuple[np.ndarray, jax.Array]:
    """Scores at the slots, and what went into the layers."""
    segments = jnp.ones((ROWS, LENGTH), jnp.int32)
    start = module.query.start[...]
    arrays = {name: jnp.asarray(array) for name, array in given.items()}
    context = context_of(segments, arrays["types"], arrays["rank"], arrays["slots"], memory)
    with jax.default_matmul_precision("highest"):
        hidden, read = two_streams(module.encoder, start, arrays["tokens"], context, memory, None)
        batch = {"slot_position_BK": arrays["slots"]}
        logits = PermutedPrediction().logits(module, hidden, batch)[:, 0, :, : vocabulary().size]
    return np.asarray(logits), read


def transformers_scores(model: Any, given: dict[str, np.ndarray], mems: Any = None) -> Any:
    """What XLNetLMHeadModel says with the same permutation mask and targets, and its memory."""
    import torch

    rank = given["rank"]
    level = np.where(rank == CONTEXT, CONTEXT + 1, rank)
    hidden = rank[:, None, :] >= level[:, :, None]
    mapping = (np.arange(LENGTH) == given["slots"][:, :, None]).astype(np.float32)
    with torch.no_grad():
        return model(
            input_ids=torch.from_numpy(given["tokens"].astype(np.int64)),
            token_type_ids=torch.from_numpy(given["types"].astype(np.int64)),
            perm_mask=torch.from_numpy(hidden.astype(np.float32)),
            target_mapping=torch.from_numpy(mapping),
            mems=mems,
            use_mems=True,
        )


def test_both_streams_are_those_of_transformers(theirs: Any, module: Any) -> None:
    given = inputs()
    found, _ = ours(module, given)
    np.testing.assert_allclose(found, transformers_scores(theirs, given).logits.numpy(), atol=TOLERANCE)


def test_a_memory_of_the_row_before_is_that_of_transformers(theirs: Any, module: Any) -> None:
    first, second = inputs(1), inputs(2)
    first["types"] = np.zeros_like(first["types"])
    empty = Memory(
        jnp.zeros((ROWS, 3, REMEMBERED, 48)), jnp.zeros((ROWS, REMEMBERED), jnp.int32), jnp.zeros(ROWS, bool)
    )
    alone, read = ours(module, first)
    with_nothing, _ = ours(module, first, empty)
    np.testing.assert_allclose(with_nothing, alone, atol=TOLERANCE)
    memory = remembered(read, jnp.ones((ROWS, LENGTH), jnp.int32), empty)
    mems = [each[-REMEMBERED:] for each in transformers_scores(theirs, first).mems]
    for layer, each in enumerate(mems):
        np.testing.assert_allclose(memory.states_BNMD[:, layer], each.numpy().swapaxes(0, 1), atol=TOLERANCE)
    found, _ = ours(module, second, memory)
    np.testing.assert_allclose(found, transformers_scores(theirs, second, mems).logits.numpy(), atol=TOLERANCE)
    assert np.abs(found - ours(module, second)[0]).max() > 100 * TOLERANCE


def test_a_memory_behind_the_row_is_that_of_a_row_with_both(module: Any) -> None:
    """A backward row and its memory are the two halves of a longer row of which the second half cannot see the first."""
    import torch

    given, later = inputs(3), inputs(4)
    given["types"], later["types"] = np.zeros_like(given["types"]), np.zeros_like(later["types"])
    theirs = reference("xlnet")
    both = np.concatenate([given["tokens"], later["tokens"]], axis=1)
    rank = np.concatenate([given["rank"], np.full((ROWS, LENGTH), CONTEXT)], axis=1)
    level = np.where(rank == CONTEXT, CONTEXT + 1, rank)
    hidden = rank[:, None, :] >= level[:, :, None]
    hidden[:, LENGTH:, :LENGTH] = True
    mapping = (np.arange(2 * LENGTH) == given["slots"][:, :, None]).astype(np.float32)
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.from_numpy(both.astype(np.int64)),
            token_type_ids=torch.zeros(both.shape, dtype=torch.int64),
            perm_mask=torch.from_numpy(hidden.astype(np.float32)),
            target_mapping=torch.from_numpy(mapping),
        ).logits.numpy()
    backward = jnp.ones(ROWS, bool)
    empty = Memory(jnp.zeros((ROWS, 3, LENGTH, 48)), jnp.zeros((ROWS, LENGTH), jnp.int32), backward)
    context = {**later, "rank": np.full((ROWS, LENGTH), CONTEXT, np.int32)}
    _, read = ours(module, context, empty)
    memory = remembered(read, jnp.ones((ROWS, LENGTH), jnp.int32), empty)
    np.testing.assert_allclose(ours(module, given, memory)[0], expected, atol=TOLERANCE)


def test_weights_go_both_ways(tmp_path: pathlib.Path, theirs: Any) -> None:
    saved("xlnet", tmp_path / "hf")
    assert convert(["from-torch", str(tmp_path / "hf"), str(tmp_path / "run")]) == 0
    assert convert(["to-torch", str(tmp_path / "run"), str(tmp_path / "back"), "--verify"]) == 0
    import safetensors.numpy

    back = safetensors.numpy.load_file(tmp_path / "back" / "model.safetensors")
    for name, array in back.items():
        np.testing.assert_array_equal(array, tensors(theirs)[name])
    assert "transformer.mask_emb" in back and "lm_loss.bias" in back
