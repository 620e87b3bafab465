"""Splash attention of JAX's Pallas kernels for TPU.

Shapes: B rows, L positions (Q and K where the two sides differ), N heads, H width of a head.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from spanjax.nn.attention.request import TILE, Request, reasons


def supports(request: Request) -> str | None:
    """Returns the reasons why splash attention cannot compute this; None if it can."""
    return reasons(
        request.other_platform("tpu"),
        request.drops(),
        request.other_type(jnp.bfloat16, jnp.float32),
        request.uneven_length(),
        (request.head_size % 64 != 0, f"its head size is a multiple of 64, not {request.head_size}"),
    )


def run(
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    window: int = 0,
    interpret: bool = False,
    causal: bool = False,
) -> jax.Array:
    """Splash attention of JAX's Pallas kernels for TPU; [B, L, N, H] -> [B, L, N, H]. `interpret` runs it on any device."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    length, heads = query_BLNH.shape[1:3]
    shape, widest = (length, length), 512
    # blocks of keys after all queries of a block are skipped
    mask = splash_attention.CausalMask(shape) if causal else splash_attention.FullMask(shape)
    if window:
        # blocks outside of the window are skipped: of a block's queries at most the keys of three blocks are computed
        mask = splash_attention.LocalMask(shape, (window, 0 if causal else window), 0)
        widest = max(TILE, window)
    block = next(size for size in (512, 384, 256, TILE) if size <= widest and length % size == 0)
    kernel: Any = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([mask] * heads),
        block_sizes=splash_attention.BlockSizes(
            block_q=block,
            block_kv=block,
            block_kv_compute=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_kv_dkv_compute=block,
            use_fused_bwd_kernel=True,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )

    def run_row(query_NLH: jax.Array, key_NLH: jax.Array, value_NLH: jax.Array, segments_L: jax.Array) -> jax.Array:
        return kernel(
            query_NLH, key_NLH, value_NLH, segment_ids=splash_attention.SegmentIds(q=segments_L, kv=segments_L)
        )

    scale = jnp.asarray(1.0 / math.sqrt(query_BLNH.shape[-1]), query_BLNH.dtype)  # the kernel expects scaled queries
    query_BNLH, key_BNLH, value_BNLH = (jnp.swapaxes(x, 1, 2) for x in (query_BLNH * scale, key_BLNH, value_BLNH))
    return jnp.swapaxes(jax.vmap(run_row)(query_BNLH, key_BNLH, value_BNLH, segments_BL), 1, 2)
