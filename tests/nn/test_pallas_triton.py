"""The kernel compiled by Triton, interpreted on a CPU: results, gradients and masks of dropout are those of `xla`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.nn.attention import choose_backend, pallas_triton, xla
from tests.nn.test_pallas_hopper import ROWS, TRAINED, arrays, drop_key, rows_of


def both(segments: jax.Array, given: Any, rate: float, window: int = 0, causal: bool = False) -> Any:
    """(output and gradients by the kernel, the same by the plain backend in float32)."""
    *inputs, change = given
    drop, site = drop_key(len(segments)) if rate else None, jnp.uint32(4)

    def kernel(query: Any, key: Any, value: Any) -> jax.Array:
        options: Any = {"rate": rate, "dropout_key": drop, "site": site}
        return pallas_triton.run(query, key, value, segments, window, interpret=True, causal=causal, **options)

    def plain(query: Any, key: Any, value: Any) -> jax.Array:
        return xla.attend(query, key, value, segments, rate, drop, site, window, causal)

    found = []
    for function, dtype in ((kernel, inputs[0].dtype), (plain, jnp.float32)):
        out, back = jax.vjp(function, *(each.astype(dtype) for each in inputs))
        found.append([np.asarray(each, np.float32) for each in (out, *back(change.astype(dtype)))])
    return found


def check(segments: jax.Array, rate: float, window: int = 0, causal: bool = False, **of_arrays: Any) -> None:
    got, right = both(segments, arrays(segments, **of_arrays), rate, window, causal)
    np.testing.assert_allclose(got[0], right[0], rtol=0, atol=1e-6 * np.abs(right[0]).max())
    for one, other in zip(got[1:], right[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize(("window", "causal"), [(0, False), (40, True)])
def test_a_short_row(window: int, causal: bool) -> None:
    check(rows_of(256, (1, 63, 64, 65), (250,)), 0.1, window, causal, heads=2, size=32)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize(("window", "causal"), [(0, False), (64, False), (130, False), (0, True), (20, True)])
@pytest.mark.parametrize("rows", ROWS)
def test_outputs_and_gradients_are_those_of_xla(rows: str, window: int, causal: bool, rate: float) -> None:
    check(ROWS[rows], rate, window, causal)


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, 128])
def test_other_widths_of_heads(size: int) -> None:
    check(ROWS["many blocks"], 0.1, heads=2, size=size)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_close_to_float32(dtype: str) -> None:
    segments = rows_of(128, (100,))
    for got, right in zip(*both(segments, arrays(segments, size=32, dtype=jnp.dtype(dtype)), 0.1), strict=True):
        assert np.abs(got - right).max() <= 0.02 * np.abs(right).max()


def test_the_mask_is_that_of_xla_to_the_bit() -> None:
    """Values are rows of the unit matrix, so that the result is the probabilities: what was dropped is zero."""
    segments, drop = rows_of(128, (128,)), drop_key(1)
    query, key = (jax.random.normal(jax.random.key(number), (1, 128, 1, 128)) for number in range(2))
    value = jnp.eye(128).reshape(1, 128, 1, 128)
    got = pallas_triton.run(query, key, value, segments, interpret=True, rate=0.25, dropout_key=drop, site=4)
    right = xla.attend(query, key, value, segments, 0.25, drop, 4)
    np.testing.assert_array_equal(np.asarray(got) == 0, np.asarray(right) == 0)
    assert 0.2 < (np.asarray(got) == 0).mean() < 0.3


@pytest.mark.parametrize(
    ("kind", "changes", "chosen"),
    [
        ("NVIDIA A100-SXM4-80GB", {}, "pallas_triton"),
        ("NVIDIA A100-SXM4-80GB", {"window": 64}, "pallas_triton"),
        ("NVIDIA H200", {"head_size": 128}, "pallas_triton"),
        ("NVIDIA H200", {}, "pallas_hopper"),
        ("NVIDIA A100-SXM4-80GB", {"dropout": 0.0}, "cudnn"),
        ("Tesla V100-SXM2-16GB", {}, "xla"),
        ("NVIDIA A100-SXM4-80GB", {"head_size": 48}, "xla"),
    ],
)
def test_auto_takes_it_where_no_other_kernel_drops(kind: str, changes: dict[str, Any], chosen: str) -> None:
    assert choose_backend("auto", "gpu", **{**TRAINED, **changes}, device_kind=kind)[0] == chosen
