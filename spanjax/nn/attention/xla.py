"""Attention as the formula reads, on any device, with dropout of the probabilities.

Shapes: B rows, L positions (Q and K where the two sides differ), N heads, H width of a head.
"""

import math

import jax
import jax.numpy as jnp

from spanjax.nn.dropout import Draws, DropoutKey, draws_of, dropout
from spanjax.nn.products import float32_product

STRIDE = (
    1 << 16
)  # between heads in the masks of dropout: more than there are positions, so that masks do not depend on padding
HIDDEN = -1e9  # the score of keys that a query may not see


def scaled(query: jax.Array) -> jax.Array:
    """Queries divided by the square root of the width of a head, in their own type."""
    return query * jnp.asarray(1.0 / math.sqrt(query.shape[-1]), query.dtype)


def attend(
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    rate: float,
    dropout_key: DropoutKey | None,
    site: int | jax.Array,
    window: int = 0,
    causal: bool = False,
    added_BNQK: jax.Array | None = None,
) -> jax.Array:
    """Implements `spanjax.nn.attention.attention` by plain products; `added_BNQK` are further scores, float32."""
    query_BNQH, key_BNKH, value_BNKH = (jnp.swapaxes(x, 1, 2) for x in (scaled(query_BLNH), key_BLNH, value_BLNH))
    scores_BNQK = float32_product("bnqh,bnkh->bnqk", query_BNQH, key_BNKH)
    if added_BNQK is not None:
        scores_BNQK = scores_BNQK + added_BNQK
    scores_BNQK = jnp.where(visible(segments_BL, window, causal)[:, None], scores_BNQK, jnp.float32(HIDDEN))
    probabilities_BNQK = jax.nn.softmax(scores_BNQK, axis=-1).astype(value_BNKH.dtype)
    probabilities_BNQK = dropout(probabilities_BNQK, rate, dropout_key, site, strides=(STRIDE, 1))
    return jnp.swapaxes(jnp.einsum("bnqk,bnkh->bnqh", probabilities_BNQK, value_BNKH), 1, 2)


def drawn(rate: float, shape: tuple[int, ...], key: DropoutKey | None, site: jax.Array) -> Draws | None:
    """Draws of the probabilities of queries [B, L, N, H], [B, N, L] of lines and [K] of columns; None without dropout."""
    if rate == 0 or key is None:
        return None
    rows, length, heads, _ = shape
    draws = draws_of((rows, heads, length, length), key, site, strides=(STRIDE, 1))
    return Draws(draws.offset[..., 0], draws.factor[..., 0], draws.column)


def visible(segments_BL: jax.Array, window: int, causal: bool = False) -> jax.Array:
    """[B, Q, K]: True where a query may see a key: both are in one block of the row, or both are padding, and at most `window`
    positions apart, unless that is 0; with `causal` the key is not after the query."""
    same_BQK = segments_BL[:, :, None] == segments_BL[:, None, :]
    if not (window or causal):
        return same_BQK
    place_L = jnp.arange(segments_BL.shape[1])
    return same_BQK & in_reach(place_L[:, None] - place_L[None], window, causal)[None]


def in_reach(back_QK: jax.Array, window: int, causal: bool) -> jax.Array:
    """[Q, K]: True where a query may see the key so many positions before it."""
    near_QK = jnp.abs(back_QK) <= window if window else jnp.ones_like(back_QK, bool)
    return near_QK & (back_QK >= 0) if causal else near_QK
