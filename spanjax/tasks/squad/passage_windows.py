"""A question and its passage as rows of at most L tokens: a long passage is read in windows that overlap (Devlin et al., 2018).

Shapes: T pieces of a passage or of a window.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from spanjax.data.vocab.base import Vocabulary
from spanjax.data.vocab.offsets import TokenizedText
from spanjax.tasks.squad.questions import Span


class PassageWindow(NamedTuple):
    """The part of the passage in a row: the pieces from `offset` on."""

    offset: int
    """Position of the first of them in the row."""
    starts_T: np.ndarray
    """int32, first characters of the pieces in the passage."""
    ends_T: np.ndarray
    """int32, behind their ends."""
    widest_T: np.ndarray
    """bool, True where no other window shows more around the piece: only here an answer may begin with it."""
    passage: int = 0
    """Number of the passage among those of the question."""


class Placed(NamedTuple):
    """One window as a row."""

    tokens_T: np.ndarray
    """int32, specials included."""
    types_T: np.ndarray
    """int32, 0 up to the separator of question and passage, then 1."""
    start: int
    """Position of the answer's first piece; 0, which is [CLS], where the answer is not wholly in the window."""
    end: int
    """Position of its last piece."""
    window: PassageWindow


@dataclasses.dataclass(frozen=True)
class WindowSettings:
    """Settings by which questions and passages share rows."""

    length: int
    """Most tokens of a row."""
    stride: int
    """Pieces from the start of a window to that of the next. (In other libraries `stride` can be the overlap of two windows.)"""
    max_query: int
    """Most pieces of a question."""
    first: Literal["question", "passage"]
    """First part of the row (D15)."""

    def room(self, query: int, separators: int = 1) -> int:
        """Pieces of the passage that fit with a question of `query` pieces, [CLS], `separators` [SEP] and the last one."""
        return self.length - min(query, self.max_query) - 2 - separators


def window_spans(count: int, room: int, stride: int) -> list[Span]:
    """[start, end) of the windows over `count` pieces: each `room` long but the last; there is always one."""
    spans = [(0, min(count, room))]
    while spans[-1][1] < count:
        start = spans[-1][0] + min(room, stride)
        spans.append((start, min(start + room, count)))
    return spans


def widest(spans: Sequence[Span]) -> list[np.ndarray]:
    """bool[T] for every window: True if it has the most context around the piece; the first of equals.

    Context is the smaller number of pieces on either side, plus 0.01 of the window's length (BERT's rule).
    """
    most_T, best_T = np.full(spans[-1][1], -1.0), np.zeros(spans[-1][1], np.int64)
    for number, (start, end) in enumerate(spans):
        before = np.arange(end - start)
        context = np.minimum(before, before[::-1]) + 0.01 * (end - start)
        more = context > most_T[start:end]
        most_T[start:end][more], best_T[start:end][more] = context[more], number
    return [best_T[start:end] == number for number, (start, end) in enumerate(spans)]


def pieces_of_answer(passage: TokenizedText, span: Span) -> Span | None:
    """The first and the last piece (inclusive) that have characters of the span; None where the passage has no pieces."""
    if not len(passage.ids_T):
        return None
    first = max(int(np.searchsorted(passage.starts_T, span[0], side="right")) - 1, 0)
    first = int(np.searchsorted(passage.starts_T, passage.starts_T[first], side="left"))
    last = int(np.searchsorted(passage.starts_T, span[1] - 1, side="right")) - 1
    return first, max(first, last)


def windows(
    query_T: np.ndarray, passage: TokenizedText, span: Span | None, vocabulary: Vocabulary, layout: WindowSettings
) -> Iterator[Placed]:
    """The rows of one question; `span` is the answer to learn, in characters of the passage, or None."""
    query_T = query_T[: layout.max_query]
    cls, sep, separators = vocabulary.specials.cls, vocabulary.specials.sep, vocabulary.separators
    spans = window_spans(len(passage.ids_T), layout.room(len(query_T), separators), layout.stride)
    answer = None if span is None else pieces_of_answer(passage, span)
    question_first = layout.first == "question"
    offset = 1 + len(query_T) + separators if question_first else 1
    for (first, behind), widest_T in zip(spans, widest(spans), strict=True):
        parts = (query_T, passage.ids_T[first:behind])
        one, other = parts if question_first else parts[::-1]
        tokens = np.concatenate([[cls], one, [sep] * separators, other, [sep]]).astype(np.int32)
        types = np.repeat(np.array([0, 1], np.int32), [1 + len(one) + separators, len(other) + 1])
        inside = answer is not None and first <= answer[0] and answer[1] < behind
        start, end = (answer[0] - first + offset, answer[1] - first + offset) if answer and inside else (0, 0)
        window = PassageWindow(offset, passage.starts_T[first:behind], passage.ends_T[first:behind], widest_T)
        yield Placed(tokens, types, start, end, window)
