"""Windows: every piece of a passage is in one, BERT's rule of the most context, and rows that are transformers' own."""

import dataclasses
import pathlib
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.sources.cleaning import clean
from spanjax.data.vocab.loading import ByteBpeVocabulary, WordPieceVocabulary, load_vocabulary
from spanjax.data.vocab.offsets import TokenizedText, pieces_of
from spanjax.data.vocab.training import train_byte_bpe
from spanjax.tasks.squad.passage_windows import (
    WindowSettings,
    pieces_of_answer,
    widest,
    window_spans,
    windows,
)
from tests.made import made_sentences
from tests.tasks.reference_qa import cased, real_questions, their_features, tokenizer_to_hf

ORDERS: tuple[Literal["question", "passage"], ...] = ("question", "passage")
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = WordPieceVocabulary([*SPECIALS, "a", "b", "##a", "##b", ",", "."], lower_case=False)
WIDE = WindowSettings(length=384, stride=128, max_query=64, first="question")
NARROW = WindowSettings(length=96, stride=32, max_query=24, first="question")
SIZES = st.tuples(st.integers(0, 300), st.integers(1, 60), st.integers(1, 80)) | st.tuples(
    st.integers(150, 600), st.integers(120, 300), st.integers(60, 300)
)


@given(SIZES)
def test_every_piece_is_in_a_window(sizes: tuple[int, int, int]) -> None:
    count, room, stride = sizes
    spans = window_spans(count, room, stride)
    assert {piece for span in spans for piece in range(*span)} == set(range(count))
    assert all(end - start == room for start, end in spans[:-1]) and spans[-1][1] == count
    assert all(after[0] - before[0] == min(room, stride) for before, after in zip(spans, spans[1:], strict=False))
    assert all(before[1] < count for before in spans[:-1]), "no window after the one that reaches the end"


@given(SIZES)
def test_widest_is_the_window_with_the_most_context(sizes: tuple[int, int, int]) -> None:
    spans = window_spans(*sizes)
    found = widest(spans)
    assert [len(each) for each in found] == [end - start for start, end in spans]
    for piece in range(sizes[0]):
        scores = [
            min(piece - start, end - 1 - piece) + 0.01 * (end - start) if start <= piece < end else -1
            for start, end in spans
        ]
        chosen = [n for n, (start, end) in enumerate(spans) if start <= piece < end and found[n][piece - start]]
        assert chosen == [scores.index(max(scores))]


def test_the_length_of_a_window_counts_beside_its_context() -> None:
    assert window_spans(304, 300, 298) == [(0, 300), (298, 304)]
    first, second = widest([(0, 300), (298, 304)])  # piece 299: 0 + 3.00 in the first, 1 + 0.06 in the second
    assert first.all() and second.tolist() == [False, False, True, True, True, True]


@given(st.lists(st.sampled_from(["a", "ab", "ba.", "a,b", "?"]), max_size=60), st.data())
def test_answers_are_found_again(words: list[str], data: st.DataObject) -> None:
    text = " ".join(words)
    (passage,) = pieces_of([text], VOCABULARY)
    layout = WindowSettings(
        length=20, stride=data.draw(st.integers(1, 12)), max_query=4, first=data.draw(st.sampled_from(ORDERS))
    )
    (query,) = pieces_of([data.draw(st.sampled_from(["", "a b", "a b a b a b"]))], VOCABULARY)
    if not len(passage.ids_T):
        assert pieces_of_answer(passage, (0, 0)) is None
        assert [each.start for each in windows(query.ids_T, passage, (0, 0), VOCABULARY, layout)] == [0]
        return
    first = data.draw(st.integers(0, len(passage.ids_T) - 1))
    last = data.draw(st.integers(first, min(len(passage.ids_T) - 1, first + 12)))
    span = (int(passage.starts_T[first]), int(passage.ends_T[last]))
    placed = list(windows(query.ids_T, passage, span, VOCABULARY, layout))
    assert pieces_of_answer(passage, span) == (first, last)
    room, hits = layout.room(len(query.ids_T)), 0
    for each, (start, end) in zip(placed, window_spans(len(passage.ids_T), room, layout.stride), strict=True):
        assert len(each.tokens_T) == len(each.types_T) <= layout.length
        shown = each.tokens_T[each.window.offset :][: end - start]
        assert shown.tolist() == passage.ids_T[start:end].tolist()
        if start <= first and last < end:
            hits += 1
            assert each.window.starts_T[each.start - each.window.offset] == span[0]
            assert each.window.ends_T[each.end - each.window.offset] == span[1]
        else:
            assert (each.start, each.end) == (0, 0)
    assert hits or last - first >= room or layout.stride > room - (last - first)


def test_rows_in_both_orders() -> None:
    (query, passage) = pieces_of(["a b", "ab, a"], VOCABULARY)
    ids = {piece: number for number, piece in enumerate(VOCABULARY.pieces)}
    for layout, text, types, start in (
        (WIDE, "[CLS] a b [SEP] a ##b , a [SEP]", [0] * 4 + [1] * 5, 5),
        (dataclasses.replace(WIDE, first="passage"), "[CLS] a ##b , a [SEP] a b [SEP]", [0] * 6 + [1] * 3, 2),
    ):
        (placed,) = windows(query.ids_T, passage, (1, 3), VOCABULARY, layout)
        assert placed.tokens_T.tolist() == [ids[piece] for piece in text.split()]
        assert placed.types_T.tolist() == types and (placed.start, placed.end) == (start, start + 1)


ODD = st.text(st.sampled_from("ab ,.\n\t\u00a0\u200b\u200d\u202f\u0301é中\u2028\x00\ue000"), max_size=30)


@pytest.fixture(scope="module")
def vocabularies(shared_data: pathlib.Path) -> list:
    model = load_vocabulary(shared_data / "vocab" / "sentencepiece-test.model")
    return [VOCABULARY, cased(shared_data), model, ByteBpeVocabulary(train_byte_bpe(made_sentences(300), 400))]


@given(ODD)
def test_characters_of_pieces_are_those_of_the_text_as_it_is(vocabularies: list, text: str) -> None:
    for vocabulary in vocabularies:
        (found,) = pieces_of([text], vocabulary)
        assert found.ids_T.tolist() == vocabulary.encode([clean(text)])[0].tolist()
        assert np.all(np.diff(found.starts_T) >= 0) and np.all(found.ends_T >= found.starts_T)
        spans = list(zip(found.starts_T.tolist(), found.ends_T.tolist(), strict=True))
        seen = "".join(text[start:end] for start, end in dict.fromkeys(spans))
        kept = "".join(clean(text).split())
        if vocabulary.kind != "wordpiece":  # it drops characters of its own
            assert "".join(clean(seen).split()) == kept
        assert all(text[start:end].strip() == text[start:end] for start, end in spans)


def same(shared_data: pathlib.Path, count: int, layout: WindowSettings) -> tuple[int, int]:
    """Compares every window of so many real questions; (questions with several windows, windows with the answer)."""
    tokenizer, vocabulary = tokenizer_to_hf(shared_data), cased(shared_data)
    several = answered = 0
    for question in real_questions(shared_data, count):
        theirs = their_features(tokenizer, question, layout)
        query, passage = pieces_of([question.question, question.context], vocabulary)
        span = question.spans[0] if question.spans else None
        ours = list(windows(query.ids_T, passage, span, vocabulary, layout))
        assert len(ours) == len(theirs)
        for mine, their in zip(ours, theirs, strict=True):
            assert mine.tokens_T.tolist() == their.ids and mine.types_T.tolist() == their.types
            assert (mine.start, mine.end) == (their.start, their.end)
            inside = [offset for offset in their.offsets if offset]
            assert their.offsets.index(inside[0]) == mine.window.offset
            spans = zip(mine.window.starts_T.tolist(), mine.window.ends_T.tolist(), strict=True)
            assert list(spans) == inside
            assert mine.window.widest_T.tolist() == their.widest[mine.window.offset :][: len(inside)]
            answered += mine.start > 0
        several += len(ours) > 1
    return several, answered


@pytest.mark.parametrize("layout", [WIDE, NARROW])
def test_rows_are_those_of_transformers(layout: WindowSettings, shared_data: pathlib.Path) -> None:
    several, answered = same(shared_data, 200, layout)
    assert answered > 100 and several > (1 if layout is WIDE else 180)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [WIDE, NARROW])
def test_rows_are_those_of_transformers_in_many(layout: WindowSettings, shared_data: pathlib.Path) -> None:
    several, answered = same(shared_data, 1_000, layout)
    assert answered > 500 and several > (10 if layout is WIDE else 900)


def test_pieces_of_one_character_belong_together() -> None:
    bytes_of_one = TokenizedText(np.arange(4), np.array([0, 2, 2, 5]), np.array([1, 3, 3, 6]))
    assert pieces_of_answer(bytes_of_one, (2, 3)) == (1, 2)
