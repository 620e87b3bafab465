"""Pairs of RoBERTa's vocabularies have two separators: in sentences, in windows, with spans, and in what is exported."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.vocab.loading import ByteBpeVocabulary, WordPieceVocabulary, load_vocabulary
from spanjax.data.vocab.offsets import pieces_of
from spanjax.data.vocab.training import train_byte_bpe
from spanjax.nn.config import EncoderConfig
from spanjax.tasks.glue import Glue, Sentences, joined
from spanjax.tasks.span_tuning import FIELD, SpanTuning
from spanjax.tasks.squad import Questions
from spanjax.tasks.squad.passage_windows import WindowSettings, windows
from spanjax.tasks.squad.questions import Question
from spanjax.torch_format.tokenizer_files import tokenizer_files
from tests.made import made_sentences
from tests.tasks.reference_qa import REASON, real_questions, their_features
from tests.tasks.test_glue import cut_by_turns

TRAINED = train_byte_bpe(made_sentences(200), 400)
ROBERTA = ByteBpeVocabulary(TRAINED)
FIRST, SECOND = made_sentences(8, seed=3), [*made_sentences(6, seed=4), "Naïve 老船 (x)", "a"]
NARROW = WindowSettings(length=96, stride=32, max_query=24, first="question")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The vocabulary as vocab.json and merges.txt."""
    place, model = tmp_path_factory.mktemp("roberta"), json.loads(TRAINED)["model"]
    ids = {piece: number for number, piece in enumerate(ROBERTA.pieces)}
    (place / "vocab.json").write_text(json.dumps(ids))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (place / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    return place


@pytest.fixture(scope="module")
def theirs(folder: pathlib.Path) -> Any:
    """RobertaTokenizer of these files; the blank is for the first word, as everywhere here."""
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    return transformers.RobertaTokenizer.from_pretrained(str(folder), add_prefix_space=True)


def sentences(first: list[str], second: list[str | None]) -> list[Sentences]:
    return [Sentences("", one, other, None) for one, other in zip(first, second, strict=True)]


def test_pairs_are_those_of_robertatokenizer(folder: pathlib.Path, theirs: Any) -> None:
    vocabulary = load_vocabulary(folder)
    assert vocabulary.separators == 2 and vocabulary.pieces == ROBERTA.pieces
    for row, one, other in zip(Glue().rows(sentences(FIRST, [*SECOND]), vocabulary), FIRST, SECOND, strict=True):
        assert row.tokens_T.tolist() == theirs(one, other)["input_ids"]
        second = row.tokens_T.tolist().index(vocabulary.specials.sep) + 2
        assert row.types_T.tolist() == [0] * second + [1] * (len(row.tokens_T) - second)
    (single,) = Glue().rows(sentences(FIRST[:1], [None]), vocabulary)
    assert single.tokens_T.tolist() == theirs(FIRST[0])["input_ids"]


def with_names(cls: str, sep: str) -> ByteBpeVocabulary:
    names = {"<s>": cls, "</s>": sep}
    content = TRAINED.decode()
    for old, new in names.items():
        content = content.replace(json.dumps(old), json.dumps(new))
    return ByteBpeVocabulary(content.encode())


def test_the_specials_decide() -> None:
    assert with_names("[CLS]", "[SEP]").separators == with_names("<s>", "[SEP]").separators == 1
    assert WordPieceVocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], False).separators == 1


@given(st.integers(0, 30), st.integers(0, 30), st.integers(8, 40))
def test_rows_are_as_long_as_they_may_be(one: int, other: int, length: int) -> None:
    cls, sep = ROBERTA.specials.cls, ROBERTA.specials.sep
    tokens, types = joined(ROBERTA, length, np.full(one, 5), np.full(other, 6))
    left, right = cut_by_turns([5] * one, [6] * other, length - 4)
    assert tokens.tolist() == [cls, *left, sep, sep, *right, sep] and len(tokens) == min(length, one + other + 4)
    assert types.tolist() == [0] * (len(left) + 3) + [1] * (len(right) + 1)


def compared(theirs: Any, questions: list[Question]) -> tuple[int, int]:
    """(windows, answers in them) of questions, all as transformers makes them."""
    made = answered = 0
    for question in questions:
        expected = their_features(theirs, question, NARROW, separators=2)
        query, passage = pieces_of([question.question, question.context], ROBERTA)
        span = question.spans[0] if question.spans else None
        found = list(windows(query.ids_T, passage, span, ROBERTA, NARROW))
        assert [each.tokens_T.tolist() for each in found] == [each.ids for each in expected]
        for mine, their in zip(found, expected, strict=True):
            inside = [offset for offset in their.offsets if offset]
            assert mine.window.offset == their.offsets.index(inside[0]) and len(mine.window.starts_T) == len(inside)
            assert len(mine.types_T) == len(mine.tokens_T) <= NARROW.length and mine.types_T.sum() == len(inside) + 1
            blank = ROBERTA.pieces[mine.tokens_T[mine.start]] == "Ġ"  # alone before a rare word: here it is of the word
            assert (mine.start + blank, mine.end) == (their.start, their.end)
            answered += mine.start > 0
        made += len(found)
    return made, answered


def test_windows_are_those_of_robertatokenizer(theirs: Any, shared_data: pathlib.Path) -> None:
    plain = [each for each in real_questions(shared_data, 60) if each.context.isascii() and each.question.isascii()]
    made, answered = compared(theirs, plain)
    assert len(plain) > 20 and made > 200 and answered > 20


def test_a_passage_comes_first_where_it_is_asked_for() -> None:
    query, passage = pieces_of([FIRST[0], SECOND[0]], ROBERTA)
    layout = WindowSettings(length=96, stride=32, max_query=24, first="passage")
    (placed,) = windows(query.ids_T, passage, (0, 3), ROBERTA, layout)
    cls, sep = ROBERTA.specials.cls, ROBERTA.specials.sep
    assert placed.tokens_T.tolist() == [cls, *passage.ids_T, sep, sep, *query.ids_T[:24], sep] and placed.start == 1


def test_a_passage_has_room_beside_two_separators() -> None:
    task = Questions(length=20, max_query=16)
    assert task.problems(EncoderConfig()) == []
    with pytest.raises(ValueError, match="objective.length is 20: expected at least 21"):
        task.with_training_labels([], ROBERTA)
    known = [Question("1", "Who?", "Anna.", ("Anna",), ((0, 4),))]
    assert Questions(length=21, max_query=16).with_training_labels(known, ROBERTA).length == 21


@pytest.mark.parametrize("special_spans", [True, False])
def test_spans_go_with_their_pieces(special_spans: bool) -> None:
    spans = SpanTuning(segmentation="words", special_spans=special_spans)
    pair = sentences(FIRST[:1], [SECOND[0]])
    (with_spans,), (plain,) = (list(Glue(length=128, spans=each).rows(pair, ROBERTA)) for each in (spans, None))
    assert with_spans.tokens_T.tolist() == plain.tokens_T.tolist()
    assert with_spans.types_T.tolist() == plain.types_T.tolist()
    span_T = with_spans.fields[FIELD]
    texts = [ROBERTA.decode(with_spans.tokens_T[span_T == span]) for span in range(1, span_T.max() + 1)]
    specials = ["<s>", "</s>"]
    assert texts.count("</s>") == 3 * special_spans and texts.count("<s>") == special_spans
    words = [f"{text[:-1]} ." for text in (FIRST[0], SECOND[0])]
    assert [text for text in texts if text not in specials] == " ".join(words).split()
    for row in Glue(length=24, spans=SpanTuning(segmentation="words", spans=8)).rows(pair, ROBERTA):
        assert len(row.tokens_T) <= 24 and row.fields[FIELD].max() <= 8
        assert row.tokens_T.tolist().count(ROBERTA.specials.sep) == 3
    with pytest.raises(ValueError, match="spans 5: expected 6 or more"):
        list(Glue(spans=SpanTuning(segmentation="words", spans=5)).rows(pair, ROBERTA))


@pytest.mark.parametrize(("family", "types"), [("roberta", 1), ("roberta", 2), ("bert", 2)])
def test_an_exported_tokenizer_makes_the_pairs_of_the_task(family: str, types: int, tmp_path: pathlib.Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason=REASON)
    for name, content in tokenizer_files(ROBERTA, family, 512, types).items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    (row,) = Glue().rows(sentences(FIRST[:1], [SECOND[0]]), ROBERTA)
    found = tokenizer(FIRST[0], SECOND[0], return_token_type_ids=True)
    assert found["input_ids"] == row.tokens_T.tolist()
    assert found["token_type_ids"] == np.minimum(row.types_T, types - 1).tolist()
