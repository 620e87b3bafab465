"""Segmentation: every word in one span, longest n-gram first, the same lengths at random, spans of pieces."""

import collections
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.ngrams.dictionary import NgramDictionary, NgramSettings, find_words
from spanjax.data.ngrams.segmentation import (
    by_dictionary,
    from_spans,
    shuffled,
    single_words,
    span_sizes,
    spans_of_pieces,
)
from spanjax.data.sources.cleaning import clean
from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.byte_bpe import ByteBpeVocabulary
from spanjax.data.vocab.loading import WordPieceVocabulary, load_vocabulary
from spanjax.data.vocab.training import train_byte_bpe
from tests.made import made_sentences

WORD = st.sampled_from("abc")
NGRAMS = st.sets(st.lists(WORD, min_size=2, max_size=5).map(tuple), max_size=25)
SENTENCE = st.lists(WORD | st.just("z"), max_size=25)


def greedy(
    words: list[str], ngrams: set[tuple[str, ...]], most: int, as_released: bool = False
) -> list[tuple[str, ...]]:
    """The spans, by trying every length at every word."""
    found = []
    while words:
        if as_released and len(words) < most:
            most = len(words) - 1
        size = next((n for n in range(most, 1, -1) if len(words) >= n and tuple(words[:n]) in ngrams), 1)
        found.append(tuple(words[:size]))
        words = words[size:]
    return found


def cut(words: list[str], first_S: np.ndarray) -> list[tuple[str, ...]]:
    assert first_S.dtype == np.int32
    ends = [*first_S.tolist()[1:], len(words)]
    return [tuple(words[start:end]) for start, end in zip(first_S.tolist(), ends, strict=bool(words))]


@settings(max_examples=300, deadline=None)
@given(NGRAMS, SENTENCE)
def test_longest_first_as_by_brute_force(ngrams: set[tuple[str, ...]], words: list[str]) -> None:
    dictionary = NgramDictionary(sorted(ngrams), NgramSettings())
    if not words:
        assert by_dictionary(words, dictionary).tolist() == []
        return
    spans = cut(words, by_dictionary(words, dictionary))
    assert spans == greedy(words, ngrams, 5)
    assert [word for span in spans for word in span] == words
    assert all(len(span) == 1 or span in ngrams for span in spans)
    assert cut(words, by_dictionary(words, dictionary, "as-released")) == greedy(words, ngrams, 5, as_released=True)


def test_the_released_code_misses_an_ngram_at_the_end() -> None:
    dictionary = NgramDictionary([("new", "york")], NgramSettings())
    words = ["i", "live", "near", "New", "York"]
    assert by_dictionary(words, dictionary).tolist() == [0, 1, 2, 3]
    assert by_dictionary(words, dictionary, "as-released").tolist() == [0, 1, 2, 3, 4]
    # with 3 words left the longest is 2, and with 2 it still is
    other = NgramDictionary([("new", "york"), ("i", "live")], NgramSettings())
    assert by_dictionary(words, other, "as-released").tolist() == [0, 2, 3]
    assert by_dictionary(["New", "York"], dictionary).tolist() == [0]
    assert by_dictionary(["New", "York"], dictionary, "as-released").tolist() == [0, 1]


@settings(max_examples=200, deadline=None)
@given(NGRAMS, SENTENCE.filter(bool), st.integers(0, 9))
def test_shuffled_spans_keep_their_lengths(ngrams: set[tuple[str, ...]], words: list[str], index: int) -> None:
    first_S = by_dictionary(words, NgramDictionary(sorted(ngrams), NgramSettings()))
    other_S = shuffled(first_S, len(words), 3, 1, index)
    assert sorted(span_sizes(other_S, len(words))) == sorted(span_sizes(first_S, len(words)))
    assert other_S[0] == 0 and (np.diff(other_S) > 0).all() and other_S.dtype == np.int32
    np.testing.assert_array_equal(other_S, shuffled(first_S, len(words), 3, 1, index))


def test_shuffled_spans_are_uniform_and_differ_by_seed_epoch_and_sentence() -> None:
    first_S = np.array([0, 1, 2], np.int32)  # of 5 words: lengths 1 1 3
    drawn = [tuple(shuffled(first_S, 5, 0, 0, index).tolist()) for index in range(3_000)]
    counts = collections.Counter(drawn)
    assert set(counts) == {(0, 1, 2), (0, 1, 4), (0, 3, 4)}
    assert all(900 < count < 1_100 for count in counts.values()), counts
    for changed in ((1, 0), (0, 1)):
        assert drawn[:50] != [tuple(shuffled(first_S, 5, *changed, index).tolist()) for index in range(50)]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 20), st.data())
def test_given_spans_and_single_words_between(words: int, data: st.DataObject) -> None:
    ends = sorted(data.draw(st.sets(st.integers(0, words))))
    spans = [pair for pair in zip(ends[::2], ends[1::2], strict=False)]
    first_S = from_spans(data.draw(st.permutations(spans)), words)
    inside = {word for start, end in spans for word in range(start + 1, end)}
    assert first_S.tolist() == [word for word in range(words) if word not in inside]


def test_wrong_spans_are_told_at_once() -> None:
    with pytest.raises(ValueError) as error:
        from_spans([(3, 3), (0, 2), (1, 3), (4, 9)], 5)
    told = str(error.value)
    assert "[3, 3): expected" in told and "[4, 9): expected" in told and "[0, 2) and [1, 3) overlap" in told


TEXT = "Unaffable sailors, the old tower (no café) sold."


def vocabularies() -> list[WordPieceVocabulary | ByteBpeVocabulary]:
    letters = sorted({*clean(TEXT).replace(" ", ""), *"abcdefghijklmnopqrstuvwxyzUé"})
    pieces = [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters), "the", "tower", "##able"]
    return [WordPieceVocabulary(pieces, lower_case=False), ByteBpeVocabulary(train_byte_bpe(made_sentences(200), 300))]


@pytest.mark.parametrize("vocabulary", vocabularies(), ids=lambda each: each.kind)
def test_pieces_belong_to_the_span_of_their_word(vocabulary: WordPieceVocabulary | ByteBpeVocabulary) -> None:
    words = find_words(TEXT, NgramSettings())
    assert words.words == ["unaffable", "sailors", ",", "the", "old", "tower", "(", "no", "café", ")", "sold", "."]
    first_S = by_dictionary(words.words, NgramDictionary([("old", "tower"), ("no", "café")], NgramSettings()))
    [(ids_T, start_T)] = vocabulary.encode_with_starts([TEXT])
    span_T = spans_of_pieces(first_S, words.start_W, start_T)
    assert span_T.dtype == np.int32 and len(span_T) == len(ids_T)
    texts = [vocabulary.decode(ids_T[span_T == span]).replace(" ", "") for span in range(len(first_S))]
    assert texts == ["Unaffable", "sailors", ",", "the", "oldtower", "(", "nocafé", ")", "sold", "."]
    single = spans_of_pieces(single_words(len(words.words)), words.start_W, start_T)
    assert single[-1] + 1 == len(words.words)


def test_a_span_without_a_piece_has_no_number() -> None:
    piece_start_T = np.array([0, 0, 4, 9])
    span_T = spans_of_pieces(np.array([0, 1, 2, 3]), np.array([1, 3, 6, 8]), piece_start_T)
    assert span_T.tolist() == [0, 0, 1, 2]  # the third word begins inside of a piece
    assert spans_of_pieces(np.array([], np.int32), np.array([], np.int32), np.array([0, 1])).tolist() == [0, 0]
    assert spans_of_pieces(np.array([0]), np.array([0]), np.array([], np.int32)).tolist() == []


@pytest.mark.slow
def test_real_sentences_are_covered_once(shared_data: pathlib.Path) -> None:
    vocabulary = load_vocabulary(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    lines = (shared_data / "glue" / "CoLA" / "dev.tsv").read_text("utf-8").splitlines()
    texts = [clean(line.split("\t")[-1]) for line in lines]
    found = [find_words(text, NgramSettings()) for text in texts]
    counts = collections.Counter(
        tuple(words.words[place : place + n])
        for words in found
        for n in (2, 3)
        for place in range(len(words.words) - n + 1)
    )
    dictionary = NgramDictionary([words for words, count in counts.items() if count > 2], NgramSettings())
    joined = 0
    for text, words, (ids_T, start_T) in zip(texts, found, vocabulary.encode_with_starts(texts), strict=True):
        first_S = by_dictionary(words.words, dictionary)
        assert span_sizes(first_S, len(words.words)).sum() == len(words.words)
        span_T = spans_of_pieces(first_S, words.start_W, start_T)
        assert len(span_T) == len(ids_T) and span_T[-1] + 1 == len(first_S), text
        joined += len(first_S) < len(words.words)
    assert joined > len(texts) // 2
