"""The other side of comparisons in question answering: the rows that transformers makes, BERT's rules once more as loops."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from spanjax.data.vocab.loading import WordPieceVocabulary, load_vocabulary
from spanjax.tasks.squad.passage_windows import WindowSettings
from spanjax.tasks.squad.questions import Question, read_questions

REASON = "compares with transformers: pip install transformers (the extra `verify`)"


class Feature(NamedTuple):
    """One window: ids, types, characters of every token of the passage (None for others), answer, whether a start may be here."""

    ids: list[int]
    types: list[int]
    offsets: list[tuple[int, int] | None]
    start: int
    end: int
    widest: list[bool]


def cased(shared_data: pathlib.Path) -> WordPieceVocabulary:
    """BERT's cased vocabulary."""
    found = load_vocabulary(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    assert isinstance(found, WordPieceVocabulary)
    return found


def tokenizer_to_hf(shared_data: pathlib.Path) -> Any:
    """The same in transformers."""
    transformers = pytest.importorskip("transformers", reason=REASON)
    return transformers.BertTokenizerFast(str(shared_data / "vocab" / "bert-base-cased-vocab.txt"), do_lower_case=False)


def real_questions(shared_data: pathlib.Path, count: int) -> list[Question]:
    """Every so-many-th question of SQuAD 2.0 dev and of XQuAD, half of `count` each."""
    chosen = []
    for name in ("dev-v2.0", "xquad-en-part1"):
        found = read_questions(shared_data / "squad" / f"{name}.json.gz", unanswerable=True)
        assert not found.problems
        chosen += found[:: max(1, len(found) // (count // 2))][: count // 2]
    return chosen


def their_features(tokenizer: Any, question: Question, layout: WindowSettings, separators: int = 1) -> list[Feature]:
    """The windows of a question by transformers, whose tokenizer puts so many `separators` between question and passage.
    Its `stride` is what windows share, ours the step from one to the next."""
    asked = tokenizer(question.question, add_special_tokens=False, return_offsets_mapping=True)
    text, kept = question.question, asked["offset_mapping"][: layout.max_query]
    room = layout.length - len(kept) - 2 - separators
    found = tokenizer(
        text[: kept[-1][1]] if len(asked["input_ids"]) > layout.max_query else text,
        question.context,
        truncation="only_second",
        max_length=layout.length,
        stride=room - min(room, layout.stride),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )
    features = []
    for number, (ids, types) in enumerate(zip(found["input_ids"], found["token_type_ids"], strict=True)):
        parts = found.sequence_ids(number)
        offsets = [
            offset if part == 1 else None for offset, part in zip(found["offset_mapping"][number], parts, strict=True)
        ]
        start, end = positions_to_hf(offsets, question.spans[0] if question.spans else None)
        features.append(Feature(ids, types, offsets, start, end, []))
    widest = _widest([[offset for offset in each.offsets if offset] for each in features])
    return [
        each._replace(widest=[bool(offset) and offset in wide for offset in each.offsets])
        for each, wide in zip(features, widest, strict=True)
    ]


def positions_to_hf(offsets: Sequence[tuple[int, int] | None], span: tuple[int, int] | None) -> tuple[int, int]:
    """Token positions of an answer: those that enclose it, (0, 0) where it is not wholly in the window."""
    inside = [place for place, offset in enumerate(offsets) if offset]
    if span is None or not inside:
        return 0, 0
    first, last = offsets[inside[0]], offsets[inside[-1]]
    assert first and last
    if first[0] > span[0] or last[1] < span[1]:
        return 0, 0
    start = max(place for place in inside if (offsets[place] or (0, 0))[0] <= span[0])
    end = min(place for place in inside if (offsets[place] or (0, 0))[1] >= span[1])
    return start, end


def _widest(windows: Sequence[Sequence[tuple[int, int]]]) -> list[set[tuple[int, int]]]:
    """For every window the pieces, named by their characters, for which it is the one with the most context."""
    best: dict[tuple[int, int], tuple[float, int]] = {}
    for number, pieces in enumerate(windows):
        for place, piece in enumerate(pieces):
            context = min(place, len(pieces) - place - 1) + 0.01 * len(pieces)
            if piece not in best or context > best[piece][0]:
                best[piece] = (context, number)
    return [{piece for piece in pieces if best[piece][1] == number} for number, pieces in enumerate(windows)]


class Scored(NamedTuple):
    """A candidate of the reference."""

    text: str
    start: float
    end: float

    @property
    def score(self) -> float:
        return self.start + self.end


def reference_answers(
    context: str, features: Sequence[Feature], logits: Sequence[Sequence[np.ndarray]], n_best: int, max_answer: int
) -> tuple[list[Scored], float]:
    """(all answers best first, score of no answer) as question answering examples of transformers do it, in loops."""
    null, found = math.inf, []
    for feature, (start_T, end_T) in zip(features, logits, strict=True):
        null = min(null, float(start_T[0]) + float(end_T[0]))
        starts, ends = (
            sorted(range(len(side)), key=lambda place: float(side[place]), reverse=True)[:n_best]
            for side in (start_T, end_T)
        )
        for start in starts:
            for end in ends:
                first, last = feature.offsets[start], feature.offsets[end]
                if first is None or last is None or not feature.widest[start]:
                    continue
                if start <= end < start + max_answer:
                    found.append(Scored(context[first[0] : last[1]], float(start_T[start]), float(end_T[end])))
    return sorted(found, key=lambda one: one.score, reverse=True), null


def distinct(answers: Sequence[Scored]) -> list[Scored]:
    """The first answer of every text."""
    first: dict[str, Scored] = {}
    for one in answers:
        first.setdefault(one.text, one)
    return list(first.values())
