"""The comparison of a kernel that no GPU has run yet with `xla`, on the device, before the first step: numbers and times.

Shapes: B rows, L positions, N heads, H width of a head.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spanjax.nn.attention import cudnn, xla, xla_chunked
from spanjax.nn.dropout import DropoutKey, step_key

ALLOWED = 0.02  # of the largest value, in outputs and gradients: bfloat16 has steps of 0.4 %
TIMED = 5  # calls, of which the shortest counts
SCORES = 2**26  # of the timed rows at most: 256 MiB in float32


class _Case:
    """Queries, keys, values and a gradient of the result, for rows with blocks, of which the second has padding."""

    def __init__(self, shape: tuple[int, ...], dtype: str, window: int, rate: float):
        generator = np.random.default_rng(0)
        self.arrays = [jnp.asarray(generator.standard_normal(shape), dtype) for _ in range(4)]
        count, length = shape[:2]
        rows = np.zeros((count, length), np.int32)
        rows[:] = np.arange(length) * 5 // length + 1
        rows[1:2, : length * 2 // 3] = np.arange(length * 2 // 3) * 3 // length + 1
        rows[1:2, length * 2 // 3 :] = 0
        self.segments, self.window, self.rate = jnp.asarray(rows), window, rate
        self.drop = DropoutKey(step_key(0, jnp.int32(1)), jnp.arange(count), again=True) if rate else None

    def with_gradients(self, attend: Callable[..., jax.Array], dtype: Any = None) -> Callable[..., list[jax.Array]]:
        """A function of `arrays` with the result and the gradients of queries, keys and values, in this type."""

        def both(*arrays: jax.Array) -> list[jax.Array]:
            query, key, value, change = (each.astype(dtype or each.dtype) for each in arrays)
            output, backward = jax.vjp(attend, query, key, value)
            return [output, *backward(change.astype(output.dtype))]

        return both

    def kernel(self, run: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """A kernel's `run` on these rows; it gets the arguments of dropout only where there is some."""
        options: dict[str, Any] = {"rate": self.rate, "dropout_key": self.drop, "site": 3} if self.rate else {}
        return lambda *arrays: run(*arrays, self.segments, self.window, **options)

    def plain(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        """The same by `xla`."""
        return xla.attend(query, key, value, self.segments, self.rate, self.drop, 3, self.window)

    def beside(self, name: str) -> Callable[..., jax.Array]:
        """The same by the backend with this name that a kernel would replace."""
        if name == "cudnn":
            return self.kernel(cudnn.run)
        return self.chunked if name == "xla_chunked" else self.plain

    def chunked(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        """The same by `xla_chunked`."""
        seen = xla_chunked.Seen(self.window)
        return xla_chunked.attend(self.rate, seen, query, key, value, self.segments, self.drop, jnp.uint32(3))


def compare(
    name: str,
    run: Callable[..., jax.Array],
    length: int,
    head_size: int,
    dtype: str,
    *,
    window: int = 0,
    rate: float = 0.0,
) -> None:
    """Compares outputs and gradients of `run` with `xla` in float32 on this process's first device. Takes seconds.

    With a `rate` both drop the same probabilities. ValueError names the largest difference where they are not equal to the
    rounding of the type.
    """
    case = _Case((2, length, 2, head_size), dtype, window, rate)
    functions = (case.with_gradients(case.kernel(run)), case.with_gradients(case.plain, jnp.float32))
    results = [[np.asarray(each, np.float32) for each in function(*case.arrays)] for function in functions]
    check(f"encoder.attention {name!r}", ("output", "query", "key", "value"), *results)


def check(name: str, parts: Sequence[str], found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """ValueError with the largest difference where a part of what a kernel computes is not equal to the rounding of bfloat16."""
    for part, got, right in zip(parts, found, expected, strict=True):
        difference = float(np.abs(got - right).max() / np.abs(right).max())
        if not difference <= ALLOWED:  # NaN is not
            raise ValueError(
                f"{name} computes something else than 'xla' on this device: {part} differ by"
                f" {difference:.1%} of the largest, expected at most {ALLOWED:.0%}; take 'xla', and report the versions that"
                " `python -m spanjax.doctor` prints"
            )


def shortest(function: Callable[..., Any], arrays: Sequence[jax.Array]) -> float:
    """Seconds of the fastest of `TIMED` calls, after the first."""
    function, least = jax.jit(function), float("inf")
    jax.block_until_ready(function(*arrays))
    for _ in range(TIMED):
        begin = time.perf_counter()
        jax.block_until_ready(function(*arrays))
        least = min(least, time.perf_counter() - begin)
    return least


def times(
    run: Callable[..., jax.Array],
    length: int,
    head_size: int,
    dtype: str,
    *,
    window: int = 0,
    rate: float = 0.0,
    other: str = "xla",
) -> tuple[float, float]:
    """Seconds of forward and backward pass by `run` and by the backend `other`, on this process's first device, after the first
    call."""
    heads = max(1, min(12, SCORES // length**2))
    case = _Case((max(1, min(8, SCORES // length**2 // heads)), length, heads, head_size), dtype, window, rate)
    own, plain = (
        shortest(case.with_gradients(attend), case.arrays) for attend in (case.kernel(run), case.beside(other))
    )
    return own, plain


def trial(
    name: str,
    run: Callable[..., jax.Array],
    length: int,
    head_size: int,
    dtype: str,
    window: int,
    rate: float,
    other: str = "xla",
) -> tuple[float, float]:
    """Compares `run` with and without the window, and returns its seconds and those of `other`; ValueError as of `compare`."""
    for reach in {0, window}:
        compare(name, run, length, head_size, dtype, window=reach, rate=rate)
    return times(run, length, head_size, dtype, window=window, rate=rate, other=other)
