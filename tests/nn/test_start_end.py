"""The start-end head equals its scores written out span by span and pair by pair."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.nn.coreference_parts import Resolved, antecedent_loss
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.start_end import PieceVectors, StartEnd
from tests.nn.test_coreference import CONFIG, ENCODER, PIECES, hidden, pieces

SETTINGS = dataclasses.replace(CONFIG, head="start_end")


def module() -> StartEnd:
    """A head with weights large enough that everything counts."""
    structure, state = nnx.split(StartEnd(ENCODER, SETTINGS, nnx.Rngs(0)))
    return nnx.merge(structure, jax.tree.map(lambda leaf: 25 * leaf + 0.1, state))


def value(parameter) -> np.ndarray:
    """A parameter's array."""
    return np.asarray(parameter[...], np.float64)


def dense(layer, x: np.ndarray) -> np.ndarray:
    """A linear layer."""
    return x @ value(layer.kernel) + value(layer.bias)


def piece_vector(layers: PieceVectors, x: np.ndarray) -> np.ndarray:
    """Dense layer, GELU, LayerNorm of one piece."""
    y = np.asarray(jax.nn.gelu(jnp.asarray(dense(layers.dense, x), jnp.float32)), np.float64)
    return (y - y.mean()) / np.sqrt(y.var() + 1e-5) * value(layers.norm.scale) + value(layers.norm.bias)


def written_out(model: StartEnd) -> tuple[list[tuple[int, int]], dict[tuple[int, int], float]]:
    """(spans, the score of every pair)."""
    x, known = np.asarray(hidden(), np.float64), pieces()
    size, span_N = SETTINGS.hidden_size, np.asarray(model.spans_of(known))

    def mention(first: int, last: int) -> float:
        a, b = piece_vector(model.mention_first, x[first]), piece_vector(model.mention_last, x[last])
        both = dense(model.mention_both, a) @ b / np.sqrt(size)
        return float(dense(model.first_score, a)[0] + dense(model.last_score, b)[0] + both)

    every = [(s, s + w) for s in range(PIECES) for w in range(SETTINGS.max_width) if span_N[s, w]]
    taken: list[tuple[int, int]] = []
    for span in sorted(every, key=lambda span: -mention(*span)):
        if not any(a < c <= b < d for (a, b), (c, d) in (sorted([span, other]) for other in taken)):
            taken.append(span)
    spans = sorted(taken[: int(SETTINGS.spans_per_piece * PIECES)])

    def ends(span: tuple[int, int]) -> np.ndarray:
        return np.concatenate([piece_vector(model.pair_first, x[span[0]]), piece_vector(model.pair_last, x[span[1]])])

    scores = {}
    for j, i in itertools.combinations(range(len(spans)), 2):
        bilinear = dense(model.pair_both, ends(spans[i])) @ ends(spans[j]) / np.sqrt(2 * size)
        scores[i, j] = mention(*spans[i]) + mention(*spans[j]) + float(bilinear)
    return spans, scores


@jax.jit
def resolved(model: StartEnd, states: jax.Array, known, key: DropoutKey | None) -> Resolved:
    """The head, compiled."""
    return model(states, known, key, 0)


def test_equals_the_scores_written_out():
    model = module()
    found = resolved(model, hidden(), pieces(), None)
    spans, expected = written_out(model)
    real = int(found.real_M.sum())
    assert [(int(a), int(b)) for a, b in zip(found.first_M[:real], found.last_M[:real], strict=True)] == spans
    scores = {
        (i, int(j)): float(score)
        for i in range(real)
        for j, score in zip(found.antecedent_MA[i], found.score_MA[i], strict=True)
        if score > -np.inf
    }
    assert scores.keys() == expected.keys() and len(spans) > 8
    for pair, score in expected.items():
        assert scores[pair] == pytest.approx(score, rel=1e-4, abs=1e-3)
    assert bool(jnp.isneginf(found.score_MA[real:]).all())


def test_padding_and_dropout():
    """Padding changes nothing, also with dropout, which changes scores."""
    model, key = module(), DropoutKey(jnp.uint32(5), jnp.array([3]))
    mentions = []
    for own in (None, key):
        short, long = resolved(model, hidden(), pieces(), own), resolved(model, hidden(70, fill=9.0), pieces(70), own)
        count = int(short.real_M.sum())
        assert int(long.real_M.sum()) == count
        np.testing.assert_allclose(short.mention_M[:count], long.mention_M[:count], rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(short.score_MA[:count, :count], long.score_MA[:count, :count], rtol=1e-5, atol=1e-4)
        mentions.append(np.asarray(short.mention_M[:count]))
    assert np.abs(mentions[0] - mentions[1]).max() > 0.01


def test_the_gradient_is_that_of_finite_differences():
    """Along a random direction of all parameters, where the kept spans stay the same."""
    structure, state = nnx.split(module())
    cluster_M = jnp.arange(int(SETTINGS.spans_per_piece * PIECES) + 1) % 3

    def loss(state) -> jax.Array:
        found = nnx.merge(structure, state)(hidden(), pieces(), None, 0)
        return antecedent_loss(found, cluster_M * found.real_M)

    random = np.random.default_rng(0)
    way = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), state)
    slope = sum(map(jnp.vdot, jax.tree.leaves(jax.jit(jax.grad(loss))(state)), jax.tree.leaves(way)))
    measured = jax.jit(lambda size: loss(jax.tree.map(lambda leaf, step: leaf + size * step, state, way)))
    step = 3e-4  # small enough to keep the same spans
    assert float(slope) == pytest.approx(float(measured(step) - measured(-step)) / (2 * step), rel=0.01)
