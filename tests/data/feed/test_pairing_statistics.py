"""Pairings: shares and distributions as the papers state them, with the odds of a wrong alarm."""

import pathlib

import numpy as np
import pytest

from spanjax.data.feed.hashing import Purpose, row_keys
from spanjax.data.feed.pairing import NextSentence, SentenceOrder, TwoSegments, removed_tokens
from spanjax.data.feed.rows import Rows
from tests.data.numbered_rows import FIRST_ID, block, made_rows, paired


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """400 rows of two blocks of four sentences of 5 to 10 tokens; every block is a document."""
    random = np.random.default_rng(0)
    blocks = [[block(random.integers(5, 11, 4).tolist(), 2 * row + i, FIRST_ID) for i in (0, 1)] for row in range(400)]
    return made_rows(tmp_path_factory.mktemp("long"), blocks, 90)


@pytest.mark.parametrize(("pairing", "share"), [(NextSentence(), 0.5), (NextSentence(random=0.2), 0.2),
                                                (SentenceOrder(), 0.5), (SentenceOrder(swap=0.8), 0.8)], ids=repr)  # fmt: skip
def test_share_of_labels(pairing: TwoSegments, share: float, long_rows: Rows) -> None:
    """800 pairs in each of 10 epochs: five standard errors, wrong once in 1.7 million seeds."""
    labels = [paired(pairing, long_rows, np.arange(400), epoch).pair_label_BP for epoch in range(10)]
    assert abs(np.mean(labels) - share) < 5 * np.sqrt(share * (1 - share) / 8_000)


def test_cut_is_uniform_over_sentences(long_rows: Rows) -> None:
    """A has 1, 2 or 3 of 4 sentences: 8,000 pairs, chi-square of 2 degrees below 27.6 (1 in a million)."""
    stored = long_rows.fetch(np.arange(400))
    counts = np.zeros(3)
    for epoch in range(10):
        found = paired(NextSentence(random=0.0), long_rows, np.arange(400), epoch)
        for number in (1, 2):
            mine = stored.segments_BL == number
            a_B = ((found.types_BL == 0) & mine & (found.segments_BL > 0)).sum(axis=1) - 2
            ends_B3 = np.array([
                np.flatnonzero(stored.flags_BL[row, mine[row]] & 1)[1:] - 1 for row in range(400)
            ])  # fmt: skip
            # the one token that had to go came from A or from B
            after_B3 = (a_B[:, None] == ends_B3) | (a_B[:, None] == ends_B3 - 1)
            assert after_B3.any(axis=1).all()
            counts += after_B3.sum(axis=0)
    assert counts.sum() == 8_000
    assert ((counts - 8_000 / 3) ** 2 / (8_000 / 3)).sum() < 27.6, counts


def test_foreign_text_is_of_another_document_and_of_any_row(tmp_path: pathlib.Path) -> None:
    """20 rows of three blocks, four documents; the first block of a row tells its row. 6,000 pairs, chi-square of 59 degrees
    below 132 (1 in 5 million)."""
    ids = iter(range(FIRST_ID, 6_000, 12))
    rows = made_rows(
        tmp_path, [[block([4, 4, 4], (row + i) % 4, next(ids)) for i in range(3)] for row in range(20)], 48
    )
    documents = {}
    for row in range(20):
        for number in (1, 2, 3):
            first = rows.fetch(np.array([row])).tokens_BL[0, 14 * (number - 1) + 1]
            documents[(int(first) - FIRST_ID) // 12] = (row + number - 1) % 4
    counts = np.zeros(60)
    for epoch in range(100):
        found = paired(NextSentence(random=1.0), rows, np.arange(20), epoch)
        for row in range(20):
            for number in (1, 2, 3):
                mine = (found.segments_BL[row] == number) & (found.tokens_BL[row] >= FIRST_ID)
                a, b = (
                    set(((found.tokens_BL[row, mine & (found.types_BL[row] == t)] - FIRST_ID) // 12).tolist())
                    for t in (0, 1)
                )
                assert len(a) == len(b) == 1
                (mine_is,), (theirs,) = a, b
                assert documents[mine_is] != documents[theirs]
                counts[theirs] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 132, counts


def test_truncation_takes_from_the_longer_at_either_end() -> None:
    """20,000 removals of one segment: 5 standard errors; and lengths end equal, B the shorter."""
    key = row_keys(0, Purpose.PAIR, np.zeros(2_000, int), np.arange(2_000))
    front, back = removed_tokens(np.tile([40, 8], (2_000, 1)), np.full(2_000, 38), key)
    assert (front[:, 0] + back[:, 0] == 10).all() and not front[:, 1].any() and not back[:, 1].any()
    assert abs(front[:, 0].mean() - 5) < 5 * np.sqrt(2.5 / 2_000)
    front, back = removed_tokens(np.tile([10, 12], (2_000, 1)), np.full(2_000, 17), key)
    assert (front + back == [1, 4]).all()
    nothing = removed_tokens(np.array([[3, 4]]), np.array([7]), key[:1])
    assert not np.any(nothing)


def test_single_sentences_force_a_foreign_b_after_a_word(tmp_path: pathlib.Path) -> None:
    """A block of one sentence is cut before any of its 7 other words with equal chances: more than 1,500 pairs, chi-square of 6
    degrees below 41 (1 in 3 million). Foreign sentences have one token, so that exactly one token too many is taken."""
    foreign = [[block([1] * 100, 1, 100)]] * 10
    rows = made_rows(tmp_path, [[block([12], 0, FIRST_ID)], *foreign], 104)
    starts = np.flatnonzero(rows.fetch(np.array([0])).word_starts_BL[0]) - 1
    assert starts.tolist() == [0, 2, 3, 5, 6, 8, 9, 11]
    for pairing in (NextSentence(random=0.0), SentenceOrder(swap=0.0)):
        found = pairing.examples(rows, np.zeros(2_000, np.int64), np.arange(2_000), 0, 1)
        assert (found.pair_label_BP == 1).all()
        text, b = found.tokens_BL >= FIRST_ID, (found.tokens_BL >= FIRST_ID) & (found.types_BL == 1)
        assert b.any(axis=1).all() and (found.tokens_BL[b] >= 100).all()
        met_end = (b & (found.tokens_BL == 199)).any(axis=1)
        assert (text.sum(axis=1) <= 11).all() and (text.sum(axis=1)[~met_end] == 11).all()
        left = (text & ~b).sum(axis=1)[~met_end]
        counts = np.bincount(np.where(left > 6, left + 1, left), minlength=12)  # the longer A lost a token
        assert set(np.flatnonzero(counts)) == set(starts[1:]) and counts.sum() > 1_500
        assert ((counts[starts[1:]] - counts.sum() / 7) ** 2 / (counts.sum() / 7)).sum() < 41, counts


def test_short_pairs_are_the_first_sentences_that_reach_a_uniform_length(tmp_path: pathlib.Path) -> None:
    """Sentences of one token: a target of 2 ... 20 keeps so many tokens, but for what is cut of the longest. 2,000 pairs,
    chi-square of 18 degrees below 60 (1 in 500,000)."""
    rows = made_rows(tmp_path, [[block([1] * 21, 0, 10)]], 24)
    index = np.zeros(2_000, np.int64)
    found = NextSentence(random=0.0, short=1.0).examples(rows, index, np.arange(2_000), 0, 1)
    sizes = (found.segments_BL > 0).sum(axis=1) - 3
    counts = np.bincount(sizes, minlength=21)
    assert counts[:2].sum() == 0 and len(counts) == 21
    assert ((counts[2:] - 2_000 / 19) ** 2 / (2_000 / 19)).sum() < 60, counts
    half = NextSentence(random=0.0, short=0.5).examples(rows, index, np.arange(2_000), 0, 1)
    full = ((half.segments_BL > 0).sum(axis=1) - 3 == 20).mean()
    assert abs(full - (0.5 + 0.5 / 19)) < 5 * np.sqrt(0.25 / 2_000)
