"""Text that repeats itself: a stretch of tokens that is one n-gram over and over, as menus, logs and broken pages have it.

The rule is that of OLMo 2 (Walsh et al., 2025, arXiv 2501.00656): an n-gram of 1 to 13 tokens that occurs 32 times and more,
one occurrence directly behind the other. Here it applies to a block, which is what a row takes or leaves.

Legend: T tokens of a block.
"""

from typing import NamedTuple

import numpy as np

LONGEST = 13
"""Tokens of the longest n-gram that is looked for."""


class Repetition(NamedTuple):
    """An n-gram and its occurrences in a row."""

    start: int
    """Place of its first token."""
    size: int
    """Tokens of the n-gram."""
    times: int
    """Occurrences, the last one whole."""


def repetition(ids_T: np.ndarray, times: int) -> Repetition | None:
    """Returns the shortest n-gram of token ids [T] that occurs `times` times or more in a row; None if there is none."""
    for size in range(1, min(LONGEST, len(ids_T) // times) + 1):
        same_T = ids_T[size:] == ids_T[:-size]
        needed = size * (times - 1)
        if np.count_nonzero(same_T) < needed:  # most blocks end here, so that the search costs little
            continue
        breaks = np.flatnonzero(np.concatenate([[True], ~same_T, [True]]))
        runs = np.diff(breaks) - 1
        longest = int(np.argmax(runs))
        if runs[longest] >= needed:
            return Repetition(int(breaks[longest]), size, int(runs[longest]) // size + 1)
    return None
