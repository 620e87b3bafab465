"""The kernels of `pallas_tpu`, for Mosaic.

A program computes a group of heads of one row, on the 128 lanes of registers. A head is the lanes that are not zero. Scores of a
tile of queries and keys live on the chip alone. Of a long row only the tiles that blocks and window reach are computed. The
backward pass is one kernel, which computes scores and dropout masks again.
Shapes: B rows, L positions, D of all heads, G groups of heads, P heads of a group, W lanes of it, M tiles of a row, T positions
of a tile.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from spanjax.nn.attention.reach import Reach
from spanjax.nn.attention.xla import HIDDEN, STRIDE
from spanjax.nn.dropout import column_draws, line_draws, threshold

LANES = 128
PLENTY = 16 << 20  # bytes of a core's memory that any program may use
_SIGN = np.uint32(1 << 31)


@dataclasses.dataclass(frozen=True)
class Lanes:
    """Heads on the lanes of registers."""

    head_size: int
    lanes: int
    """Lanes of a group of heads."""

    @property
    def heads(self) -> int:
        """Heads of a group."""
        return self.lanes // self.head_size

    @property
    def scale(self) -> float:
        """Factor of queries."""
        return 1.0 / math.sqrt(self.head_size)


@dataclasses.dataclass(frozen=True)
class Plan(Lanes):
    """Static properties of a call."""

    length: int
    tile: int
    window: int
    causal: bool
    rate: float
    interpret: bool

    @property
    def tiles(self) -> int:
        """Tiles of a row."""
        return self.length // self.tile

    def on_chip(self, item: int) -> int:
        """Bytes of a core's memory that the backward pass takes, in types of `item` bytes.

        Eight arrays of a row lie there twice, for the next program's are fetched meanwhile, next to the sums for queries and
        about a dozen tiles of scores.
        """
        arrays, sums = 16 * self.length * self.lanes * item, self.length * self.lanes * 4
        return arrays + sums + 12 * 4 * self.tile**2


def product(left: jax.Array, right: jax.Array, over: tuple[int, int]) -> jax.Array:
    """Matrix product over an axis of each side, summed in float32; exact products of float32."""
    precision = lax.Precision.HIGHEST if left.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(
        left, right, (((over[0],), (over[1],)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def as_column(x_1T: jax.Array) -> jax.Array:
    """[1, T] -> [T, 1]; Mosaic transposes whole registers."""
    return jnp.transpose(jnp.broadcast_to(x_1T, (LANES, x_1T.shape[1])))[:, :1]


def as_row(x_T1: jax.Array) -> jax.Array:
    """[T, 1] -> [1, T]."""
    return jnp.transpose(jnp.broadcast_to(x_T1, (x_T1.shape[0], LANES)))[:1]


def of_head(x_TW: jax.Array, head: int, plan: Lanes) -> jax.Array:
    """Lanes of one head; zeros in the others."""
    if plan.heads == 1:
        return x_TW
    lane_TW = lax.broadcasted_iota(jnp.int32, x_TW.shape, 1)
    first = head * plan.head_size
    return jnp.where((lane_TW >= first) & (lane_TW < first + plan.head_size), x_TW, jnp.zeros_like(x_TW))


def by_head(parts_T1: list[jax.Array], plan: Lanes) -> jax.Array:
    """A number for each head and position, on the lanes of the head: [T, 1] each -> [T, W]."""
    lane_TW = lax.broadcasted_iota(jnp.int32, (parts_T1[0].shape[0], plan.lanes), 1)
    found = parts_T1[0]
    for head, part_T1 in enumerate(parts_T1[1:], start=1):
        found = jnp.where(lane_TW >= head * plan.head_size, part_T1, found)
    return jnp.broadcast_to(found, lane_TW.shape)


def dropping(
    rate: float,
    row_key: jax.Array,
    head: jax.Array,
    lines: tuple[jax.Array | int, int],
    columns: tuple[jax.Array | int, int],
) -> Callable[[jax.Array], jax.Array]:
    """Dropout of weights of one head of the model, of which `lines` and `columns` are the first and their count."""
    if not rate:
        return lambda weights_TT: weights_TT
    line_T1 = lax.broadcasted_iota(jnp.int32, (lines[1], 1), 0) + lines[0] + head * STRIDE
    column_1T = lax.broadcasted_iota(jnp.int32, (1, columns[1]), 1) + columns[0]
    line_T1, column_1T = line_T1.astype(jnp.uint32), column_1T.astype(jnp.uint32)
    offset_T1, factor_T1 = line_draws(row_key, line_T1)
    # the cores compare signed numbers alone: with the sign turned their order is that of unsigned ones
    offset_T1, factor_T1, column_1T = (
        lax.bitcast_convert_type(x, jnp.int32) for x in (offset_T1 ^ _SIGN, factor_T1, column_draws(column_1T))
    )
    least = np.int32(np.uint32(threshold(rate) ^ int(_SIGN)).view(np.int32))
    keep_TT = offset_T1 + factor_T1 * column_1T >= least
    return lambda weights_TT: jnp.where(keep_TT, weights_TT * np.float32(1.0 / (1.0 - rate)), 0.0)


@dataclasses.dataclass(frozen=True)
class _Tile:
    """A tile of scores of one row: where its queries and keys begin, and their segments."""

    plan: Plan
    query: jax.Array | int
    key: jax.Array | int
    segments_T1: jax.Array
    segments_1T: jax.Array
    row_key: jax.Array

    def seen(self) -> jax.Array:
        """[T, T]: True where a query may see a key."""
        same = self.segments_T1 == self.segments_1T
        plan = self.plan
        if not (plan.window or plan.causal):
            return same
        shape = (plan.tile, plan.tile)
        back = lax.broadcasted_iota(jnp.int32, shape, 0) - lax.broadcasted_iota(jnp.int32, shape, 1)
        back = back + (self.query - self.key)
        if plan.window:
            same = same & (back <= plan.window) & (back >= -plan.window)
        return same & (back >= 0) if plan.causal else same

    def drop(self, head: jax.Array) -> Callable[[jax.Array], jax.Array]:
        """Dropout of an array of this tile and of one head of the model: the mask of `xla.attend`."""
        tile = self.plan.tile
        return dropping(self.plan.rate, self.row_key, head, (self.query, tile), (self.key, tile))


def _loop(tiles: tuple, plan: Plan, body: Callable, start: tuple) -> tuple:
    """Runs `body` for the tiles between two numbers; without a loop where a row is one tile."""
    first, behind = tiles
    return body(0, start) if plan.tiles == 1 else lax.fori_loop(first, behind, body, start)


def _positions(tile: jax.Array | int, plan: Plan) -> tuple[jax.Array | int, Any]:
    """Returns the first position of a tile, and its slice of a row."""
    first = tile * plan.tile
    first = first if isinstance(first, int) else pl.multiple_of(first, plan.tile)
    return first, pl.ds(first, plan.tile)


def _forward_kernel(plan: Plan, keys, met, segments, query, key, value, mixed, levels) -> None:  # noqa: ANN001
    row, group = pl.program_id(0), pl.program_id(1)
    row_key = (keys[row] if plan.rate else keys[0]).astype(jnp.uint32)

    def of_queries(number, _):  # noqa: ANN001, ANN202
        first_query, queries = _positions(number, plan)
        query_TW = query[0, queries, :]
        query_TW = query_TW * jnp.asarray(plan.scale, query_TW.dtype)
        each_TW = [of_head(query_TW, head, plan) for head in range(plan.heads)]
        segments_T1 = as_column(segments[0, number])

        # online softmax: a query has seen its highest score, the sum of its weights and the values that they mixed
        def of_keys(other, carry):  # noqa: ANN001, ANN202
            tops, totals, mixed_TW = carry
            first_key, keys_here = _positions(other, plan)
            key_TW, value_TW = key[0, keys_here, :], value[0, keys_here, :]
            tile = _Tile(plan, first_query, first_key, segments_T1, segments[0, other], row_key)
            seen_TT, shrinks, new_tops, new_totals = tile.seen(), [], [], []
            added_TW = jnp.zeros_like(mixed_TW)
            for head in range(plan.heads):
                scores_TT = jnp.where(seen_TT, product(each_TW[head], key_TW, (1, 1)), HIDDEN)
                top_T1 = jnp.maximum(tops[head], jnp.max(scores_TT, axis=1, keepdims=True))
                shrink_T1, weights_TT = jnp.exp(tops[head] - top_T1), jnp.exp(scores_TT - top_T1)
                new_totals.append(totals[head] * shrink_T1 + jnp.sum(weights_TT, axis=1, keepdims=True))
                dropped_TT = tile.drop(group * plan.heads + head)(weights_TT).astype(value_TW.dtype)
                added_TW = added_TW + of_head(product(dropped_TT, value_TW, (1, 0)), head, plan)
                new_tops.append(top_T1)
                shrinks.append(shrink_T1)
            return tuple(new_tops), tuple(new_totals), mixed_TW * by_head(shrinks, plan) + added_TW

        lowest_T1, none_T1 = (jnp.full((plan.tile, 1), fill, jnp.float32) for fill in (HIDDEN, 0.0))
        nothing_TW = jnp.zeros((plan.tile, plan.lanes), jnp.float32)
        start = ((lowest_T1,) * plan.heads, (none_T1,) * plan.heads, nothing_TW)
        at = (row * plan.tiles + number) * 2
        tops, totals, mixed_TW = _loop((met[at], met[at + 1]), plan, of_keys, start)
        mixed[0, queries, :] = (mixed_TW / by_head(list(totals), plan)).astype(mixed.dtype)
        for head in range(plan.heads):
            levels[0, 0, number, pl.ds(head, 1), :] = as_row(tops[head] + jnp.log(totals[head]))
        return ()

    _loop((0, plan.tiles), plan, of_queries, ())


def _backward_kernel(
    plan: Plan,
    keys,
    met,
    segments,
    query,
    key,
    value,
    mixed,
    levels,
    out,
    to_query,
    to_key,
    to_value,
    sums,  # noqa: ANN001
) -> None:
    row, group = pl.program_id(0), pl.program_id(1)
    row_key = (keys[row] if plan.rate else keys[0]).astype(jnp.uint32)
    sums[...] = jnp.zeros_like(sums)

    def of_keys(number, _):  # noqa: ANN001, ANN202
        first_key, keys_here = _positions(number, plan)
        key_TW, value_TW = key[0, keys_here, :], value[0, keys_here, :]

        def of_queries(other, carry):  # noqa: ANN001, ANN202
            to_key_TW, to_value_TW = carry
            first_query, queries = _positions(other, plan)
            query_TW, out_TW = query[0, queries, :], out[0, queries, :]
            query_TW = query_TW * jnp.asarray(plan.scale, query_TW.dtype)
            # the mean over keys in the gradient of the softmax, from the results
            shares_TW = out_TW.astype(jnp.float32) * mixed[0, queries, :].astype(jnp.float32)
            tile = _Tile(plan, first_query, first_key, as_column(segments[0, other]), segments[0, number], row_key)
            seen_TT = tile.seen()
            for head in range(plan.heads):
                query_of_TW, out_of_TW = of_head(query_TW, head, plan), of_head(out_TW, head, plan)
                mean_T1 = jnp.sum(of_head(shares_TW, head, plan), axis=1, keepdims=True)
                level_T1 = as_column(levels[0, 0, other, pl.ds(head, 1), :])
                scores_TT = jnp.where(seen_TT, product(query_of_TW, key_TW, (1, 1)), HIDDEN)
                weights_TT = jnp.exp(scores_TT - level_T1)
                drop = tile.drop(group * plan.heads + head)
                to_weights_TT = drop(product(out_of_TW, value_TW, (1, 1)))
                to_scores_TT = (weights_TT * (to_weights_TT - mean_T1)).astype(query_TW.dtype)
                dropped_TT = drop(weights_TT).astype(out_TW.dtype)
                to_value_TW = to_value_TW + product(dropped_TT, out_of_TW, (0, 0))
                to_key_TW = to_key_TW + product(to_scores_TT, query_of_TW, (0, 0))
                sums[queries, :] += product(to_scores_TT, of_head(key_TW, head, plan), (1, 0))
            return to_key_TW, to_value_TW

        start = (jnp.zeros((plan.tile, plan.lanes), jnp.float32),) * 2
        at = (row * plan.tiles + number) * 2
        to_key_TW, to_value_TW = _loop((met[at], met[at + 1]), plan, of_queries, start)
        to_key[0, keys_here, :] = to_key_TW.astype(to_key.dtype)
        to_value[0, keys_here, :] = to_value_TW.astype(to_value.dtype)
        return ()

    _loop((0, plan.tiles), plan, of_keys, ())
    to_query[0] = (sums[...] * np.float32(plan.scale)).astype(to_query.dtype)


def call(plan: Plan, keys_B: jax.Array, reach: Reach, segments_BL: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
    """Runs a kernel for every row and group of heads: forward of query, key and value, backward of results and gradients, too."""
    backward = len(arrays) > 3
    rows, length, width = arrays[0].shape
    groups, dtype = width // plan.lanes, arrays[0].dtype
    levels = (rows, groups, plan.tiles, plan.heads, plan.tile)
    wide = pl.BlockSpec((1, length, plan.lanes), lambda row, group, *_: (row, 0, group))
    per_head = pl.BlockSpec((1, 1, *levels[2:]), lambda row, group, *_: (row, group, 0, 0, 0))
    per_row = pl.BlockSpec((1, plan.tiles, 1, plan.tile), lambda row, group, *_: (row, 0, 0, 0))
    shapes = [jax.ShapeDtypeStruct((rows, length, width), dtype)] * (3 if backward else 1)
    if not backward:
        shapes.append(jax.ShapeDtypeStruct(levels, jnp.float32))
    # XLA's scheduler knows the cost of a call by this alone
    products = (10 if backward else 4) * rows * length * length * width
    return pl.pallas_call(
        functools.partial(_backward_kernel if backward else _forward_kernel, plan),
        out_shape=shapes,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(rows, groups),
            in_specs=[per_row, *(wide if x.ndim == 3 else per_head for x in arrays)],
            out_specs=[wide] * 3 if backward else [wide, per_head],
            scratch_shapes=[pltpu.VMEM((length, plan.lanes), jnp.float32)] if backward else [],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=max(PLENTY, plan.on_chip(dtype.itemsize)),
        ),
        cost_estimate=pl.CostEstimate(
            flops=products,
            transcendentals=rows * length * length * width // plan.head_size,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *shapes)),
        ),
        interpret=plan.interpret,
    )(
        lax.bitcast_convert_type(keys_B, jnp.int32),
        reach.tiles(plan.tile).reshape(-1),
        segments_BL.reshape(rows, plan.tiles, 1, plan.tile),
        *arrays,
    )
