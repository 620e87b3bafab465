"""The Pallas attention kernel for NVIDIA GPUs, compiled by Triton.

Shapes: B rows, L positions (Q and K where the two sides differ), N heads, H width of a head.
"""

import math
import warnings

import jax
import jax.numpy as jnp

from spanjax.nn.attention.request import Request, first_reason


def supports(request: Request) -> str | None:
    """Returns the reason why the Pallas kernel compiled by Triton cannot compute this; None if it can."""
    return first_reason(
        request.other_platform("gpu"),
        request.not_nvidia(),
        request.drops(),
        (
            request.window > 0,
            f"it cannot compute layers of local attention, and encoder.local_window is {request.window}",
        ),
        request.other_type(jnp.bfloat16, jnp.float16),
        request.uneven_length(),
        (not 16 <= request.head_size <= 128, f"its head size is 16 to 128, not {request.head_size}"),
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
    """The Pallas kernel for GPU; [B, L, N, H] -> [B, L, N, H]. `interpret` runs it on any device. ValueError for a window."""
    if window:
        raise ValueError(
            f"the attention backend 'pallas_triton' cannot compute layers of local attention, and the window is {window}:"
            " take the backend 'xla'"
        )
    # jax 0.12 announces the removal of this kernel, about which a user of spanjax can do nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from jax.experimental.pallas.ops.gpu import attention

    return attention.mha(
        query_BLNH,
        key_BLNH,
        value_BLNH,
        segment_ids=segments_BL,
        causal=causal,
        sm_scale=1.0 / math.sqrt(query_BLNH.shape[-1]),
        interpret=interpret,
    )
