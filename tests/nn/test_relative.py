"""Attention by distances beside its formula in loops, with a memory on either side."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.nn import relative
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.relative import AttentionMask, RelativeContext, RelativeLayer, full_context, joined, shifted, sinusoids
from spanjax.nn.two_streams import CONTEXT, Memory, context_of
from tests.made import tiny_encoder

SIZE, HEADS, LENGTH, REMEMBERED = 8, 2, 5, 3
CONFIG = tiny_encoder(
    vocab_size=10,
    hidden_size=SIZE,
    layers=1,
    heads=HEADS,
    intermediate_size=12,
    positions=512,
    relative_attention=True,
    initializer_std=0.5,
)


@pytest.fixture(scope="module")
def layer() -> RelativeLayer:
    return RelativeLayer(CONFIG, nnx.Rngs(3))


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mixed_in_loops(
    layer: Any, row: np.ndarray, memory: np.ndarray, places: list[int], types: list[int], seen: Any
) -> np.ndarray:
    """What attention mixes for every position of one row: keys are `memory` then `row`, at `places`, of `types`."""
    kernels = {
        name: np.asarray(getattr(layer, name).kernel[...], np.float64) for name in ("query", "key", "value", "distance")
    }
    keys = np.concatenate([memory, row])
    split = (-1, HEADS, SIZE // HEADS)
    query, key, value = (
        (each @ kernels[name]).reshape(split) for name, each in (("query", row), ("key", keys), ("value", keys))
    )
    biases = [np.asarray(each[...], np.float64) for each in (layer.content_bias, layer.distance_bias, layer.type_bias)]
    types_2NH = np.asarray(layer.types[...], np.float64)
    rates = 1e4 ** (-np.arange(0, SIZE, 2) / SIZE)
    out = np.zeros((len(row), HEADS, SIZE // HEADS))
    for i in range(len(row)):
        for head in range(HEADS):
            weights = []
            for j in range(len(keys)):
                angle = (places[len(memory) + i] - places[j]) * rates
                by_distance = (np.concatenate([np.sin(angle), np.cos(angle)]) @ kernels["distance"]).reshape(split[1:])
                other = int(types[len(memory) + i] != types[j])
                score = (query[i, head] + biases[0][head]) @ key[j, head]
                score += (query[i, head] + biases[1][head]) @ by_distance[head]
                score += (query[i, head] + biases[2][head]) @ types_2NH[other, head]
                weights.append(np.exp(score / np.sqrt(SIZE // HEADS)) * seen[i][j])
            if sum(weights):
                out[i, head] = np.einsum("j,jh->h", np.array(weights) / sum(weights), value[:, head])
    return out.reshape(len(row), SIZE)


def mixed_here(layer: Any, row: np.ndarray, memory: np.ndarray | None, context: RelativeContext) -> np.ndarray:
    row_1LD = jnp.asarray(row)[None]
    keyed = layer._keyed(row_1LD, None if memory is None else jnp.asarray(memory)[None], context)
    query, position = layer._split(layer.query(row_1LD)), jnp.arange(len(row))[None]
    return np.asarray(layer._mixed(query, position, keyed, context, context.content, None, jnp.uint32(0))[0])


@pytest.fixture(params=[128, 1], ids=["one chunk", "a chunk a query"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(relative, "CHUNK", request.param)
    return request.param


@pytest.mark.usefixtures("chunk")
def test_a_whole_row_is_the_formula(layer: RelativeLayer) -> None:
    row, types = drawn(LENGTH, SIZE), np.array([[0, 0, 1, 1, 1]])
    segments = np.array([[1, 1, 1, 2, 2]])
    context = full_context(jnp.asarray(segments), jnp.asarray(types))
    seen = segments[0][:, None] == segments[0][None]
    expected = mixed_in_loops(layer, row, row[:0], list(range(LENGTH)), types[0].tolist(), seen)
    np.testing.assert_allclose(mixed_here(layer, row, None, context), expected, atol=2e-5)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("padding", [0, 2, 7])
@pytest.mark.parametrize("backward", [False, True])
def test_a_memory_lies_before_the_row_or_behind_it(layer: RelativeLayer, backward: bool, padding: int) -> None:
    """Of type 0, seen where it was used, at the positions that follow from its side; padding of the row lies behind both."""
    row, states, types = drawn(LENGTH, SIZE), drawn(REMEMBERED, SIZE, seed=1), np.array([[0, 0, 1, 1, 1]])
    used = np.array([[0, 1, 1]])
    memory = Memory(jnp.asarray(states)[None, None], jnp.asarray(used), jnp.asarray([backward]))
    ones, none = jnp.ones((1, LENGTH), jnp.int32), jnp.full((1, LENGTH + padding), CONTEXT, jnp.int32)
    behind = [(0, 0), (0, padding)]
    segments, padded_types = (jnp.pad(each, behind) for each in (ones, jnp.asarray(types)))
    context = context_of(segments, padded_types, none, jnp.zeros((1, 1), jnp.int32), memory)
    first = LENGTH if backward else -REMEMBERED
    places = [*range(first, first + REMEMBERED), *range(LENGTH)]
    seen = np.broadcast_to(np.concatenate([used[0], np.ones(LENGTH, int)]), (LENGTH, REMEMBERED + LENGTH))
    expected = mixed_in_loops(layer, row, states, places, [0] * REMEMBERED + types[0].tolist(), seen)
    padded = np.concatenate([row, np.ones((padding, SIZE), np.float32)])
    np.testing.assert_allclose(mixed_here(layer, padded, states, context)[:LENGTH], expected, atol=2e-5)


def test_where_nothing_is_seen_nothing_is_mixed(layer: RelativeLayer) -> None:
    row = drawn(LENGTH, SIZE)
    blind = AttentionMask(jnp.zeros((1, LENGTH, LENGTH), bool), jnp.zeros((1, LENGTH, LENGTH), bool))
    context = full_context(jnp.ones((1, LENGTH), jnp.int32), jnp.zeros((1, LENGTH), jnp.int32))._replace(content=blind)
    assert not mixed_here(layer, row, None, context).any()


def both_streams(layer: RelativeLayer, length: int, memory: bool) -> Any:
    """Returns a function (layer, hidden states, slots) -> sum over both streams, with dropout of attention, and its inputs."""
    hidden, slots = jnp.asarray(drawn(2, length, SIZE)), jnp.asarray(drawn(2, 3, SIZE, seed=1))
    rank = jnp.asarray(np.random.default_rng(2).integers(-1, 3, (2, length)))
    segments = jnp.ones((2, length), jnp.int32).at[1, -2:].set(0)
    states = jnp.asarray(drawn(2, 1, REMEMBERED, SIZE, seed=3))
    remembered = Memory(states, jnp.ones((2, REMEMBERED), jnp.int32), jnp.array([False, True])) if memory else None
    context = context_of(segments, 0 * segments, rank, jnp.array([[0, 2, 5], [1, 3, 2]]), remembered)
    key = DropoutKey(jnp.uint32(7), jnp.array([4, 9]))

    def run(layer: RelativeLayer, hidden: jax.Array, slots: jax.Array) -> jax.Array:
        made = layer.both(hidden, slots, states[:, 0] if memory else None, context, key, jnp.uint32(3))
        return sum((jnp.sum(stream**3) for stream in made), jnp.float32(0))

    return run, (hidden, slots)


@pytest.mark.parametrize("memory", [False, True], ids=["no memory", "memory"])
def test_chunks_change_neither_masks_nor_gradients(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(CONFIG, dropout=0.1, attention_dropout=0.5)
    run, inputs = both_streams(layer := RelativeLayer(config, nnx.Rngs(3)), 6, memory)
    found = []
    for size in (6, 2):
        monkeypatch.setattr(relative, "CHUNK", size)
        found.append(nnx.value_and_grad(run, argnums=(0, 1, 2))(layer, *inputs))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4), *found)


@pytest.mark.parametrize("memory", [False, True], ids=["no memory", "memory"])
def test_the_backward_pass_keeps_no_scores(layer: RelativeLayer, memory: bool) -> None:
    length = 40  # long enough that scores are larger than anything else
    run, inputs = both_streams(layer, length, memory)
    graph, state = nnx.split(layer)
    _, pull = jax.vjp(lambda state, *inputs: run(nnx.merge(graph, state), *inputs), state, *inputs)
    sizes = [each.size for each in jax.tree.leaves(pull) if jnp.issubdtype(each.dtype, jnp.floating)]
    assert max(sizes) >= 2 * length * SIZE  # what the layer reads is kept
    assert max(sizes) < 2 * HEADS * length * length


def test_rows_are_shifted_to_their_keys() -> None:
    scores = jnp.arange(2 * 3 * 6.0).reshape(2, 3, 6)
    found = shifted(scores, keys=4)
    for i in range(3):
        np.testing.assert_array_equal(found[:, i], scores[:, i, 2 - i : 6 - i])


def test_sines_and_cosines_of_places() -> None:
    expected = [[np.sin(place), np.sin(place * 0.01), np.cos(place), np.cos(place * 0.01)] for place in (0, 7, -3)]
    np.testing.assert_allclose(sinusoids(jnp.array([0, 7, -3]), 4), np.array(expected), atol=1e-6)


def test_padding_changes_nothing_of_a_layer(layer: RelativeLayer) -> None:
    row = jnp.asarray(drawn(1, LENGTH, SIZE))
    padded = jnp.concatenate([row, jnp.ones((1, 4, SIZE))], axis=1)

    def run(hidden: jax.Array, used: int) -> jax.Array:
        segments = (jnp.arange(hidden.shape[1])[None] < used).astype(jnp.int32)
        context = full_context(segments, 0 * segments)
        return layer(hidden, segments, context, None, jnp.uint32(1), jnp.array(True))[:, :used]

    np.testing.assert_allclose(run(padded, LENGTH), run(row, LENGTH), atol=1e-6)


def test_rows_and_memories_are_joined_in_the_order_of_the_text() -> None:
    row, memory = jnp.array([[1, 2, 3], [4, 5, 6], [7, 0, 0]]), jnp.array([[8], [9], [10]])
    backward, end = jnp.array([False, True, True]), jnp.array([3, 3, 1])
    assert joined(row, memory, backward, end).tolist() == [[8, 1, 2, 3], [4, 5, 6, 9], [7, 10, 0, 0]]
    assert joined(row, None, None, None) is row
