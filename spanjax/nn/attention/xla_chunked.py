"""Attention of one head of all rows at a time, on any device; the backward pass recomputes the probabilities.

Shapes: B rows, L positions (Q and K where the two sides differ), N heads, H width of a head.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from spanjax.nn.attention.request import KEPT
from spanjax.nn.attention.xla import HIDDEN, STRIDE, same_block, scaled
from spanjax.nn.dropout import DropoutKey, dropout


def _product(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """A product in the type of `right`, summed in float32."""
    return jnp.einsum(equation, left.astype(right.dtype), right, preferred_element_type=jnp.float32)


def _forward(
    rate: float,
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    dropout_key: DropoutKey | None,
    site: jax.Array,
) -> tuple[jax.Array, tuple]:
    same_BQK = same_block(segments_BL)

    def run_head(query_BQH: jax.Array, key_BKH: jax.Array, value_BKH: jax.Array, head: jax.Array) -> tuple:
        scores_BQK = jnp.where(same_BQK, _product("bqh,bkh->bqk", query_BQH, key_BKH), jnp.float32(HIDDEN))
        top_BQ1 = jnp.max(scores_BQK, axis=-1, keepdims=True)
        weights_BQK = jnp.exp(scores_BQK - top_BQ1)
        total_BQ1 = jnp.sum(weights_BQK, axis=-1, keepdims=True)
        dropped_BQK = _drop_head(weights_BQK, rate, dropout_key, site, head)
        mixed_BQH = _product("bqk,bkh->bqh", dropped_BQK, value_BKH) / total_BQ1
        return mixed_BQH.astype(value_BKH.dtype), top_BQ1 + jnp.log(total_BQ1)

    mixed_NBLH, level_NBL1 = _over_heads(run_head, *map(_heads_first, (scaled(query_BLNH), key_BLNH, value_BLNH)))
    mixed_BLNH = checkpoint_name(jnp.transpose(mixed_NBLH, (1, 2, 0, 3)), KEPT)
    level_NBL1 = checkpoint_name(level_NBL1, KEPT)
    return mixed_BLNH, (query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, site, mixed_BLNH, level_NBL1)


def _backward(rate: float, kept: tuple, out_BLNH: jax.Array) -> tuple:
    """Gradients of query, key and value from that of the result."""
    query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, site, mixed_BLNH, level_NBL1 = kept
    same_BQK = same_block(segments_BL)
    # the mean over keys in the gradient of the softmax, from the results: it needs no further pass over [Q, K]
    mean_BLN = jnp.sum(out_BLNH.astype(jnp.float32) * mixed_BLNH, axis=-1)
    mean_NBL1 = jnp.transpose(mean_BLN, (2, 0, 1))[..., None]

    def run_head(query: jax.Array, key: jax.Array, value: jax.Array, out: jax.Array, level: Any, mean: Any, head: Any):
        weights_BQK = jnp.where(same_BQK, jnp.exp(_product("bqh,bkh->bqk", query, key) - level), 0.0)
        dropped_BQK = _drop_head(weights_BQK, rate, dropout_key, site, head)
        to_weights_BQK = _drop_head(_product("bqh,bkh->bqk", out, value), rate, dropout_key, site, head)
        to_scores_BQK = (weights_BQK * (to_weights_BQK - mean)).astype(query.dtype)
        # Scores stay [Q, K] in every product: the gradients of keys and values come out as [H, K]. XLA would transpose a
        # matrix of [Q, K] otherwise, which takes the CPU as long as a product.
        to_query_BQH = _product("bqk,bkh->bqh", to_scores_BQK, key)
        to_key_BHK = _product("bqh,bqk->bhk", query, to_scores_BQK)
        return to_query_BQH, to_key_BHK, _product("bqh,bqk->bhk", out, dropped_BQK.astype(out.dtype))

    sliced = map(_heads_first, (scaled(query_BLNH), key_BLNH, value_BLNH, out_BLNH))
    to_query_NBQH, to_key_NBHK, to_value_NBHK = _over_heads(run_head, *sliced, level_NBL1, mean_NBL1)
    to_query_BLNH = scaled(jnp.transpose(to_query_NBQH, (1, 2, 0, 3))).astype(query_BLNH.dtype)
    to_key_BLNH = jnp.transpose(to_key_NBHK, (1, 3, 0, 2)).astype(key_BLNH.dtype)
    to_value_BLNH = jnp.transpose(to_value_NBHK, (1, 3, 0, 2)).astype(value_BLNH.dtype)
    return to_query_BLNH, to_key_BLNH, to_value_BLNH, None, None, None


attend = jax.custom_vjp(lambda rate, *inputs: _forward(rate, *inputs)[0], nondiff_argnums=(0,))
"""Computes `xla.attend` in a loop over heads, of the arguments of `_forward`; the backward pass recomputes the probabilities."""
attend.defvjp(_forward, _backward)


def _drop_head(
    weights_BQK: jax.Array, rate: float, key: DropoutKey | None, site: jax.Array, head: jax.Array
) -> jax.Array:
    """Dropout of one head, with this head's part of the mask that `xla.attend` applies to all heads."""
    return dropout(weights_BQK, rate, key, site, first=head * jnp.uint32(STRIDE**2), strides=(STRIDE, 1))


def _heads_first(x_BLNH: jax.Array) -> jax.Array:
    return jnp.transpose(x_BLNH, (2, 0, 1, 3))


def _over_heads(run_head: Callable[..., tuple], *arrays_N: jax.Array) -> tuple:
    heads = np.arange(arrays_N[0].shape[0], dtype=np.uint32)
    return jax.lax.map(lambda sliced: run_head(*sliced), (*arrays_N, heads))
