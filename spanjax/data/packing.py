"""Documents -> blocks of whole sentences -> rows of blocks. Pure functions of token ids, the same whatever runs them.

A block is text of one document, at most L - 2 tokens, and becomes [CLS] text [SEP]. As in SpanBERT (Joshi et al., 2020,
section 4.1) a block takes whole sentences while they fit; unlike the released code nothing is dropped: an over-long
sentence is cut, and the last sentence and the last document count as any other. Several blocks then share a row.
"""

from collections.abc import Sequence

import numpy as np

MOST_BLOCKS = 127  # a row stores the number of its block in seven bits
MIN_LENGTH, MAX_LENGTH = 8, 65_535
_GATHERED, _OPEN = 4096, 1024  # blocks placed at a time; rows left open for the next ones


def split_sentence(ids: np.ndarray, word_starts_V: np.ndarray, limit: int) -> list[np.ndarray]:
    """Cuts a sentence into parts of at most `limit` tokens, before a word where one begins in reach, else anywhere."""
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
    """Puts blocks into rows of `length` positions.

    Blocks are gathered 4096 at a time and placed from the longest to the shortest, each into the fullest row that has
    room (best fit decreasing); of more than 1024 open rows the fullest is closed. The same blocks give the same rows.
    `most_blocks` 1 gives every block a row of its own, in their order.
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
        self._gathered: list[np.ndarray] = []
        self._by_space: list[list[list[np.ndarray]]] = [[] for _ in range(length + 1)]
        self._spaces = 0  # bit s is set where an open row has s free positions
        self._open = 0

    def add(self, block: np.ndarray) -> list[list[np.ndarray]]:
        """Takes a block of 1 ... L - 2 text tokens; returns the rows that are finished now (lists of blocks)."""
        if not 1 <= len(block) <= self.length - 2:
            raise ValueError(
                f"a block of {len(block)} tokens: expected 1 to {self.length - 2} for rows of {self.length}"
            )
        if self.most_blocks == 1:
            return [[block]]
        self._gathered.append(block)
        return self._place_gathered() if len(self._gathered) >= _GATHERED else []

    def finish(self) -> list[list[np.ndarray]]:
        """All rows that are not yet returned."""
        finished = self._place_gathered()
        while self._open:
            finished.append(self._take_fullest())
        return finished

    def _place_gathered(self) -> list[list[np.ndarray]]:
        finished = []
        for block in sorted(self._gathered, key=len, reverse=True):  # a stable sort: ties keep their order
            need = len(block) + 2
            fitting = self._spaces >> need
            space = need + (fitting & -fitting).bit_length() - 1 if fitting else self.length
            row = self._take(space) if fitting else []
            row.append(block)
            if space - need < 3 or len(row) >= self.most_blocks:
                finished.append(row)
                continue
            self._put(space - need, row)
        self._gathered = []
        while self._open > _OPEN:
            finished.append(self._take_fullest())
        return finished

    def _take_fullest(self) -> list[np.ndarray]:
        return self._take((self._spaces & -self._spaces).bit_length() - 1)

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
