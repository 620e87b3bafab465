"""cuDNN's fused attention over packed rows: it gets where blocks begin and how long they are, and computes no other pairs.

Nobody has run it yet: it is compiled for sm90 and its price is modelled, so it is taken only where a run names it, and `verify`
compares it with `xla` on the device before the first step.
Shapes: B rows, L positions, N heads, H width of a head, M room for blocks of a row.
"""

import functools
import math

import jax
import jax.numpy as jnp

from spanjax.distributed.jax_internals import packed_cudnn_attention
from spanjax.nn.attention import cudnn
from spanjax.nn.attention.on_device import compare
from spanjax.nn.attention.request import NEW_GPUS, Request, is_one_of, reasons

BLOCKS = 17
"""Room for blocks where a run does not know its rows: 16, as `spanjax.prepare` packs them, and the padding."""


def supports(request: Request) -> str | None:
    """Returns the reasons why cuDNN's packed attention cannot compute this; None if it can."""
    of_cudnn = cudnn.supports(request)
    return reasons(
        request.other_platform("gpu"),
        (of_cudnn is not None, of_cudnn or ""),
        (
            bool(request.device_kind) and not is_one_of(request.device_kind, NEW_GPUS),
            f"it needs an NVIDIA GPU of compute capability 9.0 or later, not {request.device_kind}",
        ),
        (request.window > 0, "it has no windows on both sides, and the encoder has local layers"),
    )


def block_bounds(segments_BL: jax.Array, blocks: int) -> tuple[jax.Array, jax.Array]:
    """Lengths [B, M] and begins [B, M + 1] of the blocks of each row, int32, with M `blocks`; -1 where a row has no more.

    Each stretch of equal numbers is a block, padding too. The last begin is always -1: jax wants one more begin than lengths,
    and puts the end of all rows there. Blocks beyond the room are not in it: see `overfull`.
    """
    length = segments_BL.shape[1]
    first_BL = jnp.pad(segments_BL[:, 1:] != segments_BL[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    number_BL = jnp.cumsum(first_BL, axis=1) - 1
    of_block_BLM = number_BL[:, :, None] == jnp.arange(blocks)[None, None]
    lengths_BM = of_block_BLM.sum(axis=1, dtype=jnp.int32)
    begins_BM = jnp.where(of_block_BLM, jnp.arange(length, dtype=jnp.int32)[None, :, None], length).min(axis=1)
    there_BM = lengths_BM > 0
    begins_BM1 = jnp.pad(jnp.where(there_BM, begins_BM, -1), ((0, 0), (0, 1)), constant_values=-1)
    return jnp.where(there_BM, lengths_BM, -1), begins_BM1


def overfull(segments_BL: jax.Array, blocks: int) -> jax.Array:
    """[B]: has the row more blocks, padding included, than there is room for?"""
    return (segments_BL[:, 1:] != segments_BL[:, :-1]).sum(axis=1) >= blocks


def run(
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    window: int = 0,
    interpret: bool = False,
    causal: bool = False,
    blocks: int = 0,
) -> jax.Array:
    """cuDNN's packed attention; [B, L, N, H] -> [B, L, N, H]. Raises where it is traced without cuDNN.

    `blocks` is the most that a row has, padding included, which the caller has checked; with 0 there is room for `BLOCKS`, and a
    row with more becomes NaN, so that it cannot go unnoticed.
    """
    if interpret or window or causal:
        raise ValueError(
            "the backend 'cudnn_packed' is a library of NVIDIA without windows and causality of packed rows, and cannot be"
            " interpreted: use 'cudnn' or 'xla'"
        )
    room = blocks or BLOCKS
    lengths_BM, begins_BM1 = block_bounds(segments_BL, room)
    scale = 1.0 / math.sqrt(query_BLNH.shape[-1])
    mixed_BLNH = packed_cudnn_attention(query_BLNH, key_BLNH, value_BLNH, lengths_BM, begins_BM1, scale)
    if blocks:
        return mixed_BLNH
    # the kernel would leave the last blocks of such a row as the memory was
    return jnp.where(overfull(segments_BL, room)[:, None, None, None], jnp.nan, mixed_BLNH)


@functools.cache
def verify(length: int, head_size: int, dtype: str) -> None:
    """Compares the kernel with `xla` on this process's first device, once a process; ValueError if they are not equal."""
    compare("cudnn_packed", run, length, head_size, dtype)
