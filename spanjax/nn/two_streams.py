"""Two-stream attention (XLNet, Yang et al., 2019, section 2.3): a query stream, which knows the position of a target and not its
token, predicts it from the tokens before it in a factorisation order.

Shapes: B rows, L positions, K slots, M positions of the memory, J = M + L keys, D hidden size.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.encoder import Encoder
from spanjax.nn.relative import AttentionMask, RelativeContext, joined

CONTEXT = -1
"""Rank of context positions: every position sees them, and they see no target."""


class Memory(NamedTuple):
    """Hidden states of the neighbouring rows: the preceding ones, or the following ones of rows read backwards. No gradient
    reaches them."""

    states_BNMD: jax.Array
    """Inputs of the N layers."""
    used_BM: jax.Array
    """1 for text, else 0: text lies at the side of the row that reads it."""
    backward_B: jax.Array
    """Rows whose memory is behind them."""


def context_of(
    segments_BL: jax.Array,
    types_BL: jax.Array,
    rank_BL: jax.Array,
    slot_position_BK: jax.Array,
    memory: Memory | None,
) -> RelativeContext:
    """Builds the attention masks of both streams.

    A target (rank of 0 and more) sees positions of lower rank, and the content stream also itself; a position of the context
    sees the context. A slot sees positions of lower rank than its own. All see the memory, whose types are 0.
    """
    backward_B, end_B = (memory.backward_B, _end(segments_BL)) if memory else (None, None)
    slot_rank_BK = jnp.take_along_axis(rank_BL, slot_position_BK, axis=1)
    slot_block_BK = jnp.take_along_axis(segments_BL, slot_position_BK, axis=1)
    slot_type_BK = jnp.take_along_axis(types_BL, slot_position_BK, axis=1)
    same_BLL = segments_BL[:, :, None] == segments_BL[:, None, :]
    own_LL = jnp.eye(segments_BL.shape[1], dtype=bool)
    # a position sees ranks strictly below its level: one above CONTEXT lets context positions see each other and no target
    level_BL = jnp.where(rank_BL == CONTEXT, CONTEXT + 1, rank_BL)
    content_BLL = same_BLL & ((rank_BL[:, None, :] < level_BL[:, :, None]) | own_LL[None])
    slots_BKL = (segments_BL[:, None, :] == slot_block_BK[:, :, None]) & (
        rank_BL[:, None, :] < slot_rank_BK[:, :, None]
    )

    def mask(seen_BQL: jax.Array, type_BQ: jax.Array) -> AttentionMask:
        other_BQL = type_BQ[:, :, None] != types_BL[:, None, :]
        if memory is None:
            return AttentionMask(seen_BQL, other_BQL)
        wide = (*seen_BQL.shape[:2], memory.used_BM.shape[1])
        parts = (jnp.broadcast_to(memory.used_BM[:, None] > 0, wide), jnp.broadcast_to(type_BQ[:, :, None] != 0, wide))
        rows = (seen_BQL, other_BQL)
        return AttentionMask(
            *(joined(row, part, backward_B, end_B, axis=-1) for row, part in zip(rows, parts, strict=True))
        )

    return RelativeContext(
        content=mask(content_BLL, types_BL),
        backward_B=backward_B,
        end_B=end_B,
        slots=mask(slots_BKL, slot_type_BK),
        slot_position_BK=slot_position_BK,
    )


def two_streams(
    encoder: Encoder,
    start_D: jax.Array,
    tokens_BL: jax.Array,
    context: RelativeContext,
    memory: Memory | None,
    key: DropoutKey | None,
) -> tuple[jax.Array, jax.Array]:
    """(the query stream at every slot [B, K, D], the inputs of all layers of the content stream [N, B, L, D]).

    The query stream begins with `start_D` at every slot. Uses the two dropout sites after those of the layers.
    """
    assert context.slot_position_BK is not None
    # positions and types reach a relative encoder by attention alone: its embeddings do not read these zeros
    zeros_BL = jnp.zeros_like(tokens_BL)
    hidden_BLD = encoder.embeddings(tokens_BL, zeros_BL, zeros_BL, key, site=0)
    shape = (*context.slot_position_BK.shape, hidden_BLD.shape[-1])
    slots_BKD = jnp.broadcast_to(start_D.astype(hidden_BLD.dtype), shape)
    last = 1 + encoder.sites * encoder.count
    rate = encoder.embeddings.rate
    slots_BKD = dropout(slots_BKD, rate, key, last)

    def apply(layer: Any, streams: tuple, site: jax.Array, memory_BMD: Any) -> tuple[tuple, jax.Array]:
        return layer.both(*streams, memory_BMD, context, key, site), streams[0]

    states_NBMD = jnp.swapaxes(memory.states_BNMD, 0, 1) if memory else None
    (_, slots_BKD), read_NBLD = encoder.scanned(apply, (hidden_BLD, slots_BKD), first_site=1, given=states_NBMD)
    return dropout(slots_BKD, rate, key, last + 1), read_NBLD


def remembered(read_NBLD: jax.Array, segments_BL: jax.Array, memory: Memory) -> Memory:
    """The memory for the rows that follow: the nearest M positions of the text of this row and of the memory before it.

    Padding is skipped. Used positions lie at the side of the rows that follow: at the memory's end or, for rows read backwards,
    at its beginning.
    """
    size, backward_B1 = memory.used_BM.shape[1], memory.backward_B[:, None]

    def whole(row: jax.Array, old: jax.Array) -> jax.Array:
        behind, old = memory.backward_B.reshape(-1, *[1] * (row.ndim - 1)), old.astype(row.dtype)
        return jnp.where(behind, jnp.concatenate([row, old], 1), jnp.concatenate([old, row], 1))

    used_BJ = whole((segments_BL > 0).astype(memory.used_BM.dtype), memory.used_BM)
    order_BJ = jnp.argsort(jnp.where(backward_B1, 1 - used_BJ, used_BJ), axis=1, stable=True)
    nearest_BM = jnp.where(backward_B1, order_BJ[:, :size], order_BJ[:, order_BJ.shape[1] - size :])
    states_BJND = whole(jnp.moveaxis(read_NBLD, 0, 2), jnp.moveaxis(memory.states_BNMD, 1, 2))
    states_BMND = jnp.take_along_axis(states_BJND, nearest_BM[:, :, None, None], axis=1)
    used_BM = jnp.take_along_axis(used_BJ, nearest_BM, axis=1)
    return Memory(jax.lax.stop_gradient(jnp.moveaxis(states_BMND, 2, 1)), used_BM, memory.backward_B)


def _end(segments_BL: jax.Array) -> jax.Array:
    """Positions up to the last one with text, int32 [B]."""
    return jnp.max(jnp.where(segments_BL > 0, jnp.arange(1, segments_BL.shape[1] + 1)[None], 0), axis=1)
