"""Counter-based dropout: the mask is an integer hash of (seed, step, site, row of the global batch, position).

The mask does not depend on the number of devices, hosts or microbatches. Every line (the elements of an array that differ in
their last index alone) gets two strong hashes, an offset and an odd factor, and every column a constant hash; an element is
dropped if `offset + factor * column` (modulo 2^32) is below the rate. That is one multiplication and one sum an element, and two
elements of a line are independent, as the factor is (Dietzfelbinger et al., 1997); different lines have factors and offsets of
their own. The mask is computed again for the backward pass on GPUs; others keep one byte an element.
Shapes: B rows, any further axes, K columns.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

MASK_VERSION = 2
"""Version of the masks that a seed gives; 1 hashed every element (spanjax 0.1 and 0.2)."""
Uint32 = TypeVar("Uint32", jax.Array, np.ndarray)

# Two places of one network that share a site share a mask. Append new ranges: changing a number changes the masks of every run.
SITES: Mapping[str, range] = {
    "encoder": range(0, 1 << 16),  # embeddings, then three, four or eight a layer
    "generator": range(1 << 16, 1 << 17),  # ELECTRA's second encoder, numbered as the first
    "draws": range(1 << 17, 1 << 20),  # no dropout: ELECTRA's samples, or XLNet's orders; a run has one objective
    "head": range(1 << 20, (1 << 20) + 8),  # of a task; coreference uses all eight
    "first token": range((1 << 20) + 8, (1 << 20) + 16),  # [CLS], before the pooler of a task
    "spans": range((1 << 20) + 16, (1 << 20) + 24),  # vectors of spans in span fine-tuning
}
"""Part of a network -> the dropout sites that are its own."""


def hash32(x: Uint32) -> Uint32:
    """Mixes uint32 to uint32 (two rounds of xor-shift and multiply): every input bit reaches every output bit."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x21F0AAAD)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x735A2D97)
    return x ^ (x >> np.uint32(15))


def line_draws(row_key: jax.Array, line: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The offset and the odd factor of lines, uint32, from the key of their row and their number in it."""
    factor_key = hash32(row_key + np.uint32(0x9E3779B9))
    return hash32(line ^ row_key), hash32(line + factor_key) | np.uint32(1)


def column_draws(column: Uint32) -> Uint32:
    """The constants of columns, uint32, by their numbers."""
    return hash32(column ^ np.uint32(0x5BD1E995))


def threshold(rate: float) -> int:
    """An element is kept if its draw is at least this."""
    return min(round(rate * 2**32), 2**32 - 1)


@functools.cache
def _first_columns(count: int) -> np.ndarray:
    return column_draws(np.arange(count, dtype=np.uint32))


def step_key(seed: int | jax.Array, step: jax.Array) -> jax.Array:
    """uint32 scalar from the seed of the run, an integer or a uint32 scalar, and the step."""
    seed = jnp.uint32(seed & 0xFFFFFFFF) if isinstance(seed, int) else seed
    return hash32(seed ^ hash32(step.astype(jnp.uint32) + jnp.uint32(0x9E3779B9)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DropoutKey:
    """Key of a dropout mask: a uint32 key of (seed, step) and the global number of every row, int32[B]."""

    key: jax.Array
    row_B: jax.Array
    again: bool = dataclasses.field(default=False, metadata={"static": True})
    """Compute masks again for the backward pass, which is cheaper than memory on a GPU. Otherwise it keeps them."""


def dropout(
    x: jax.Array,
    rate: float,
    key: DropoutKey | None,
    site: int | jax.Array,
    line: int | jax.Array = 0,
    column: jax.Array | None = None,
    strides: tuple[int, ...] = (),
) -> jax.Array:
    """Zeroes each element of x [B, ..., K] with probability `rate` and scales the rest by 1 / (1 - rate).

    `key=None` (evaluation) and `rate=0` return x. `site` names the place in the network: no two places share a mask.
    `line` is the number of x's first line and `column` that of its first column, [B] or scalar, where x is a part of every row:
    the parts get the whole's mask. `strides` are the distances of the numbers of lines along the axes between the first and the
    last; by default lines have consecutive numbers. Where the distances do not depend on the length of a row, its mask does not:
    padding changes nothing.
    """
    if key is None or rate == 0.0:
        return x
    return (_dropped_again if key.again else _dropped)(rate, x, *draws_of(x.shape, key, site, line, column, strides))


class Draws(NamedTuple):
    """Numbers that give the mask of an array, uint32: of every line, [B, ..., 1], and of every column."""

    offset: jax.Array
    factor: jax.Array
    column: jax.Array


def draws_of(
    shape: tuple[int, ...],
    key: DropoutKey,
    site: int | jax.Array,
    line: int | jax.Array = 0,
    column: jax.Array | None = None,
    strides: tuple[int, ...] = (),
) -> Draws:
    """The draws of an array [B, ..., K]; arguments as those of `dropout`."""
    row_key = row_keys(key, site).reshape(-1, *(1 for _ in shape[1:]))
    columns = _first_columns(shape[-1]) if column is None else _columns_from(column, shape)
    return Draws(*line_draws(row_key, _line_numbers(shape, line, strides)), jnp.asarray(columns))


def kept(rate: float, offset: jax.Array, factor: jax.Array, column: jax.Array) -> jax.Array:
    """True where dropout keeps an element."""
    return offset + factor * column >= np.uint32(threshold(rate))


def _line_numbers(shape: tuple[int, ...], line: int | jax.Array, strides: tuple[int, ...]) -> jax.Array:
    """uint32, one for each line of x, of its rank."""
    inner = shape[1:-1]
    strides = strides or tuple(math.prod(inner[axis + 1 :]) for axis in range(len(inner)))
    places = (
        jax.lax.broadcasted_iota(jnp.uint32, (1, *inner, 1), axis + 1) * np.uint32(s) for axis, s in enumerate(strides)
    )
    first = jnp.asarray(line, jnp.uint32)
    return sum(places, first.reshape(-1, *(1 for _ in shape[1:])))


def _columns_from(column: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Constants of the columns of every row, of the rank of x."""
    number = column.astype(jnp.uint32).reshape(-1, *(1 for _ in shape[1:]))
    every = number + jax.lax.broadcasted_iota(jnp.uint32, (1,) * (len(shape) - 1) + shape[-1:], len(shape) - 1)
    # without the barrier XLA hashes the column of every element
    return jax.lax.optimization_barrier(column_draws(every))


def _dropped(rate: float, x: jax.Array, offset: jax.Array, factor: jax.Array, columns: jax.Array) -> jax.Array:
    keep = kept(rate, offset, factor, columns.reshape(*(1 for _ in range(x.ndim - columns.ndim)), *columns.shape))
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))


_dropped_again = jax.custom_vjp(_dropped, nondiff_argnums=(0,))
"""`_dropped`, whose backward pass computes the mask again."""


def _dropped_forward(rate: float, x: jax.Array, *drawn: jax.Array) -> tuple[jax.Array, tuple]:
    return _dropped(rate, x, *drawn), drawn


def _dropped_backward(rate: float, drawn: tuple, cotangent: jax.Array) -> tuple:
    # without the barrier XLA finds the mask of the forward pass, and keeps it
    lines = jax.lax.optimization_barrier(drawn[:2])
    return _dropped(rate, cotangent, *lines, *drawn[2:]), None, None, None


_dropped_again.defvjp(_dropped_forward, _dropped_backward)


def gumbel(key: DropoutKey, site: int | jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Standard Gumbel noise, float32: scores plus this are highest at i with probability softmax(scores)[i].

    Between -2.9 and 16.7: float32 holds 23 bits and a half, so that no sample rounds to 1, whose noise would be infinite.
    """
    uniform = ((random_bits(key, site, shape) >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
    return -jnp.log(-jnp.log(uniform))


def random_bits(key: DropoutKey, site: int | jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """uint32 of this shape [B, ...]: a strong hash of every element."""
    inner = shape[1:]
    places = (
        jax.lax.broadcasted_iota(jnp.uint32, (1, *inner), axis + 1) * np.uint32(math.prod(inner[axis + 1 :]))
        for axis in range(len(inner))
    )
    return hash32(sum(places, jnp.uint32(0)) ^ row_keys(key, site).reshape((-1,) + (1,) * len(inner)))


def row_keys(key: DropoutKey, site: int | jax.Array) -> jax.Array:
    """One uint32 for every row and site, [B]: all that a kernel needs to compute the mask of a row."""
    site_key = hash32(key.key ^ hash32(jnp.asarray(site, jnp.uint32) + np.uint32(0x85EBCA6B)))
    return hash32(key.row_B.astype(jnp.uint32) * np.uint32(0xC2B2AE35) + site_key)
