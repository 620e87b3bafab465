"""The TPU kernels of attention by distances, interpreted: as near to the formula in float64 as the plain one, the same masks.

Shapes: B rows, L positions, K slots, M positions of the memory, J = M + L keys, D hidden size.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import pallas as pl

from spanjax.nn import relative
from spanjax.nn.attention import choose_for_distances, tpu_relative
from spanjax.nn.attention.request import Request
from spanjax.nn.attention.xla import STRIDE
from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.relative import AttentionMask, RelativeContext, RelativeLayer
from spanjax.nn.two_streams import Memory, context_of
from tests.made import tiny_encoder

SIZE, HEADS, SLOTS, RATE = 128, 2, 24, 0.1
CONFIG = tiny_encoder(
    vocab_size=10,
    hidden_size=SIZE,
    layers=1,
    heads=HEADS,
    intermediate_size=16,
    positions=512,
    relative_attention=True,
    initializer_std=0.1,
    attention_dropout=RATE,
)
KEY = DropoutKey(jnp.uint32(7), jnp.array([4, 9]))


plain_run = functools.partial(tpu_relative.run, interpret=True)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_relative, "run", plain_run)


def drawn(*shape: int, seed: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def context(length: int, memory: int) -> RelativeContext:
    """Two rows, the second with padding and a memory behind it; two types, targets of random ranks, slots in any order."""
    generator = np.random.default_rng(length)
    segments = jnp.ones((2, length), jnp.int32).at[1, -5:].set(0)
    types = jnp.broadcast_to((jnp.arange(length) > length // 3).astype(jnp.int32), (2, length))
    rank = jnp.asarray(generator.integers(-1, 20, (2, length)))
    position = jnp.asarray(generator.integers(0, length, (2, SLOTS)), jnp.int32).at[:, :2].set(length - 1)
    used = jnp.broadcast_to((jnp.arange(memory) > 3).astype(jnp.int32), (2, memory))
    states = Memory(jnp.zeros((2, 1, memory, SIZE)), used, jnp.array([False, True])) if memory else None
    return context_of(segments, types, rank, position, states)


def results(
    backend: str, length: int, memory: int, rate: float, types: tuple[Any, Any], exact: bool = False
) -> list[np.ndarray]:
    """Both streams, and gradients of parameters, hidden states, slots and memory; arrays are rounded to the first type, and
    computed with in the second, or in float64."""
    rounded, size = types
    graph, state = nnx.split(RelativeLayer(dataclasses.replace(CONFIG, attention_dropout=rate), nnx.Rngs(3)))
    read = context(length, memory)
    shapes = ((2, length, SIZE), (2, SLOTS, SIZE), *[(2, memory, SIZE)] * bool(memory))
    inputs = [drawn(*shape, seed=number, dtype=rounded) for number, shape in enumerate(shapes)]

    def both(state: Any, hidden: jax.Array, slots: jax.Array, *memory: jax.Array) -> list[jax.Array]:
        layer = nnx.merge(graph, state)
        layer.backend = backend
        keyed = layer._keyed(hidden, memory[0] if memory else None, read)
        assert read.slots is not None and read.slot_position_BK is not None
        streams = ((hidden, jnp.arange(length)[None], read.content), (slots, read.slot_position_BK, read.slots))
        return [
            layer._mixed(layer._split(layer.query(x)), place, keyed, read, mask, KEY, jnp.uint32(3 + number))
            for number, (x, place, mask) in enumerate(streams)
        ]

    def all_of(state: Any, *inputs: jax.Array) -> list[jax.Array]:
        output, backward = jax.vjp(both, state, *inputs)
        changes = [drawn(*each.shape, seed=9).astype(each.dtype) for each in output]
        return [*output, *jax.tree.leaves(backward(changes))]

    cast = jax.tree.map(lambda x: jnp.asarray(x.astype(rounded), size), (state, inputs))
    return [np.asarray(each, np.float64) for each in jax.jit(all_of)(cast[0], *cast[1])]


def compare(found: list[np.ndarray], right: list[np.ndarray], output: float, gradient: float) -> list[float]:
    """Largest differences, in shares of these bounds and the largest value of each array."""
    assert len(found) == len(right)
    pairs = [(got, wanted) for got, wanted in zip(found, right, strict=True) if wanted.any()]
    assert len(pairs) >= 2 + 8 + 2  # three streams' worth of kernels and vectors, and what they read
    shares = [np.abs(got - wanted).max() / np.abs(wanted).max() for got, wanted in pairs]
    return [share / (gradient if number > 1 else output) for number, share in enumerate(shares)]


def exact_sinusoids(place: jax.Array, size: int) -> jax.Array:
    rates = 1e4 ** (-np.arange(0, size, 2) / size)
    angles = place.astype(jnp.float64)[..., None] * rates.reshape(*(1 for _ in place.shape), -1)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def exactly(monkeypatch: pytest.MonkeyPatch, length: int, memory: int, rate: float, rounded: Any) -> list[np.ndarray]:
    """The plain formula in float64."""
    with jax.enable_x64(True), monkeypatch.context() as changes:
        changes.setattr(relative, "sinusoids", exact_sinusoids)
        changes.setattr(relative, "float32_product", jnp.einsum)
        return results("xla", length, memory, rate, (rounded, jnp.float64))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("length", "memory", "rate", "dtype"),
    [
        (128, 128, RATE, jnp.float32),
        pytest.param(256, 0, 0.0, jnp.float32, marks=pytest.mark.slow),
        pytest.param(384, 256, RATE, jnp.float32, marks=pytest.mark.slow),
        pytest.param(256, 128, RATE, jnp.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_is_as_near_to_float64_as_the_plain_formula(
    length: int, memory: int, rate: float, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sinusoids of float32 angles limit both: of distances here, of places there."""
    exact = exactly(monkeypatch, length, memory, rate, dtype)
    bounds = (1e-6, 1e-5) if dtype == jnp.float32 else (0.01, 0.02)
    found = {each: results(each, length, memory, rate, (dtype, dtype)) for each in ("xla", "pallas_tpu")}
    plain, own = (compare(found[each], exact, *bounds) for each in ("xla", "pallas_tpu"))
    assert max(own[2:]) <= 1 and max(own[:2]) <= max(3.0, 2 * max(plain[:2])), (plain, own)


@pytest.mark.parametrize("slots", [False, True])
def test_masks_of_dropout_are_those_of_the_formula_to_the_bit(slots: bool) -> None:
    """Equal scores, and values that tell the key: a result is not zero where its weight is kept."""
    rows, keys, size, count = 2, 256, 128, 24 if slots else 128
    expected = dropout(jnp.ones((rows, 1, count, keys)), RATE, KEY, 6, strides=(STRIDE, 1))
    nothing = jnp.zeros((rows, keys, size))
    places = jnp.arange(rows * count).reshape(rows, count) if slots else None
    for first in range(0, keys, size):
        value = jnp.broadcast_to(jnp.pad(jnp.eye(size), ((first, keys - first - size), (0, 0)))[None], nothing.shape)
        got = tpu_relative.run(
            (nothing[:, :count], nothing, value),
            jnp.zeros((2 * keys, size)),
            jnp.zeros((4, size)),
            jnp.ones((rows, count, keys), jnp.int8),
            jnp.array([128, 0]),
            places,
            heads=1,
            length=128,
            rate=RATE,
            dropout_key=KEY,
            site=6,
        )
        np.testing.assert_array_equal(np.asarray(got > 0), np.asarray(expected[:, 0, :, first : first + size] > 0))


def test_where_nothing_is_seen_nothing_is_mixed() -> None:
    read = context(128, 0)
    blind = AttentionMask(*(jnp.zeros_like(each) for each in read.content))
    layer = RelativeLayer(dataclasses.replace(CONFIG, attention="pallas_tpu"), nnx.Rngs(3))
    keyed = layer._keyed(drawn(2, 128, SIZE, seed=0), None, read)
    read = read._replace(content=blind)
    query = layer._split(drawn(2, 128, SIZE, seed=1))
    assert not layer._mixed(query, jnp.arange(128)[None], keyed, read, blind, KEY, jnp.uint32(0)).any()


@pytest.mark.parametrize(("first", "lines"), [(1, 16), (129, 8)])
def test_lines_are_rolled_as_the_core_does(first: int, lines: int) -> None:
    """`strided` of the interpreter next to the operation that is compiled."""
    x = drawn(lines, 256, seed=0)

    def kernel(x: Any, out: Any) -> None:
        out[...] = tpu_relative.strided(x[...], first, interpret=False)

    core = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
    np.testing.assert_array_equal(core, tpu_relative.strided(x, first, interpret=True))


XLNET = Request("tpu", 512, 64, jnp.bfloat16, RATE, "TPU v5 lite")


@pytest.mark.parametrize(
    ("changes", "memory", "reason"),
    [
        ({"platform": "cpu"}, 0, "it runs on tpu, and these devices are cpu"),
        ({"length": 200}, 0, "its length is a multiple of 128, not 200"),
        ({}, 64, "its memory is a multiple of 128 positions, not 64"),
        ({"length": 2048}, 384, "a row and its memory have at most 2048 positions together here, not 2432"),
        ({"head_size": 48}, 0, "its head size is 32, 64 or 128, not 48"),
        (
            {"length": 200, "head_size": 48},
            64,
            "its length is a multiple of 128, not 200; its head size is 32, 64 or 128, not 48;"
            " its memory is a multiple of 128 positions, not 64",
        ),
        # on another device nothing else is of use
        ({"platform": "gpu", "length": 200}, 64, "it runs on tpu, and these devices are gpu"),
    ],
)
def test_refuses_what_it_cannot_compute(changes: dict[str, Any], memory: int, reason: str) -> None:
    request = dataclasses.replace(XLNET, **changes)
    with pytest.raises(ValueError, match=f"'pallas_tpu' cannot be used: {reason}; take 'auto' or 'xla'"):
        choose_for_distances("pallas_tpu", request, memory)
    assert choose_for_distances("auto", request, memory)[0] == "xla"
    assert reason in choose_for_distances("auto", request, memory)[1]


def test_is_chosen_where_it_can_compute() -> None:
    assert choose_for_distances("auto", XLNET, 384)[0] == "pallas_tpu"
    assert choose_for_distances("xla", XLNET, 384) == ("xla", "requested")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_device_compares_it_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relative, "shortest", lambda function, arrays: 1.0)
    assert relative.verify(128, 128, 32, "bfloat16", RATE) == (1.0, 1.0)
    monkeypatch.setattr(tpu_relative, "run", lambda *arrays, **options: 1.1 * plain_run(*arrays, **options))
    relative.verify.cache_clear()
    with pytest.raises(ValueError, match="computes something else than 'xla'"):
        relative.verify(128, 128, 32, "bfloat16", RATE)
