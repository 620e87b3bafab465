"""The price of the project's own attention kernels, which no published measurement tells.

Such a kernel is assumed to reach `SHARE` of the published rate of the best kernel of its kind, for all products that it computes,
and does its integer operations besides, not under them. Both are more careful than what a finished kernel should reach.
"""

import math
import re
from collections.abc import Sequence

from spanjax.hardware import Achievable
from spanjax.plan.hlo import Instruction, shapes

SHARE = 0.6
HOPPER = "mosaic_gpu_v2"
"""Target of the calls of `spanjax.nn.attention.hopper_kernels`."""
TRITON = "__gpu$xla.gpu.triton"
"""Target of those of `spanjax.nn.attention.pallas_triton`, and of other kernels."""
TILE = 128  # positions of a tile of content by distance
_CODE = 3  # of attention by distances: a byte of its mask is widened and compared twice
_ROLLS = {"forward": 1, "backward": 10, "slots": 24}
"""Operations a score by distance to roll it to its key: forward at once, back in four rolls with three comparisons and choices,
and for slots in eight of each."""
EXPONENTIAL = 4
"""Integer operations that take a TPU as long as an exponential: of its units that compute on 1,024 numbers a clock four do the
former and one the latter."""
_MASK, _DROPOUT = 2, 2
"""Integer operations a score: of the mask a difference and a comparison, of dropout a product with a sum and a comparison. The
kernels compiled for sm90 have 1.8 to 2.0 sums and products a score, and as many comparisons."""


# jax is not loaded yet when this module is
_SCOPE = "attention_window_"  # `WINDOW` of spanjax.nn.attention.request
_WINDOW = re.compile(rf'op_name="[^"]*{_SCOPE}(\d+)')


def met(line: Instruction, length: int, blocks: int, tile: int) -> int:
    """Keys that a query of a full row of equal blocks meets on average, in whole tiles on both sides of its own with a window."""
    from spanjax.nn.attention.reach import keys_met

    window = _WINDOW.search(line.rest)
    of_block = max(math.ceil(length / blocks), tile)
    reached = keys_met(int(window.group(1)), tile) if window else of_block
    return min(length, of_block, reached)


def seconds(rates: Achievable, backward: bool, flops: float, integers: float) -> float:
    """Seconds of arithmetic of an own kernel with so many operations of products and of integers."""
    return flops / (SHARE * rates.attention[backward]) + integers / rates.integers


def tpu(
    rates: Achievable, line: Instruction, operands: Sequence[Instruction], blocks: int
) -> tuple[float, float] | None:
    """(operations of the products, seconds of arithmetic) of a call of a kernel for TPU; None for any other call.

    It reads arrays [B, L, D], three forward and five backward. Log-sums [B, G, M, P, T] are a result forward, an operand
    backward. One row key for all rows means that nothing is dropped.
    """
    read = [(kind, dims) for each in operands for kind, dims in shapes(each.result)]
    levels = [dims for _, dims in [*shapes(line.result), *read] if len(dims) == 5]
    # splash has masks of bytes, too, and other operands before them
    if levels and len(read) > 4 and read[2][0] == "s8" and [len(dims) for _, dims in read[:4]] == [1, 1, 3, 3]:
        return _tpu_by_distance(rates, line, read)
    wide = [dims for kind, dims in read if len(dims) == 3 and kind != "s32"]
    if len(wide) < 3 or not levels:
        return None
    (rows, length, width), backward = wide[0], len(wide) > 3
    _, groups, _, heads, tile = levels[0]
    pairs = rows * length * met(line, length, blocks, tile)
    flops = 2 * (5 if backward else 2) * pairs * width
    drops = read[0][1] == (rows,) and rows > 1
    # a product and a sum are two operations here
    integers = pairs * groups * heads * (EXPONENTIAL + _MASK + (_DROPOUT + 1) * drops)
    return flops, seconds(rates, backward, flops, integers)


def _tpu_by_distance(
    rates: Achievable, line: Instruction, read: Sequence[tuple[str, tuple[int, ...]]]
) -> tuple[float, float]:
    """`tpu` of a call of `spanjax.nn.attention.tpu_relative`, which reads a mask [B, Q, J] in bytes and places [B, 1, K].

    Of a tile it also multiplies distances, and rolls them to keys, in both directions in the backward pass.
    """
    (_, number), (_, (rows, queries, keys)), (_, place) = read[0], *read[2:4]
    wide = [dims for kind, dims in read[4:] if len(dims) == 3]
    backward, slots, width = len(wide) > 3, place[-1] > 1, wide[0][-1]
    levels = next(dims for _, dims in [*shapes(line.result), *read] if len(dims) == 5)
    heads = levels[1] * levels[3]
    distances = 2 * keys if slots else keys + TILE  # of slots at most
    flops = 2 * rows * queries * width * ((5 if backward else 2) * keys + (3 if backward else 1) * distances)
    drops = number == (rows,) and rows > 1
    of_key = EXPONENTIAL + _CODE + (_DROPOUT + 1) * drops
    rolls = (1 + backward) * _ROLLS["slots"] if slots else _ROLLS["forward"] + backward * _ROLLS["backward"]
    integers = rows * queries * heads * (of_key * keys + rolls * distances)
    return flops, seconds(rates, backward, flops, integers)


def gpu(
    rates: Achievable, line: Instruction, operands: Sequence[Instruction], blocks: int
) -> tuple[float, float] | None:
    """(operations of the products, seconds of arithmetic) of a call of a kernel for GPUs; None for any other call.

    Its results tell which kernel it is: the forward pass has log-sums next to one array [B, L, N, H], keys and values have two,
    and that of queries has one, with the gradient of scores [B, N, K, Q] among its operands, or without. Rows are full, of
    `blocks` equal ones.
    """
    from spanjax.nn.attention.reach import GPU_TILE

    made = [dims for _, dims in shapes(line.result)]
    read = [(kind, dims) for each in operands for kind, dims in shapes(each.result)]
    wide = [dims for _, dims in read if len(dims) == 4]
    if not wide or not made or len(made[0]) != 4:
        return None
    rows, length, heads, width = made[0]
    from_scores = any(dims == (rows, heads, length, length) for dims in wide)
    forward, of_keys = len(made) == 2 and len(made[1]) == 3, len(made) > 1 and len(made[1]) == 4
    products = 2 if forward else 4 if of_keys else 1 if from_scores else 3
    scores = rows * heads * length * met(line, length, blocks, GPU_TILE)
    drops = any(kind == "u32" for kind, _ in read)
    integers = 0 if from_scores else _MASK + _DROPOUT * drops
    flops = 2 * products * scores * width
    return flops, seconds(rates, not forward, flops, scores * integers)
