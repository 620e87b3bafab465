"""Attention inside the blocks of packed rows, in both directions or causal, and the choice of the backend that computes it.

One file a backend. `xla` and `xla_chunked` run anywhere and drop probabilities; of the fused kernels those in `DROPPING` do.
Kernels mask by block: padding (segment 0) is a block of its own. Libraries of kernels are imported when they are used.
Shapes: B rows, L positions (Q and K where the two sides differ), N heads, H width of a head.
"""

import contextlib
import types
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from spanjax.nn.attention import cudnn, cudnn_packed, pallas_hopper, pallas_tpu, pallas_triton, splash, xla, xla_chunked
from spanjax.nn.attention.reach import GPU_TILE, keys_met
from spanjax.nn.attention.request import CHUNKED_FROM, KEPT, WINDOW, Request
from spanjax.nn.dropout import DropoutKey

KERNELS: dict[str, types.ModuleType] = {
    "splash": splash,
    "cudnn": cudnn,
    "cudnn_packed": cudnn_packed,
    "pallas_hopper": pallas_hopper,
    "pallas_tpu": pallas_tpu,
    "pallas_triton": pallas_triton,
}
"""Fused kernels: `supports` of a module returns why it cannot compute a request, `run` computes it."""
DROPPING = ("pallas_hopper", "pallas_tpu", "pallas_triton")
"""Fused kernels that drop probabilities: their `run` also takes `rate`, `dropout_key` and `site`."""
BACKENDS = ("xla", "xla_chunked", *KERNELS)
WHOLE_ROWS = ("cudnn",)
"""Fused kernels that compute pairs outside of a window, too."""
SKIPPING = ("pallas_hopper", "pallas_triton")
"""Kernels for the same devices that do not."""
LOCAL_SHARE = 0.4
"""By the price of `spanjax.plan` a kernel of `SKIPPING` is faster than cuDNN where it meets at most this share of a row."""
CANDIDATES = {
    "cpu": ("xla_chunked", "xla"),
    "gpu": ("cudnn", "pallas_hopper", "pallas_triton", "xla"),
    "tpu": ("splash", "pallas_tpu", "xla_chunked", "xla"),
}


def platform_name(platform: str) -> str:
    """cpu, gpu or tpu, where jax may name the maker of a GPU."""
    return "gpu" if platform in ("cuda", "rocm") else platform


def choose_backend(
    wanted: str,
    platform: str,
    *,
    length: int,
    head_size: int,
    dtype: Any,
    dropout: float,
    device_kind: str = "",
    window: int = 0,
) -> tuple[str, str]:
    """Chooses the backend for `wanted` ("auto" or a name); also returns the reason as text.

    `platform` and `device_kind` are of the mesh's devices; `dropout` is the rate on the probabilities; `window` is that of local
    layers, which use the same backend. "auto" takes the first
    candidate of the platform that supports all of it. Raises ValueError on an unknown name and on a backend that does not.
    """
    if wanted not in ("auto", *BACKENDS):
        raise ValueError(f"the attention backend is {wanted!r}: expected one of auto, {', '.join(BACKENDS)}")
    platform = platform_name(platform)
    request = Request(platform, length, head_size, dtype, dropout, device_kind, window)
    if wanted != "auto":
        problem = _problem(wanted, request)
        if problem:
            dropped = "set attention dropout to 0, or " if dropout > 0 else ""
            remedy = f"{dropped}take 'auto' or 'xla', which can"
            raise ValueError(f"the attention backend {wanted!r} cannot be used: {problem}; {remedy}")
        return wanted, "requested"
    refused = []
    for name in CANDIDATES.get(platform, ("xla",)):
        problem = _problem(name, request)
        if name == "xla_chunked" and length < CHUNKED_FROM:
            problem = f"it gains nothing for rows shorter than {CHUNKED_FROM}"
        if problem is None:
            return name, "; ".join([f"the first on {platform} that can do it", *refused])
        refused.append(f"not {name}: {problem}")
    # not reached: the candidates of every platform end with xla, which supports all requests
    raise AssertionError(f"no backend for {request}")


def choose_local_backend(backend: str, request: Request) -> tuple[str, str]:
    """Chooses the backend of local layers where "auto" took `backend` for the others; also returns the reason.

    Of a backend that computes whole rows it takes the place where the price of a kernel that skips the pairs outside of the
    window is lower (docs/plan.md).
    """
    if backend not in WHOLE_ROWS:
        return backend, "as the other layers"
    if keys_met(request.window, GPU_TILE) > LOCAL_SHARE * request.length:
        return backend, f"rows of {request.length} are short for a window of {request.window}"
    refused = []
    for name in SKIPPING:
        problem = _problem(name, request)
        if problem is None:
            return name, f"{backend} computes whole rows"
        refused.append(f"not {name}: {problem}")
    return backend, "; ".join(refused)


def choose_for_distances(wanted: str, request: Request, memory: int) -> tuple[str, str]:
    """`choose_backend` for relative attention with a memory of so many positions, where its own kernels or `xla` compute."""
    problem = pallas_tpu.supports_distances(request, memory)
    if wanted == "pallas_tpu" and problem:
        raise ValueError(
            f"the attention backend 'pallas_tpu' cannot be used: {problem}; take 'auto' or 'xla', which can"
        )
    if wanted == "xla" or problem:
        return "xla", "requested" if wanted == "xla" else f"the one for distances; not pallas_tpu: {problem}"
    return "pallas_tpu", "requested" if wanted != "auto" else "the kernels for distances"


def _problem(name: str, request: Request) -> str | None:
    return KERNELS[name].supports(request) if name in KERNELS else None


def attention(
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    *,
    rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    site: int | jax.Array = 0,
    backend: str = "xla",
    window: int = 0,
    causal: bool = False,
    blocks: int = 0,
) -> jax.Array:
    """Softmax attention of every position over the positions of its own block; [B, L, N, H] -> [B, L, N, H].

    Scores and softmax are float32 whatever the input. Padding (segment 0) attends to padding, so that every row of the
    softmax has a position to attend to; nothing else attends to it. Dropout with `rate` applies to the probabilities, and its
    mask is the same in every backend that has it. `backend` is one of BACKENDS, as `choose_backend` returns it. With a
    `window` above 0 a position attends to those at most that far from it on either side; blocks are contiguous, so a distance in
    the row is the one in the block. With `causal` a position attends to no later one. `blocks` is the most that a row has,
    padding included, which `cudnn_packed` needs to know; 0 if the caller does not. Raises ValueError for another backend, and
    for a fused kernel with dropout or with a window that it cannot compute.
    """
    if backend == "xla":
        made_BLNH = xla.attend(query_BLNH, key_BLNH, value_BLNH, segments_BL, rate, dropout_key, site, window, causal)
        return checkpoint_name(made_BLNH, KEPT)
    if backend == "xla_chunked":
        place = jnp.asarray(site, jnp.uint32)
        seen = xla_chunked.Seen(window, causal)
        return xla_chunked.attend(rate, seen, query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, place)
    if backend not in KERNELS:
        raise ValueError(f"the attention backend is {backend!r}: expected one of {', '.join(BACKENDS)}")
    options: dict[str, Any] = {"rate": rate, "dropout_key": dropout_key, "site": site} if backend in DROPPING else {}
    # most kernels take no rate: without this check they would train without attention dropout, unnoticed
    if rate > 0 and dropout_key is not None and not options:
        raise ValueError(
            f"the attention backend {backend!r} cannot drop attention probabilities, and the rate is {rate}: "
            f"set attention dropout to 0, or take the backend 'xla'"
        )
    if backend == "cudnn_packed":
        options["blocks"] = blocks
    with jax.named_scope(f"{WINDOW}{window}") if window else contextlib.nullcontext():
        return KERNELS[backend].run(query_BLNH, key_BLNH, value_BLNH, segments_BL, window, causal=causal, **options)
