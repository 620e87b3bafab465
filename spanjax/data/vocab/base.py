"""Interface of every vocabulary: ids, special ids, word starts, and the character at which each piece begins."""

import abc
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_PIECES = 2_000_000
"""Largest vocabulary that is trained: the trainers allocate memory for all pieces first, and abort where that fails."""
SETTINGS_FILE = "vocabulary.json"  # kind and settings of a saved vocabulary


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
        """int32 ids of every text, no specials added. The texts should have gone through `sentences.clean`."""

    @abc.abstractmethod
    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """int32 ids as `encode` gives them, and int32 starts: the index into the text where each piece begins.

        A start names the piece's first visible character in the text as it is given, before lower-casing, stripping of
        accents or any other normalisation, and without the blank before it. Starts never decrease. Pieces made of one
        character (bytes of it, or letters that it is decomposed into) share its start; a piece that is only a blank has
        the start of what follows it.
        """

    @abc.abstractmethod
    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Readable text of ids; specials appear by their names."""

    @abc.abstractmethod
    def files(self) -> dict[str, bytes]:
        """Everything that `vocabulary_from_files` needs to build it again, by file name."""


def after_blanks(text: str, start: int) -> int:
    """The index of the first visible character at or after `start`; that of the last character where none follows."""
    while start < len(text) and text[start].isspace():
        start += 1
    return max(0, min(start, len(text) - 1))
