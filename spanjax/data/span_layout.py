"""Rows of one or two sentences with their spans as arrays of fixed shape, so that a model can pool over every span.

Shapes: B rows, L positions, S spans of a row, P pieces of a span; T pieces of a sentence.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spanjax.data.base_vocab import Specials


class Sentence(NamedTuple):
    """The pieces of a sentence."""

    ids_T: np.ndarray  # int32
    span_T: np.ndarray  # int32: 0, 1, ... without gaps, see `segmentation.spans_of_pieces`


class SpanRows(NamedTuple):
    """What span fine-tuning reads of a batch of rows."""

    tokens_BL: np.ndarray  # int32
    types_BL: np.ndarray  # int32: 1 in the second sentence and its [SEP]
    span_BL: np.ndarray  # int32: 1, 2, ... the span of every position; 0 on padding, and on specials that are no spans
    piece_BSP: np.ndarray  # int32: positions of the pieces of each span, in order; 0 where there is none
    piece_weight_BSP: np.ndarray  # float32: 1 for a piece, else 0


class LaidRow(NamedTuple):
    """A row without padding, of T pieces with its specials; the fields are those of `SpanRows`."""

    tokens_T: np.ndarray
    types_T: np.ndarray
    span_T: np.ndarray


@dataclasses.dataclass(frozen=True)
class SpanLayout:
    """The shapes, and what is left out where they do not hold everything.

    Spans are left out from the end, each as a whole, of the sentence that then has more pieces (for `length`) or more
    spans (for `spans`), the second of equals. Only where a sentence's first span alone is too long it is cut. Of a span
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
    """How many [SEP] stand between two sentences, see `Vocabulary.separators`."""

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
        if problems:
            raise ValueError("\n".join(problems))

    def __call__(self, rows: Sequence[Sequence[Sentence]], specials: Specials) -> SpanRows:
        """[CLS] A [SEP] or [CLS] A [SEP] B [SEP] for every row; ValueError for a row of none or of three sentences."""
        wrong = [
            f"row {b} has {len(row)} sentences, expected 1 or 2" for b, row in enumerate(rows) if len(row) not in (1, 2)
        ]
        if wrong:
            raise ValueError("\n".join(wrong))
        shape = (len(rows), self.length)
        tokens_BL, types_BL, span_BL = (
            np.full(shape, specials.pad, np.int32),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.int32),
        )
        for b, row in enumerate(rows):
            laid = self.laid(row, specials)
            for array_BL, array_T in zip((tokens_BL, types_BL, span_BL), laid, strict=True):
                array_BL[b, : len(array_T)] = array_T
        return SpanRows(tokens_BL, types_BL, span_BL, *gather_spans(span_BL, self.spans, self.pieces))

    def laid(self, row: Sequence[Sentence], specials: Specials) -> LaidRow:
        """One row as `__call__` lays it out, without padding."""
        own = int(self.special_spans)
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = [_special(specials.cls, 0, own)]
        spans = own
        for number, (ids_T, span_T) in enumerate(self.fitted(row)):
            parts.append((ids_T, np.full(len(ids_T), number), spans + 1 + span_T))
            spans += _spans(span_T)
            for _ in range(self.separators if number + 1 < len(row) else 1):
                spans += own
                parts.append(_special(specials.sep, number, own * spans))
        return LaidRow(*(np.concatenate(arrays).astype(np.int32) for arrays in zip(*parts, strict=True)))

    def fitted(self, row: Sequence[Sentence]) -> list[Sentence]:
        """The sentences of a row without what is left out."""
        specials = 2 + self.separators * (len(row) - 1)
        pieces, spans = self.length - specials, self.spans - specials * self.special_spans
        if self.halves:
            share = len(row)
            return [_fitted([one], pieces // share, spans // share)[0] for one in row]
        return _fitted(row, pieces, spans)


def _fitted(row: Sequence[Sentence], pieces: int, spans: int) -> list[Sentence]:
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


def gather_spans(span_BL: np.ndarray, spans: int, pieces: int) -> tuple[np.ndarray, np.ndarray]:
    """piece_BSP (int32) and piece_weight_BSP (float32) of the spans 1 ... `spans` of every row, see `SpanRows`.

    A span is where its number stands, in one run or several. Its first `pieces` positions are taken; numbers above
    `spans` are left out.
    """
    rows, length = span_BL.shape
    row_X, position_X = np.nonzero((span_BL > 0) & (span_BL <= spans))
    key_X = row_X * spans + span_BL[row_X, position_X] - 1
    order_X = np.argsort(key_X, kind="stable")
    key_X, position_X = key_X[order_X], position_X[order_X]
    rank_X = np.arange(len(key_X)) - np.searchsorted(key_X, key_X)  # of a piece in its span
    inside_X = rank_X < pieces
    key_X, position_X, rank_X = key_X[inside_X], position_X[inside_X], rank_X[inside_X]
    piece_XP = np.zeros((rows * spans, pieces), np.int32)
    weight_XP = np.zeros((rows * spans, pieces), np.float32)
    piece_XP[key_X, rank_X], weight_XP[key_X, rank_X] = position_X, 1
    return piece_XP.reshape(rows, spans, pieces), weight_XP.reshape(rows, spans, pieces)
