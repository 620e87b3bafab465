"""Documents as segments: every piece lies in one, they end where sentences do, and the second pass turns them by half."""

import itertools
import random
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.vocab.base import Specials, Vocabulary
from spanjax.data.vocab.loading import ByteBpeVocabulary, SentencePieceVocabulary
from spanjax.data.vocab.training import train_byte_bpe, train_sentencepiece
from spanjax.tasks.coref.documents import CorefDocument
from spanjax.tasks.coref.segments import (
    DocumentTokens,
    SegmentedDocument,
    independent,
    mention_pieces,
    overlapping,
    pieces_of,
    word_span,
)
from tests.made import made_sentences
from tests.tasks.coref_made import made_document
from tests.tasks.small_vocabulary import small_wordpiece

SPECIALS = Specials(0, 1, 2, 3, 4)
SEEDS, SEGMENTS = st.integers(0, 1 << 30), st.integers(3, 40)


def made_pieces(seed: int, sentences: int = 12, longest_word: int = 4, longest_sentence: int = 14) -> DocumentTokens:
    rng = random.Random(seed)
    word_sizes = [
        [rng.randint(1, longest_word) for _ in range(rng.randint(1, longest_sentence))] for _ in range(sentences)
    ]
    sizes = list(itertools.chain.from_iterable(word_sizes))
    words = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    number = np.repeat(np.arange(sentences, dtype=np.int32), [sum(each) for each in word_sizes])
    return DocumentTokens(np.arange(5, 5 + len(words), dtype=np.int32), words, number)


def cuts_of(layout: SegmentedDocument, segment: int) -> list[int]:
    """Where the segments end, in pieces."""
    return (np.flatnonzero(np.diff(layout.place_N // segment)) + 1).tolist() + [len(layout.place_N)]


def check(pieces: DocumentTokens, layout: SegmentedDocument, segment: int) -> None:
    """Every piece lies in one segment, in order, between [CLS] and [SEP], and padding follows."""
    rows = layout.tokens_T.reshape(-1, segment)
    assert layout.tokens_T.dtype == layout.place_N.dtype == np.int32
    assert (layout.tokens_T[layout.place_N] == pieces.ids_N).all() and (np.diff(layout.place_N) > 0).all()
    lengths = np.bincount(layout.place_N // segment, minlength=len(rows))
    assert lengths.min() >= 1 and lengths.max() <= segment - 2
    for row, length in zip(rows, lengths, strict=True):
        assert row[0] == SPECIALS.cls and row[length + 1] == SPECIALS.sep
        assert (row[length + 2 :] == SPECIALS.pad).all() and (row[1 : length + 1] > SPECIALS.mask).all()


@given(SEEDS, SEGMENTS)
def test_segments_end_with_sentences_that_fit(seed: int, segment: int) -> None:
    pieces = made_pieces(seed)
    layout = independent(pieces, segment, SPECIALS)
    check(pieces, layout, segment)
    sentence_ends = {place + 1 for place in np.flatnonzero(np.diff(pieces.sentence_N))} | {len(pieces.ids_N)}
    word_ends = {place + 1 for place in np.flatnonzero(np.diff(pieces.word_N))} | sentence_ends
    start = 0
    for end in cuts_of(layout, segment):
        fits = range(start + 1, start + segment - 1)
        best = max((*sentence_ends & {*fits},), default=max((*word_ends & {*fits},), default=fits[-1]))
        assert end == best
        start = end


@given(SEEDS, SEGMENTS, st.integers(1, 60), st.booleans())
def test_the_second_pass_is_cut_at_words_in_the_middle(seed: int, segment: int, sentence: int, whole: bool) -> None:
    longest = 3
    pieces = made_pieces(seed, longest_word=longest, longest_sentence=sentence)
    if whole:  # no sentence fits: all segments are full
        pieces = pieces._replace(sentence_N=np.zeros_like(pieces.sentence_N))
    first = independent(pieces, segment, SPECIALS)
    second = overlapping(pieces, segment, SPECIALS, first)
    check(pieces, second, segment)
    cuts, size = cuts_of(first, segment), len(pieces.ids_N)
    if segment - 2 >= longest:
        assert all(end == size or pieces.word_N[end - 1] < pieces.word_N[end] for end in cuts_of(second, segment))
    if size <= segment - 2:
        assert len(cuts_of(second, segment)) == 1
    if segment < 8 * longest:
        return
    ends = [0, *cuts]
    for end in cuts_of(second, segment)[:-1]:
        number = int(np.searchsorted(cuts, end, side="right"))
        length = ends[number + 1] - ends[number]
        near = min(end - ends[number], ends[number + 1] - end)
        assert length < 4 * longest or near >= length // 4 - longest


@given(SEEDS)
def test_every_piece_is_away_from_an_end_in_one_of_the_two(seed: int) -> None:
    segment, longest = 66, 3
    pieces = made_pieces(seed, sentences=40, longest_word=longest, longest_sentence=8)
    first = independent(pieces, segment, SPECIALS)
    size, nearest = len(pieces.ids_N), []
    for layout in (first, overlapping(pieces, segment, SPECIALS, first)):
        bounds = np.array([0, *cuts_of(layout, segment)])
        number = np.searchsorted(bounds, np.arange(size), side="right")
        nearest.append(np.minimum(np.arange(size) - bounds[number - 1], bounds[number] - 1 - np.arange(size)))
    lengths = np.diff([0, *cuts_of(first, segment)])
    around = np.minimum(np.minimum([segment, *lengths[:-1]], [*lengths[1:], segment]), lengths)  # it and its neighbours
    inner = slice(lengths[0] // 2, size - lengths[-1] // 2)
    wanted = np.repeat(around, lengths) / 4 - longest
    assert (np.maximum(*nearest) >= wanted)[inner].all()
    assert len(lengths) == 1 or (nearest[0] < wanted)[inner].any()  # which the first pass alone does not reach


def of_sizes(words: list[int], sentences: list[int]) -> DocumentTokens:
    """Pieces of words of these sizes; sentences have so many words."""
    sentence = np.repeat(np.arange(len(sentences), dtype=np.int32), sentences)
    word_N = np.repeat(np.arange(len(words), dtype=np.int32), words)
    return DocumentTokens(np.arange(5, 5 + len(word_N), dtype=np.int32), word_N, sentence[word_N])


def test_the_second_pass_has_no_more_segments_than_it_needs() -> None:
    short = of_sizes([1] * 24, [6] * 4)
    first = independent(short, 12, SPECIALS)
    assert cuts_of(first, 12) == [6, 12, 18, 24]
    assert cuts_of(overlapping(short, 12, SPECIALS, first), 12) == [9, 15, 24]
    # the middles 15 and 25 are a piece too far: the word ends before them are taken, and none of one piece follows
    full = of_sizes([2, 2, 2, 2, 2, 4, 1, 5, 4, 1, 5], [11])
    first = independent(full, 12, SPECIALS)
    assert cuts_of(first, 12) == [10, 20, 30]
    assert cuts_of(overlapping(full, 12, SPECIALS, first), 12) == [4, 14, 24, 30]


def test_words_longer_than_a_segment() -> None:
    word = np.repeat(np.array([0, 1, 2], np.int32), [2, 11, 1])
    pieces = DocumentTokens(np.arange(5, 19, dtype=np.int32), word, np.zeros(14, np.int32))
    first = independent(pieces, 6, SPECIALS)
    assert cuts_of(first, 6) == [2, 6, 10, 14]
    second = overlapping(pieces, 6, SPECIALS, first)
    for layout in (first, second):
        check(pieces, layout, 6)
    with pytest.raises(ValueError, match="a segment of 2 positions: expected at least 3"):
        independent(pieces, 2, SPECIALS)


def vocabularies() -> list[Vocabulary]:
    texts = [*made_sentences(200), string.ascii_letters]
    models = SentencePieceVocabulary(train_sentencepiece(texts, 120)), ByteBpeVocabulary(train_byte_bpe(texts, 300))
    return [small_wordpiece(), *models]


@pytest.fixture(scope="module", params=["wordpiece", "sentencepiece", "byte-bpe"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return {each.kind: each for each in vocabularies()}[request.param]


@settings(max_examples=25)
@given(SEEDS)
def test_pieces_of_words(vocabulary: Vocabulary, seed: int) -> None:
    document = made_document(seed)
    pieces = pieces_of(document, vocabulary)
    assert {each.dtype for each in pieces} == {np.dtype(np.int32)}
    words = document.words
    assert np.unique(pieces.word_N).tolist() == list(range(len(words))) and (np.diff(pieces.word_N) >= 0).all()
    sentence_of = [number for number, sentence in enumerate(document.sentences) for _ in sentence]
    assert [sentence_of[word] for word in pieces.word_N] == pieces.sentence_N.tolist()
    for place, word in enumerate(words):
        own = pieces.ids_N[pieces.word_N == place]
        (expected,) = vocabulary.encode([word.replace("\u200b", "").replace("\u00a0", " ")])
        assert own.tolist() == (expected.tolist() or [vocabulary.specials.unk])
    for mention in {mention for cluster in document.clusters or () for mention in cluster}:
        first, last = mention_pieces(pieces, mention)
        assert word_span(pieces, first, last) == mention
        assert first == 0 or pieces.word_N[first - 1] < mention[0]
        assert last == len(pieces.ids_N) - 1 or pieces.word_N[last + 1] > mention[1]


def test_a_long_document_is_laid_out() -> None:
    sentences = tuple(("Anna", "lives", "in", "Bonn", ".") for _ in range(4_000))
    vocabulary = small_wordpiece()
    pieces = pieces_of(CorefDocument("x", 0, sentences, ("",) * 20_000), vocabulary)
    first = independent(pieces, 512, vocabulary.specials)
    assert len(pieces.ids_N) == 20_000 and len(first.tokens_T) == 40 * 512
    second = overlapping(pieces, 512, vocabulary.specials, first)
    assert len(second.tokens_T) == 40 * 512 and cuts_of(second, 512)[:2] == [255, 765]
