"""The kernels of `pallas_tpu` for attention by distances, for Mosaic: the content stream and the query stream of XLNet.

A program computes a group of heads of one row, tile by tile of its queries; all keys of a row lie on the chip. Scores by distance
are one product of queries and a table of distances; every line of it is then rolled to its keys. The backward pass is one kernel,
which computes scores and dropout masks again and rolls their gradients back. It sums the table's gradient over rows on the chip.
Shapes: B rows, Q queries, J keys, D of all heads, R = 2J distances from J - 1 to -J, W lanes of a group, T queries of a tile,
S places that the queries of a tile may have, C = J + S distances of a tile.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from spanjax.nn.attention.request import KEPT, TILE
from spanjax.nn.attention.tpu_kernels import (
    LANES,
    PLENTY,
    Lanes,
    as_column,
    as_row,
    by_head,
    dropping,
    of_head,
    product,
)
from spanjax.nn.attention.xla import HIDDEN
from spanjax.nn.dropout import DropoutKey, row_keys

CONTENT, DISTANCE, TYPE, GAP = range(4)
"""Rows of the vectors of a call: the three biases of queries, and the vector of another type minus that of the same."""
_LEAST = np.float32(1e-30)  # sum of the weights of a query that sees nothing


@dataclasses.dataclass(frozen=True)
class Plan(Lanes):
    """Static properties of a call."""

    queries: int
    keys: int
    tile: int
    span: int
    """Places that queries of a tile may have: those of the tile, or of the row for slots at any positions."""
    slots: bool
    """Queries have positions of their own; else they are those of the row, one after the other."""
    rate: float
    interpret: bool

    @property
    def tiles(self) -> int:
        """Tiles of a row."""
        return self.queries // self.tile

    @property
    def distances(self) -> int:
        """Distances of a tile, C."""
        return self.keys + self.span

    def on_chip(self, item: int) -> int:
        """Bytes of a core's memory that the backward pass takes, in types of `item` bytes: arrays of a row twice, for the next
        program's are fetched meanwhile, sums in float32 and about a dozen tiles of scores."""
        arrays = 2 * item * self.lanes * (4 * self.queries + 6 * self.keys) + 2 * self.queries * self.keys
        return arrays + 4 * self.lanes * 6 * self.keys + 12 * 4 * self.tile * self.distances


def _steps(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Yields (bit of a shift, width before, width after) of the steps that roll distances to keys, the longest first.

    Steps of whole registers come first, which move nothing; each leaves only the distances that the rest may need.
    """
    width, whole = plan.distances, TILE.bit_length() - 1
    for bit in range((plan.span - 1).bit_length() - 1, -1, -1):
        after = min(width, plan.keys + (max(1 << bit, TILE) if bit >= whole else TILE))
        yield bit, width, after
        width = after


def _moved(x: jax.Array, right: int, bit: int, shift_T1: jax.Array) -> jax.Array:
    """Rolls the lines of x whose shift has this bit."""
    rolled = pltpu.roll(x, right, 1)
    chosen = jnp.broadcast_to(lax.shift_right_logical(shift_T1, jnp.int32(bit)) & 1, x.shape)
    return jnp.where(chosen == 1, rolled, x)


def strided(x: jax.Array, first: int, interpret: bool) -> jax.Array:
    """Rolls line i of x to the right by `first + i`; the interpreter takes minutes to compile what a core does in one go."""
    if interpret:
        return jax.vmap(jnp.roll)(x, first + jnp.arange(len(x)))
    return pltpu.roll(x, first, 1, stride=1, stride_axis=0)


def _to_keys(x_TC: jax.Array, shift_T1: jax.Array, plan: Plan) -> jax.Array:
    """Scores of distances -> scores of keys, [T, J]: line i begins at column `shift_T1[i]`."""
    if not plan.slots:  # a column less for every line
        return strided(x_TC, plan.keys + 1, plan.interpret)[:, : plan.keys]
    for bit, width, after in _steps(plan):
        x_TC = _moved(x_TC, width - (1 << bit), bit, shift_T1)[:, :after]
    return x_TC[:, : plan.keys]


def _to_distances(x_TJ: jax.Array, shift_T1: jax.Array, plan: Plan) -> jax.Array:
    """The transpose of `_to_keys`: [T, J] -> [T, C], zeros where a distance has no key."""
    if not plan.slots:
        # a register rolls its eight lines by rising numbers alone, and these fall: by groups first, then inside of each
        groups = jnp.split(_padded(x_TJ, plan.distances), plan.tile // 8)
        x_TC = jnp.concatenate([pltpu.roll(x, plan.tile - 8 * n, 1) for n, x in enumerate(groups, start=1)])
        for bit in range(3):
            x_TC = _moved(x_TC, 1 << bit, bit, shift_T1)
        return x_TC
    for bit, width, after in reversed([*_steps(plan)]):
        x_TJ = _padded(x_TJ, after)
        x_TJ = _moved(_padded(x_TJ, width), 1 << bit, bit, shift_T1)
    return x_TJ


def _padded(x: jax.Array, width: int) -> jax.Array:
    """Zeros behind the columns of x."""
    if x.shape[1] == width:
        return x
    return jnp.concatenate([x, jnp.zeros((x.shape[0], width - x.shape[1]), x.dtype)], axis=1)


class _Tile:
    """A tile of queries of one row and group: what both passes compute of it."""

    def __init__(self, plan: Plan, number: Any, before: jax.Array, row_key: jax.Array, refs: tuple):
        mask, places, vectors, query, table = refs
        self.plan, self.row_key = plan, row_key
        self.first = number * plan.tile if isinstance(number, int) else pl.multiple_of(number * plan.tile, plan.tile)
        self.here = pl.ds(self.first, plan.tile)
        self.query_TW, self.vectors = query[0, self.here, :], vectors[...]
        # the first distance of the tile is that of the last place it may have and key 0
        first = plan.keys - before - plan.span - (0 if plan.slots else self.first)
        self.near = pl.ds(pl.multiple_of(first, TILE), plan.distances)
        self.near_CW = table[self.near, :]
        if plan.slots:
            self.shift_T1 = plan.span - 1 - as_column(places[0])
        else:
            self.shift_T1 = plan.tile - 1 - lax.broadcasted_iota(jnp.int32, (plan.tile, 1), 0)
        self.code_TJ = mask[0, self.here, :].astype(jnp.int32)

    def biased(self, which: int) -> jax.Array:
        """Queries with one of their biases, [T, W]."""
        return self.query_TW + self.vectors[which : which + 1]

    def scaled(self, which: int) -> jax.Array:
        """The same times the factor of scores."""
        return self.biased(which) * jnp.asarray(self.plan.scale, self.query_TW.dtype)

    def by_type(self) -> jax.Array:
        """Scores of keys of another type before they are summed over the lanes of a head, [T, W]."""
        gap_1W = self.vectors[GAP : GAP + 1].astype(jnp.float32) * np.float32(self.plan.scale)
        return self.biased(TYPE).astype(jnp.float32) * gap_1W

    def scores(self, head: int, content_TW: jax.Array, distance_TW: jax.Array, key_JW: jax.Array) -> jax.Array:
        """Scores of a head, [T, J]; HIDDEN for keys that are not seen."""
        by_distance_TC = product(of_head(distance_TW, head, self.plan), self.near_CW, (1, 1))
        by_key_TJ = product(of_head(content_TW, head, self.plan), key_JW, (1, 1))
        gap_T1 = jnp.sum(of_head(self.by_type(), head, self.plan), axis=1, keepdims=True)
        scores_TJ = by_key_TJ + _to_keys(by_distance_TC, self.shift_T1, self.plan)
        scores_TJ = scores_TJ + jnp.where(self.code_TJ > 1, gap_T1, 0.0)
        return jnp.where(self.code_TJ > 0, scores_TJ, HIDDEN)

    def drop(self, head: jax.Array) -> Any:
        """Dropout of weights of a head of the model: the mask of the plain formula."""
        return dropping(self.plan.rate, self.row_key, head, (self.first, self.plan.tile), (0, self.plan.keys))


def _each_tile(plan: Plan, body: Any) -> None:
    """Runs `body` for the number of every tile."""
    if plan.tiles == 1:
        body(0)
    else:
        lax.fori_loop(0, plan.tiles, lambda number, _: (body(number), ())[1], ())


def _forward_kernel(plan: Plan, keys, before, mask, places, vectors, query, key, value, table, mixed, levels) -> None:  # noqa: ANN001
    group, row = pl.program_id(0), pl.program_id(1)
    row_key = (keys[row] if plan.rate else keys[0]).astype(jnp.uint32)

    def of_tile(number: Any) -> None:
        tile = _Tile(plan, number, before[row], row_key, (mask, places, vectors, query, table))
        content_TW, distance_TW, totals = tile.scaled(CONTENT), tile.scaled(DISTANCE), []
        mixed_TW = jnp.zeros((plan.tile, plan.lanes), jnp.float32)
        for head in range(plan.heads):
            scores_TJ = tile.scores(head, content_TW, distance_TW, key[0])
            top_T1 = jnp.max(scores_TJ, axis=1, keepdims=True)
            # a query that sees nothing has no weights
            weights_TJ = jnp.where(tile.code_TJ > 0, jnp.exp(scores_TJ - top_T1), 0.0)
            total_T1 = jnp.maximum(jnp.sum(weights_TJ, axis=1, keepdims=True), _LEAST)
            dropped_TJ = tile.drop(group * plan.heads + head)(weights_TJ).astype(value.dtype)
            mixed_TW = mixed_TW + of_head(product(dropped_TJ, value[0], (1, 0)), head, plan)
            totals.append(total_T1)
            levels[0, 0, number, pl.ds(head, 1), :] = as_row(top_T1 + jnp.log(total_T1))
        mixed[0, tile.here, :] = (mixed_TW / by_head(totals, plan)).astype(mixed.dtype)

    _each_tile(plan, of_tile)


def _backward_kernel(plan: Plan, keys, before, mask, places, vectors, query, key, value, table, *others) -> None:  # noqa: ANN001
    mixed, levels, out, to_query, to_key, to_value, to_table, to_vectors, key_sums, value_sums = others
    group, row = pl.program_id(0), pl.program_id(1)
    row_key = (keys[row] if plan.rate else keys[0]).astype(jnp.uint32)
    key_sums[...], value_sums[...] = jnp.zeros_like(key_sums), jnp.zeros_like(value_sums)
    scale = np.float32(plan.scale)

    # rows of a group follow one another: these two results stay on the chip until the last of them
    @pl.when(row == 0)
    def _() -> None:
        to_table[...], to_vectors[...] = jnp.zeros_like(to_table), jnp.zeros_like(to_vectors)

    def of_tile(number: Any) -> None:
        tile = _Tile(plan, number, before[row], row_key, (mask, places, vectors, query, table))
        content_TW, distance_TW, gaps = tile.scaled(CONTENT), tile.scaled(DISTANCE), []
        out_TW = out[0, tile.here, :]
        # the mean over keys in the gradient of the softmax, from the results
        shares_TW = out_TW.astype(jnp.float32) * mixed[0, tile.here, :].astype(jnp.float32)
        by_key_TW = by_distance_TW = jnp.zeros((plan.tile, plan.lanes), jnp.float32)
        for head in range(plan.heads):
            out_of_TW = of_head(out_TW, head, plan)
            mean_T1 = jnp.sum(of_head(shares_TW, head, plan), axis=1, keepdims=True)
            level_T1 = as_column(levels[0, 0, number, pl.ds(head, 1), :])
            scores_TJ = tile.scores(head, content_TW, distance_TW, key[0])
            weights_TJ = jnp.where(tile.code_TJ > 0, jnp.exp(scores_TJ - level_T1), 0.0)
            drop = tile.drop(group * plan.heads + head)
            to_scores_TJ = weights_TJ * (drop(product(out_of_TW, value[0], (1, 1))) - mean_T1)
            gaps.append(jnp.sum(jnp.where(tile.code_TJ > 1, to_scores_TJ, 0.0), axis=1, keepdims=True))
            to_key_TJ = to_scores_TJ.astype(query.dtype)
            to_distance_TC = _to_distances(to_scores_TJ, tile.shift_T1, plan).astype(query.dtype)
            value_sums[...] += product(drop(weights_TJ).astype(out.dtype), out_of_TW, (0, 0))
            key_sums[...] += product(to_key_TJ, of_head(content_TW, head, plan), (0, 0))
            to_table[tile.near, :] += product(to_distance_TC, of_head(distance_TW, head, plan), (0, 0))
            by_key_TW = by_key_TW + product(to_key_TJ, of_head(key[0], head, plan), (1, 0))
            by_distance_TW = by_distance_TW + product(to_distance_TC, of_head(tile.near_CW, head, plan), (1, 0))
        by_gap_TW = by_head(gaps, plan)
        by_type_TW = by_gap_TW * tile.vectors[GAP : GAP + 1].astype(jnp.float32)
        to_query[0, tile.here, :] = ((by_key_TW + by_distance_TW + by_type_TW) * scale).astype(to_query.dtype)
        to_gap_TW = by_gap_TW * tile.biased(TYPE).astype(jnp.float32)
        for number, change_TW in enumerate((by_key_TW, by_distance_TW, by_type_TW, to_gap_TW)):
            to_vectors[number : number + 1, :] += jnp.sum(change_TW, axis=0, keepdims=True) * scale

    _each_tile(plan, of_tile)
    to_key[0], to_value[0] = key_sums[...].astype(to_key.dtype), value_sums[...].astype(to_value.dtype)


def _call(plan: Plan, scalars: tuple, *arrays: jax.Array) -> list[jax.Array]:
    """Runs a kernel for every group of heads and row: forward of mask, places, vectors, query, key, value and table, backward of
    results and gradients, too."""
    backward, (mask, places, _, query, key, _, table) = len(arrays) > 7, arrays[:7]
    (rows, queries, width), dtype, lanes = query.shape, query.dtype, plan.lanes
    levels = (rows, width // lanes, plan.tiles, plan.heads, plan.tile)

    def of_row(x: Any) -> pl.BlockSpec:
        return pl.BlockSpec((1, x.shape[1], lanes), lambda group, row, *_: (row, 0, group))

    def of_rows(x: Any) -> pl.BlockSpec:
        return pl.BlockSpec((x.shape[0], lanes), lambda group, row, *_: (0, group))

    def of_groups(x: Any) -> pl.BlockSpec:
        return pl.BlockSpec((1, *x.shape[1:]), lambda group, row, *_: (row, 0, 0))

    per_head = pl.BlockSpec((1, 1, *levels[2:]), lambda group, row, *_: (row, group, 0, 0, 0))
    vectors, like = arrays[2], jax.ShapeDtypeStruct
    in_specs = [of_groups(mask), of_groups(places), of_rows(vectors), *map(of_row, (query, key, key)), of_rows(table)]
    shapes, out_specs = [like(query.shape, dtype)], [of_row(query)]
    if backward:
        in_specs += [of_row(query), per_head, of_row(query)]
        shapes += [like(key.shape, dtype)] * 2 + [like(each.shape, jnp.float32) for each in (table, vectors)]
        out_specs += [of_row(key), of_row(key), of_rows(table), of_rows(vectors)]
    else:
        shapes, out_specs = [*shapes, like(levels, jnp.float32)], [*out_specs, per_head]
    # XLA's scheduler knows the cost of a call by this alone
    columns = (10 * plan.keys + 6 * plan.distances) if backward else (4 * plan.keys + 2 * plan.distances)
    return pl.pallas_call(
        functools.partial(_backward_kernel if backward else _forward_kernel, plan),
        out_shape=shapes,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(width // lanes, rows),
            in_specs=in_specs,
            out_specs=out_specs,
            scratch_shapes=[pltpu.VMEM((plan.keys, lanes), jnp.float32)] * 2 if backward else [],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=max(PLENTY, plan.on_chip(dtype.itemsize)),
        ),
        cost_estimate=pl.CostEstimate(
            flops=rows * queries * width * columns,
            transcendentals=rows * queries * plan.keys * width // plan.head_size,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *shapes)),
        ),
        interpret=plan.interpret,
    )(*scalars, *arrays)


def _forward(plan: Plan, scalars: tuple, hidden: tuple, *read: jax.Array) -> tuple[jax.Array, tuple]:
    mixed_BQD, levels = (checkpoint_name(each, KEPT) for each in _call(plan, scalars, *hidden, *read))
    return mixed_BQD, (scalars, hidden, read, mixed_BQD, levels)


def _backward(plan: Plan, kept: tuple, out_BQD: jax.Array) -> tuple:
    scalars, hidden, read, mixed_BQD, levels = kept
    to_query, to_key, to_value, to_table, to_vectors = _call(plan, scalars, *hidden, *read, mixed_BQD, levels, out_BQD)
    to_read = to_vectors, to_query, to_key, to_value, to_table
    return None, None, *(change.astype(x.dtype) for change, x in zip(to_read, read, strict=True))


_attend = jax.custom_vjp(lambda plan, *inputs: _forward(plan, *inputs)[0], nondiff_argnums=(0,))
"""Numbers of rows, masks with places, vectors, query, key, value and table -> values mixed by attention, [B, Q, D]."""
_attend.defvjp(_forward, _backward)


def run(
    arrays: tuple[jax.Array, jax.Array, jax.Array],
    table_RD: jax.Array,
    vectors_4D: jax.Array,
    code_BQJ: jax.Array,
    before_B: jax.Array,
    position_BK: jax.Array | None,
    heads: int,
    length: int,
    rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    site: int | jax.Array = 0,
    interpret: bool = False,
) -> jax.Array:
    """Values mixed by attention of queries, keys and values, [B, Q, D].

    `code_BQJ`, int8, is 0 for keys that a query does not see, 2 for those of another type, and else 1. `before_B` are the keys
    before the row, by multiples of TILE; `position_BK` are the positions of slots in the row of this length, None for the
    queries of the row.
    """
    query_BQD, key_BJD, _ = arrays
    (rows, queries, width), keys, slots = query_BQD.shape, key_BJD.shape[1], position_BK is not None
    head_size = width // heads
    # heads that do not fill registers, as in models for tests, are one group
    lanes = LANES if width % LANES == 0 and LANES % head_size == 0 else width
    rate = 0.0 if dropout_key is None else rate
    # one number where nothing is dropped, by which `plan.own_kernels` tells such a call
    keys_B = row_keys(dropout_key, site) if dropout_key is not None and rate else jnp.zeros((1,), jnp.uint32)
    scalars = lax.bitcast_convert_type(keys_B, jnp.int32), before_B.astype(jnp.int32)
    tile, span = (queries, length) if slots else (TILE, TILE)
    plan = Plan(head_size, lanes, queries, keys, tile, span, slots, rate, interpret)
    place_B1K = (position_BK if position_BK is not None else jnp.zeros((rows, 1), jnp.int32))[:, None]
    return _attend(plan, scalars, (code_BQJ, place_B1K), vectors_4D, *arrays, table_RD)
