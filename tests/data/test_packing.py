"""Blocks and rows: nothing is lost, nothing is too long, nothing crosses a document."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.corpus import Document
from spanjax.data.packing import Packer, make_blocks, split_sentence
from spanjax.data.tokenize_pool import tokenized
from spanjax.data.vocab import SPECIAL_PIECES, WordPieceVocabulary

LETTERS = "abcdefgh"
VOCABULARY = WordPieceVocabulary([*SPECIAL_PIECES, *LETTERS, *("##" + letter for letter in LETTERS), "."])
STARTS_V = VOCABULARY.word_starts


@st.composite
def documents(draw: st.DrawFn) -> tuple[int, int, list[list[np.ndarray]]]:
    """A length, most blocks a row, and sentences of documents; every token is a number of its own."""
    lengths = draw(st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=12))
    numbers = iter(range(10_000))
    found = [[np.array([next(numbers) for _ in range(n)], np.int32) for n in document] for document in lengths]
    return draw(st.integers(8, 24)), draw(st.integers(1, 5)), found


@settings(deadline=None, max_examples=200)
@given(documents(), st.integers(0, 2**32))
def test_no_token_is_lost_and_no_limit_broken(case: tuple[int, int, list[list[np.ndarray]]], seed: int) -> None:
    length, most_blocks, found = case
    starts_V = np.random.default_rng(seed).random(10_000) < 0.5
    packer, rows, blocks = Packer(length, most_blocks), [], []
    for document in found:
        own = make_blocks(document, starts_V, length - 2)
        everything = np.concatenate([*document, np.zeros(0, np.int32)])
        np.testing.assert_array_equal(
            np.concatenate([*own, np.zeros(0, np.int32)]), everything
        )  # one document, in order
        blocks += own
        for block in own:
            rows += packer.add(block)
    rows += packer.finish()
    assert all(1 <= len(block) <= length - 2 for block in blocks)
    assert all(len(row) <= most_blocks and sum(len(block) + 2 for block in row) <= length for row in rows)
    assert sorted(tuple(b.tolist()) for row in rows for b in row) == sorted(tuple(b.tolist()) for b in blocks)
    assert packer.finish() == []


def test_blocks_take_whole_sentences_while_they_fit() -> None:
    sentences = [np.arange(n) for n in (4, 0, 3, 4, 2, 1)]
    assert [len(block) for block in make_blocks(sentences, np.ones(10, bool), 7)] == [7, 7]


def test_long_sentences_are_cut_before_words() -> None:
    starts_V = np.zeros(40, bool)
    starts_V[[0, 5, 8]] = True
    assert [len(part) for part in split_sentence(np.arange(30), starts_V, 10)] == [8, 10, 10, 2]
    assert [len(part) for part in split_sentence(np.arange(10), starts_V, 10)] == [10]


def test_small_blocks_fill_the_room_that_large_ones_leave() -> None:
    packer = Packer(64, 16)
    rows = [row for n in [40, 40, 40, 20, 20, 20, 62] for row in packer.add(np.zeros(n, np.int32))] + packer.finish()
    assert sorted(sorted(len(block) for block in row) for row in rows) == [[20, 40], [20, 40], [20, 40], [62]]


def test_more_open_rows_than_the_window_are_closed() -> None:
    packer = Packer(64, 16)
    early = sum(len(packer.add(np.zeros(40, np.int32))) for _ in range(4096))
    assert early == 4096 - 1024 and len(packer.finish()) == 1024


@pytest.mark.parametrize(("length", "most"), [(7, 16), (65_536, 16), (64, 0), (64, 128)])
def test_settings_out_of_range_are_refused(length: int, most: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        Packer(length, most)


def test_blocks_out_of_range_are_refused() -> None:
    for size in (0, 63):
        with pytest.raises(ValueError, match="1 to 62"):
            Packer(64, 16).add(np.zeros(size, np.int32))


def test_blocks_do_not_depend_on_the_number_of_workers() -> None:
    texts = [Document(f"{LETTERS[n % 8] * (n % 30 + 1)} a bc. " * 400, "") for n in range(200)]
    one, two = ([doc for doc in tokenized(iter(texts), VOCABULARY, 20, workers)] for workers in (1, 2))
    assert len(one) == len(two) == 200
    for left, right in zip(one, two, strict=True):
        assert left.sentences == right.sentences and len(left.blocks) == len(right.blocks) > 0
        assert all(np.array_equal(a, b) for a, b in zip(left.blocks, right.blocks, strict=True))
