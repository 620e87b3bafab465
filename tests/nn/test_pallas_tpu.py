"""The attention kernels for TPU, interpreted: equal to `xla`, masks of dropout to the bit, tiles that nothing reaches skipped.

Shapes: B rows, L positions (Q and K where the two sides differ), N heads, H width of a head.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.nn.attention import attention, choose_backend, pallas_tpu
from spanjax.nn.attention.xla import STRIDE
from spanjax.nn.dropout import DropoutKey, dropout, step_key
from tests.nn.test_attention import BERT

RATE = 0.1


def arrays(length: int, heads: int, size: int, dtype: Any = jnp.float32, rows: int = 2) -> list[jax.Array]:
    """Query, key, value and a direction for gradients."""
    return list(jax.random.normal(jax.random.key(length), (4, rows, length, heads, size)).astype(dtype))


def packed(length: int, rows: int = 2) -> jax.Array:
    """Blocks that end inside of tiles; every other row ends with padding."""
    generator, found = np.random.default_rng(length), np.zeros((rows, length), np.int32)
    for row in range(rows):
        ends = np.sort(generator.choice(np.arange(1, length), 4, replace=False))
        found[row] = 1 + np.searchsorted(ends, np.arange(length), side="right")
        if row % 2:
            found[row, ends[-1] :] = 0
    return jnp.asarray(found)


def drop_key(rows: int = 2) -> DropoutKey:
    return DropoutKey(step_key(3, jnp.int32(7)), 5 + jnp.arange(rows))


def both(
    inputs: list[jax.Array], reference: str, tile: int = 0, rate: float = RATE, **options: Any
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Outputs and gradients of the kernels, each next to that of another backend."""
    *read, direction = inputs
    segments = packed(read[0].shape[1], len(read[0]))
    drop: dict[str, Any] = {"rate": rate, "dropout_key": drop_key(len(read[0])), "site": jnp.uint32(6)}

    def results(function: Any) -> list[jax.Array]:
        output, backward = jax.vjp(function, *read)
        return [output, *backward(direction)]

    own: dict[str, Any] = {"interpret": True, "tile": tile, **options, **drop}
    got = jax.jit(lambda: results(lambda q, k, v: pallas_tpu.run(q, k, v, segments, **own)))()
    other: dict[str, Any] = {"backend": reference, **options, **drop}
    wanted = jax.jit(lambda: results(lambda q, k, v: attention(q, k, v, segments, **other)))()
    return [
        (np.asarray(one, np.float32), np.asarray(other, np.float32)) for one, other in zip(got, wanted, strict=True)
    ]


def assert_equal(found: list[tuple[np.ndarray, np.ndarray]], output: float, gradient: float) -> None:
    """To these shares of the largest value."""
    for number, (got, wanted) in enumerate(found):
        largest = float(np.abs(wanted).max())
        assert largest > 0.1
        np.testing.assert_allclose(got, wanted, rtol=0, atol=(gradient if number else output) * largest)


@pytest.mark.parametrize(
    ("length", "tile", "heads", "size", "options"),
    [
        (128, 0, 2, 64, {}),
        (128, 0, 3, 32, {}),  # three heads are one group of 96 lanes
        (256, 128, 2, 128, {"window": 70}),
        (384, 128, 4, 32, {"causal": True}),
        (384, 0, 2, 64, {"window": 20}),
    ],
)
def test_equals_xla(length: int, tile: int, heads: int, size: int, options: dict[str, Any]) -> None:
    assert_equal(both(arrays(length, heads, size), "xla", tile, **options), 1e-6, 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("window", [0, 1, 64, 128, 500])
@pytest.mark.parametrize("length", [128, 512, 640, 1024])
def test_equals_xla_of_all_lengths_and_windows(length: int, window: int, rate: float, dtype: Any) -> None:
    """bfloat16 has steps of 0.4 %, and probabilities are rounded before or after their sum."""
    found = both(arrays(length, 2, 64, dtype), "xla", rate=rate, window=window, causal=window == 64)
    exact = dtype == jnp.float32
    assert_equal(found, 1e-6 if exact else 0.01, 1e-5 if exact else 0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("length", "window"), [(2048, 0), (4096, 128), (8192, 0), (8192, 64)])
def test_equals_xla_chunked_of_long_rows(length: int, window: int) -> None:
    assert_equal(both(arrays(length, 2, 64, rows=1), "xla_chunked", window=window), 1e-6, 1e-5)


@pytest.mark.parametrize(("length", "tile"), [(128, 0), (256, 128)])
def test_dropout_masks_are_those_of_xla_to_the_bit(length: int, tile: int) -> None:
    """Equal scores, and values that tell the key: a result is not zero where its probability is kept."""
    rows, heads, size = 2, 2, 128
    expected = dropout(jnp.ones((rows, heads, length, length)), RATE, drop_key(), 6, strides=(STRIDE, 1))
    nothing = jnp.zeros((rows, length, heads, size))
    for first in range(0, length, size):
        value = jnp.pad(jnp.eye(size), ((first, length - first - size), (0, 0)))[None, :, None]
        value = jnp.broadcast_to(value, nothing.shape)
        segments = jnp.ones((rows, length), jnp.int32)
        options: dict[str, Any] = {"rate": RATE, "dropout_key": drop_key(), "site": 6, "tile": tile}
        got = pallas_tpu.run(nothing, nothing, value, segments, interpret=True, **options)
        kept = np.asarray(expected[..., first : first + size] > 0)
        np.testing.assert_array_equal(np.asarray(jnp.swapaxes(got, 1, 2) > 0), kept)


@pytest.mark.parametrize("window", [0, 10])
def test_tiles_that_nothing_reaches_are_not_read(window: int) -> None:
    """NaN in them would spoil whatever multiplied them, even by zero."""
    query, key, value, direction = arrays(512, 2, 64)
    segments = np.ones((2, 512), np.int32)
    clean = slice(0, 128) if window else slice(0, 256)
    if not window:
        segments[:, 256:] = 2
    spoilt = 256  # with the window no query of the first tile sees beyond the second
    key, value = (x.at[:, spoilt:].set(jnp.nan) for x in (key, value))

    def loss(query: jax.Array) -> jax.Array:
        mixed = pallas_tpu.run(query, key, value, jnp.asarray(segments), window=window, interpret=True, tile=128)
        return jnp.sum(mixed[:, clean] * direction[:, clean])

    mixed = pallas_tpu.run(query, key, value, jnp.asarray(segments), window=window, interpret=True, tile=128)
    assert np.isfinite(np.asarray(mixed[:, clean])).all() and np.isnan(np.asarray(mixed[:, 256:])).all()
    to_query = np.asarray(jax.grad(loss)(query))[:, clean]
    assert np.isfinite(to_query).all() and np.abs(to_query).max() > 0.1


def test_more_padding_drops_nothing_else() -> None:
    query, key, value, _ = arrays(128, 2, 64)
    options: dict[str, Any] = {"interpret": True, "rate": RATE, "dropout_key": drop_key(), "site": 2}
    segments = packed(128)
    short = pallas_tpu.run(query, key, value, segments, **options)
    query, key, value = (jnp.pad(x, ((0, 0), (0, 128), (0, 0), (0, 0))) for x in (query, key, value))
    long = pallas_tpu.run(query, key, value, jnp.pad(segments, ((0, 0), (0, 128))), tile=128, **options)[:, :128]
    used = np.asarray(segments > 0)
    np.testing.assert_allclose(np.asarray(long)[used], np.asarray(short)[used], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"platform": "gpu"}, "it runs on tpu, and these devices are gpu"),
        ({"head_size": 48}, "its head size is 32, 64 or 128, not 48"),
        ({"head_size": 256}, "its head size is 32, 64 or 128, not 256"),
        ({"length": 200}, "its length is a multiple of 128, not 200"),
        ({"length": 16_384}, "its length is at most 8192 here, not 16384"),
        ({"length": 4096, "device_kind": "TPU v4"}, "its length is at most 2048 here, not 4096"),
        ({"length": 8192, "dtype": jnp.float32, "device_kind": "TPU v5"}, "its length is at most 4096 here, not 8192"),
        ({"dtype": jnp.float16}, "it computes in bfloat16 or float32, not float16"),
    ],
)
def test_refuses_what_it_cannot_compute(changes: dict[str, Any], reason: str) -> None:
    request = {**BERT, "platform": "tpu", **changes}
    with pytest.raises(ValueError, match=f"'pallas_tpu' cannot be used: {reason}"):
        choose_backend("pallas_tpu", request.pop("platform"), **request)


def test_takes_dropout_and_windows() -> None:
    assert choose_backend("pallas_tpu", "tpu", **{**BERT, "dropout": RATE, "window": 64})[0] == "pallas_tpu"
    assert choose_backend("auto", "tpu", **{**BERT, "dropout": RATE, "window": 64})[0] == "pallas_tpu"
