"""Pruning equals a walk from the best span to the worst, and what it keeps never crosses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.nn import span_pruning
from spanjax.nn.dropout import hash32
from spanjax.nn.span_pruning import NEVER, Kept, best_crossing, keep_all, keep_best


def crosses(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two spans (first, last) cross."""
    (first, last), (other_first, other_last) = sorted([a, b])
    return first < other_first <= last < other_last


def walk(score_NW: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Spans taken one by one, best first, ties by the hash of their numbers, those that cross a taken one left out."""
    pieces, widths = score_NW.shape
    tie_NW = np.asarray(hash32(jnp.arange(score_NW.size, dtype=jnp.uint32))).reshape(score_NW.shape)
    spans = [
        (-score_NW[s, w], tie_NW[s, w], s, s + w)
        for s in range(pieces)
        for w in range(widths)
        if score_NW[s, w] > -np.inf
    ]
    taken: list[tuple[int, int]] = []
    for _, _, first, last in sorted(spans):
        if len(taken) == budget:
            break
        if not any(crosses((first, last), other) for other in taken):
            taken.append((first, last))
    return sorted(taken)


def scores(seed: int, pieces: int, widths: int, ties: bool) -> np.ndarray:
    """Random scores, -inf for spans that run over the end and some others."""
    random = np.random.default_rng(seed)
    score_NW = random.normal(size=(pieces, widths)).astype(np.float32)
    if ties:
        score_NW = np.round(score_NW)
    score_NW[random.random(score_NW.shape) < random.choice([0, 0.3])] = -np.inf
    score_NW[np.arange(pieces)[:, None] + np.arange(widths) >= pieces] = -np.inf
    return score_NW


def kept(score_NW: np.ndarray, budget: int, most: int) -> Kept:
    """`keep_best` of NumPy arrays."""
    return keep_best(jnp.asarray(score_NW), jnp.int32(budget), most)


@pytest.mark.parametrize("widths", [1, 2, 7])
def test_pruning_equals_the_walk_one_by_one(widths):
    pruned = jax.jit(keep_best, static_argnums=2)
    for seed in range(60):
        score_NW = scores(seed, 23, widths, ties=seed % 2 == 0)
        budget = int(np.random.default_rng(seed).integers(1, 25))
        found = pruned(score_NW, jnp.int32(budget), 25)
        spans = [(int(a), int(b)) for a, b, real in zip(*found, strict=True) if real]
        assert spans == walk(score_NW, budget)
        assert not any(crosses(a, b) for a in spans for b in spans)
        assert not found.real_M[len(spans) :].any()


@pytest.mark.parametrize(("rounds", "ahead"), [(0, 1), (0, 5), (1, 3), (2, 128)])
def test_the_walk_after_some_rounds_keeps_the_same_spans(rounds, ahead, monkeypatch):
    monkeypatch.setattr(span_pruning, "ROUNDS", rounds)
    monkeypatch.setattr(span_pruning, "AHEAD", ahead)
    # a function of its own: the compiled one has other constants
    pruned = jax.jit(lambda score_NW, budget: keep_best(score_NW, budget, 25))
    for seed in range(40):
        score_NW = scores(seed, 23, 7, ties=seed % 2 == 0)
        if seed % 4 == 0:  # a chain through the document
            score_NW -= np.float32(100) * np.arange(23)[:, None]
        budget = int(np.random.default_rng(seed).integers(1, 25))
        found = pruned(score_NW, jnp.int32(budget))
        spans = [(int(a), int(b)) for a, b, real in zip(*found, strict=True) if real]
        assert spans == walk(score_NW, budget)


@pytest.mark.slow
@pytest.mark.parametrize("way", [-1, 1])
def test_turns_grow_linearly_where_scores_fall_or_rise_steadily(way, monkeypatch):
    """Spans of two pieces, each better than the next one or the one before: rounds alone settle one span each."""
    pieces, widths = 60, 3
    score_NW = np.full((pieces, widths), -1000.0, np.float32) + way * np.arange(pieces)[:, None]
    score_NW[:, 1] += 900
    score_NW = np.where(np.arange(pieces)[:, None] + np.arange(widths) < pieces, score_NW, -np.inf).astype(np.float32)
    turns = []

    def counting(goes_on: Any, body: Any, state: Any) -> Any:
        turns.append(0)
        while goes_on(state):
            turns[-1], state = turns[-1] + 1, body(state)
        return state

    monkeypatch.setattr(span_pruning, "AHEAD", 16)
    monkeypatch.setattr(span_pruning, "ROUNDS", 2)
    # the rule of batches traces even without jit, so that its loops could not be counted
    monkeypatch.setattr(span_pruning, "_walked_if_open", span_pruning._walked_if_open.fun)
    with jax.disable_jit():
        monkeypatch.setattr(jax.lax, "while_loop", counting)
        found = kept(score_NW, 24, 24)
    assert [(int(a), int(b)) for a, b, real in zip(*found, strict=True) if real] == walk(score_NW, 24)
    rounds, walked = turns
    assert rounds == 2 and 20 <= walked <= 24 + pieces * widths // 16


def test_all_spans_with_a_score_are_kept_crossing_or_not():
    score_NW = np.full((9, 3), -np.inf, np.float32)
    for number, (first, width) in enumerate([(5, 1), (1, 2), (2, 2), (6, 0)]):
        score_NW[first, width] = number
    found = keep_all(jnp.asarray(score_NW), 5)
    assert found.first_M.tolist() == [1, 2, 5, 6, 0] and found.last_M.tolist() == [3, 4, 6, 6, 0]
    assert found.real_M.tolist() == [True] * 4 + [False]
    assert keep_all(jnp.asarray(score_NW), 2).first_M.tolist() == [2, 6]


@pytest.mark.parametrize("scored", ["random", "width", "equal"])
def test_rounds_do_not_grow_with_the_document(scored, monkeypatch):
    """3,072 pieces: scores that depend on the width alone, two pieces best, or on nothing make no chain through them."""
    pieces, widths, budget = 3072, 30, 1228
    if scored == "random":
        score_NW = np.random.default_rng(0).normal(size=(pieces, widths)).astype(np.float32)
    else:
        score_NW = np.zeros((pieces, widths), np.float32) - (scored == "width") * np.abs(np.arange(widths) - 1)
    score_NW = np.where(np.arange(pieces)[:, None] + np.arange(widths) < pieces, score_NW, -np.inf).astype(np.float32)
    rounds, loops = 0, 0

    def counting(goes_on: Any, body: Any, state: Any) -> Any:
        nonlocal rounds, loops
        loops += 1
        # the second loop is that of the walk, which is traced and not run
        while loops == 1 and rounds < 50 and goes_on(state):
            rounds, state = rounds + 1, body(state)
        return state

    monkeypatch.setattr(jax.lax, "while_loop", counting)
    assert int(kept(score_NW, budget, budget).real_M.sum()) == budget
    assert rounds < 10


@pytest.mark.parametrize("ties", [False, True])
def test_padding_changes_nothing(ties):
    score_NW = scores(3, 23, 7, ties)
    padded = np.pad(score_NW, ((0, 40), (0, 0)), constant_values=-np.inf)
    short, long = kept(score_NW, 9, 12), kept(padded, 9, 30)
    for a, b in zip(short, long, strict=True):
        np.testing.assert_array_equal(a, b[:12])
    assert not long.real_M[12:].any() and int(short.real_M.sum()) == 9


def test_the_best_crossing_span_of_every_span():
    rank_NW = np.random.default_rng(0).permutation(19 * 6).reshape(19, 6).astype(np.int32)
    rank_NW[np.arange(19)[:, None] + np.arange(6) >= 19] = NEVER
    found_NW = np.asarray(best_crossing(jnp.asarray(rank_NW)))
    spans = {(s, s + w): rank_NW[s, w] for s in range(19) for w in range(6) if rank_NW[s, w] < NEVER}
    for (first, last), _ in spans.items():
        rivals = [rank for span, rank in spans.items() if crosses((first, last), span)]
        assert found_NW[first, last - first] == min(rivals, default=NEVER)


def test_fewer_spans_than_the_budget():
    score_NW = np.full((4, 2), -np.inf, np.float32)
    found = kept(score_NW, 3, 20)
    assert not found.real_M.any() and len(found.real_M) == 20
    score_NW[2, 1] = 0.5
    found = kept(score_NW, 3, 20)
    assert (int(found.first_M[0]), int(found.last_M[0])) == (2, 3) and int(found.real_M.sum()) == 1
