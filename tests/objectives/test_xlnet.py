"""Permuted prediction: what must not be seen is not seen, in any order; the memory; where it trains."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.data.feed.masking import GeometricSpans, Replacement, Tokens
from spanjax.data.feed.pairing import FullSentences
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, step_key
from spanjax.nn.two_streams import CONTEXT, Memory, context_of, remembered, two_streams
from spanjax.objectives.xlnet import STATES, USED, PermutedPrediction
from spanjax.training.state import abstract_module
from tests.made import synthetic_batch, tiny_encoder, with_noise

ENCODER = tiny_encoder(positions=32, relative_attention=True, initializer_std=0.2)
XLNET = PermutedPrediction()
REMEMBERING = PermutedPrediction(pairing=FullSentences(), memory=6)
ROWS, LENGTH = 3, 32


@pytest.fixture(scope="module")
def module() -> Any:
    structure, abstract = abstract_module(XLNET, ENCODER)
    leaves, tree = jax.tree.flatten(abstract)
    rng = np.random.default_rng(0)
    drawn = [jnp.asarray(rng.normal(0, 0.3, each.shape), jnp.float32) for each in leaves]
    return nnx.merge(structure, jax.tree.unflatten(tree, drawn))


@pytest.fixture(scope="module")
def batch() -> dict:
    """Targets keep their tokens."""
    made = {name: jnp.asarray(array) for name, array in synthetic_batch(ROWS, LENGTH, 8, 50).items()}
    rows = jnp.arange(ROWS)[:, None]
    place = jnp.where(made["slot_weight_BK"] > 0, made["slot_position_BK"], LENGTH)
    return {**made, "tokens_BL": made["tokens_BL"].at[rows, place].set(made["slot_target_BK"], mode="drop")}


def scores(module: Any, batch: dict, rank: Any) -> jax.Array:
    hidden, _ = XLNET._streams(module, batch, jnp.asarray(rank), None, None)
    return XLNET.logits(module, hidden, batch)[:, 0]


def key(batch: dict, step: int = 0) -> DropoutKey:
    return DropoutKey(step_key(0, jnp.int32(step)), batch["row_B"])


def test_the_loss_is_the_cross_entropy_at_the_targets(module: Any, batch: dict) -> None:
    means = XLNET.measure(module, batch, None)
    logits = np.asarray(scores(module, batch, XLNET.ranks(batch, None)), np.float64)[..., :50]
    level = np.log(np.exp(logits).sum(-1))
    hit = np.take_along_axis(logits, np.asarray(batch["slot_target_BK"])[..., None], axis=-1)[..., 0]
    weight = np.asarray(batch["slot_weight_BK"])
    assert float(means["plm/loss"].total) == pytest.approx(((level - hit) * weight).sum(), rel=1e-5)
    assert float(means["plm/loss"].count) == weight.sum() == float(XLNET.counts(batch)["plm/loss"])


def test_a_target_sees_the_context_and_what_comes_before_it_in_the_order(module: Any, batch: dict) -> None:
    """The gradient of every slot's scores reaches exactly these tokens: those of lower rank in its block, never its own."""
    rank = np.asarray(XLNET.ranks(batch, key(batch)))
    segments, places = np.asarray(batch["segments_BL"]), np.asarray(batch["slot_position_BK"])
    table = module.encoder.embeddings.token.embedding[...]
    structure, params = nnx.split(module)

    def from_tokens(embedded: jax.Array) -> jax.Array:
        copy = nnx.merge(structure, params)
        copy.encoder.embeddings.narrow = lambda *_: embedded
        hidden, _ = XLNET._streams(copy, batch, jnp.asarray(rank), None, None)
        return hidden @ jnp.arange(1.0, 17.0)

    reached = np.asarray(jax.jacobian(from_tokens)(table[batch["tokens_BL"]]))  # [B, K, B, L, D]
    for row in range(ROWS):
        for slot in np.flatnonzero(np.asarray(batch["slot_weight_BK"])[row]):
            place = places[row, slot]
            lower = (rank[row] < rank[row, place]) & (segments[row] == segments[row, place])
            assert (np.abs(reached[row, slot]).max(-1)[row] > 0).tolist() == lower.tolist()
            assert not reached[row, slot][np.arange(ROWS) != row].any()
            assert not lower[place]


def test_with_the_identity_order_it_is_a_causal_model(module: Any) -> None:
    """All tokens are targets in the order of the text: the scores at a place are those of a row that ends there."""
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 50, (1, 9)), jnp.int32)
    start = module.query.start[...]

    def slots(tokens: jax.Array, places: jax.Array) -> jax.Array:
        ones, rank = jnp.ones_like(tokens), jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        context = context_of(ones, 0 * ones, rank, places, None)
        return two_streams(module.encoder, start, tokens, context, None, None)[0][0]

    whole = slots(tokens, jnp.arange(9)[None])
    for place in range(9):
        ends_there = tokens[:, : place + 1].at[0, place].set(7)
        np.testing.assert_allclose(slots(ends_there, jnp.array([[place]]))[0], whole[place], atol=1e-5)
    assert np.abs(np.asarray(whole[1:] - whole[:-1])).max() > 0.01


def test_orders_depend_on_the_row_and_the_step_alone(batch: dict) -> None:
    whole = np.asarray(XLNET.ranks(batch, key(batch)))
    part = {name: array[1:] for name, array in batch.items()}
    np.testing.assert_array_equal(XLNET.ranks(part, key(part)), whole[1:])
    other = np.asarray(XLNET.ranks(batch, key(batch, 1)))
    targets = whole != CONTEXT
    assert (targets == (other != CONTEXT)).all()
    assert (whole[targets] != other[targets]).all()
    np.testing.assert_array_equal(XLNET.ranks(batch, None), XLNET.ranks(batch, None))
    assert targets.sum() == np.asarray(batch["slot_weight_BK"]).sum()


def test_blocks_come_one_after_the_other_in_the_direction_of_reading(batch: dict) -> None:
    objective = dataclasses.replace(REMEMBERING, block=8)
    rank, targets = np.asarray(objective.ranks(batch, key(batch))), np.asarray(XLNET.ranks(batch, None)) != CONTEXT
    for row in range(ROWS):
        backward = int(batch["row_B"][row]) % 2 == 1
        places = np.flatnonzero(targets[row])
        blocks = (places // 8)[np.argsort(rank[row, places])]
        assert (np.diff(-blocks if backward else blocks) >= 0).all()
        assert len({*(places // 8)}) > 1
    assert {int(row) % 2 for row in batch["row_B"]} == {0, 1}


def test_padding_and_unused_slots_have_no_influence(module: Any, batch: dict) -> None:
    before, after = (XLNET.measure(module, each, None) for each in (batch, with_noise(batch)))
    for name in before:
        assert float(before[name].total) == pytest.approx(float(after[name].total), abs=1e-5)


def test_every_parameter_learns(module: Any, batch: dict) -> None:
    structure, params = nnx.split(module)
    other = {**batch, "types_BL": (jnp.arange(LENGTH)[None] > 5).astype(jnp.int32) + 0 * batch["types_BL"]}

    def loss(params: Any) -> jax.Array:
        return XLNET.measure(nnx.merge(structure, params), other, None)["plm/loss"].total

    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.grad(loss)(params)):
        assert float(jnp.abs(leaf).max()) > 0, jax.tree_util.keystr(path)


def test_an_empty_memory_is_none_and_a_full_one_is_read(module: Any, batch: dict) -> None:
    ones = {**batch, "segments_BL": jnp.ones_like(batch["segments_BL"])}
    spec = REMEMBERING.recurrent_state(ENCODER, LENGTH, jnp.float32)
    empty = {name: jnp.zeros((ROWS, *each.shape), each.dtype) for name, each in spec.items()}
    alone = REMEMBERING.measure(module, ones, None)["plm/loss"].total
    means, handed = REMEMBERING.losses_with_state(module, {**ones, **empty}, None)
    assert float(means["plm/loss"].total) == pytest.approx(float(alone), rel=1e-6)
    assert handed[STATES].shape == (ROWS, 2, 6, 16) and handed[USED].tolist() == [[1] * 6] * ROWS
    after = REMEMBERING.losses_with_state(module, {**ones, **handed}, None)[0]["plm/loss"].total
    assert abs(float(after) - float(alone)) > 1e-3


def test_no_gradient_reaches_the_memory(module: Any, batch: dict) -> None:
    spec = REMEMBERING.recurrent_state(ENCODER, LENGTH, jnp.float32)
    empty = {name: jnp.zeros((ROWS, *each.shape), each.dtype) for name, each in spec.items()}
    structure, params = nnx.split(module)

    def handed(params: Any) -> jax.Array:
        return jnp.sum(REMEMBERING.losses_with_state(nnx.merge(structure, params), {**batch, **empty}, None)[1][STATES])

    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(jax.grad(handed)(params)))


def test_the_memory_is_the_nearest_text_of_the_row(module: Any, batch: dict) -> None:
    """Forward rows hand on their last positions with text, backward rows their first."""
    spec = REMEMBERING.recurrent_state(ENCODER, LENGTH, jnp.float32)
    empty = {name: jnp.zeros((ROWS, *each.shape), each.dtype) for name, each in spec.items()}
    _, handed = REMEMBERING.losses_with_state(module, {**batch, **empty}, None)
    first = module.encoder.embeddings.token.embedding[...][batch["tokens_BL"]]
    assert (np.asarray(batch["segments_BL"])[:, -1] == 0).all(), "all rows are padded"
    for row in range(ROWS):
        text = np.flatnonzero(batch["segments_BL"][row])
        nearest = text[:6] if int(batch["row_B"][row]) % 2 else text[-6:]
        np.testing.assert_allclose(handed[STATES][row, 0], first[row, nearest], atol=1e-6)
        assert handed[USED][row].all()


@pytest.mark.parametrize(
    ("text", "old", "forward", "backward"),
    [
        (5, [6, 7, 8], [3, 4, 5], [1, 2, 3]),
        (2, [6, 7, 8], [8, 1, 2], [1, 2, 6]),
        (2, [0, 0, 8], [8, 1, 2], [1, 2, 8]),
        (1, [0, 0, 8], [0, 8, 1], [1, 8, 0]),
        (0, [6, 7, 8], [6, 7, 8], [6, 7, 8]),
    ],
)
def test_padding_is_no_memory(text: int, old: list[int], forward: list[int], backward: list[int]) -> None:
    """A short row keeps what is nearest of the memory before it: text is 1 ... 5, 9 is padding, what is not used is 0."""
    row_L = np.where(np.arange(5) < text, np.arange(1, 6), 9)
    olds_BM = np.array([sorted(old, key=bool), sorted(old, key=bool, reverse=True)])
    memory = Memory(
        jnp.asarray(olds_BM)[:, None, :, None], jnp.asarray(olds_BM > 0, jnp.int32), jnp.array([False, True])
    )
    segments_BL = jnp.asarray(np.tile(row_L < 9, (2, 1)), jnp.int32)
    kept = remembered(jnp.asarray(np.tile(row_L, (2, 1)))[None, :, :, None], segments_BL, memory)
    found = np.where(kept.used_BM > 0, kept.states_BNMD[:, 0, :, 0], 0)
    assert found.tolist() == [forward, backward]


def test_a_padded_row_reads_and_hands_on_a_memory_like_a_row_of_its_length(module: Any) -> None:
    """Two rows each way, of 9 and of 5 tokens; scores at all targets are those without padding."""
    rng = np.random.default_rng(2)
    texts = [rng.integers(0, 50, (2, size)).astype(np.int32) for size in (9, 5)]
    start, backward = module.query.start[...], jnp.array([False, True])

    def slots(padding: int) -> list[jax.Array]:
        memory = Memory(jnp.zeros((2, 2, 6, 16)), jnp.zeros((2, 6), jnp.int32), backward)
        found = []
        for text in texts:
            behind, size = [(0, 0), (0, padding)], text.shape[1]
            segments, tokens = (
                jnp.pad(jnp.ones_like(text), behind),
                jnp.pad(jnp.asarray(text), behind, constant_values=7),
            )
            places = jnp.tile(jnp.arange(size)[None], (2, 1))
            rank = jnp.pad(places, behind, constant_values=CONTEXT)
            context = context_of(segments, 0 * segments, rank, places, memory)
            slots_BKD, read_NBLD = two_streams(module.encoder, start, tokens, context, memory, None)
            memory = remembered(read_NBLD, segments, memory)
            found.append(slots_BKD)
        return found

    for padded, whole in zip(slots(7), slots(0), strict=True):
        np.testing.assert_allclose(padded, whole, atol=1e-5)


@pytest.mark.parametrize(
    ("objective", "encoder", "said"),
    [
        (XLNET, dataclasses.replace(ENCODER, relative_attention=False), "encoder.relative_attention is False"),
        (PermutedPrediction(masking=GeometricSpans()), ENCODER, "expected mask=0 and random=0"),
        (PermutedPrediction(memory=4), ENCODER, "expected FullSentences()"),
        (PermutedPrediction(memory=-1), ENCODER, "objective.memory is -1"),
        (XLNET, dataclasses.replace(ENCODER, rope_theta=10.0), "encoder.rope_theta is 10.0"),
        (XLNET, dataclasses.replace(ENCODER, attention="cudnn"), "encoder.attention is 'cudnn'"),
    ],
)
def test_settings_that_do_not_go_together_are_said(objective: Any, encoder: EncoderConfig, said: str) -> None:
    assert any(said in each for each in objective.problems(encoder) + encoder.problems())
    fine = PermutedPrediction(masking=Tokens(replacement=Replacement(mask=0.0, random=0.0)))
    assert not fine.problems(ENCODER) + ENCODER.problems()
