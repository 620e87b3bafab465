"""Bidirectional attention inside the blocks of packed rows.

Shapes: B rows, L positions (Q and K where the two sides differ), N heads, H width of a head.
"""

import math

import jax
import jax.numpy as jnp

from spanjax.nn.dropout import DropoutKey, dropout


def attention(
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    *,
    rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    site: int | jax.Array = 0,
) -> jax.Array:
    """Softmax attention of every position over the positions of its own block; [B, L, N, H] -> [B, L, N, H].

    Scores and softmax are float32 whatever the input. Padding (segment 0) attends to padding, so that every row of the
    softmax has a position to look at; nothing else looks at it. Dropout with `rate` falls on the probabilities.
    """
    query_BNQH, key_BNKH, value_BNKH = (jnp.swapaxes(x, 1, 2) for x in (query_BLNH, key_BLNH, value_BLNH))
    query_BNQH = query_BNQH * jnp.asarray(1.0 / math.sqrt(query_BLNH.shape[-1]), query_BLNH.dtype)
    scores_BNQK = jnp.einsum("bnqh,bnkh->bnqk", query_BNQH, key_BNKH, preferred_element_type=jnp.float32)
    same_B1QK = (segments_BL[:, :, None] == segments_BL[:, None, :])[:, None]
    scores_BNQK = jnp.where(same_B1QK, scores_BNQK, jnp.float32(-1e9))
    probabilities_BNQK = jax.nn.softmax(scores_BNQK, axis=-1).astype(value_BNKH.dtype)
    probabilities_BNQK = dropout(probabilities_BNQK, rate, dropout_key, site)
    return jnp.swapaxes(jnp.einsum("bnqk,bnkh->bnqh", probabilities_BNQK, value_BNKH), 1, 2)
