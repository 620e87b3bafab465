"""Interface of every vocabulary: ids, special ids, word starts, and the character at which each piece begins."""

import abc
import bisect
import functools
import hashlib
import itertools
import json
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_PIECES = 2_000_000
"""Largest vocabulary that is trained: the trainers allocate memory for all pieces first, and abort where that fails."""
SETTINGS_FILE = "vocabulary.json"  # kind and settings of a saved vocabulary
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


class Specials(NamedTuple):
    """Ids of the five pieces that are never text."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


class Vocabulary(abc.ABC):
    """Maps text to ids and back; `pieces[i]` is the piece of id i, `word_starts[i]` says whether it begins a word."""

    kind: str
    casing: str
    pieces: tuple[str, ...]
    specials: Specials
    unused: int = 0
    """Number of last ids that no text and no special has: the weights of DeBERTa-v2 and v3 have more rows than pieces."""

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.pieces)

    @property
    def separators(self) -> int:
        """Number of [SEP] between the two texts of a pair: 1 as in BERT, 2 where the specials are RoBERTa's."""
        return 1

    @functools.cached_property
    def word_starts(self) -> np.ndarray:
        """bool[V]: True where an id begins a word, and for every special."""
        starts_V = np.array([self._begins_word(piece) for piece in self.pieces], dtype=bool)
        starts_V[list(self.specials)] = True
        starts_V.setflags(write=False)
        return starts_V

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex digest of kind, casing and pieces: equal when and only when the ids mean the same."""
        content = json.dumps([self.kind, self.casing, self.pieces], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    @abc.abstractmethod
    def _begins_word(self, piece: str) -> bool: ...

    @abc.abstractmethod
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of every text, no specials added. The texts should have gone through `cleaning.clean`."""

    @abc.abstractmethod
    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """int32 ids as `encode` gives them, and int32 starts: the index into the text where each piece begins.

        A start names the piece's first visible character in the text as it is given, before lower-casing, stripping of
        accents or any other normalisation, and without the blank before it. Starts never decrease. Pieces made of one
        character (bytes of it, or letters that it is decomposed into) share its start; a piece that is only a blank has
        the start of what follows it.
        """

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Readable text of ids; specials appear by their names, incomplete characters as U+FFFD."""
        parts: list[str] = []
        for special, run in itertools.groupby(np.asarray(ids).tolist(), self.specials.__contains__):
            numbers = [*run]
            parts += [self.pieces[number] for number in numbers] if special else [self._text(numbers)]
        return " ".join(parts)

    def _text(self, ids: list[int]) -> str:
        """Text of ids among which there is no special."""
        raise NotImplementedError

    @abc.abstractmethod
    def files(self) -> dict[str, bytes]:
        """Everything that `vocabulary_from_files` needs to build it again, by file name."""


def unused_pieces(first: int, size: int) -> list[str]:
    """Names of the ids from `first` on up to `size` that no piece has."""
    return [f"[unused{number}]" for number in range(first, size)]


def after_blanks(text: str, start: int) -> int:
    """The index of the first visible character at or after `start`; that of the last character where none follows."""
    while start < len(text) and text[start].isspace():
        start += 1
    return max(0, min(start, len(text) - 1))
