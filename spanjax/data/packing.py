"""Documents -> blocks of whole sentences -> rows of blocks. Pure functions of token ids, the same whatever runs them.

A block is text of one document, at most L - 2 tokens, and becomes [CLS] text [SEP]. As in SpanBERT (Joshi et al., 2020, section
4.1) a block takes whole sentences while they fit; unlike the released code nothing is dropped: an over-long sentence is cut
into pieces, and the last sentence and the last document count as any other. Several blocks then share a row (best fit).
"""

from collections.abc import Sequence

import numpy as np

MOST_BLOCKS = 127  # a row stores the number of its block in seven bits
MIN_LENGTH, MAX_LENGTH = 8, 65_535
_WINDOW = 1024  # open rows


def split_sentence(ids: np.ndarray, word_starts_V: np.ndarray, limit: int) -> list[np.ndarray]:
    """Cuts a sentence into parts of at most `limit` tokens, before a word where a word begins in reach, else anywhere."""
    parts = []
    while len(ids) > limit:
        starts = np.flatnonzero(word_starts_V[ids[1 : limit + 1]])
        cut = int(starts[-1]) + 1 if len(starts) else limit
        parts.append(ids[:cut])
        ids = ids[cut:]
    return [*parts, ids] if len(ids) else parts


def make_blocks(sentences: Sequence[np.ndarray], word_starts_V: np.ndarray, limit: int) -> list[np.ndarray]:
    """Blocks of at most `limit` tokens of one document's sentences, in order; every token is in exactly one block."""
    blocks: list[np.ndarray] = []
    pending: list[np.ndarray] = []
    used = 0
    for sentence in sentences:
        for part in [sentence] if len(sentence) <= limit else split_sentence(sentence, word_starts_V, limit):
            if pending and used + len(part) > limit:
                blocks.append(np.concatenate(pending))
                pending, used = [], 0
            if len(part):
                pending.append(part)
                used += len(part)
    if pending:
        blocks.append(np.concatenate(pending))
    return blocks


class Packer:
    """Puts blocks into rows of `length` positions: best fit over at most 1024 open rows, the fullest is closed first.

    Deterministic in the order of the blocks. `most_blocks` 1 gives every block a row of its own.
    """

    def __init__(self, length: int, most_blocks: int):
        """`length` counts [CLS] and [SEP]; ValueError names what is out of range."""
        problems = []
        if not MIN_LENGTH <= length <= MAX_LENGTH:
            problems.append(f"length is {length}: expected {MIN_LENGTH} to {MAX_LENGTH:,} positions a row")
        if not 1 <= most_blocks <= MOST_BLOCKS:
            problems.append(f"max_blocks is {most_blocks}: expected 1 to {MOST_BLOCKS} blocks a row")
        if problems:
            raise ValueError("\n".join(problems))
        self.length, self.most_blocks = length, most_blocks
        self._by_space: list[list[list[np.ndarray]]] = [[] for _ in range(length + 1)]
        self._spaces = 0  # bit s is set where an open row has s free positions
        self._open = 0

    def add(self, block: np.ndarray) -> list[list[np.ndarray]]:
        """Takes a block of 1 ... L - 2 text tokens; returns the rows that are finished now (lists of blocks)."""
        need = len(block) + 2
        if not 3 <= need <= self.length:
            raise ValueError(f"a block of {len(block)} tokens: expected 1 to {self.length - 2} for rows of {self.length}")
        fitting = self._spaces >> need
        if fitting:
            space = need + (fitting & -fitting).bit_length() - 1
            row = self._take(space)
        else:
            space, row = self.length, []
        row.append(block)
        if space - need < 3 or len(row) >= self.most_blocks:
            return [row]
        self._put(space - need, row)
        if self._open <= _WINDOW:
            return []
        return [self._take((self._spaces & -self._spaces).bit_length() - 1)]

    def finish(self) -> list[list[np.ndarray]]:
        """The rows that are still open."""
        rows = [row for rows in self._by_space for row in rows]
        self._by_space = [[] for _ in range(self.length + 1)]
        self._spaces = self._open = 0
        return rows

    def _put(self, space: int, row: list[np.ndarray]) -> None:
        self._by_space[space].append(row)
        self._spaces |= 1 << space
        self._open += 1

    def _take(self, space: int) -> list[np.ndarray]:
        row = self._by_space[space].pop()
        if not self._by_space[space]:
            self._spaces &= ~(1 << space)
        self._open -= 1
        return row
