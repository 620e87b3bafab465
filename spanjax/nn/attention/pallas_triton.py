"""The project's own attention kernel for NVIDIA GPUs from compute capability 8.0 on, in Pallas for Triton.

The same steps as those of `pallas_hopper`, for GPUs and widths of heads that it does not have. No GPU has run it yet: it is
compiled for sm80 and sm90, and its numbers are those of jax's interpreter on a CPU.
Shapes: B rows, L positions, N heads, H width of a head, T tiles of a row, Q queries and K keys of a tile; O the tile of a program
and S that of the other side, where either may hold the queries.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from spanjax.nn.attention import pallas_hopper
from spanjax.nn.attention.on_device import trial
from spanjax.nn.attention.reach import Reach
from spanjax.nn.attention.request import Request, reasons
from spanjax.nn.attention.xla import HIDDEN
from spanjax.nn.dropout import Draws, DropoutKey, kept

TILE = 64  # positions of a program, and of a step of its loop
_LOG2E = math.log2(math.e)


def supports(request: Request) -> str | None:
    """Returns the reasons why the project's kernel compiled by Triton cannot compute this; None if it can."""
    return reasons(
        request.other_platform("gpu"),
        request.not_nvidia(),
        request.other_type(jnp.bfloat16, jnp.float16),
        request.uneven_length(),
        (request.head_size not in (32, 64, 128), f"its head size is 32, 64 or 128, not {request.head_size}"),
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
) -> jax.Array:
    """The kernel of Triton; [B, L, N, H] -> [B, L, N, H]. `interpret` runs it on any device. Blocks of a row are contiguous."""
    rate = rate if dropout_key is not None else 0.0
    options = pallas_hopper.Options(rate, window, causal, interpret, forward, backward)
    place = jnp.asarray(site, jnp.uint32)
    return pallas_hopper.attend(options, query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, place)


@functools.cache
def verify(
    length: int, head_size: int, dtype: str, window: int, rate: float, other: str = "xla"
) -> tuple[float, float]:
    """Compares the kernel with `xla` on this process's first device, as `pallas_hopper.verify`."""
    return trial("pallas_triton", run, length, head_size, dtype, window, rate, other)


class _Settings(NamedTuple):
    """Constants of a kernel."""

    rate: float
    scale: float
    """Factor of scores."""

    @property
    def kept(self) -> np.float32:
        """Factor of what is not dropped."""
        return np.float32(1.0 / (1.0 - self.rate))


class _Place:
    """The part of the result that a program computes, and the tiles of the other side that it meets."""

    def __init__(self, first: Any, behind: Any, bounds: Any):
        self.head, self.tile, self.batch = (pl.program_id(axis) for axis in range(3))
        self.here = pl.ds(self.tile * TILE, TILE)
        self.first_O, self.behind_O = self.of_row(first), self.of_row(behind)
        self.bounds = bounds[self.batch, self.tile, 0], bounds[self.batch, self.tile, 1]

    def of_row(self, ref: Any) -> jax.Array:
        """This program's positions of [B, L]."""
        return ref[self.batch, self.here]

    def tile_of(self, ref: Any, there: Any = None) -> jax.Array:
        """Positions of [B, L, N, H], this program's or others."""
        return ref[self.batch, self.here if there is None else there, self.head, :]

    def lines(self, ref: Any, there: Any = None) -> jax.Array:
        """Positions of [B, N, L]."""
        return ref[self.batch, self.head, self.here if there is None else there]

    def put(self, ref: Any, value: jax.Array) -> None:
        """Writes this program's positions of [B, L, N, H]."""
        ref[self.batch, self.here, self.head, :] = value.astype(ref.dtype)

    def seen(self, number: Any) -> jax.Array:
        """[O, S]: is the position of the other side in the interval?"""
        place_S = number * TILE + lax.iota(jnp.int32, TILE)
        return (place_S[None, :] >= self.first_O[:, None]) & (place_S[None, :] < self.behind_O[:, None])

    def each(self, step: Callable[[Any, Any], Any], start: Any) -> Any:
        """Runs `step(tile, carry)` for the tiles of the other side."""
        return lax.fori_loop(*self.bounds, step, start)


def _there(number: Any) -> Any:
    return pl.ds(pl.multiple_of(number * TILE, TILE), TILE)


def _across(left_OH: jax.Array, right_SH: jax.Array) -> jax.Array:
    """float32 [O, S]."""
    return _dot(left_OH, right_SH, 1)


def _dot(left: jax.Array, right: jax.Array, of_right: int = 0) -> jax.Array:
    """float32 product over the last axis of one side and an axis of the other."""
    return lax.dot_general(left, right, (((1,), (of_right,)), ((), ())), preferred_element_type=jnp.float32)


def _forward_kernel(settings: _Settings, *refs: Any) -> None:
    """Result [B, L, N, H] and log-sums [B, N, L] by log2, with a softmax that goes over the keys once."""
    (query, key, value, first, behind, bounds, *draws), (out, level) = refs[:-2], refs[-2:]
    place, scale = _Place(first, behind, bounds), np.float32(settings.scale * _LOG2E)
    query_QH, drawn_Q = place.tile_of(query), [place.lines(ref) for ref in draws[:2]]

    def step(number: Any, carry: Any) -> Any:
        mixed_QH, top_Q, total_Q = carry
        there = _there(number)
        scores_QK = jnp.where(place.seen(number), _across(query_QH, place.tile_of(key, there)) * scale, HIDDEN)
        higher_Q = jnp.maximum(top_Q, jnp.max(scores_QK, axis=1))
        fade_Q, weights_QK = jnp.exp2(top_Q - higher_Q), jnp.exp2(scores_QK - higher_Q[:, None])
        total_Q = total_Q * fade_Q + jnp.sum(weights_QK, axis=1)
        # the sum above is of all probabilities: dropout comes after the softmax
        if draws:
            keep_QK = kept(settings.rate, drawn_Q[0][:, None], drawn_Q[1][:, None], draws[2][there][None, :])
            weights_QK = jnp.where(keep_QK, weights_QK, 0.0)
        mixed_QH = mixed_QH * fade_Q[:, None] + _dot(weights_QK.astype(value.dtype), place.tile_of(value, there))
        return mixed_QH, higher_Q, total_Q

    start = (jnp.zeros(query_QH.shape, jnp.float32), jnp.full((TILE,), HIDDEN), jnp.zeros((TILE,), jnp.float32))
    mixed_QH, top_Q, total_Q = place.each(step, start)
    place.put(out, mixed_QH * (settings.kept / total_Q)[:, None])
    level[place.batch, place.head, place.here] = top_Q + jnp.log2(total_Q)


def _to_keys(settings: _Settings, *refs: Any) -> None:
    """Gradients of keys and values [B, L, N, H]. Scores are [K, Q] here."""
    (query, key, value, to_out, level, mean, first, behind, bounds, *draws), made = refs[:-2], refs[-2:]
    place, scale = _Place(first, behind, bounds), np.float32(settings.scale * _LOG2E)
    key_KH, value_KH = place.tile_of(key), place.tile_of(value)
    column_K = draws[2][place.here] if draws else None

    def step(number: Any, carry: Any) -> Any:
        there = _there(number)
        query_QH, to_out_QH = place.tile_of(query, there), place.tile_of(to_out, there)
        # the log-sums make probabilities of the scores: no second pass is needed
        weights_KQ = jnp.exp2(_across(key_KH, query_QH) * scale - place.lines(level, there)[None, :])
        weights_KQ = jnp.where(place.seen(number), weights_KQ, 0.0)
        to_weights_KQ, dropped_KQ = _across(value_KH, to_out_QH), weights_KQ
        if column_K is not None:
            line_Q = [place.lines(ref, there)[None, :] for ref in draws[:2]]
            keep_KQ = kept(settings.rate, line_Q[0], line_Q[1], column_K[:, None])
            dropped_KQ, to_weights_KQ = (jnp.where(keep_KQ, each, 0.0) for each in (weights_KQ, to_weights_KQ))
        to_scores_KQ = weights_KQ * (to_weights_KQ - place.lines(mean, there)[None, :])
        return (
            carry[0] + _dot(to_scores_KQ.astype(query.dtype), query_QH),
            carry[1] + _dot(dropped_KQ.astype(query.dtype), to_out_QH),
        )

    to_key_KH, to_value_KH = place.each(step, (jnp.zeros(key_KH.shape, jnp.float32),) * 2)
    place.put(made[0], to_key_KH * (np.float32(settings.scale) * settings.kept))
    place.put(made[1], to_value_KH * settings.kept)


def _to_queries(settings: _Settings, *refs: Any) -> None:
    """Gradient of queries [B, L, N, H]."""
    (query, key, value, to_out, level, mean, first, behind, bounds, *draws), made = refs[:-1], refs[-1]
    place, scale = _Place(first, behind, bounds), np.float32(settings.scale * _LOG2E)
    query_QH, to_out_QH = place.tile_of(query), place.tile_of(to_out)
    level_Q, mean_Q, *drawn_Q = (place.lines(ref)[:, None] for ref in (level, mean, *draws[:2]))

    def step(number: Any, to_query_QH: jax.Array) -> jax.Array:
        there = _there(number)
        key_KH = place.tile_of(key, there)
        weights_QK = jnp.exp2(_across(query_QH, key_KH) * scale - level_Q)
        weights_QK = jnp.where(place.seen(number), weights_QK, 0.0)
        to_weights_QK = _across(to_out_QH, place.tile_of(value, there))
        if draws:
            keep_QK = kept(settings.rate, drawn_Q[0], drawn_Q[1], draws[2][there][None, :])
            to_weights_QK = jnp.where(keep_QK, to_weights_QK, 0.0)
        to_scores_QK = weights_QK * (to_weights_QK - mean_Q)
        return to_query_QH + _dot(to_scores_QK.astype(key.dtype), key_KH)

    to_query_QH = place.each(step, jnp.zeros(query_QH.shape, jnp.float32))
    place.put(made, to_query_QH * (np.float32(settings.scale) * settings.kept))


def _call(body: Callable, rate: float, interpret: bool, made: Sequence[Any], arrays: Sequence[jax.Array]) -> Any:
    """Runs a kernel with one program for each head, tile and row."""
    from jax.experimental.pallas import triton

    rows, length, heads, size = arrays[0].shape
    settings = _Settings(rate, 1.0 / math.sqrt(size))
    return pl.pallas_call(
        functools.partial(body, settings),
        out_shape=list(made),
        grid=(heads, length // TILE, rows),
        compiler_params=triton.CompilerParams(num_warps=8 if size > 64 else 4, num_stages=2),
        interpret=interpret,
        name="attention",
    )(*arrays)


def forward(
    rate: float, interpret: bool, arrays: Sequence[jax.Array], keys: Reach, draws: Draws | None
) -> tuple[jax.Array, jax.Array]:
    """(result [B, L, N, H], log-sums of the scores [B, N, L] by log2), as `hopper_kernels.forward`."""
    query = arrays[0]
    rows, length, heads, _ = query.shape
    made = [jax.typeof(query), jax.ShapeDtypeStruct((rows, heads, length), jnp.float32)]
    return tuple(_call(_forward_kernel, rate, interpret, made, (*arrays, *keys, keys.tiles(TILE), *(draws or ()))))


def backward(
    rate: float,
    interpret: bool,
    arrays: Sequence[jax.Array],
    lines: tuple[jax.Array, jax.Array],
    sides: tuple[Reach, Reach],
    draws: Draws | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of query, key and value, as `hopper_kernels.backward`."""
    like = jax.typeof(arrays[0])
    # everything that dropout scales is scaled at the end
    level_BNL, mean_BNL = lines[0], lines[1] * np.float32(1.0 - rate)
    keys, queries = ((*side, side.tiles(TILE)) for side in sides)
    read, drawn = (*arrays, level_BNL, mean_BNL), tuple(draws or ())
    to_key, to_value = _call(_to_keys, rate, interpret, [like] * 2, (*read, *queries, *drawn))
    (to_query,) = _call(_to_queries, rate, interpret, [like], (*read, *keys, *drawn))
    return to_query, to_key, to_value
