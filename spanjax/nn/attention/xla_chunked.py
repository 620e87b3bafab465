"""Attention of one head of all rows at a time, on any device; the backward pass recomputes the probabilities. With a window only
chunks of keys that it reaches are computed.

Shapes: B rows, L positions, X rows or chunks of them (`Bands`) of Q queries and K keys, N heads, H width of a head.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from spanjax.nn.attention.bands import Bands
from spanjax.nn.attention.request import KEPT
from spanjax.nn.attention.xla import HIDDEN, STRIDE, scaled
from spanjax.nn.dropout import DropoutKey, dropout


class Seen(NamedTuple):
    """Keys that a query may see in its block."""

    window: int = 0
    """Largest distance of a key on either side; 0: none is too far."""
    causal: bool = False
    """Hide the keys after it."""


def _product(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """A product in the type of `right`, summed in float32."""
    return jnp.einsum(equation, left.astype(right.dtype), right, preferred_element_type=jnp.float32)


def _forward(
    rate: float,
    seen: Seen,
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    dropout_key: DropoutKey | None,
    site: jax.Array,
) -> tuple[jax.Array, tuple]:
    bands = Bands(query_BLNH.shape[1], *seen)
    seen_XQK = bands.seen(segments_BL)

    # chunks are cut inside of the loop: their copies of keys then exist for one head alone
    def run_head(query_BLH: jax.Array, key_BLH: jax.Array, value_BLH: jax.Array, head: jax.Array) -> tuple:
        query_XQH, key_XKH, value_XKH = bands.queries(query_BLH), bands.keys(key_BLH), bands.keys(value_BLH)
        scores_XQK = jnp.where(seen_XQK, _product("xqh,xkh->xqk", query_XQH, key_XKH), jnp.float32(HIDDEN))
        top_XQ1 = jnp.max(scores_XQK, axis=-1, keepdims=True)
        weights_XQK = jnp.exp(scores_XQK - top_XQ1)
        total_XQ1 = jnp.sum(weights_XQK, axis=-1, keepdims=True)
        dropped_XQK = _drop_head(weights_XQK, rate, dropout_key, site, head, bands)
        mixed_XQH = _product("xqk,xkh->xqh", dropped_XQK, value_XKH) / total_XQ1
        return bands.rows(mixed_XQH.astype(value_XKH.dtype)), bands.rows(top_XQ1 + jnp.log(total_XQ1))

    mixed_NBLH, level_NBL1 = _over_heads(run_head, *map(_heads_first, (scaled(query_BLNH), key_BLNH, value_BLNH)))
    mixed_BLNH = checkpoint_name(jnp.transpose(mixed_NBLH, (1, 2, 0, 3)), KEPT)
    level_NBL1 = checkpoint_name(level_NBL1, KEPT)
    return mixed_BLNH, (query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, site, mixed_BLNH, level_NBL1)


def _backward(rate: float, seen: Seen, kept: tuple, out_BLNH: jax.Array) -> tuple:
    """Gradients of query, key and value from that of the result."""
    query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, site, mixed_BLNH, level_NBL1 = kept
    bands = Bands(query_BLNH.shape[1], *seen)
    seen_XQK = bands.seen(segments_BL)
    # the mean over keys in the gradient of the softmax, from the results: it needs no further pass over [Q, K]
    mean_BLN = jnp.sum(out_BLNH.astype(jnp.float32) * mixed_BLNH, axis=-1)
    mean_NBL1 = jnp.transpose(mean_BLN, (2, 0, 1))[..., None]

    def run_head(query: jax.Array, key: jax.Array, value: jax.Array, out: jax.Array, level: Any, mean: Any, head: Any):
        query, out, level, mean = (bands.queries(each) for each in (query, out, level, mean))
        key, value = bands.keys(key), bands.keys(value)
        weights_XQK = jnp.where(seen_XQK, jnp.exp(_product("xqh,xkh->xqk", query, key) - level), 0.0)
        dropped_XQK = _drop_head(weights_XQK, rate, dropout_key, site, head, bands)
        to_weights_XQK = _drop_head(_product("xqh,xkh->xqk", out, value), rate, dropout_key, site, head, bands)
        to_scores_XQK = (weights_XQK * (to_weights_XQK - mean)).astype(query.dtype)
        # Scores stay [Q, K] in every product: the gradients of keys and values come out as [H, K]. XLA would transpose a
        # matrix of [Q, K] otherwise, which takes the CPU as long as a product.
        to_query_XQH = _product("xqk,xkh->xqh", to_scores_XQK, key)
        to_key_XHK = _product("xqh,xqk->xhk", query, to_scores_XQK)
        to_value_XHK = _product("xqh,xqk->xhk", out, dropped_XQK.astype(out.dtype))
        return bands.rows(to_query_XQH), bands.summed(to_key_XHK), bands.summed(to_value_XHK)

    sliced = map(_heads_first, (scaled(query_BLNH), key_BLNH, value_BLNH, out_BLNH))
    to_query_NBLH, to_key_NBHL, to_value_NBHL = _over_heads(run_head, *sliced, level_NBL1, mean_NBL1)
    to_query_BLNH = scaled(jnp.transpose(to_query_NBLH, (1, 2, 0, 3))).astype(query_BLNH.dtype)
    to_key_BLNH = jnp.transpose(to_key_NBHL, (1, 3, 0, 2)).astype(key_BLNH.dtype)
    to_value_BLNH = jnp.transpose(to_value_NBHL, (1, 3, 0, 2)).astype(value_BLNH.dtype)
    return to_query_BLNH, to_key_BLNH, to_value_BLNH, None, None, None


attend = jax.custom_vjp(lambda rate, seen, *inputs: _forward(rate, seen, *inputs)[0], nondiff_argnums=(0, 1))
"""Computes `xla.attend` in a loop over heads, of the arguments of `_forward`; the backward pass recomputes the probabilities."""
attend.defvjp(_forward, _backward)


def _drop_head(
    weights_XQK: jax.Array, rate: float, key: DropoutKey | None, site: jax.Array, head: jax.Array, bands: Bands
) -> jax.Array:
    """Dropout of one head, with this head's part of the mask that `xla.attend` applies to all heads."""
    line, column = head * jnp.uint32(STRIDE), None
    if key is not None and bands.cut:
        # the first key of a chunk stands `window` positions before its first query
        start_X = jnp.tile(jnp.arange(bands.count, dtype=jnp.uint32) * jnp.uint32(bands.chunk), len(key.row_B))
        line, column = line + start_X, start_X - jnp.uint32(bands.window)
        key = dataclasses.replace(key, row_B=jnp.repeat(key.row_B, bands.count))
    return dropout(weights_XQK, rate, key, site, line, column)


def _heads_first(x_BLNH: jax.Array) -> jax.Array:
    return jnp.transpose(x_BLNH, (2, 0, 1, 3))


def _over_heads(run_head: Callable[..., tuple], *arrays_N: jax.Array) -> tuple:
    heads = np.arange(arrays_N[0].shape[0], dtype=np.uint32)
    return jax.lax.map(lambda sliced: run_head(*sliced), (*arrays_N, heads))
