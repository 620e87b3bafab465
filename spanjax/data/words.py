"""The words, blocks and tagged spans of a batch of rows, laid flat: what masking policies choose from, in NumPy.

Shapes: B rows, L positions; W words, M blocks and T tagged spans of the whole batch, in the order of the rows. A block is a
maximal run of text between special tokens; a place is row * L + position.
"""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]


class SpecialIds(Protocol):
    """The ids of `vocab.Specials` that masking needs."""

    @property
    def pad(self) -> int: ...
    @property
    def cls(self) -> int: ...
    @property
    def sep(self) -> int: ...
    @property
    def mask(self) -> int: ...


class TextRows(NamedTuple):
    """What masking reads of rows."""

    tokens_BL: np.ndarray
    segments_BL: np.ndarray
    word_starts_BL: np.ndarray
    tags_BL: np.ndarray | None  # uint8, the layer of tags that the policy asked for: 0, 1 begins, 2 goes on


class Text(NamedTuple):
    """The words and blocks of a batch."""

    first_W: Integers  # place of a word's first piece
    pieces_W: Small
    first_M: Integers  # place of a block's first token
    tokens_M: Integers
    first_word_M: Integers  # index into W
    words_M: Integers
    row_M: Integers
    number_M: Integers  # 0, 1, ... in each row


class Tagged(NamedTuple):
    """The tagged spans of a batch, in whole words."""

    first_word_T: Integers  # index into W
    words_T: Integers
    first_tag_M: Integers  # index into T
    tags_M: Integers  # how many a block has


def find_words(rows: TextRows, specials: SpecialIds, every_token: bool = False) -> Text:
    """The words and blocks of a batch; with `every_token` each token counts as a word.

    [CLS] un ##able to [SEP] [CLS] go [SEP] has first_W 1 3 6, pieces_W 2 1 1, first_M 1 6, tokens_M 3 1, first_word_M 0
    2, words_M 2 1. What begins a block begins a word.
    """
    length = rows.tokens_BL.shape[1]
    segments_BL = rows.segments_BL
    text_BL = (segments_BL > 0) & (rows.tokens_BL != specials.cls) & (rows.tokens_BL != specials.sep)
    joined_BL = text_BL[:, 1:] & text_BL[:, :-1] & (segments_BL[:, 1:] == segments_BL[:, :-1])
    begins_BL, ends_BL = text_BL.copy(), text_BL.copy()
    begins_BL[:, 1:] &= ~joined_BL
    ends_BL[:, :-1] &= ~joined_BL
    first_W = np.flatnonzero(text_BL if every_token else begins_BL | (text_BL & rows.word_starts_BL))
    first_M, end_M = np.flatnonzero(begins_BL), np.flatnonzero(ends_BL) + 1
    first_word_M = np.searchsorted(first_W, first_M)
    words_M = np.diff(first_word_M, append=len(first_W))
    pieces_W = np.diff(first_W, append=0).astype(np.int32)
    last_word_M = first_word_M + words_M - 1
    pieces_W[last_word_M] = end_M - first_W[last_word_M]
    row_M = first_M // length
    number_M = np.arange(len(row_M)) - np.searchsorted(row_M, row_M)
    return Text(first_W, pieces_W, first_M, end_M - first_M, first_word_M, words_M, row_M, number_M)


def find_tagged(tags_BL: np.ndarray, text: Text) -> Tagged:
    """The tagged spans of the blocks of `text`: tags 0 1 2 0 1 over four one-piece words are words 1-2 and word 4."""
    tags = tags_BL.ravel()
    begin_T = np.flatnonzero(tags == 1)
    outside = np.append(np.flatnonzero(tags != 2), tags.size)
    end_T = outside[np.searchsorted(outside, begin_T, side="right")]
    first_word_T = np.searchsorted(text.first_W, begin_T, side="right") - 1  # a tag inside a word is the word's
    words_T = np.searchsorted(text.first_W, end_T) - first_word_T
    first_tag_M = np.searchsorted(first_word_T, text.first_word_M)
    tags_M = np.searchsorted(first_word_T, text.first_word_M + text.words_M) - first_tag_M
    return Tagged(first_word_T, words_T, first_tag_M, tags_M)


def leading_places(first_W: Integers, masked_W: Integers) -> Integers:
    """The places of the leading masked pieces of every word, rising: words at 1 and 3 with 1 and 2 mask 1, 3, 4."""
    word = np.flatnonzero(masked_W > 0)  # of flags: several times faster than of numbers
    count, first = masked_W[word], first_W[word]
    return np.arange(int(count.sum())) + np.repeat(first - np.cumsum(count) + count, count)
