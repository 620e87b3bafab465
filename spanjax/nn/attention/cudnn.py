"""cuDNN's fused attention for NVIDIA GPUs.

Shapes: B rows, L positions (Q and K where the two sides differ), N heads, H width of a head.
"""

import math

import jax
import jax.numpy as jnp

from spanjax.nn.attention.request import NEW_GPUS, Request, is_one_of, reasons
from spanjax.nn.attention.xla import visible


def supports(request: Request) -> str | None:
    """Returns the reasons why cuDNN's fused attention cannot compute this; None if it can."""
    widest = 256 if is_one_of(request.device_kind, NEW_GPUS) else 128
    return reasons(
        request.other_platform("gpu"),
        request.not_nvidia(),
        request.drops(),
        request.other_type(jnp.bfloat16, jnp.float16),
        (request.length % 2 != 0, f"its gradient is for an even length, not {request.length}"),
        (
            request.head_size % 8 != 0 or request.head_size > widest,
            f"its head size is a multiple of 8 up to {widest}, not {request.head_size}",
        ),
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
    """cuDNN's fused attention; [B, L, N, H] -> [B, L, N, H]. Raises where it is traced without cuDNN.

    cuDNN has windows on the left side alone, so a window is part of the mask, and pairs outside of it are computed, too. So are
    later keys that `causal` hides.
    """
    if interpret:
        raise ValueError("the backend 'cudnn' cannot be interpreted: it is a library of NVIDIA; use 'pallas_triton'")
    seen_B1QK = visible(segments_BL, window, causal)[:, None]
    return jax.nn.dot_product_attention(
        query_BLNH,
        key_BLNH,
        value_BLNH,
        mask=seen_B1QK,
        scale=1.0 / math.sqrt(query_BLNH.shape[-1]),
        implementation="cudnn",
    )
