"""Counter-based dropout: the mask is an integer hash of (seed, step, site, row of the global batch, position).

The mask does not depend on the number of devices, hosts or microbatches, and a hash costs a fraction of threefry. It is computed
again for the backward pass on GPUs; others keep one byte an element. Shapes: B rows, any further axes.
"""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

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


def hash32(x: jax.Array) -> jax.Array:
    """Mixes uint32 to uint32 (two rounds of xor-shift and multiply): every input bit reaches every output bit."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x21F0AAAD)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0x735A2D97)
    return x ^ (x >> 15)


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
    first: int | jax.Array = 0,
    strides: tuple[int, ...] = (),
) -> jax.Array:
    """Zeroes each element of x [B, ...] with probability `rate` and scales the rest by 1 / (1 - rate).

    `key=None` (evaluation) and `rate=0` return x. `site` names the place in the network: no two places share a mask.
    `first` is the position of x's first element where x is a contiguous part of every row: the parts get the whole's mask.
    `strides` are the distances of neighbours along the axes behind the first; by default x is dense. Where they do not depend
    on the length of a row, its mask does not: padding changes nothing.
    """
    if key is None or rate == 0.0:
        return x
    row_key_B, first = _row_keys(key, site), jnp.asarray(first, jnp.uint32)
    return (_dropped_again if key.again else _dropped)(rate, strides, x, row_key_B, first)


def _dropped(rate: float, strides: tuple[int, ...], x: jax.Array, row_key_B: jax.Array, first: jax.Array) -> jax.Array:
    keep = _bits(row_key_B, x.shape, first, strides) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))


_dropped_again = jax.custom_vjp(_dropped, nondiff_argnums=(0, 1))
"""`_dropped`, whose backward pass computes the mask again."""


def _dropped_forward(rate: float, strides: tuple[int, ...], x: jax.Array, *drawn: jax.Array) -> tuple[jax.Array, tuple]:
    return _dropped(rate, strides, x, *drawn), drawn


def _dropped_backward(rate: float, strides: tuple[int, ...], drawn: tuple, cotangent: jax.Array) -> tuple:
    # without the barrier XLA finds the mask of the forward pass, and keeps it
    return _dropped(rate, strides, cotangent, *jax.lax.optimization_barrier(drawn)), None, None


_dropped_again.defvjp(_dropped_forward, _dropped_backward)


def gumbel(key: DropoutKey, site: int | jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Standard Gumbel noise, float32: scores plus this are highest at i with probability softmax(scores)[i].

    Between -2.9 and 16.7: float32 holds 23 bits and a half, so that no sample rounds to 1, whose noise would be infinite.
    """
    uniform = ((random_bits(key, site, shape) >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
    return -jnp.log(-jnp.log(uniform))


def random_bits(
    key: DropoutKey, site: int | jax.Array, shape: tuple[int, ...], first: int | jax.Array = 0, strides: tuple = ()
) -> jax.Array:
    """uint32 of this shape [B, ...], see `dropout`."""
    return _bits(_row_keys(key, site), shape, first, strides)


def _row_keys(key: DropoutKey, site: int | jax.Array) -> jax.Array:
    """One uint32 for every row and site, [B]."""
    site_key = hash32(key.key ^ hash32(jnp.asarray(site, jnp.uint32) + jnp.uint32(0x85EBCA6B)))
    return hash32(key.row_B.astype(jnp.uint32) * jnp.uint32(0xC2B2AE35) + site_key)


def _bits(row_key_B: jax.Array, shape: tuple[int, ...], first: int | jax.Array, strides: tuple[int, ...]) -> jax.Array:
    inner = shape[1:]
    strides = strides or tuple(math.prod(inner[axis + 1 :]) for axis in range(len(inner)))
    places = (
        jax.lax.broadcasted_iota(jnp.uint32, (1, *inner), axis + 1) * jnp.uint32(s) for axis, s in enumerate(strides)
    )
    counter = sum(places, jnp.asarray(first, jnp.uint32))
    return hash32(counter ^ row_key_B.reshape((-1,) + (1,) * len(inner)))
