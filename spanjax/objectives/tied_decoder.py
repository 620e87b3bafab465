"""Heads of token terms, decoded together by one product with the token table.

Shapes: B rows, K slots, S slots of all rows, T token terms, L positions, D hidden size, E width of the token table, V padded
vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from spanjax.nn.heads import decode, decoded_loss
from spanjax.objectives.base import Batch, Mean
from spanjax.objectives.loss_terms import TokenTerm


def tied_table(module: Any) -> tuple[jax.Array, int]:
    """The token table of a module's encoder, and the number of its rows that are pieces."""
    return module.encoder.token_table(), module.vocab_size


def token_logits(
    terms: Sequence[TokenTerm], heads: Any, table_VE: jax.Array, vocab_size: int, hidden_BLD: jax.Array, batch: Batch
) -> jax.Array:
    """Scores of every term at every slot: float32 [B, T, K, V]; `heads` has each term's under its name.

    Pieces that only pad the vocabulary to its stored size score -1e9.
    """
    vectors_TBKE, bias_TV = _vectors(terms, heads, vocab_size, hidden_BLD, batch)
    return jnp.swapaxes(decode(vectors_TBKE, table_VE) + bias_TV[:, None, None], 0, 1)


def token_means(
    terms: Sequence[TokenTerm], heads: Any, table_VE: jax.Array, vocab_size: int, hidden_BLD: jax.Array, batch: Batch
) -> dict[str, Mean]:
    """Cross-entropy in nats and accuracy of every term over its targets, "mlm/loss" and "mlm/accuracy" say."""
    vectors_TBKE, bias_TV = _vectors(terms, heads, vocab_size, hidden_BLD, batch)
    count, rows, slots, size = vectors_TBKE.shape
    vectors_TSE = vectors_TBKE.reshape(count, rows * slots, size)
    target_TS = jnp.broadcast_to(batch["slot_target_BK"].reshape(1, rows * slots), (count, rows * slots))
    loss_TS, right_TS = decoded_loss(vectors_TSE, table_VE, bias_TV, target_TS)
    means = {}
    for index, term in enumerate(terms):
        weight_S = term.target_weights(batch).reshape(-1)
        targets = jnp.sum(weight_S)
        means[f"{term.name}/loss"] = Mean(jnp.sum(loss_TS[index] * weight_S), targets)
        means[f"{term.name}/accuracy"] = Mean(jnp.sum(right_TS[index] * weight_S), targets)
    return means


def slot_index(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """(row, position) of every slot, [B, K] each, for [B, L]; unused ones are at L, where mode "drop" writes nothing."""
    rows, length = batch["tokens_BL"].shape
    row_BK = jnp.broadcast_to(jnp.arange(rows)[:, None], batch["slot_position_BK"].shape)
    return row_BK, jnp.where(batch["slot_weight_BK"] > 0, batch["slot_position_BK"], length)


def _vectors(
    terms: Sequence[TokenTerm], heads: Any, vocab_size: int, hidden_BLD: jax.Array, batch: Batch
) -> tuple[jax.Array, jax.Array]:
    """Vectors to decode for every term, [T, B, K, E], and the biases, -1e9 for padding pieces, float32 [T, V]."""
    own = [getattr(heads, term.name) for term in terms]
    vectors = [term.vectors(head, hidden_BLD, batch) for term, head in zip(terms, own, strict=True)]
    bias_TV = jnp.stack([head.bias[...].astype(jnp.float32) for head in own])
    bias_TV = jnp.where(jnp.arange(bias_TV.shape[1])[None] < vocab_size, bias_TV, jnp.float32(-1e9))
    return jnp.stack(vectors), bias_TV
