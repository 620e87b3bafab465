"""The network of span fine-tuning: equal to plain loops, blind to padding, of the paper's size, at every setting."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.encoders import BASE, LARGE
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.span_network import SpanNetwork, SpanNetworkConfig, offsets_in_runs
from spanjax.sharding import named_leaves
from tests.made import tiny_encoder

D, L, S, P = 8, 22, 12, 4
SMALL = tiny_encoder(hidden_size=D, layers=1, intermediate_size=16, positions=512, initializer_std=0.4)
LEVELS = list(itertools.product(("cnn", "attention"), ("cnn", "attention", "max")))
SIZES = ([1, 2, 3, 4, 6, 1, 1], [1], [2, 5], [], [3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1], [4, 1, 1])
"""Pieces of the spans of some rows."""
GAP_ROW = 2  # a position without a span stands before its second span

Weights = dict[str, np.ndarray]


def made(token: str, span: str, pieces: int = P, rate: float = 0.0) -> SpanNetwork:
    network = SpanNetwork(SMALL, SpanNetworkConfig(token, span, rate), nnx.Rngs(3), S, pieces)  # pyright: ignore[reportArgumentType]
    for name in ("token", "span"):
        level = getattr(network, name, None)
        if hasattr(level, "bias"):
            level.bias[...] = jnp.linspace(-0.5, 0.4, D)  # pyright: ignore
    return network


def weights(network: SpanNetwork) -> Weights:
    leaves = named_leaves(nnx.to_pure_dict(nnx.split(network)[1]))
    return {name: np.asarray(leaf, np.float64) for name, leaf in leaves.items()}


def rows(length: int = L) -> tuple[jax.Array, jax.Array]:
    """(hidden states, spans) of rows of SIZES, padded to `length`; hidden states of padding are drawn, too."""
    span_BL = np.zeros((len(SIZES), length), np.int32)
    for b, sizes in enumerate(SIZES):
        numbers = np.repeat(np.arange(1, len(sizes) + 1), sizes)
        if b == GAP_ROW:
            numbers = np.insert(numbers, sizes[0], 0)
        span_BL[b, : len(numbers)] = numbers
    hidden_BLD = np.random.default_rng(1).normal(size=(len(SIZES), 64, D))[:, :length]
    return jnp.asarray(hidden_BLD, jnp.float32), jnp.asarray(span_BL)


def convolved(vectors: list[np.ndarray], kernel: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
    """The windows of one run, as the docstring of the module has them."""
    windows = []
    for start in range(max(len(vectors) - 2, 1)):
        total = bias.copy()
        for k in range(3):
            if start + k < len(vectors):
                total = total + vectors[start + k] @ kernel[k]
        windows.append(np.maximum(total, 0))
    return windows


def attended(vectors: list[np.ndarray], kernel: np.ndarray, score: np.ndarray) -> np.ndarray:
    scores = np.array([score @ np.tanh(vector @ kernel) for vector in vectors])
    shares = np.exp(scores) / np.exp(scores).sum()
    return sum((share * vector for share, vector in zip(shares, vectors, strict=True)), np.zeros(D))


def pooled(vectors: list[np.ndarray], kind: str, level: str, weight: Weights) -> np.ndarray:
    if not vectors:
        return np.zeros(D)
    if kind == "attention":
        return attended(vectors, weight[f"{level}/kernel"], weight[f"{level}/score"])
    if kind == "cnn":
        vectors = convolved(vectors, weight[f"{level}/kernel"], weight[f"{level}/bias"])
    return np.max(vectors, axis=0)


def spans_by_loops(network: SpanNetwork, hidden_BLD: jax.Array, span_BL: jax.Array) -> list[list[np.ndarray]]:
    """The vectors of the spans of every row: of each the pieces that count, which are where its number stands."""
    weight, hidden, span = weights(network), np.asarray(hidden_BLD, np.float64), np.asarray(span_BL)
    found = []
    for b in range(len(hidden)):
        pieces = [list(hidden[b, np.flatnonzero(span[b] == s)[: network.pieces]]) for s in range(1, S + 1)]
        found.append([pooled(each, network.levels[0], "token", weight) for each in pieces if each])
    return found


def by_loops(network: SpanNetwork, hidden_BLD: jax.Array, span_BL: jax.Array) -> np.ndarray:
    weight, found = weights(network), spans_by_loops(network, hidden_BLD, span_BL)
    return np.array([pooled(vectors, network.levels[1], "span", weight) for vectors in found])


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 16])
@pytest.mark.parametrize(("token", "span"), LEVELS)
def test_equals_plain_loops(token: str, span: str, pieces: int) -> None:
    network = made(token, span, pieces)
    expected = by_loops(network, *rows())
    assert np.abs(expected).max() > 0.1 and not expected[3].any()  # a row without spans is zeros
    np.testing.assert_allclose(network(*rows()), expected, atol=1e-5)


def over_padding(network: SpanNetwork, hidden_BLD: np.ndarray, span_BL: np.ndarray) -> np.ndarray:
    """The released network as it is described: [spans, pieces, D] of zeros filled up, every window, every maximum, in loops."""
    weight, found = weights(network), []

    def level(vectors_ND: np.ndarray, name: str) -> np.ndarray:
        kernel, bias = weight[f"{name}/kernel"], weight[f"{name}/bias"]
        windows = [bias + sum(vectors_ND[n + k] @ kernel[k] for k in range(3)) for n in range(len(vectors_ND) - 2)]
        return np.max(np.maximum(windows, 0), axis=0)

    for hidden_LD, span_L in zip(hidden_BLD, span_BL, strict=True):
        padded_SPD = np.zeros((network.spans, network.pieces, D))
        for s in range(network.spans):
            for p, place in enumerate(np.flatnonzero(span_L == s + 1)[: network.pieces]):
                padded_SPD[s, p] = hidden_LD[place]
        found.append(level(np.array([level(pieces_PD, "token") for pieces_PD in padded_SPD]), "span"))
    return np.array(found)


@pytest.mark.parametrize("pieces", [3, 4, 5, 16])
def test_padding_as_released_takes_part_in_the_maxima(pieces: int) -> None:
    config = SpanNetworkConfig(dropout=0.0, padding="as-released")
    network = made("cnn", "cnn", pieces)
    released = SpanNetwork(SMALL, config, nnx.Rngs(3), S, pieces)
    nnx.update(released, nnx.state(network))
    for length in (L, 48):
        hidden_BLD, span_BL = rows(length)
        expected = over_padding(released, np.asarray(hidden_BLD, np.float64), np.asarray(span_BL))
        np.testing.assert_allclose(released(hidden_BLD, span_BL), expected, atol=1e-5)
        assert np.abs(expected - np.asarray(network(hidden_BLD, span_BL))).max() > 0.1, "it is another network"
    assert expected[3].any(), "a row without spans is no zeros: windows of padding are ReLU(b)"


def test_one_and_two_pieces_meet_zeros_beyond_their_end() -> None:
    network, hidden = made("cnn", "max"), np.random.default_rng(0).normal(size=(1, 3, D))
    kernel, bias = weights(network)["token/kernel"], weights(network)["token/bias"]
    vector_BSD, used_BS = network.of_spans(jnp.asarray(hidden, jnp.float32), jnp.array([[1, 2, 2]]), 3)
    assert used_BS.tolist() == [[True, True, False]]
    expected = [hidden[0, 0] @ kernel[0] + bias, hidden[0, 1] @ kernel[0] + hidden[0, 2] @ kernel[1] + bias]
    np.testing.assert_allclose(vector_BSD[0], [*np.maximum(expected, 0), np.zeros(D)], atol=1e-6)


@pytest.mark.parametrize(("token", "span"), LEVELS)
def test_more_padding_changes_nothing(token: str, span: str) -> None:
    network, key = made(token, span, rate=0.3), DropoutKey(jnp.uint32(5), jnp.arange(len(SIZES)))
    for dropped in (None, key):
        longer = network(*rows(48), dropped, 7)
        np.testing.assert_allclose(network(*rows(), dropped, 7), longer, atol=1e-6)
    network.spans = 40
    np.testing.assert_allclose(network(*rows(48), key, 7), longer, atol=1e-6)


@pytest.mark.parametrize(("token", "span"), [*LEVELS, ("none", "cnn"), ("none", "max")])
def test_gradient_at_padding_is_exactly_zero(token: str, span: str) -> None:
    whole, (hidden_BLD, span_BL) = token == "none", rows()
    network = made("cnn" if whole else token, span)
    function = network.without_spans if whole else network
    place_BL = span_BL > 0 if whole else span_BL
    to_hidden_BLD = jax.grad(lambda x: jnp.sum(jnp.sin(function(x, place_BL))))(hidden_BLD)
    outside_BL = np.asarray(span_BL) == 0
    assert not np.asarray(to_hidden_BLD)[outside_BL].any()
    assert np.isfinite(to_hidden_BLD).all() and np.abs(np.asarray(to_hidden_BLD)[~outside_BL]).max() > 1e-3


@pytest.mark.parametrize("span", ["cnn", "max"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 9])
def test_without_spans_are_two_convolutions_over_the_row(span: str, length: int) -> None:
    network, hidden = made("cnn", span), np.random.default_rng(length).normal(size=(1, 12, D))
    weight = weights(network)
    vectors = convolved(list(hidden[0, :length]), weight["token/kernel"], weight["token/bias"])
    if span == "cnn":
        vectors = convolved(vectors, weight["span/kernel"], weight["span/bias"])
    found = network.without_spans(jnp.asarray(hidden, jnp.float32), jnp.arange(12)[None] < length)
    np.testing.assert_allclose(found[0], np.max(vectors, axis=0), atol=1e-5)


@pytest.mark.parametrize("token", ["cnn", "attention"])
def test_every_piece_has_the_vector_of_its_span(token: str) -> None:
    network, (hidden_BLD, span_BL) = made(token, "max"), rows()
    found = np.asarray(network.of_pieces(hidden_BLD, span_BL, pooled=True))
    for b, vectors in enumerate(spans_by_loops(network, hidden_BLD, span_BL)):
        expected = [vectors[span - 1] if span else np.zeros(D) for span in span_BL[b].tolist()]
        np.testing.assert_allclose(found[b], expected, atol=1e-5)


def test_a_piece_without_pooling_has_the_window_around_it_in_its_span() -> None:
    network, (hidden_BLD, span_BL) = made("cnn", "max"), rows()
    weight, found = weights(network), np.asarray(network.of_pieces(hidden_BLD, span_BL, pooled=False))
    hidden, span = np.asarray(hidden_BLD, np.float64), np.asarray(span_BL)
    for b, place in np.ndindex(span.shape):
        total = weight["token/bias"].copy()
        for k in range(3):
            other = place + k - 1
            if 0 <= other < L and span[b, other] == span[b, place]:
                total = total + hidden[b, other] @ weight["token/kernel"][k]
        expected = np.maximum(total, 0) if span[b, place] else np.zeros(D)
        np.testing.assert_allclose(found[b, place], expected, atol=1e-5)


@pytest.mark.parametrize(("encoder", "count"), [(BASE, 3_540_480), (LARGE, 6_293_504)])
def test_the_default_adds_so_many_parameters_as_the_paper_says(encoder: EncoderConfig, count: int) -> None:
    made = nnx.eval_shape(lambda: SpanNetwork(encoder, SpanNetworkConfig(), nnx.Rngs(0), 64, 16))
    sizes = [leaf.size for leaf in jax.tree.leaves(nnx.split(made)[1])]
    assert sum(sizes) == count == 2 * (3 * encoder.hidden_size**2 + encoder.hidden_size)


def test_spans_above_the_most_are_left_out() -> None:
    network, (hidden_BLD, span_BL) = made("cnn", "max"), rows()
    whole = network(hidden_BLD, span_BL)
    network.spans = 2
    fewer = network(hidden_BLD, span_BL)
    np.testing.assert_allclose(fewer, network(hidden_BLD, jnp.where(span_BL <= 2, span_BL, 0)), atol=1e-6)
    assert np.abs(fewer - whole).max() > 0.1


def test_bfloat16_stays_bfloat16_and_near() -> None:
    hidden_BLD, span_BL = rows()
    for token, span in LEVELS:
        network = made(token, span)
        structure, state = nnx.split(network)
        low = nnx.merge(structure, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), state))
        found = low(hidden_BLD.astype(jnp.bfloat16), span_BL)
        assert found.dtype == jnp.bfloat16
        # 8 bits of vectors up to 4.7: 0.028 measured at most
        np.testing.assert_allclose(found.astype(jnp.float32), network(hidden_BLD, span_BL), atol=0.04)


def test_dropout_falls_on_vectors_of_spans_in_training_only() -> None:
    network, key = made("cnn", "max", rate=0.5), DropoutKey(jnp.uint32(1), jnp.arange(len(SIZES)))
    still = dataclasses.replace(key, key=jnp.uint32(2))
    quiet = made("cnn", "max")(*rows())
    np.testing.assert_array_equal(network(*rows()), quiet)
    assert np.abs(network(*rows(), key, 1) - network(*rows(), still, 1)).max() > 0.1
    one_BD = np.asarray(network(*rows(), key, 1))[1]  # a row of one span: dropped, or doubled
    assert all(value in (0.0, 2 * before) for value, before in zip(one_BD, np.asarray(quiet)[1], strict=True))


def test_offsets_in_runs() -> None:
    assert offsets_in_runs(jnp.array([[1, 1, 2, 0, 0, 1], [0, 3, 3, 3, 3, 3]])).tolist() == [
        [0, 1, 0, 0, 1, 0],
        [0, 0, 1, 2, 3, 4],
    ]
