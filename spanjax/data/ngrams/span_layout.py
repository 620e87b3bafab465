"""Rows of one or two sentences with the span of every piece, cut so that tokens and spans fit.

Shapes: L positions, S spans of a row, P pieces of a span; T pieces of a sentence or of a row.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.data.vocab.base import Specials


class Sentence(NamedTuple):
    """The pieces of a sentence."""

    ids_T: np.ndarray  # int32
    span_T: np.ndarray  # int32: 0, 1, ... without gaps, see `segmentation.spans_of_pieces`


class LaidRow(NamedTuple):
    """A row without padding, of T pieces with its specials."""

    tokens_T: np.ndarray  # int32
    types_T: np.ndarray  # int32: 1 in the second sentence and its [SEP]
    span_T: np.ndarray  # int32: 1, 2, ... the span of every piece; 0 for specials that are no spans


@dataclasses.dataclass(frozen=True)
class SpanLayout:
    """The shapes of a row, and the removal of spans that do not fit.

    Spans are removed from the end, each as a whole, of the sentence that then has more pieces (for `length`) or more
    spans (for `spans`), the second of equals. A sentence's first span is cut only where it alone is too long. Of a span
    with more than `pieces` pieces the first ones are pooled; the others stay in the row.
    """

    length: int = 128
    """Positions of a row (L), specials included."""
    spans: int = 64
    """Spans of a row (S). The paper's r is 16; the released commands have 64 to 128 (D23)."""
    pieces: int = 16
    """Pieces of a span (P). The paper's l is 64 or 128; the released commands have 16 (D23)."""
    special_spans: bool = True
    """[CLS] and each [SEP] are spans of one piece, as in the released code."""
    halves: bool = False
    """As the released code treats pairs: each sentence has at most half of the room, however short the other is."""
    separators: int = 1
    """Number of [SEP] between two sentences, see `Vocabulary.separators`."""

    def __post_init__(self) -> None:
        most = 4 + self.separators  # the specials of a pair, and a piece of each sentence
        problems = [
            f"{name} {value}: expected {least} or more"
            for name, value, least in (
                ("length", self.length, most),
                ("spans", self.spans, most),
                ("pieces", self.pieces, 1),
            )
            if value < least
        ]
        raise_problems(problems)

    def laid(self, row: Sequence[Sentence], specials: Specials) -> LaidRow:
        """[CLS] A [SEP] or [CLS] A [SEP] B [SEP] (see `separators`); ValueError for a row of none or of three sentences."""
        if len(row) not in (1, 2):
            raise ValueError(f"a row of {len(row)} sentences: expected 1 or 2")
        own = int(self.special_spans)
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = [_special(specials.cls, 0, own)]
        spans = own
        for number, (ids_T, span_T) in enumerate(self.fit_to_length(row)):
            parts.append((ids_T, np.full(len(ids_T), number), spans + 1 + span_T))
            spans += _spans(span_T)
            for _ in range(self.separators if number + 1 < len(row) else 1):
                spans += own
                parts.append(_special(specials.sep, number, own * spans))
        return LaidRow(*(np.concatenate(arrays).astype(np.int32) for arrays in zip(*parts, strict=True)))

    def fit_to_length(self, row: Sequence[Sentence]) -> list[Sentence]:
        """The sentences of a row without the spans that do not fit."""
        specials = 2 + self.separators * (len(row) - 1)
        pieces, spans = self.length - specials, self.spans - specials * self.special_spans
        if self.halves:
            share = len(row)
            return [_shortened([one], pieces // share, spans // share)[0] for one in row]
        return _shortened(row, pieces, spans)


def _shortened(row: Sequence[Sentence], pieces: int, spans: int) -> list[Sentence]:
    size = [len(one.ids_T) for one in row]
    kept = [_spans(one.span_T) for one in row]
    while sum(size) > pieces or sum(kept) > spans:
        by = size if sum(size) > pieces else kept
        most = max(range(len(row)), key=lambda number: (by[number], number))
        if kept[most] > 1:
            kept[most] -= 1
            size[most] = int(np.searchsorted(row[most].span_T, kept[most]))
        else:
            size[most] -= 1
    return [Sentence(one.ids_T[:end], one.span_T[:end]) for one, end in zip(row, size, strict=True)]


def _special(piece: int, number: int, span: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.array([piece]), np.array([number]), np.array([span])


def _spans(span_T: np.ndarray) -> int:
    return int(span_T[-1]) + 1 if len(span_T) else 0
