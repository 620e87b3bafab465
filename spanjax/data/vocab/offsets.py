"""Texts in pieces, with the characters of each piece in the text as it was before cleaning.

Shapes: T pieces of a text.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spanjax.data.sources.cleaning import Cleaning, clean
from spanjax.data.vocab.base import Vocabulary


class TokenizedText(NamedTuple):
    """A text in pieces, with their characters in the text before cleaning."""

    ids_T: np.ndarray
    """int32."""
    starts_T: np.ndarray
    """int32, the piece's first character. Pieces of one character share it."""
    ends_T: np.ndarray
    """int32, behind the piece's last character that is no blank."""


def pieces_of(texts: Sequence[str], vocabulary: Vocabulary) -> list[TokenizedText]:
    """The texts in pieces, cleaned as a corpus is; characters that cleaning removes belong to no piece's end."""
    cleaned = [clean(text) for text in texts]
    found = vocabulary.encode_with_starts(cleaned)
    return [
        _located(text, bare, ids_T, starts_T)
        for text, bare, (ids_T, starts_T) in zip(texts, cleaned, found, strict=True)
    ]


def _located(text: str, cleaned: str, ids_T: np.ndarray, starts_T: np.ndarray) -> TokenizedText:
    behind_T = np.append(starts_T, len(cleaned))[np.searchsorted(starts_T, starts_T, side="right")]
    spans = zip(starts_T.tolist(), behind_T.tolist(), strict=True)
    ends_T = np.array([start + len(cleaned[start:behind].rstrip()) for start, behind in spans], np.int32)
    if len(cleaned) < len(text):
        origin = _origin(text)
        starts_T, ends_T = origin[starts_T], np.where(ends_T > starts_T, origin[ends_T - 1] + 1, origin[starts_T])
    return TokenizedText(ids_T, starts_T.astype(np.int32), ends_T.astype(np.int32))


def _origin(text: str) -> np.ndarray:
    """int64: for every character of the clean text which one of `text` it is."""
    _, kept = Cleaning().with_spans(text, {str(place): ((place, place + 1),) for place in range(len(text))})
    return np.array([int(place) for place, spans in kept.items() if spans], np.int64)
