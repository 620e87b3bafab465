"""The comparison of a kernel that no GPU has run yet with `xla`, on the device, before the first step.

Shapes: B rows, L positions, N heads, H width of a head.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spanjax.nn.attention import xla
from spanjax.nn.dropout import DropoutKey, step_key

ALLOWED = 0.02  # of the largest value, in outputs and gradients: bfloat16 has steps of 0.4 %


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
    """Compares outputs and gradients of `run` with `xla` in float32 on this process's first device.

    The rows have blocks, and one of them padding; with a `rate` both drop the same probabilities, and `run` gets the arguments
    of dropout. Takes seconds. ValueError names the largest difference where they are not equal to the rounding of the type.
    """
    generator = np.random.default_rng(0)
    shape = (2, length, 2, head_size)
    query, key, value, change = (jnp.asarray(generator.standard_normal(shape), dtype) for _ in range(4))
    rows = np.zeros((2, length), np.int32)
    rows[0] = np.arange(length) * 5 // length + 1
    rows[1, : length * 2 // 3] = np.arange(length * 2 // 3) * 3 // length + 1
    segments = jnp.asarray(rows)
    drop = DropoutKey(step_key(0, jnp.int32(1)), jnp.arange(2)) if rate else None
    options: dict[str, Any] = {"rate": rate, "dropout_key": drop, "site": 3} if rate else {}

    def kernel(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return run(query, key, value, segments, window, **options)

    def exact(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        query, key, value = (each.astype(jnp.float32) for each in (query, key, value))
        return xla.attend(query, key, value, segments, rate, drop, 3, window)

    results = []
    for function in (kernel, exact):
        output, backward = jax.vjp(function, query, key, value)
        results.append([np.asarray(each, np.float32) for each in (output, *backward(change.astype(output.dtype)))])
    for part, got, expected in zip(("output", "query", "key", "value"), *results, strict=True):
        difference = float(np.abs(got - expected).max() / np.abs(expected).max())
        if not difference <= ALLOWED:  # NaN is not
            raise ValueError(
                f"encoder.attention {name!r} computes something else than 'xla' on this device: {part} differ by"
                f" {difference:.1%} of the largest, expected at most {ALLOWED:.0%}; take 'xla', and report the versions that"
                " `python -m spanjax.doctor` prints"
            )
