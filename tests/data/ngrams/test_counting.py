"""Counting n-grams: against a Counter over all n-grams, for every memory and number of processes."""

import collections
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.ngrams.counting import Counted, CountingLimits, count_ngrams
from spanjax.data.ngrams.dictionary import Ngram, NgramSettings, is_punctuation, split_words
from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.corpus import open_sources
from spanjax.data.sources.documents import Document
from spanjax.data.sources.sentences import sentences
from tests.made import made_documents


def count(texts: list[str], rules: NgramSettings, room: CountingLimits) -> Counted:
    with tempfile.TemporaryDirectory() as work:
        return count_ngrams((Document(text, "") for text in texts), rules, room, pathlib.Path(work))


def brute_force(texts: list[str], rules: NgramSettings) -> list[Ngram]:
    """Every n-gram of every sentence in one Counter, then the rules of what is kept."""
    found: collections.Counter[tuple[str, ...]] = collections.Counter()
    for text in texts:
        for sentence in sentences(Cleaning(rules.normalization)(text)):
            words = split_words(sentence, rules)
            for n in range(2, rules.most_words + 1):
                found.update(tuple(words[place : place + n]) for place in range(len(words) - n + 1))
    kept = [
        Ngram(words, count)
        for words, count in found.items()
        if count > rules.more_than and (rules.with_punctuation or not any(map(is_punctuation, words)))
    ]
    kept.sort(key=lambda ngram: (-ngram.count, ngram.words))
    return kept[: rules.most_ngrams or None]


RULES = (
    NgramSettings(),
    NgramSettings(most_words=3, more_than=0, with_punctuation=True),
    NgramSettings(lower_case=False, punctuation="attached", more_than=2),
    NgramSettings(most_ngrams=7, normalization="nfkc"),
    NgramSettings(most_words=9, more_than=30),
)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("memory", [1, 200_000, 1 << 30])
def test_made_text_as_by_brute_force(rules: NgramSettings, memory: int) -> None:
    texts = [*made_documents(150), "Don't stop (now)! Don't stop now, U.S. \uff21\uff22 x."] * 2
    found = count(texts, rules, CountingLimits(memory))
    assert list(found.ngrams()) == brute_force(texts, rules)
    assert len(found.count_K) > 5 and found.words == sorted(found.words)


LETTERS = st.text(st.sampled_from("aabbc \n.,'ß-"), max_size=60)


@settings(max_examples=60, deadline=None)
@given(st.lists(LETTERS, min_size=1, max_size=12), st.integers(2, 6), st.integers(0, 3), st.integers(0, 5))
def test_any_text_as_by_brute_force(texts: list[str], most_words: int, more_than: int, most: int) -> None:
    rules = NgramSettings(most_words=most_words, more_than=more_than, most_ngrams=most)
    if not any(not is_punctuation(word) for text in texts for word in split_words(text, rules)):
        with pytest.raises(ValueError, match="no words"):
            count(texts, rules, CountingLimits(1))
        return
    assert list(count(texts, rules, CountingLimits(1)).ngrams()) == brute_force(texts, rules)


def test_a_small_memory_makes_many_runs_and_changes_nothing() -> None:
    texts = made_documents(400)
    rules = NgramSettings(more_than=1)
    small, large = count(texts, rules, CountingLimits(1)), count(texts, rules, CountingLimits(1 << 30))
    assert small.runs > 200 and large.runs == 4
    assert list(small.ngrams()) == list(large.ngrams()) and small.corpus_words == large.corpus_words


def test_an_ngram_lies_inside_a_sentence_and_holds_no_punctuation() -> None:
    found = list(
        count(["One two, three. One two.\nThree one two"] * 3, NgramSettings(more_than=0), CountingLimits(1)).ngrams()
    )
    assert found == [Ngram(("one", "two"), 9), Ngram(("three", "one"), 3), Ngram(("three", "one", "two"), 3)]


def test_more_than_is_not_at_least() -> None:
    for more_than, kept in ((9, 1), (10, 0)):
        assert len(count(["one two"] * 10, NgramSettings(more_than=more_than), CountingLimits(1)).count_K) == kept


@pytest.mark.slow
def test_real_text_as_by_brute_force_with_two_processes(shared_data: pathlib.Path) -> None:
    documents = open_sources([str(shared_data / "wiki" / "validation.jsonl.gz")]).documents(collections.Counter())
    texts = [document.text for document in documents]
    rules = NgramSettings()
    expected = brute_force(texts, rules)
    assert len(expected) > 500
    for room in (CountingLimits(1 << 20, workers=2), CountingLimits(1 << 20), CountingLimits(1 << 28, workers=2)):
        found = count(texts, rules, room)
        assert list(found.ngrams()) == expected
        assert found.words_KN.dtype == np.int32 and found.words_KN.shape == (len(expected), 5)
