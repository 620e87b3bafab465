"""spanjax's own attention kernels for TPU (Pallas, compiled by Mosaic): packed rows, windows and dropout of the probabilities.

They read queries, keys and values and write gradients where the dense layers have them. Of a long row they compute only what
blocks and window reach, and the backward pass computes scores and dropout masks again. No TPU has run them yet: they are compiled
for v4 to v6e, and their numbers are those of jax's interpreter on a CPU.
Shapes: B rows, L positions, N heads, H width of a head, D of all heads.
"""

import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from spanjax.nn.attention.on_device import trial
from spanjax.nn.attention.reach import Reach, reaches
from spanjax.nn.attention.request import KEPT, TILE, Request, reasons
from spanjax.nn.dropout import DropoutKey, row_keys

if TYPE_CHECKING:
    from spanjax.nn.attention.tpu_kernels import Plan

LONGEST = 8192  # positions
ROOM = {
    **{kind: (2048, 512) for kind in ("TPU v2", "TPU v3", "TPU v4")},
    **{kind: (8192, 4096) for kind in ("TPU v5", "TPU v5p")},
}
"""Kind of device -> most positions of bfloat16 and of float32, for the arrays of a row lie in the memory of a core: 16 MiB to v4,
64 of a v5p. The 128 MiB of others hold any row."""
LONGEST_DISTANCES = 2048  # positions of a row and its memory together, of which all scores of a tile lie on the chip
DISTANCES = {
    **{kind: (0, 0) for kind in ("TPU v2", "TPU v3", "TPU v4")},
    **{kind: (2048, 1024) for kind in ("TPU v5", "TPU v5p")},
}
"""Kind of device -> most of them in bfloat16 and in float32, as `ROOM`."""
_LONGEST_TILE = 512


def supports(request: Request) -> str | None:
    """Returns the reasons why the kernels cannot compute this; None if they can."""
    longest = ROOM.get(request.device_kind, (LONGEST, LONGEST))[jnp.dtype(request.dtype) == jnp.float32]
    return reasons(
        request.other_platform("tpu"),
        request.other_type(jnp.bfloat16, jnp.float32),
        request.uneven_length(),
        (request.length > longest, f"its length is at most {longest} here, not {request.length}"),
        (
            request.head_size not in (32, 64, 128),
            f"its head size is 32, 64 or 128, not {request.head_size}",
        ),
    )


def supports_distances(request: Request, memory: int) -> str | None:
    """Returns the reasons why the kernels cannot compute attention by distances with a memory of so many positions."""
    longest = DISTANCES.get(request.device_kind, (LONGEST_DISTANCES,) * 2)[jnp.dtype(request.dtype) == jnp.float32]
    keys, of_rows = request.length + memory, supports(request)
    return reasons(
        request.other_platform("tpu"),
        (of_rows is not None, of_rows or ""),
        (memory % TILE != 0, f"its memory is a multiple of {TILE} positions, not {memory}"),
        (keys > longest, f"a row and its memory have at most {longest} positions together here, not {keys}"),
    )


def run(
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    window: int = 0,
    interpret: bool = False,
    causal: bool = False,
    rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    site: int | jax.Array = 0,
    tile: int = 0,
) -> jax.Array:
    """Attention with dropout; [B, L, N, H] -> [B, L, N, H]. `interpret` runs it on any device, `tile` cuts rows otherwise."""
    from spanjax.nn.attention.tpu_kernels import LANES, Plan

    rows, length, heads, head_size = query_BLNH.shape
    width = heads * head_size
    # heads that do not fill registers, as in models for tests, are one group
    lanes = LANES if width % LANES == 0 and LANES % head_size == 0 else width
    tile = tile or tile_of(length, window)
    rate = 0.0 if dropout_key is None else rate
    plan = Plan(head_size, lanes, length, tile, window, causal, rate, interpret)
    # one number where nothing is dropped, by which `plan.own_kernels` tells such a call
    keys_B = row_keys(dropout_key, site) if dropout_key is not None and rate else jnp.zeros((1,), jnp.uint32)
    query_BLD, key_BLD, value_BLD = (x.reshape(rows, length, width) for x in (query_BLNH, key_BLNH, value_BLNH))
    mixed_BLD = _attend(plan, query_BLD, key_BLD, value_BLD, segments_BL.astype(jnp.int32), keys_B)
    return mixed_BLD.reshape(query_BLNH.shape)


@functools.cache
def verify(
    length: int, head_size: int, dtype: str, window: int, rate: float, other: str = "xla"
) -> tuple[float, float]:
    """Compares the kernels with `xla` on this process's first device, as `pallas_hopper.verify`."""
    return trial("pallas_tpu", run, length, head_size, dtype, window, rate, other)


def tile_of(length: int, window: int) -> int:
    """Positions of a tile: a short row is one, and a tile of a local layer is not much wider than its window."""
    widest = max(TILE, window) if window else _LONGEST_TILE
    return next((size for size in (512, 384, 256, TILE) if size <= widest and length % size == 0), length)


def _reaches(plan: "Plan", segments_BL: jax.Array) -> tuple[Reach, Reach]:
    """The keys and queries that tiles meet; a row of one tile does not ask."""
    if plan.tiles > 1:
        return reaches(segments_BL, plan.window, plan.causal)
    one = Reach(jnp.zeros_like(segments_BL), jnp.full_like(segments_BL, plan.length))
    return one, one


def _forward(
    plan: "Plan",
    query_BLD: jax.Array,
    key_BLD: jax.Array,
    value_BLD: jax.Array,
    segments_BL: jax.Array,
    keys_B: jax.Array,
) -> tuple[jax.Array, tuple]:
    from spanjax.nn.attention import tpu_kernels

    read, _ = _reaches(plan, segments_BL)
    mixed_BLD, levels = tpu_kernels.call(plan, keys_B, read, segments_BL, query_BLD, key_BLD, value_BLD)
    mixed_BLD, levels = checkpoint_name(mixed_BLD, KEPT), checkpoint_name(levels, KEPT)
    return mixed_BLD, (query_BLD, key_BLD, value_BLD, segments_BL, keys_B, mixed_BLD, levels)


def _backward(plan: "Plan", kept: tuple, out_BLD: jax.Array) -> tuple:
    from spanjax.nn.attention import tpu_kernels

    query_BLD, key_BLD, value_BLD, segments_BL, keys_B, mixed_BLD, levels = kept
    _, readers = _reaches(plan, segments_BL)
    gradients = tpu_kernels.call(
        plan, keys_B, readers, segments_BL, query_BLD, key_BLD, value_BLD, mixed_BLD, levels, out_BLD
    )
    return *gradients, None, None


_attend = jax.custom_vjp(lambda plan, *inputs: _forward(plan, *inputs)[0], nondiff_argnums=(0,))
"""[B, L, D] of query, key and value, segments and keys of rows -> [B, L, D]."""
_attend.defvjp(_forward, _backward)
