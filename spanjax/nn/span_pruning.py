"""Span pruning: keeps the best spans of which no two cross (Lee et al., 2017; section 3 of Joshi et al., 2019).

Spans a and b cross where one begins inside of the other and ends behind it: a begins before b, b begins before a ends, and
b ends behind a. The published code walks down the sorted spans one by one, in C++. Here rounds over all spans at once find the
same spans: a span is kept as soon as every better span that crosses it has been dropped, and dropped as soon as one that
crosses it is kept. Each round costs a few operations for every span: a recursion over widths finds the best span that crosses
another one.

The number of rounds is the length of the longest chain of spans that cross, each better than the next one, down to the last
that is needed: about log N for scores that do not depend on the position (6 for random ones of 3,072 pieces). A hash orders equal
scores: ordered by position, such a chain would run through the whole document. Scores that rise or fall
steadily through a document still make one, as long as the spans that are kept. After ROUNDS rounds a walk settles what is left:
a turn of it compares the next AHEAD spans with those that the walk has kept, so that it drops many spans in one turn and keeps
one. That is at most M + N W / AHEAD turns of a cost that does not depend on N.

Shapes: N pieces, W widths (a span of width w has w + 1 pieces), M spans that are kept, X = N W spans, K of them in a turn.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from spanjax.nn.dropout import hash32

NEVER = jnp.iinfo(jnp.int32).max
ROUNDS = 12  # twice what random scores of 3,072 pieces need
AHEAD = 128  # spans of one turn


class Kept(NamedTuple):
    """Spans in the order of first and last piece; those that are `real` come first, all others are zeros."""

    first_M: jax.Array
    last_M: jax.Array
    real_M: jax.Array


def keep_best(score_NW: jax.Array, budget: jax.Array, most: int) -> Kept:
    """The best `budget` (at most `most`, M) of the spans with a score above -inf, no two crossing, ties by a hash
    of first piece and width that does not depend on N."""
    pieces, widths = score_NW.shape
    score_X = jax.lax.stop_gradient(score_NW).reshape(-1)
    number_X = jnp.arange(score_X.size, dtype=jnp.int32)
    order_X = jax.lax.sort((-score_X, hash32(number_X.astype(jnp.uint32)), number_X), num_keys=2)[2]
    rank_X = jnp.zeros_like(number_X).at[order_X].set(number_X)
    rank_NW = jnp.where(jnp.isneginf(score_X), NEVER, rank_X).reshape(pieces, widths)
    kept_NW = _greedy(rank_NW, budget)
    worst_first_NW = jnp.where(kept_NW, -rank_NW, -NEVER)
    return _sorted(worst_first_NW, -NEVER, budget, most)


def keep_all(score_NW: jax.Array, most: int) -> Kept:
    """All spans with a score above -inf, crossing ones too; the best `most` of them."""
    return _sorted(jax.lax.stop_gradient(score_NW), -jnp.inf, most, most)


def _sorted(value_NW: jax.Array, nothing: Any, budget: jax.Array | int, most: int) -> Kept:
    """The `budget` (at most `most`) spans with the highest values above `nothing`, by position."""
    widths, value_X = value_NW.shape[1], value_NW.reshape(-1)
    chosen = min(most, value_X.size)
    value_M, index_M = jax.lax.top_k(value_X, chosen)
    real_M = (value_M > nothing) & (jnp.arange(chosen) < budget)
    index_M = jnp.sort(jnp.where(real_M, index_M, NEVER))
    real_M = index_M < NEVER
    index_M = jnp.where(real_M, index_M, 0)
    first_M, width_M = index_M // widths, index_M % widths
    found = (first_M, first_M + width_M, real_M)
    return Kept(*(jnp.pad(each, (0, most - chosen)) for each in found))


def _greedy(rank_NW: jax.Array, budget: jax.Array) -> jax.Array:
    """bool[N, W]: spans that a walk from the best to the worst keeps; at least the first `budget` of them are right."""

    def goes_on(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        open_NW, kept_NW, rounds = state
        best_open = jnp.min(jnp.where(open_NW, rank_NW, NEVER))
        settled = jnp.sum(kept_NW & (rank_NW < best_open))
        return jnp.any(open_NW) & (settled < budget) & (rounds < ROUNDS)

    def round_of(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        open_NW, kept_NW, rounds = state
        rival_NW = best_crossing(jnp.where(open_NW, rank_NW, NEVER))
        new_NW = open_NW & (rank_NW < rival_NW)
        dropped_NW = best_crossing(jnp.where(new_NW, rank_NW, NEVER)) < NEVER
        return open_NW & ~new_NW & ~dropped_NW, kept_NW | new_NW, rounds + 1

    open_NW = rank_NW < NEVER
    open_NW, kept_NW, rounds = jax.lax.while_loop(goes_on, round_of, (open_NW, jnp.zeros_like(open_NW), jnp.int32(0)))
    return _walked_if_open(rounds, open_NW, kept_NW, rank_NW, budget)


# over a batch of documents a cond computes both branches, and nearly none needs the walk
@jax.custom_batching.sequential_vmap
def _walked_if_open(
    rounds: jax.Array, open_NW: jax.Array, kept_NW: jax.Array, rank_NW: jax.Array, budget: jax.Array
) -> jax.Array:
    return jax.lax.cond(rounds < ROUNDS, lambda *given: given[1], _walk, open_NW, kept_NW, rank_NW, budget)


def _walk(open_NW: jax.Array, kept_NW: jax.Array, rank_NW: jax.Array, budget: jax.Array) -> jax.Array:
    """`_greedy` from the state that its rounds left: `kept_NW`, and `open_NW`, none of which crosses a kept one."""
    pieces, widths = rank_NW.shape
    kept_X = jnp.zeros(rank_NW.size + 1, jnp.int32).at[jnp.where(kept_NW, rank_NW, rank_NW.size).reshape(-1)].set(1)
    # before_X[rank]: spans that the rounds kept and that are better than this rank
    before_X = jnp.pad(jnp.cumsum(kept_X[:-1]), (1, 0))
    open_rank_X = jnp.where(open_NW, rank_NW, NEVER).reshape(-1)
    span_X = jnp.argsort(open_rank_X)
    span_X = jnp.pad(jnp.where(open_rank_X[span_X] < NEVER, span_X, -1), (0, AHEAD), constant_values=-1)
    rank_X = rank_NW.reshape(-1)

    def goes_on(state: tuple[jax.Array, ...]) -> jax.Array:
        place, count, *_ = state
        span = span_X[place]
        return (span >= 0) & (before_X[rank_X[span]] + count < budget)

    def turn(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        place, count, chosen_X, ends_N, begins_N = state
        span_K = jax.lax.dynamic_slice_in_dim(span_X, place, AHEAD)
        first_K = jnp.maximum(span_K, 0) // widths
        last_K = first_K + jnp.maximum(span_K, 0) % widths
        # a span is crossed by one that begins behind its first piece and ends behind it, or by the mirror image
        inside_KW = first_K[:, None] + jnp.arange(widths)[None]
        here_KW = inside_KW <= last_K[:, None]
        later_KW = here_KW & (inside_KW > first_K[:, None]) & (ends_N[inside_KW] > last_K[:, None])
        earlier_KW = here_KW & (inside_KW < last_K[:, None]) & (begins_N[inside_KW] < first_K[:, None])
        free_K = (span_K >= 0) & ~(later_KW | earlier_KW).any(axis=1)
        found, own = free_K.any(), jnp.argmax(free_K)
        first, last = first_K[own], last_K[own]
        ends_N = ends_N.at[first].max(jnp.where(found, last, -1))
        begins_N = begins_N.at[last].min(jnp.where(found, first, NEVER))
        chosen_X = chosen_X.at[jnp.where(found, span_K[own], rank_NW.size)].set(True)
        return place + jnp.where(found, own + 1, AHEAD), count + found, chosen_X, ends_N, begins_N

    # the furthest last piece of the spans that begin at a piece, the nearest first piece of those that end at it
    ends_N, begins_N = jnp.full(pieces + widths, -1), jnp.full(pieces + widths, NEVER)
    nothing_X = jnp.zeros(rank_NW.size + 1, bool)
    state = jax.lax.while_loop(goes_on, turn, (jnp.int32(0), jnp.int32(0), nothing_X, ends_N, begins_N))
    return kept_NW | state[2][:-1].reshape(pieces, widths)


def best_crossing(rank_NW: jax.Array) -> jax.Array:
    """The least rank of the spans that cross each span, NEVER where none does; ranks are NEVER for spans that do not count."""
    by_last_NW = _by_last(rank_NW)
    later_NW = _begins_inside(rank_NW)
    earlier_NW = _begins_inside(by_last_NW[::-1])[::-1]
    return jnp.minimum(later_NW, _by_first(earlier_NW))


def _begins_inside(rank_NW: jax.Array) -> jax.Array:
    """The least rank of the spans that begin inside of a span, behind its first piece, and end behind it.

    With least[s, w] the least rank of the spans that begin at s and are at least as wide as w, the answer for (s, w) is that for
    (s + 1, w - 1), or least[s + 1, w].
    """
    widths = rank_NW.shape[1]
    least_NW = jax.lax.cummin(rank_NW, axis=1, reverse=True)
    next_NW = jnp.pad(least_NW[1:], ((0, 1), (0, 0)), constant_values=NEVER)

    def wider(found_N: jax.Array, least_N: jax.Array) -> tuple[jax.Array, jax.Array]:
        found_N = jnp.minimum(jnp.pad(found_N[1:], (0, 1), constant_values=NEVER), least_N)
        return found_N, found_N

    nothing_N = jnp.full(rank_NW.shape[0], NEVER, rank_NW.dtype)
    found_WN = jax.lax.scan(wider, nothing_N, next_NW.T[1:])[1]
    return jnp.concatenate([nothing_N[:, None], found_WN.T], axis=1) if widths > 1 else nothing_N[:, None]


def _by_last(rank_NW: jax.Array) -> jax.Array:
    """Spans by their last piece instead of their first."""
    columns = [jnp.pad(rank_NW[:, w], (w, 0), constant_values=NEVER)[: len(rank_NW)] for w in range(rank_NW.shape[1])]
    return jnp.stack(columns, axis=1)


def _by_first(rank_NW: jax.Array) -> jax.Array:
    """Spans by their first piece instead of their last."""
    columns = [jnp.pad(rank_NW[w:, w], (0, w), constant_values=NEVER) for w in range(rank_NW.shape[1])]
    return jnp.stack([column[: len(rank_NW)] for column in columns], axis=1)
