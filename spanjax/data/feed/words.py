"""The fields of a batch of rows that masking reads; its words, blocks and spans as flat arrays, for figures.

Shapes: B rows, L positions; W words, M blocks and X masked tokens of the whole batch, in the order of the rows. A block is a
maximal run of text between special tokens; a place is row * L + position.
"""

import bisect
import unicodedata
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF)),  # Thai and Lao, Tibetan, Myanmar, Khmer
    *((0x1950, 0x19FF), (0x1A20, 0x1AAF)),  # Tai Le, New Tai Lue, Khmer symbols; Tai Tham
    *(
        (0x2E80, 0x2FDF),
        (0x2FF0, 0x30FF),
        (0x3100, 0x312F),
        (0x31A0, 0xA4CF),
    ),  # CJK, kana, Bopomofo, Yi; no Hangul letters
    *((0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0xF900, 0xFAFF), (0xFE30, 0xFE4F)),  # Myanmar extended, CJK compatibility
    *((0xFF00, 0xFF9F), (0x1B000, 0x1B16F), (0x20000, 0x3FFFF)),  # full-width forms, kana supplement, CJK extensions
)
_FIRST = [first for first, _ in _UNSPACED]
_CJK_LEAD_BYTES = range(0xE3, 0xEA)  # the first byte of U+3000 ... U+9FFF in UTF-8


def begins_unspaced(text: str) -> bool:
    """True if the first character is of a script without blanks between words, and no mark that combines with another."""
    if not text:
        return False
    code = ord(text[0])
    place = bisect.bisect_right(_FIRST, code) - 1
    return place >= 0 and code <= _UNSPACED[place][1] and not unicodedata.category(text[0]).startswith("M")


def bytes_begin_unspaced(content: bytes) -> bool:
    """`begins_unspaced` of the UTF-8 bytes of a piece, which may end inside a character: part of one counts if it may be CJK."""
    text = content.decode("utf-8", "ignore")
    if content and content[0] in _CJK_LEAD_BYTES:
        return True
    return bool(content) and begins_unspaced(text) and text[0].encode() == content[: len(text[0].encode())]


Integers = npt.NDArray[np.int64]


class SpecialIds(Protocol):
    """The ids of `vocab.Specials` that masking needs."""

    @property
    def pad(self) -> int: ...
    @property
    def unk(self) -> int: ...
    @property
    def cls(self) -> int: ...
    @property
    def sep(self) -> int: ...
    @property
    def mask(self) -> int: ...


class TextRows(NamedTuple):
    """The fields of rows that masking reads."""

    tokens_BL: np.ndarray
    segments_BL: np.ndarray
    word_starts_BL: np.ndarray
    tags_BL: np.ndarray | None  # uint8, the layer of tags that the policy reads: 0, 1 begins, 2 continues


class Text(NamedTuple):
    """The words and blocks of a batch."""

    first_W: Integers  # place of a word's first piece
    first_M: Integers  # place of a block's first token
    tokens_M: Integers
    row_M: Integers


class Spans(NamedTuple):
    """The masked tokens of a batch. A span is a maximal run of masked tokens in a block (D4)."""

    row_X: Integers
    position_X: Integers
    first_X: Integers  # position of the first token of the span
    last_X: Integers  # position of its last token


def find_words(rows: TextRows, specials: SpecialIds) -> Text:
    """The words and blocks of a batch; the first token of a block begins a word.

    [CLS] un ##able to [SEP] [CLS] go [SEP] has first_W 1 3 6, first_M 1 6, tokens_M 3 1.
    """
    segments_BL = rows.segments_BL
    text_BL = (segments_BL > 0) & (rows.tokens_BL != specials.cls) & (rows.tokens_BL != specials.sep)
    joined_BL = text_BL[:, 1:] & text_BL[:, :-1] & (segments_BL[:, 1:] == segments_BL[:, :-1])
    begins_BL, ends_BL = text_BL.copy(), text_BL.copy()
    begins_BL[:, 1:] &= ~joined_BL
    ends_BL[:, :-1] &= ~joined_BL
    first_M = np.flatnonzero(begins_BL)
    return Text(
        first_W=np.flatnonzero(begins_BL | (text_BL & rows.word_starts_BL)),
        first_M=first_M,
        tokens_M=np.flatnonzero(ends_BL) + 1 - first_M,
        row_M=first_M // rows.tokens_BL.shape[1],
    )


def find_spans(place_X: Integers, segments_BL: np.ndarray) -> Spans:
    """The spans of masked tokens at these places, rising.

    A row whose tokens 2 3 and 5 are masked has position_X 2 3 5, first_X 2 2 5, last_X 3 3 5.
    """
    length = segments_BL.shape[1]
    row_X = place_X // length
    position_X = place_X - row_X * length
    segment_X = segments_BL.ravel()[place_X]
    begins_X = np.ones(len(row_X), dtype=bool)
    begins_X[1:] = (np.diff(place_X) != 1) | (np.diff(segment_X) != 0) | (np.diff(row_X) != 0)
    first = np.flatnonzero(begins_X)
    size = np.diff(first, append=len(row_X))
    first_X = np.repeat(position_X[first], size)
    return Spans(row_X, position_X, first_X, first_X + np.repeat(size - 1, size))
