"""Documents -> blocks of whole sentences -> rows of blocks. Pure functions of token ids, the same whatever runs them.

A block is text of one document, at most L - 2 tokens, and becomes [CLS] text [SEP]. As in SpanBERT (Joshi et al., 2020,
section 4.1) a block takes whole sentences while they fit; unlike the released code nothing is dropped: an over-long
sentence is cut, and the last sentence and the last document count as any other. Several blocks then share a row.

Legend: L positions, T tokens of a document.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from spanjax.bounds import raise_problems

MOST_LAYERS = 3
SENTENCE_START = np.uint8(1)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """n text tokens of a document, special tokens not among them; `len(block)` is n."""

    ids: np.ndarray
    """int32 [n]."""
    flags: np.ndarray
    """uint8 [n]: `SENTENCE_START`, and the tags of every layer, see `layer_tags`."""
    document: int
    """Number of the document among those of its shard; becomes its number among all."""

    def __len__(self) -> int:
        return len(self.ids)


def layer_tags(flags: np.ndarray, layer: int) -> np.ndarray:
    """Tags of one layer of flags of any shape: uint8, 0 outside, 1 where a tagged span begins, 2 where it continues."""
    return (flags >> np.uint8(1 + 2 * layer)) & np.uint8(3)


def tag_flags(tags: np.ndarray, layer: int) -> np.ndarray:
    """Inverse of `layer_tags`: flags with the tags (0, 1, 2) of one layer."""
    return tags.astype(np.uint8) << np.uint8(1 + 2 * layer)


MOST_BLOCKS = 127  # a row stores the number of its block in seven bits
MIN_LENGTH, MAX_LENGTH = 8, 65_535


class _Sized(Protocol):
    def __len__(self) -> int: ...


Packed = TypeVar("Packed", bound=_Sized)


def block_bounds(sizes: Sequence[int], starts_T: np.ndarray, limit: int) -> list[tuple[int, int]]:
    """Start and end of the blocks of a document: whole sentences while they fit into `limit` tokens.

    `sizes` are the tokens of its sentences, `starts_T` is True where words begin. A sentence over the limit begins a block
    and is cut into parts before a word where one begins in reach, else anywhere; its rest is packed like any other
    sentence. Every token is in exactly one block, in order.
    """
    bounds: list[tuple[int, int]] = []
    first = end = 0
    for size in sizes:
        if end + size - first > limit and end > first:
            bounds.append((first, end))
            first = end
        end += size
        while end - first > limit:
            words = np.flatnonzero(starts_T[first + 1 : first + limit + 1])
            cut = first + (int(words[-1]) + 1 if len(words) else limit)
            bounds.append((first, cut))
            first = cut
    if end > first:
        bounds.append((first, end))
    return bounds


def _check(lengths: Sequence[int], length: int, most_blocks: int) -> None:
    problems = []
    if not MIN_LENGTH <= length <= MAX_LENGTH:
        problems.append(f"length is {length}: expected {MIN_LENGTH} to {MAX_LENGTH:,} positions a row")
    if not 1 <= most_blocks <= MOST_BLOCKS:
        problems.append(f"max_blocks is {most_blocks}: expected 1 to {MOST_BLOCKS} blocks a row")
    if bad := [size for size in lengths if not 1 <= size <= length - 2]:
        problems.append(f"a block of {bad[0]} tokens: expected 1 to {length - 2} for rows of {length}")
    raise_problems(problems)


def pack_rows(blocks: Sequence[Packed], length: int, most_blocks: int) -> list[list[Packed]]:
    """Rows of blocks whose tokens, with [CLS] and [SEP] around each, fill at most `length` positions.

    Blocks are placed from the longest to the shortest, each into the fullest row that has room (best fit decreasing); the
    same blocks give the same rows. `most_blocks` 1 gives every block a row of its own, in their order. ValueError names
    what is out of range.
    """
    sizes = [len(block) for block in blocks]
    _check(sizes, length, most_blocks)
    if most_blocks == 1:
        return [[block] for block in blocks]
    rows: list[list[Packed]] = []
    by_space: list[list[int]] = [[] for _ in range(length + 1)]  # rows that are open, by their free positions
    spaces = 0  # bit s is set where an open row has s free positions
    for place in np.argsort(-np.array(sizes, np.int64), kind="stable").tolist():  # ties keep their order
        need = sizes[place] + 2
        if fitting := spaces >> need:
            space = need + (fitting & -fitting).bit_length() - 1
            number = by_space[space].pop()
            if not by_space[space]:
                spaces &= ~(1 << space)
            rows[number].append(blocks[place])
        else:
            space, number = length, len(rows)
            rows.append([blocks[place]])
        left = space - need
        if left >= 3 and len(rows[number]) < most_blocks:
            by_space[left].append(number)
            spaces |= 1 << left
    return rows
