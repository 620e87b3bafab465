"""Decoding equals plain double loops over the same rule, and gives the texts that transformers' rules give."""

import math
import pathlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.vocab.base import Vocabulary
from spanjax.data.vocab.offsets import pieces_of
from spanjax.tasks.squad.answers import Prediction, decode
from spanjax.tasks.squad.passage_windows import PassageWindow, WindowSettings, widest, window_spans, windows
from spanjax.tasks.squad.questions import Question
from tests.tasks.reference_qa import (
    Feature,
    cased,
    distinct,
    real_questions,
    reference_answers,
    their_features,
    tokenizer_to_hf,
)

Logits = list[tuple[np.ndarray, np.ndarray]]


def made_windows(words: Sequence[str], query: int, room: int, stride: int) -> tuple[str, list[PassageWindow]]:
    """A passage whose pieces are these words, in windows behind a question of `query` pieces."""
    starts_T = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
    ends_T = starts_T + np.array([len(word) for word in words], int)
    spans = window_spans(len(words), room, stride)
    made = [
        PassageWindow(query + 2, starts_T[first:behind], ends_T[first:behind], wide)
        for (first, behind), wide in zip(spans, widest(spans), strict=True)
    ]
    return " ".join(words), made


def as_feature(window: PassageWindow) -> Feature:
    """The same window for the reference, with a [SEP] behind it."""
    offsets = [*[None] * window.offset, *zip(window.starts_T.tolist(), window.ends_T.tolist(), strict=True), None]
    wide = [*[False] * window.offset, *window.widest_T.tolist(), False]
    return Feature([], [], offsets, 0, 0, wide)


def check(found: Prediction, context: str, features: list[Feature], logits: Logits, settings: tuple[int, int]) -> None:
    """A prediction against the reference: texts with their logits in order, odds and probabilities."""
    n_best, max_answer = settings
    answers, null = reference_answers(context, features, logits, n_best, max_answer)
    if not answers:  # the reference has none: ours looks at every start and end
        answers, _ = reference_answers(context, features, logits, 10**6, max_answer)
    expected = distinct(answers)[:n_best]
    texts = [(one.text, one.start_logit, one.end_logit) for one in found.best if one.text]
    assert texts == [(one.text, one.start, one.end) for one in expected]
    assert found.text == expected[0].text
    assert found.answer == next(one for one in found.best if one.text)
    assert all(context[one.start : one.end] == one.text for one in found.best if one.text)
    assert all((one.start is None) == (one.end is None) == (not one.text) for one in found.best)
    assert math.isclose(found.null_odds, null - expected[0].score, abs_tol=1e-9)
    scores = [one.start_logit + one.end_logit for one in found.best]
    assert scores == sorted(scores, reverse=True)
    assert [sum((one.start_logit, one.end_logit)) for one in found.best if not one.text] == [null]
    total = sum(math.exp(score) for score in scores)
    assert np.allclose([one.probability for one in found.best], [math.exp(score) / total for score in scores])


@given(st.data())
def test_decoding_is_a_double_loop(data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(["a", "b", "cc"]), min_size=1, max_size=14))
    room, stride = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 6))
    context, made = made_windows(words, data.draw(st.integers(0, 3)), room, stride)
    coarse = st.integers(-4, 4).map(float)  # many are equal
    logits: Logits = []
    for window in made:
        size = window.offset + len(window.starts_T) + 1
        start, end = (data.draw(st.lists(coarse, min_size=size, max_size=size)) for _ in range(2))
        logits.append((np.array(start, np.float32), np.array(end, np.float32)))
    settings = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    check(decode([context], made, logits, *settings, null=True), context, [*map(as_feature, made)], logits, settings)


def test_where_an_answer_has_to_be_there_is_no_null() -> None:
    context, made = made_windows(["a", "b", "a"], 1, 10, 10)
    flat = np.zeros(7, np.float32)
    found = decode([context], made, [(flat, flat)], 20, 2, null=False)
    assert [one.text for one in found.best] == ["a", "a b", "b", "b a"] and found.null_odds == 0
    assert math.isclose(sum(one.probability for one in found.best), 1)


def test_an_answer_is_found_where_the_best_starts_and_ends_are_none() -> None:
    context, made = made_windows(["a", "b", "c"], 4, 10, 10)
    start_T, end_T = (np.arange(10, 0, -1).astype(np.float32) for _ in range(2))  # the question scores highest
    assert decode([context], made, [(start_T, end_T)], 2, 5, null=True).text == "a"


def test_a_passage_without_pieces_has_no_answer() -> None:
    nothing = np.zeros(0, np.int32)
    window = PassageWindow(3, nothing, nothing, np.zeros(0, bool))
    logits = [(np.ones(4, np.float32), np.ones(4, np.float32))]
    found = decode(["?"], [window], logits, 20, 30, null=True)
    assert (found.text, found.null_odds, [one.text for one in found.best]) == ("", 0.0, [""])
    assert found.answer is None


def test_no_answer_has_the_least_score_that_a_window_gives_it() -> None:
    context, made = made_windows(["a", "b", "c", "d"], 0, 2, 2)
    logits = [(np.array([null, 0, 1, 1, 0], np.float32), np.array([0, 0, 1, 1, 0], np.float32)) for null in (7, 3)]
    found = decode([context], made, logits, 20, 30, null=True)
    assert found.null_odds == 3 - 2 and found.best[0].text == "" and found.best[0].start_logit == 3


@pytest.mark.parametrize("max_answer", [1, 2, 3])
def test_answers_are_at_most_so_many_pieces(max_answer: int) -> None:
    context, made = made_windows(["a", "b", "c"], 0, 10, 10)
    start_T, end_T = np.array([0, 0, 9, 0, 0, 0], np.float32), np.array([0, 0, 0, 0, 9, 0], np.float32)
    found = decode([context], made, [(start_T, end_T)], 20, max_answer, null=False)
    assert {one.text.count(" ") + 1 for one in found.best} == set(range(1, max_answer + 1))
    assert (found.text == "a b c") == (max_answer == 3)


def like_a_model(rng: np.random.Generator, size: int) -> np.ndarray:
    """Logits as a trained model has them: some high places, the others low."""
    return (rng.normal(size=size) - 5 + 8 * (rng.random(size) < 0.03)).astype(np.float32)


def same_texts(shared_data: pathlib.Path, count: int, layout: WindowSettings) -> None:
    tokenizer, vocabulary = tokenizer_to_hf(shared_data), cased(shared_data)
    rng = np.random.default_rng(0)
    for question in real_questions(shared_data, count):
        features = their_features(tokenizer, question, layout)
        logits = [(like_a_model(rng, len(each.ids)), like_a_model(rng, len(each.ids))) for each in features]
        made = made_of(question, vocabulary, layout)
        found = decode([question.context], made, logits, 20, 30, null=True)
        check(found, question.context, features, logits, (20, 30))


def made_of(question: Question, vocabulary: Vocabulary, layout: WindowSettings) -> list[PassageWindow]:
    query, passage = pieces_of([question.question, question.context], vocabulary)
    return [each.window for each in windows(query.ids_T, passage, None, vocabulary, layout)]


WIDE, NARROW = WindowSettings(384, 128, 64, "question"), WindowSettings(96, 32, 24, "question")


@pytest.mark.parametrize("layout", [WIDE, NARROW])
def test_texts_are_those_of_transformers(layout: WindowSettings, shared_data: pathlib.Path) -> None:
    same_texts(shared_data, 200, layout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [WIDE, NARROW])
def test_texts_are_those_of_transformers_in_many(layout: WindowSettings, shared_data: pathlib.Path) -> None:
    same_texts(shared_data, 1_000, layout)
