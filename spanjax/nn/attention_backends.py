"""The fused attention kernels of accelerators, and what each of them can do.

None applies dropout, all mask by block: padding (segment 0) is a block of its own. Kernels are imported when used.
Shapes: B rows, L positions (Q and K where the two sides differ), N heads, H width of a head.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

TILE = 128  # positions: what the kernels' blocks are multiples of
OLD_GPUS = ("P100", "P40", "P4", "V100", "T4", "TITAN", "RTX 20", "Quadro RTX")  # before compute capability 8.0
NEW_GPUS = (
    "H100",
    "H200",
    "H20",
    "GH200",
    "B100",
    "B200",
    "B300",
    "GB200",
    "GB300",
)  # compute capability 9.0 and later


@dataclasses.dataclass(frozen=True)
class Request:
    """What attention is asked to do, as far as it decides which backend can."""

    platform: str
    """Of the devices of the mesh: cpu, gpu or tpu."""
    length: int
    """Positions in a row."""
    head_size: int
    """Width of a head."""
    dtype: Any
    """Type of queries, keys and values."""
    dropout: float
    """Rate on the probabilities."""
    device_kind: str = ""
    """The name of the device; empty where it is not known."""


def supports_splash(request: Request) -> str | None:
    """Why splash attention cannot do this; None if it can."""
    return _first_reason(
        _other_platform(request, "tpu"),
        _dropout(request),
        _other_type(request, jnp.bfloat16, jnp.float32),
        _uneven_length(request),
        (request.head_size % 64 != 0, f"its head size is a multiple of 64, not {request.head_size}"),
    )


def supports_cudnn(request: Request) -> str | None:
    """Why cuDNN's fused attention cannot do this; None if it can."""
    widest = 256 if _is_one_of(request.device_kind, NEW_GPUS) else 128
    return _first_reason(
        _other_platform(request, "gpu"),
        _not_nvidia(request),
        _dropout(request),
        _other_type(request, jnp.bfloat16, jnp.float16),
        (request.length % 2 != 0, f"its gradient is for an even length, not {request.length}"),
        (
            request.head_size % 8 != 0 or request.head_size > widest,
            f"its head size is a multiple of 8 up to {widest}, not {request.head_size}",
        ),
    )


def supports_triton(request: Request) -> str | None:
    """Why the Pallas kernel compiled by Triton cannot do this; None if it can."""
    return _first_reason(
        _other_platform(request, "gpu"),
        _not_nvidia(request),
        _dropout(request),
        _other_type(request, jnp.bfloat16, jnp.float16),
        _uneven_length(request),
        (not 16 <= request.head_size <= 128, f"its head size is 16 to 128, not {request.head_size}"),
    )


def _first_reason(*checks: tuple[bool, str]) -> str | None:
    return next((reason for is_true, reason in checks if is_true), None)


def _other_platform(request: Request, platform: str) -> tuple[bool, str]:
    return request.platform != platform, f"it runs on {platform}, and these devices are {request.platform}"


def _dropout(request: Request) -> tuple[bool, str]:
    return request.dropout > 0, f"it cannot drop attention probabilities, and attention dropout is {request.dropout}"


def _other_type(request: Request, *types: Any) -> tuple[bool, str]:
    names = [jnp.dtype(each).name for each in types]
    name = jnp.dtype(request.dtype).name
    return name not in names, f"it computes in {' or '.join(names)}, not {name}"


def _uneven_length(request: Request) -> tuple[bool, str]:
    uneven = request.length < TILE or request.length % TILE != 0
    return uneven, f"its length is a multiple of {TILE}, not {request.length}"


def _not_nvidia(request: Request) -> tuple[bool, str]:
    other = request.device_kind.startswith(("AMD", "Radeon", "Instinct"))
    old = _is_one_of(request.device_kind, OLD_GPUS)
    return other or old, f"it needs an NVIDIA GPU of compute capability 8.0 or later, not {request.device_kind}"


def _is_one_of(device_kind: str, names: tuple[str, ...]) -> bool:
    words = f" {device_kind.replace('-', ' ')} "
    return any(f" {name} " in words or (" " in name and name in words) for name in names)


def splash(
    query_BLNH: jax.Array, key_BLNH: jax.Array, value_BLNH: jax.Array, segments_BL: jax.Array, interpret: bool = False
) -> jax.Array:
    """Splash attention of JAX's Pallas kernels for TPU; [B, L, N, H] -> [B, L, N, H]. `interpret` runs it on any device."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    length, heads = query_BLNH.shape[1:3]
    block = next(size for size in (512, 384, 256, TILE) if length % size == 0)
    kernel: Any = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([splash_attention.FullMask((length, length))] * heads),
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

    scale = jnp.asarray(1.0 / math.sqrt(query_BLNH.shape[-1]), query_BLNH.dtype)  # the kernel takes it as done
    query_BNLH, key_BNLH, value_BNLH = (jnp.swapaxes(x, 1, 2) for x in (query_BLNH * scale, key_BLNH, value_BLNH))
    return jnp.swapaxes(jax.vmap(run_row)(query_BNLH, key_BNLH, value_BNLH, segments_BL), 1, 2)


def cudnn(
    query_BLNH: jax.Array, key_BLNH: jax.Array, value_BLNH: jax.Array, segments_BL: jax.Array, interpret: bool = False
) -> jax.Array:
    """cuDNN's fused attention; [B, L, N, H] -> [B, L, N, H]. Raises where it is traced without cuDNN."""
    if interpret:
        raise ValueError("the backend 'cudnn' cannot be interpreted: it is a library of NVIDIA; use 'pallas_triton'")
    same_B1QK = (segments_BL[:, :, None] == segments_BL[:, None, :])[:, None]
    return jax.nn.dot_product_attention(
        query_BLNH,
        key_BLNH,
        value_BLNH,
        mask=same_B1QK,
        scale=1.0 / math.sqrt(query_BLNH.shape[-1]),
        implementation="cudnn",
    )


def pallas_triton(
    query_BLNH: jax.Array, key_BLNH: jax.Array, value_BLNH: jax.Array, segments_BL: jax.Array, interpret: bool = False
) -> jax.Array:
    """The Pallas kernel for GPU; [B, L, N, H] -> [B, L, N, H]. `interpret` runs it on any device."""
    # jax 0.12 announces that this kernel goes: nothing that a user of spanjax could do about
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from jax.experimental.pallas.ops.gpu import attention

    return attention.mha(
        query_BLNH,
        key_BLNH,
        value_BLNH,
        segment_ids=segments_BL,
        sm_scale=1.0 / math.sqrt(query_BLNH.shape[-1]),
        interpret=interpret,
    )


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A fused kernel: why it cannot do something, and how to run it."""

    supports: Callable[[Request], str | None]
    run: Callable[..., jax.Array]


KERNELS: dict[str, Kernel] = {
    "splash": Kernel(supports_splash, splash),
    "cudnn": Kernel(supports_cudnn, cudnn),
    "pallas_triton": Kernel(supports_triton, pallas_triton),
}
