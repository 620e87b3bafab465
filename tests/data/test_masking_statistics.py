"""The statistics of masking: closed forms where there are any, the reference run for the released code, a plain simulation else.

Means are held to five standard errors: of these samples where a closed form is known, of both runs where the reference is
a simulation. Chi-squares are held to what five standard errors are for a normal variable, 1 in 3.5 million.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np
import pytest

from spanjax.data.batch import FeedSpec, batch_statistics
from spanjax.data.block import layer_tags, tag_flags
from spanjax.data.hashing import Purpose, fold, row_keys, uniform
from spanjax.data.masking import GeometricSpans, Ngrams, SpanPolicy, TaggedSpans, Tokens, WholeWords
from spanjax.data.numpy_feed import numpy_feed
from spanjax.data.replacement import Boundaries, Replacement
from spanjax.data.rows import RowBatch, slots_needed
from spanjax.data.slots import find_spans
from spanjax.data.words import Tagged, Text, find_tagged, find_words
from tests.data.memory_rows import FIRST_TEXT_ID, SPECIALS, MemoryRows, batch_of, keys_of, laid_out, text_of

REFERENCE_BLOCKS = 1500
POLICIES: dict[str, SpanPolicy] = {
    "tokens": Tokens(),
    "whole_words": WholeWords(),
    "geometric": GeometricSpans(),
    "released": GeometricSpans.as_released(),
    "ngrams": Ngrams(),
    "tagged": TaggedSpans(),
}
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> None:
    """Counts against what is expected of them, at five standard errors (Wilson and Hilferty's approximation)."""
    assert counts.sum() == pytest.approx(expected.sum()) and expected.min() >= 5
    free = len(counts) - 1
    limit = free * (1 - 2 / (9 * free) + 5 * math.sqrt(2 / (9 * free))) ** 3
    found = ((counts - expected) ** 2 / expected).sum()
    assert found < limit, f"chi-square {found:.1f} of {free} degrees, limit {limit:.1f}"


def is_mean(values: np.ndarray, expected: float) -> None:
    """The mean of independent values, within five of its standard errors."""
    error = values.std() / math.sqrt(len(values))
    assert abs(values.mean() - expected) <= 5 * error + 1e-12, f"{values.mean():.5f}, expected {expected:.5f} +- {error:.5f}"


def repeated(row: RowBatch, count: int) -> RowBatch:
    return RowBatch(*(np.repeat(array, count, axis=0) for array in row))


def mask_of(policy: SpanPolicy, rows: RowBatch, seed: int = 0) -> np.ndarray:
    """The masked tokens of rows 0, 1, ... of epoch 0 [B, L]."""
    keys = keys_of(len(rows.tokens_BL), policy.rate)
    key_B = row_keys(seed, Purpose.MASK, keys.epoch_B, keys.index_B)
    mask_BL = np.zeros(rows.tokens_BL.shape, bool)
    mask_BL.ravel()[policy.masked_places(text_of(rows), SPECIALS, key_B, keys.rate_B)] = True
    return mask_BL


def proposed(policy: SpanPolicy, row: RowBatch, block: int = 0, count: int = 40_000) -> tuple[np.ndarray, ...]:
    """First words and numbers of words of 100 rounds under each of `count` / 100 row keys; and the row's words and tags."""
    text = find_words(text_of(row), SPECIALS, policy.every_token)
    tagged = find_tagged(layer_tags(row.flags_BL, 0), text)
    key_R = fold(row_keys(5, Purpose.MASK, 0, np.arange(count // 100)), block)
    key_P = fold(key_R[:, None], np.arange(100)).ravel()
    first_P, words_P = policy.proposals(text, tagged, np.full(count, block), key_P)
    return first_P - text.first_word_M[block], words_P


def test_length_distribution_has_the_known_mean() -> None:
    policy = GeometricSpans()
    pmf = policy.length_distribution()
    assert pmf.sum() == pytest.approx(1) and len(pmf) == 10
    assert pmf @ np.arange(1, 11) == pytest.approx(3.797098, abs=5e-7)
    assert pmf[[0, 1, 9]] == pytest.approx([0.224058, 0.179246, 0.030073], abs=5e-7)
    assert policy.length_steps()[-1] == 1.0
    assert Ngrams().length_distribution() == pytest.approx([6 / 11, 3 / 11, 2 / 11])


def test_as_released_draws_pieces_and_cuts_exactly() -> None:
    """D2 hardly moves the statistics below (its anchors are tested by chi-square), so the setting is pinned by name."""
    assert GeometricSpans.as_released() == GeometricSpans(
        0.15, (), Replacement(0.8, 0.1, "span"), "pieces", "exact", 0.2, 10
    )


LENGTHS = {
    "geometric": (GeometricSpans(), [0.8**i for i in range(10)]),
    "geometric_short": (GeometricSpans(p=0.5, max_words=4), [8, 4, 2, 1]),
    "ngrams": (Ngrams(), [1, 1 / 2, 1 / 3]),
    "ngrams_of_xlnet": (Ngrams(max_words=5), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
}


@pytest.mark.parametrize(("policy", "weights"), LENGTHS.values(), ids=LENGTHS)
def test_proposed_lengths(policy: SpanPolicy, weights: list[float]) -> None:
    """40,000 proposals in a block of 60 words, those that the block's end may cut left out."""
    first_P, words_P = proposed(policy, laid_out([[1] * 60], 62))
    words_P = words_P[first_P + len(weights) <= 60]
    assert len(words_P) > 30_000
    expected = np.array(weights) / sum(weights) * len(words_P)
    chi_square(np.bincount(words_P, minlength=len(weights) + 1)[1:], expected)
    assert (proposed(policy, laid_out([[1]], 62))[1] == 1).all(), "cut at the block's end"


@pytest.mark.parametrize("policy", [Tokens(), WholeWords(), WholeWords(starts="pieces"), TaggedSpans(share=0.0)], ids=repr)
def test_single_words_are_proposed(policy: SpanPolicy) -> None:
    row = MemoryRows(1, 62, continued=0.5, full=True).fetch(np.arange(1))
    assert (proposed(policy, row)[1] == 1).all()


@EVERY_POLICY
@pytest.mark.parametrize("starts", ["words", "pieces"])
def test_proposed_starts(policy: SpanPolicy, starts: str) -> None:
    """Uniform over words, or over pieces (D2); tokens are words of their own. In the second block of a row."""
    sizes = [1, 2, 1, 5, 1, 1, 3, 2, 1, 1, 4, 1]
    row = laid_out([[2, 1, 1], sizes], 40)
    policy = dataclasses.replace(policy, starts=starts)  # pyright: ignore[reportArgumentType]
    first_P, _ = proposed(policy, row, block=1)
    sizes = [1] * sum(sizes) if policy.every_token else sizes
    share = np.array(sizes) / sum(sizes) if starts == "pieces" else np.full(len(sizes), 1 / len(sizes))
    chi_square(np.bincount(first_P, minlength=len(sizes)), share * len(first_P))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_tagged_spans_are_proposed_at_their_share(share: float) -> None:
    """Three tagged spans of 2, 3 and 12 words, of which 10 are proposed; a block without tags has words alone."""
    row = laid_out([[1] * 30, [1] * 20], 60)
    tags = [0, 1, 2, 0, 0, 1, 2, 2, *[0] * 6, 1, *[2] * 11, *[0] * 4]
    row.flags_BL[0, 1:31] = tag_flags(np.array(tags), 0)
    first_P, words_P = proposed(TaggedSpans(share=share), row)
    chosen_P = words_P > 1
    is_mean(chosen_P.astype(float), share)
    if share:
        assert set(zip(first_P[chosen_P].tolist(), words_P[chosen_P].tolist(), strict=True)) == {(1, 2), (5, 3), (14, 10)}
        chi_square(np.bincount(first_P[chosen_P])[[1, 5, 14]], np.full(3, chosen_P.sum() / 3))
    if share < 1:
        chi_square(np.bincount(first_P[~chosen_P], minlength=30), np.full(30, (~chosen_P).sum() / 30))
    first_P, words_P = proposed(TaggedSpans(share=share), row, block=1)
    assert (words_P == 1).all()
    chi_square(np.bincount(first_P, minlength=20), np.full(20, len(first_P) / 20))


@EVERY_POLICY
@pytest.mark.parametrize("rate", [0.01, 0.15, 0.4])
def test_budgets_are_spent_where_words_fit(policy: SpanPolicy, rate: float) -> None:
    """ceil(rate * n) of words of one token, even numbers of words of two; blocks of any size."""
    policy = dataclasses.replace(policy, rate=rate)
    exact = isinstance(policy, Tokens) or policy.cut == "exact"
    for pieces in (1, 2):
        for words in (1, 2, 3, 7, 20, 100):
            row = laid_out([[pieces] * words], 2 + pieces * words)
            budget = math.ceil(rate * words * pieces)
            expected = budget if exact else budget // pieces * pieces
            assert (mask_of(policy, repeated(row, 40)).sum(axis=1) == expected).all()


@functools.cache
def expected_tokens(left: int, counts: tuple[tuple[int, int], ...], by_pieces: bool) -> float:
    """Of words in a random order, all that fit in what is left of a budget; `counts` are pairs (size, words)."""
    fitting = [(size, count) for size, count in counts if count and size <= left]
    weights = [count * (size if by_pieces else 1) for size, count in fitting]
    found = 0.0
    for (size, _), weight in zip(fitting, weights, strict=True):
        fewer = tuple((other, count - (other == size)) for other, count in counts)
        found += weight / sum(weights) * (size + expected_tokens(left - size, fewer, by_pieces))
    return found


@pytest.mark.parametrize("starts", ["words", "pieces"])
@pytest.mark.parametrize("rate", [0.15, 0.3, 0.45])
@pytest.mark.parametrize("sizes", [(2, 3), (2, 3, 5), (1, 4, 4, 9)])
def test_whole_words_lose_what_does_not_fit(starts: str, rate: float, sizes: tuple[int, ...]) -> None:
    """Void rounds and words too long are drawn again: a random order of words, each taken if it fits. 4,000 blocks."""
    words = [*sizes] * 4
    policy = WholeWords(rate, starts=starts)  # pyright: ignore[reportArgumentType]
    masked_B = mask_of(policy, repeated(laid_out([words], 2 + sum(words)), 4_000)).sum(axis=1)
    counts = tuple((size, words.count(size)) for size in sorted({*words}))
    is_mean(masked_B, expected_tokens(math.ceil(rate * sum(words)), counts, starts == "pieces"))


@pytest.mark.parametrize(("tokens", "rate"), [(5, 0.4), (6, 0.5), (7, 0.15)])
@pytest.mark.parametrize("policy", [Tokens(), WholeWords()], ids=repr)
def test_every_set_of_tokens_is_equally_likely(policy: SpanPolicy, tokens: int, rate: float) -> None:
    """So each token is as likely as any other, and each pair. 20,000 blocks."""
    policy, size = dataclasses.replace(policy, rate=rate), math.ceil(rate * tokens)
    mask_BL = mask_of(policy, repeated(laid_out([[1] * tokens], tokens + 2), 20_000))[:, 1:-1]
    number_B = mask_BL @ (1 << np.arange(tokens))
    sets, counts = np.unique(number_B, return_counts=True)
    assert len(sets) == math.comb(tokens, size)
    chi_square(counts, np.full(len(sets), 20_000 / len(sets)))


def test_tokens_of_a_long_block_are_exchangeable() -> None:
    """10 of 64 tokens without replacement, 5,000 times: chi-square over places, and the pairs at every distance."""
    count, size, most = 64, 10, 5_000
    words = MemoryRows(1, count + 2, continued=0.5, full=True).fetch(np.zeros(most, int))
    mask_BL = mask_of(Tokens(), words)[:, 1:-1]
    assert (mask_BL.sum(axis=1) == size).all()
    share = size / count  # drawn without replacement the counts vary by (1 - share) * count / (count - 1) of Poisson's
    scale = (1 - share) * count / (count - 1)
    expected = np.full(count, share * most)
    chi_square(expected + (mask_BL.sum(axis=0) - expected) / math.sqrt(scale), expected)
    for distance in (1, 2, 3, 10, 32, 63):
        pairs_B = (mask_BL[:, distance:] & mask_BL[:, :-distance]).sum(axis=1)
        is_mean(pairs_B, (count - distance) * size * (size - 1) / (count * (count - 1)))


REPLACED = {
    **POLICIES,
    "tokens_by_span": Tokens(replacement=Replacement()),
    "geometric_by_token": GeometricSpans(replacement=Replacement(unit="token")),
    "half_random": Ngrams(rate=0.3, replacement=Replacement(0.2, 0.5, "span")),
}
UNITS = dict.fromkeys(REPLACED, "token") | dict.fromkeys(["geometric", "released", "tagged", "half_random"], "span")
UNITS["tokens_by_span"] = "span"


@pytest.mark.parametrize("name", REPLACED)
def test_replacement_shares_and_unigram_draws(name: str) -> None:
    """80/10/10 of spans or of tokens, as the policy has it, and random tokens by their counts: 600 blocks of 126 tokens."""
    policy, unit = REPLACED[name], UNITS[name]
    rows = MemoryRows(600, 128, full=True, vocabulary_size=150).fetch(np.arange(600))
    counts = np.zeros(200, np.int64)
    counts[[150, 160, 170, 180]] = [1, 2, 3, 4]  # no row has them
    batch = batch_of(rows, FeedSpec(3, 600, policy), counts)
    masked = find_spans(np.flatnonzero(mask_of(policy, rows, seed=3)), rows.segments_BL)
    seen_X = batch["tokens_BL"][masked.row_X, masked.position_X]
    kept_X = seen_X == rows.tokens_BL[masked.row_X, masked.position_X]
    kind_X = np.where(seen_X == SPECIALS.mask, 0, np.where(kept_X, 2, 1))
    begins_X = masked.first_X == masked.position_X
    shares = np.array([policy.replacement.mask, policy.replacement.random])
    shares = np.append(shares, 1 - shares.sum())
    same = kind_X[1:][~begins_X[1:]] == kind_X[:-1][~begins_X[1:]]
    if unit == "span":
        assert same.all() and len(same) > 500
    else:
        is_mean(same.astype(float), float((shares**2).sum()))
    units = kind_X[begins_X] if unit == "span" else kind_X
    chi_square(np.bincount(units, minlength=3), shares * len(units))
    drawn = np.bincount(seen_X[kind_X == 1], minlength=200)[[150, 160, 170, 180]]
    assert drawn.sum() == (kind_X == 1).sum()
    chi_square(drawn, drawn.sum() * np.array([0.1, 0.2, 0.3, 0.4]))


def test_draws_of_kinds_are_independent_of_masks() -> None:
    """Correlation of the mask key's and the replacement key's first draws over 100,000 rows: within 5/sqrt(n)."""
    keys = [row_keys(0, purpose, 0, np.arange(100_000)) for purpose in (Purpose.MASK, Purpose.REPLACE)]
    first, second = (uniform(fold(key, 0)) for key in keys)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(100_000)


def test_a_schedule_is_the_rate_of_its_steps() -> None:
    """Every row of step s masks ceil(rate(s) * n) tokens; held-out rows keep `rate`; slots are those of the highest."""
    rows = MemoryRows(40, 102, full=True)
    policy = Tokens(rate=0.25, schedule=((2, 0.1), (6, 0.5), (8, 0.3)))
    feed = numpy_feed(rows, FeedSpec(0, 10, policy))  # pyright: ignore[reportArgumentType]
    for expected in (10, 10, 10, 20, 30, 40, 50, 40, 30, 30, 30):
        batch = next(feed)
        assert abs(batch["slot_weight_BK"].sum(axis=1) - expected).max() <= 1e-9 + (expected not in (10, 50, 30))
        assert batch["slot_weight_BK"].shape[1] == slots_needed(rows.manifest, 0.5)
    feed.close()
    for batch in numpy_feed(rows, FeedSpec(0, 10, policy), held_out=True):  # pyright: ignore[reportArgumentType]
        assert (batch["slot_weight_BK"].sum(axis=1) == 25).all()
