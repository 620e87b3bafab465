"""The kernels of `pallas_hopper`: the result, the gradient of queries, and those of keys and values.

Each group of a program keeps a tile of one side and goes over the tiles of the other side that it meets. Scores are in units of
log2, so that exponents are those of the hardware.
Shapes: B rows, L positions, N heads, H width of a head, T tiles of a row, Q queries and K keys of a tile; O the tile of a group
and S that of the other side, where either may hold the queries.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from spanjax.distributed.jax_internals import gpu_interpreter
from spanjax.nn.attention.hopper_tiles import STAGES, TILE, Registers, Stream, barriers, spread, tiles
from spanjax.nn.attention.reach import Reach
from spanjax.nn.attention.xla import HIDDEN
from spanjax.nn.dropout import Draws, threshold

_LOG2E = math.log2(math.e)
_SHAPE = (TILE, TILE)
GROUPS = 2
"""Warpgroups of a program of the backward pass. Their sums need up to 220 registers a thread."""
SHORT = 1024
"""Positions up to which the gradient of scores is kept in memory for that of queries: at 512 as much as eight arrays of hidden
states. In longer rows, of which local layers see a part, it is computed once more."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Constants of a kernel."""

    rate: float
    """Rate of dropout; 0 without draws."""
    groups: int
    """Warpgroups of a program, each with a tile of its own side."""
    interpret: bool

    @property
    def kept(self) -> np.float32:
        """Factor of what is not dropped."""
        return np.float32(1.0 / (1.0 - self.rate))

    def scaled(self, key: Any) -> np.float32:
        """Factor of the gradient of scores that is left to the end."""
        return np.float32(1.0 / math.sqrt(key.shape[-1])) * self.kept

    @property
    def registers(self) -> Registers:
        """Values of this kernel."""
        return Registers(self.interpret)


class _Place:
    """The part of the result that a group computes."""

    def __init__(self, groups: int) -> None:
        self.batch, self.head, program = (lax.axis_index(name) for name in ("batch", "head", "program"))
        self.group, self.groups, self.first = lax.axis_index("group"), groups, program * groups
        self.here = pl.ds((self.first + self.group) * TILE, TILE)

    def of_row(self, ref: Any) -> Any:
        """Slice of [B, L, N, H] for this group's positions."""
        return ref.at[self.batch, self.here, self.head]

    def of_line(self, ref: Any) -> Any:
        """Slice of [B, N, L]."""
        return ref.at[self.batch, self.head, self.here]

    def rows(self, ref: Any) -> Callable[[Any], Any]:
        """Slices of [B, L, N, H] for other positions."""
        return lambda there: ref.at[self.batch, there, self.head]

    def lines(self, ref: Any) -> Callable[[Any], Any]:
        """Slices of [B, N, L] for other positions."""
        return lambda there: ref.at[self.batch, self.head, there]

    def stream(self, bounds_BT2: Any, copies: Sequence[tuple[Any, Any]], ready: tuple[Any, Any]) -> Stream:
        """The tiles of the other side that this program meets, and those that this group does."""
        # bounds do not decrease along a row
        low = bounds_BT2[self.batch, self.first, 0]
        high = bounds_BT2[self.batch, self.first + (self.groups - 1), 1]
        own = (bounds_BT2[self.batch, self.first + self.group, side] for side in range(2))
        return Stream(tuple(copies), *ready, self.group, low, high, *own)


def _seen(registers: Registers, first_O: jax.Array, behind_O: jax.Array, step: Any) -> jax.Array:
    """[O, S]: is the position of the other side in the interval? One comparison, as what is before it wraps around."""
    apart_OS = registers.numbers(_SHAPE, 1, step * TILE) - spread(first_O, _SHAPE)
    return apart_OS.astype(jnp.uint32) < spread((behind_O - first_O).astype(jnp.uint32), _SHAPE)


def _keep(line: Sequence[jax.Array], key: jax.Array, of_queries: int, rate: float) -> jax.Array:
    """The mask of dropout, as `spanjax.nn.dropout` computes it; queries are along this axis."""
    offset, factor = (spread(each, _SHAPE, of_queries) for each in line)
    draw = offset + factor * spread(key, _SHAPE, 1 - of_queries)
    return draw >= np.uint32(threshold(rate))


def _forward(settings: Settings, refs: Sequence[Any], made: Sequence[Any], scratch: Any) -> None:
    """Result [B, L, N, H] and log-sums [B, N, L] by a softmax that goes over the keys once."""
    (query, key, value, first, behind, bounds, *draws), (out, level) = refs, made
    registers, place = settings.registers, _Place(settings.groups)
    own, others, query_there, ready, more = scratch
    query_QH, level_Q = own[0].at[place.group], more[0].at[place.group]
    copies = [(place.rows(key), others[0]), (place.rows(value), others[1])]
    copies += [(lambda there: draws[2].at[there], others[2])] if draws else []
    stream = place.stream(bounds, copies, ready)
    plgpu.copy_gmem_to_smem(place.of_row(query), query_QH, query_there.at[place.group])
    stream.start()
    first_Q, behind_Q = (registers.load(each.at[place.batch, place.here], 0) for each in (first, behind))
    drawn_Q = [registers.load(place.of_line(each), 0) for each in draws[:2]]
    plgpu.barrier_wait(query_there.at[place.group])
    scale = np.float32(_LOG2E / math.sqrt(query_QH.shape[-1]))

    def step(number: Any, carry: Any) -> Any:
        mixed_QH, top_Q, total_Q = carry
        key_KH, value_KH, *key_K = stream.take(number)
        (scores_QK,) = registers.products((query_QH, key_KH))
        seen_QK = _seen(registers, first_Q, behind_Q, number)
        # A query that sees nothing of a tile gets weights that the first key that it sees fades to zero. They must be finite:
        # a product and a sum that are fused into one operation leave the rounding of the hidden score in the exponent.
        scores_QK = lax.select(seen_QK, scores_QK, registers.full(_SHAPE, HIDDEN))
        higher_Q = lax.max(top_Q, lax.reduce_max(scores_QK, (1,)) * scale)
        fade_Q = lax.exp2(top_Q - higher_Q)
        weights_QK = lax.exp2(scores_QK * scale - spread(higher_Q, _SHAPE))
        total_Q = total_Q * fade_Q + lax.reduce_sum(weights_QK, (1,))
        mixed_QH = mixed_QH * spread(fade_Q, mixed_QH.shape)
        # the sum above is of all probabilities: dropout comes after the softmax
        if draws:
            keep_QK = _keep(drawn_Q, registers.load(key_K[0], 1), 0, settings.rate)
            weights_QK = _dropped(registers, keep_QK, weights_QK)
        (mixed_QH,) = registers.added((mixed_QH, weights_QK.astype(value.dtype), value_KH))
        stream.release(number)
        return mixed_QH, higher_Q, total_Q

    start = (registers.full(query_QH.shape, 0.0), registers.column(TILE, HIDDEN), registers.column(TILE, 0.0))
    mixed_QH, top_Q, total_Q = stream.each(step, start)
    query_QH[...] = (mixed_QH * spread(settings.kept / total_Q, mixed_QH.shape)).astype(out.dtype)
    level_Q[...] = top_Q + lax.log(total_Q) * np.float32(_LOG2E)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(query_QH, place.of_row(out))
    plgpu.copy_smem_to_gmem(level_Q, place.of_line(level))
    plgpu.wait_smem_to_gmem(0)


def _dropped(registers: Registers, keep: jax.Array, weights: jax.Array) -> jax.Array:
    """Zero where a mask says so."""
    # the barrier is before they become bfloat16: the compiler would select halves of registers, by two more instructions
    return lax.optimization_barrier(lax.select(keep, weights, registers.full(_SHAPE, 0.0)))


def _to_queries(settings: Settings, refs: Sequence[Any], made: Sequence[Any], scratch: Any) -> None:
    """Gradient of queries [B, L, N, H]."""
    query, key, value, to_out, level, mean, first, behind, bounds, *draws = refs
    registers, place, (own, others, query_there, ready, _) = settings.registers, _Place(settings.groups), scratch
    query_QH, to_out_QH = (each.at[place.group] for each in own)
    copies = [(place.rows(key), others[0]), (place.rows(value), others[1])]
    copies += [(lambda there: draws[2].at[there], others[2])] if draws else []
    stream = place.stream(bounds, copies, ready)
    for source, buffer in ((query, query_QH), (to_out, to_out_QH)):
        plgpu.copy_gmem_to_smem(place.of_row(source), buffer, query_there.at[place.group])
    stream.start()
    first_Q, behind_Q = (registers.load(each.at[place.batch, place.here], 0) for each in (first, behind))
    level_Q, mean_Q, *drawn_Q = (registers.load(place.of_line(each), 0) for each in (level, mean, *draws[:2]))
    plgpu.barrier_wait(query_there.at[place.group])
    scale = 1.0 / math.sqrt(query_QH.shape[-1])

    def step(number: Any, to_query_QH: jax.Array) -> jax.Array:
        key_KH, value_KH, *key_K = stream.take(number)
        scores_QK, to_weights_QK = registers.products((query_QH, key_KH), (to_out_QH, value_KH))
        # the log-sums make probabilities of the scores: no second pass over the keys is needed
        weights_QK = lax.exp2(scores_QK * np.float32(scale * _LOG2E) - spread(level_Q, _SHAPE))
        seen_QK = _seen(registers, first_Q, behind_Q, number)
        weights_QK = lax.select(seen_QK, weights_QK, registers.full(_SHAPE, 0.0))
        keep_QK = _keep(drawn_Q, registers.load(key_K[0], 1), 0, settings.rate) if draws else None
        if keep_QK is not None:
            to_weights_QK = lax.select(keep_QK, to_weights_QK, registers.full(_SHAPE, 0.0))
        to_scores_QK = weights_QK * (to_weights_QK - spread(mean_Q, _SHAPE))
        (to_query_QH,) = registers.added((to_query_QH, to_scores_QK.astype(key.dtype), key_KH))
        stream.release(number)
        return to_query_QH

    to_query_QH = stream.each(step, registers.full(query_QH.shape, 0.0))
    query_QH[...] = (to_query_QH * settings.scaled(query)).astype(query.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(query_QH, place.of_row(made[0]))
    plgpu.wait_smem_to_gmem(0)


def _to_keys(settings: Settings, refs: Sequence[Any], made: Sequence[Any], scratch: Any) -> None:
    """Gradients of keys and values [B, L, N, H], and of scores [B, N, K, Q] if there is room for them.

    Scores are [K, Q] here: sums over queries stay in registers.
    """
    query, key, value, to_out, level, mean, first, behind, bounds, *draws = refs
    registers, place, (own, others, key_there, ready, more) = settings.registers, _Place(settings.groups), scratch
    key_KH, value_KH = (each.at[place.group] for each in own)
    copies = [(place.rows(query), others[0]), (place.rows(to_out), others[1])]
    of_lines = (level, mean, *draws[:2])
    copies += [(place.lines(each), buffer) for each, buffer in zip(of_lines, others[2:], strict=True)]
    stream = place.stream(bounds, copies, ready)
    for source, buffer in ((key, key_KH), (value, value_KH)):
        plgpu.copy_gmem_to_smem(place.of_row(source), buffer, key_there.at[place.group])
    stream.start()
    first_K, behind_K = (registers.load(each.at[place.batch, place.here], 0) for each in (first, behind))
    key_K = registers.load(draws[2].at[place.here], 0) if draws else None
    plgpu.barrier_wait(key_there.at[place.group])
    scale = 1.0 / math.sqrt(key_KH.shape[-1])

    def step(number: Any, carry: Any) -> Any:
        query_QH, to_out_QH, level_Q, mean_Q, *drawn_Q = stream.take(number)
        scores_KQ, to_weights_KQ = registers.products((key_KH, query_QH), (value_KH, to_out_QH))
        level_KQ = spread(registers.load(level_Q, 1), _SHAPE, 1)
        weights_KQ = lax.exp2(scores_KQ * np.float32(scale * _LOG2E) - level_KQ)
        seen_KQ = _seen(registers, first_K, behind_K, number)
        weights_KQ = lax.select(seen_KQ, weights_KQ, registers.full(_SHAPE, 0.0))
        dropped_KQ = weights_KQ
        if key_K is not None:
            keep_KQ = _keep([registers.load(each, 1) for each in drawn_Q], key_K, 1, settings.rate)
            dropped_KQ = _dropped(registers, keep_KQ, weights_KQ)
            to_weights_KQ = lax.select(keep_KQ, to_weights_KQ, registers.full(_SHAPE, 0.0))
        to_scores_KQ = weights_KQ * (to_weights_KQ - spread(registers.load(mean_Q, 1), _SHAPE, 1))
        to_scores_KQ = to_scores_KQ.astype(query.dtype)
        to_value_KH, to_key_KH = registers.added(
            (carry[0], dropped_KQ.astype(query.dtype), to_out_QH), (carry[1], to_scores_KQ, query_QH)
        )
        stream.release(number)
        if more:
            # the copy of the step before has left the tile by now
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            more[0].at[place.group][...] = to_scores_KQ
            plgpu.commit_smem()
            there = made[2].at[place.batch, place.head, place.here, pl.ds(number * TILE, TILE)]
            plgpu.copy_smem_to_gmem(more[0].at[place.group], there)
        return to_value_KH, to_key_KH

    start = (registers.full(key_KH.shape, 0.0),) * 2
    to_value_KH, to_key_KH = stream.each(step, start)
    value_KH[...] = (to_value_KH * settings.kept).astype(value.dtype)
    key_KH[...] = (to_key_KH * settings.scaled(key)).astype(key.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(key_KH, place.of_row(made[0]))
    plgpu.copy_smem_to_gmem(value_KH, place.of_row(made[1]))
    plgpu.wait_smem_to_gmem(0)


def _queries_from_scores(settings: Settings, refs: Sequence[Any], made: Sequence[Any], scratch: Any) -> None:
    """Gradient of queries [B, L, N, H] from that of scores [B, N, K, Q], as `_to_keys` leaves it: one product."""
    (key, to_scores, bounds), place = refs, _Place(settings.groups)
    _, others, _, ready, more = scratch
    copies = [(place.rows(key), others[0])]
    # each group reads columns of its own, the tiles of which no slice of shared memory at a traced place could cut
    for group in range(settings.groups):
        columns = pl.ds((place.first + group) * TILE, TILE)
        copies += [
            (lambda there, columns=columns: to_scores.at[place.batch, place.head, there, columns], more[1].at[group])
        ]
    stream = place.stream(bounds, copies, ready)
    stream.start()

    def step(number: Any, to_query_QH: jax.Array) -> jax.Array:
        key_KH, *_ = stream.take(number)
        to_scores_KQ = more[1].at[place.group, stream.stage(number)]
        to_query_QH = settings.registers.added_transposed(to_query_QH, to_scores_KQ, key_KH)
        stream.release(number)
        return to_query_QH

    out_QH = more[0].at[place.group]
    start = settings.registers.full(out_QH.shape, 0.0)
    to_query_QH = stream.each(step, start)
    out_QH[...] = (to_query_QH * settings.scaled(key)).astype(key.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(out_QH, place.of_row(made[0]))
    plgpu.wait_smem_to_gmem(0)


def _groups(length: int) -> int:
    """Warpgroups of a program of the forward pass: four fill a processor, as they need at most 128 registers a thread."""
    return 4 if length % (4 * TILE) == 0 else GROUPS


def _call(
    body: Any,
    settings: Settings,
    inputs: Sequence[Any],
    made: Sequence[Any],
    own: Sequence[Any],
    others: Sequence[Any],
    more: Sequence[Any] = (),
    copies: int = 0,
) -> Any:
    """Runs a kernel with one program for each head, each row and the tiles of it that its groups take.

    A group keeps a tile of the arrays in `own`; tiles of those in `others` are copied ahead, by `copies` copies if that is not
    one for each array. `more` is further shared memory.
    """
    (rows, length, heads, _), groups = inputs[0].shape, settings.groups

    # the references come in one list: inputs, results, then shared memory
    def entry(*refs: Any) -> None:
        results = refs[len(inputs) : len(inputs) + len(made)]
        body(settings, refs[: len(inputs)], results, refs[len(inputs) + len(made) :])

    return plgpu.kernel(
        entry,
        out_type=list(made),
        scratch_types=[
            _shared(groups, own),
            _shared(STAGES, others),
            plgpu.Barrier(num_arrivals=max(1, len(own)), num_barriers=groups),
            barriers(groups, copies or len(others)),
            tuple(more),
        ],
        grid=(heads, length // (groups * TILE), rows),
        grid_names=("head", "program", "batch"),
        num_threads=groups,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=gpu_interpreter() if settings.interpret else None,
    )(*inputs)


def _shared(count: int, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Shared memory for so many tiles of each array: of [B, L, N, H], or of one with a number a position."""
    return tuple(
        tiles(count, TILE, each.shape[-1], dtype=each.dtype)
        if each.ndim == 4
        else plgpu.SMEM((count, TILE), each.dtype)
        for each in arrays
    )


def forward(
    rate: float, interpret: bool, arrays: Sequence[jax.Array], keys: Reach, draws: Draws | None
) -> tuple[jax.Array, jax.Array]:
    """(result [B, L, N, H], log-sums of the scores [B, N, L] by log2) of query, key and value.

    `keys` are those that each query sees; without `draws` nothing is dropped.
    """
    query, key, value = arrays
    rows, length, heads, _ = query.shape
    settings = Settings(rate, _groups(length), interpret)
    made = (_like(query), jax.ShapeDtypeStruct((rows, heads, length), jnp.float32))
    inputs = (*arrays, *keys, keys.tiles(TILE), *(draws or ()))
    others, more = (key, value, *(draws or ())[2:]), [plgpu.SMEM((settings.groups, TILE), jnp.float32)]
    return tuple(_call(_forward, settings, inputs, made, [query], others, more))


def backward(
    rate: float,
    interpret: bool,
    arrays: Sequence[jax.Array],
    lines: tuple[jax.Array, jax.Array],
    sides: tuple[Reach, Reach],
    draws: Draws | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of query, key and value, from these and the gradient of the result, and from log-sums and means [B, N, L].

    Means are those of the gradient of the probabilities over keys. Everything that dropout scales is scaled at the end.
    `sides` are the keys that each query sees, and the queries that see each key.
    """
    query, key, value, to_out = arrays
    lines = (lines[0], lines[1] * np.float32(1.0 - rate))
    (keys, queries), drawn = sides, tuple(draws or ())
    settings, short = Settings(rate, GROUPS, interpret), query.shape[1] <= SHORT
    # both kernels meet the same pairs of tiles: what one of them has not written the other does not read
    bounds = [each.tiles(TILE) for each in sides]
    inputs = (*arrays, *lines, *queries, bounds[1], *drawn)
    others = (query, to_out, *lines, *drawn[:2])
    made, more = [_like(key), _like(value)], []
    if short:
        rows, length, heads, _ = query.shape
        made.append(jax.ShapeDtypeStruct((rows, heads, length, length), query.dtype))
        more.append(tiles(GROUPS, TILE, TILE, dtype=query.dtype))
    to_key, to_value, *to_scores = _call(_to_keys, settings, inputs, made, (key, value), others, more)
    if short:
        more = [tiles(GROUPS, TILE, key.shape[-1], dtype=key.dtype), tiles(GROUPS, STAGES, TILE, TILE, dtype=key.dtype)]
        inputs = (key, *to_scores, bounds[0])
        (to_query,) = _call(_queries_from_scores, settings, inputs, made[:1], (), [key], more, copies=1 + GROUPS)
    else:
        inputs, others = (*arrays, *lines, *keys, bounds[0], *drawn), (key, value, *drawn[2:])
        (to_query,) = _call(_to_queries, settings, inputs, made[:1], (query, to_out), others)
    return to_query, to_key, to_value


def _like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)
