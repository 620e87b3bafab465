"""Spans of words under a budget of tokens, drawn for all blocks of a batch together, in NumPy.

The result is that of this process, block by block: round 0, 1, ... proposes a first word and a number of words; a proposal
whose first word is masked already is void; else its words are taken in order (those masked already cost nothing) as far as
the budget goes. A block is finished when its budget is spent, or after 16 + 4 * budget rounds. `masking` says what is proposed.

What a round proposes does not depend on what was masked before, so many rounds are drawn at once and the void ones are found
by iteration: the first proposal that covers a word decides it, and a proposal is void where an earlier one that is not void
covers its first word. Only what is left of budgets after the first word that was too long goes round by round.

Shapes: W words and M blocks of the batch; P proposals of all blocks in the order of blocks and rounds, E words of all
proposals; A blocks that are still drawing, S words a span may have.
"""

from collections.abc import Callable

import numpy as np

from spanjax.data.words import Integers, Small, Text

Propose = Callable[[Integers, Integers], tuple[Integers, Integers]]
"""(block_P, round_P) -> (first word as an index into W, number of words that stay inside the block), both [P]."""


def draw_spans(
    text: Text, budget_M: Integers, propose: Propose, *, mean_words: float, most_words: int, whole_words: bool
) -> Integers:
    """The number of leading masked pieces of every word [W]; at most `budget_M` tokens of a block are masked.

    With `whole_words` a span ends before the first word that is over the budget, else inside it. `mean_words` only
    decides how many rounds are drawn at once.
    """
    rounds_M = np.minimum(16 + 4 * budget_M, (budget_M * (1.15 / mean_words)).astype(np.int64) + 4)
    rounds_M *= budget_M > 0
    free_W, left_M = _many_rounds(text, budget_M, rounds_M, propose, whole_words)
    free_W = np.concatenate([free_W, np.zeros(most_words, free_W.dtype)])
    limit_M = 16 + 4 * budget_M
    block_A = np.flatnonzero((left_M > 0) & (rounds_M < limit_M))
    while len(block_A):
        first_A, words_A = propose(block_A, rounds_M[block_A])
        left_A = _one_round(free_W, text.pieces_W[first_A], words_A, first_A, left_M[block_A], most_words, whole_words)
        left_M[block_A] = left_A
        rounds_M[block_A] += 1
        block_A = block_A[(left_A > 0) & (rounds_M[block_A] < limit_M[block_A])]
    return text.pieces_W - free_W[: len(text.pieces_W)]


def _many_rounds(
    text: Text, budget_M: Integers, rounds_M: Integers, propose: Propose, whole_words: bool
) -> tuple[Small, Integers]:
    """Rounds 0 ... rounds_M - 1, up to the one in which the budget is reached: (free pieces [W], what is left [M]).

    Sets `rounds_M`, in place, to the rounds that are done.
    """
    block_P = np.repeat(np.arange(len(rounds_M)), rounds_M)
    after_M = np.cumsum(rounds_M)
    place_P = np.arange(len(block_P))
    first_P, words_P = propose(block_P, place_P - (after_M - rounds_M)[block_P])
    after_P = np.cumsum(words_P)
    proposal_E = np.repeat(place_P, words_P)
    word_E = np.arange(len(proposal_E)) + (first_P - after_P + words_P)[proposal_E]
    decider_W = _deciders(len(text.pieces_W), proposal_E, word_E, first_P)
    cost_E = text.pieces_W[word_E] * (decider_W[word_E] == proposal_E)
    spent_E = np.append(0, np.cumsum(cost_E))
    words = np.append(0, after_P)
    begin_M, end_M = words[after_M - rounds_M], words[after_M]
    over_E = spent_E[1:] - np.repeat(spent_E[begin_M] + budget_M, end_M - begin_M)
    fits_E = over_E <= 0
    taken_E = cost_E * fits_E if whole_words else np.clip(cost_E - over_E, 0, cost_E)
    taken, fitting = (np.append(0, np.cumsum(array_E)) for array_E in (taken_E, fits_E))
    crossing_M = begin_M + fitting[end_M] - fitting[begin_M]  # the first word that does not fit
    crossed = np.flatnonzero(crossing_M < end_M)
    rounds_M[crossed] += 1 + proposal_E[crossing_M[crossed]] - after_M[crossed]
    free_W = text.pieces_W.copy()
    changed = np.flatnonzero(taken_E > 0)
    free_W[word_E[changed]] -= taken_E[changed]
    return free_W, budget_M - (taken[end_M] - taken[begin_M])


def _deciders(words: int, proposal_E: Integers, word_E: Integers, first_P: Integers) -> Small:
    """The first proposal that is not void and covers each word [W]; the number of proposals where there is none."""
    none = len(first_P)
    place_P = np.arange(none, dtype=np.int32)
    backwards_E, word_E = proposal_E[::-1].astype(np.int32), word_E[::-1].copy()
    decider_W = np.full(words, none, np.int32)
    decider_W[word_E] = backwards_E  # the last assignment to a word stays: the earliest proposal
    counts_P = decider_W[first_P] >= place_P
    while True:
        counted = counts_P[backwards_E]
        decider_W.fill(none)
        decider_W[word_E[counted]] = backwards_E[counted]
        now_P = decider_W[first_P] >= place_P
        if np.array_equal(now_P, counts_P):
            return decider_W
        counts_P = now_P


def _one_round(
    free_W: Small,
    whole_A: Small,
    words_A: Integers,
    first_A: Integers,
    left_A: Integers,
    most_words: int,
    whole_words: bool,
) -> Integers:
    """One round of some blocks: takes pieces from `free_W`, in place, and returns what is left of the budgets [A].

    `whole_A` is the size of the first word, of which nothing may be masked yet.
    """
    more_S = np.arange(most_words)
    word_AS = first_A[:, None] + more_S
    free_AS = free_W[word_AS]
    tried_AS = (more_S < words_A[:, None]) & (free_AS[:, :1] == whole_A[:, None])
    cost_AS = np.where(tried_AS, free_AS, 0)
    over_AS = np.cumsum(cost_AS, axis=1) - left_A[:, None]
    taken_AS = np.where(over_AS <= 0, cost_AS, 0) if whole_words else np.clip(cost_AS - over_AS, 0, cost_AS)
    changed_AS = taken_AS > 0
    free_W[word_AS[changed_AS]] -= taken_AS[changed_AS]
    return left_A - taken_AS.sum(axis=1)
