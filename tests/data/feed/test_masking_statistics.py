"""The statistics of masking: closed forms where there are any, the reference run for the released code, a plain simulation else.

Means are held to five standard errors: of these samples where a closed form is known, of both runs where the reference is
a simulation. Chi-squares are held to what five standard errors are for a normal variable, 1 in 3.5 million.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from spanjax.data.feed.batch import FeedSpec, batch_statistics
from spanjax.data.feed.feeds import numpy_feed
from spanjax.data.feed.hashing import Purpose, fold, row_keys, uniform
from spanjax.data.feed.masking import (
    Boundaries,
    GeometricSpans,
    Ngrams,
    Replacement,
    SpanPolicy,
    TaggedSpans,
    Tokens,
    WholeWords,
)
from spanjax.data.feed.rows import RowBatch, slots_needed
from spanjax.data.inspect.masking_figures import find_spans
from spanjax.data.shards.packing import layer_tags, tag_flags
from tests.data.memory_rows import FIRST_TEXT_ID, SPECIALS, MemoryRows, batch_of, keys_of, laid_out, text_of

REFERENCE_BLOCKS = 1500
POLICIES: dict[str, SpanPolicy] = {
    "tokens": Tokens(),
    "whole_words": WholeWords(),
    "geometric": GeometricSpans(),
    "released": GeometricSpans.as_released(),
    "ngrams": Ngrams(),
    "tagged": TaggedSpans(),
    "tagged_geometric": TaggedSpans(fallback="geometric"),
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
    assert abs(values.mean() - expected) <= 5 * error + 1e-12, (
        f"{values.mean():.5f}, expected {expected:.5f} +- {error:.5f}"
    )


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
    """First words and numbers of words of 100 rounds of a block, under each of `count` / 100 row keys."""
    key_B = row_keys(5, Purpose.MASK, 0, np.arange(count // 100))
    drawn = policy.proposals(text_of(repeated(row, count // 100)), SPECIALS, key_B, 100)
    blocks = row.segments_BL.max()
    first_P, words_P = (array_MR.reshape(-1, blocks, 100)[:, block].ravel() for array_MR in drawn)
    return first_P, words_P


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
        0.15, (), Replacement(0.8, 0.1, "span", unknown=True), "pieces", "exact", 0.2, 10
    )


LENGTHS = {
    "geometric": (GeometricSpans(), [0.8**i for i in range(10)]),
    "geometric_short": (GeometricSpans(p=0.5, max_words=4), [8, 4, 2, 1]),
    "ngrams": (Ngrams(), [1, 1 / 2, 1 / 3]),
    "tagged_geometric": (TaggedSpans(fallback="geometric"), [0.8**i for i in range(10)]),
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


@pytest.mark.parametrize(
    "policy", [Tokens(), WholeWords(), WholeWords(starts="pieces"), TaggedSpans(share=0.0)], ids=repr
)
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
        assert set(zip(first_P[chosen_P].tolist(), words_P[chosen_P].tolist(), strict=True)) == {
            (1, 2),
            (5, 3),
            (14, 10),
        }
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
def expected_tokens(left: int, counts: tuple[tuple[int, int], ...], by_pieces: bool, total: int, rounds: int) -> float:
    """Masked tokens when every round draws one word of all and takes it if it is new and fits; `counts` are pairs (size,
    words that are not masked), `total` is the number of words, or of their pieces."""
    if not rounds:
        return 0.0
    found, void = 0.0, 1.0
    for size, count in counts:
        share = count * (size if by_pieces else 1) / total
        if share and size <= left:
            fewer = tuple((other, number - (other == size)) for other, number in counts)
            found += share * (size + expected_tokens(left - size, fewer, by_pieces, total, rounds - 1))
            void -= share
    return found if void == 1.0 else found + void * expected_tokens(left, counts, by_pieces, total, rounds - 1)


@pytest.mark.parametrize("starts", ["words", "pieces"])
@pytest.mark.parametrize("rate", [0.15, 0.3, 0.45])
@pytest.mark.parametrize("sizes", [(2, 3), (2, 3, 5), (1, 4, 4, 9)])
def test_whole_words_lose_what_does_not_fit(starts: str, rate: float, sizes: tuple[int, ...]) -> None:
    """Against the exact expectation, in which rounds run out too. 4,000 blocks."""
    words = [*sizes] * 4
    policy = WholeWords(rate, starts=starts)  # pyright: ignore[reportArgumentType]
    masked_B = mask_of(policy, repeated(laid_out([words], 2 + sum(words)), 4_000)).sum(axis=1)
    counts = tuple((size, words.count(size)) for size in sorted({*words}))
    budget, total = math.ceil(rate * sum(words)), sum(words) if starts == "pieces" else len(words)
    is_mean(masked_B, expected_tokens(budget, counts, starts == "pieces", total, 16 + 4 * budget))


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
UNITS = dict.fromkeys(REPLACED, "token") | dict.fromkeys(
    ["geometric", "released", "tagged", "tagged_geometric", "half_random"], "span"
)
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


@pytest.mark.parametrize("unknown", [False, True])
def test_unknown_is_drawn_at_its_rate_in_the_corpus(unknown: bool) -> None:
    """A fifth of the text of a folder is [UNK], which no random token is without the setting (D13); over 30,000 tokens."""
    rows: Any = MemoryRows(400, 102, full=True, vocabulary_size=150)
    rows.unigram_V = np.zeros(150, np.int64)
    rows.unigram_V[[100, 149]] = [600, 3_000]
    policy = Tokens(rate=1.0, replacement=Replacement(0.0, 1.0, "token", unknown))
    (batch,) = numpy_feed(rows, FeedSpec(3, 400, policy), held_out=True)
    row_X, slot_X = np.nonzero(batch["slot_weight_BK"])
    drawn = np.bincount(batch["tokens_BL"][row_X, batch["slot_position_BK"][row_X, slot_X]], minlength=150)
    expected = np.array([900 * unknown, 600, 3_000])
    assert rows.unknown_count == 900 and drawn[[SPECIALS.unk, 100, 149]].sum() == len(row_X) > 30_000
    kept = expected > 0
    chi_square(drawn[[SPECIALS.unk, 100, 149]][kept], expected[kept] / expected.sum() * len(row_X))
    assert bool(drawn[SPECIALS.unk]) == unknown


def test_draws_of_kinds_are_independent_of_masks() -> None:
    """Correlation of the mask key's and the replacement key's first draws over 100,000 rows: within 5/sqrt(n)."""
    keys = [row_keys(0, purpose, 0, np.arange(100_000)) for purpose in (Purpose.MASK, Purpose.REPLACE)]
    first, second = (uniform(fold(key, 0)) for key in keys)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(100_000)


def test_a_schedule_is_the_rate_of_its_steps() -> None:
    """Every row of step s masks ceil(rate(s) * n) tokens; held-out rows keep `rate`; slots are those of the highest."""
    rows: Any = MemoryRows(40, 103, full=True)
    spec = FeedSpec(0, 10, Tokens(rate=0.25, schedule=((2, 0.1), (6, 0.5), (8, 0.3))))
    feed = numpy_feed(rows, spec)
    for expected in (11, 11, 11, 21, 31, 41, 51, 41, 31, 31, 31):
        batch = next(feed)
        assert (batch["slot_weight_BK"].sum(axis=1) == expected).all()
        assert batch["slot_weight_BK"].shape[1] == slots_needed(rows.manifest, 0.5)
    feed.close()
    held_out = list(numpy_feed(rows, spec, held_out=True))
    assert len(held_out) == 4 and all((batch["slot_weight_BK"].sum(axis=1) == 26).all() for batch in held_out)


def plain_mask(
    policy: SpanPolicy, sizes: list[int], tagged: list[tuple[int, int]], random: np.random.Generator
) -> set[int]:
    """The process of docs/design.md for a block of words of these sizes, with a generator's numbers; `tagged` are pairs
    (first word, words)."""
    lengths = np.cumsum(policy.length_distribution())[:-1]
    place, words_of = np.cumsum([0, *sizes]), np.repeat(np.arange(len(sizes)), sizes)
    budget, masked = math.ceil(policy.rate * place[-1]), set()
    for _ in range(16 + 4 * budget):
        if len(masked) == budget:
            break
        first = words_of[random.integers(place[-1])] if policy.starts == "pieces" else random.integers(len(sizes))
        words = 1 + int((lengths <= random.random()).sum())
        if isinstance(policy, TaggedSpans) and tagged and random.random() < policy.share:
            first, words = tagged[random.integers(len(tagged))]
            words = min(words, policy.longest)
        if place[first] in masked:
            continue
        for word in range(first, min(first + words, len(sizes))):
            new = [token for token in range(place[word], place[word + 1]) if token not in masked]
            if len(masked) + len(new) > budget:
                masked.update(new[: budget - len(masked)] if policy.cut == "exact" else [])
                break
            masked.update(new)
    return masked


SIMULATED = {
    **{name: policy for name, policy in POLICIES.items() if name != "tokens"},
    "words_by_pieces": WholeWords(rate=0.3, starts="pieces"),
    "only_tagged": TaggedSpans(rate=0.3, share=1.0, longest=2),
    "tagged_as_released": TaggedSpans(rate=0.2, share=0.3, starts="pieces", cut="exact", fallback="geometric"),
    "tagged_pieces": TaggedSpans(rate=0.2, share=0.3, starts="pieces", cut="exact"),
}


@pytest.mark.parametrize("policy", SIMULATED.values(), ids=SIMULATED)
def test_masks_are_those_of_a_plain_simulation(policy: SpanPolicy) -> None:
    """Masked tokens, spans, masked tokens inside tags and pieces inside words, of the same 2,000 blocks of 50 tokens."""
    count, random = 2_000, np.random.default_rng(0)
    rows = MemoryRows(count, 52, continued=0.3, full=True, seed=8).fetch(np.arange(count))
    tags_BL = layer_tags(rows.flags_BL, 0)
    plain_BL = np.zeros_like(rows.word_starts_BL)
    for block in range(count):
        starts, tags = rows.word_starts_BL[block, 1:-1].copy(), tags_BL[block, 1:-1]
        starts[0] = True
        word_of, begins = np.cumsum(starts) - 1, np.flatnonzero(tags == 1)
        ends = [next((place for place in range(begin + 1, 50) if tags[place] != 2), 50) for begin in begins]
        pairs = [
            (word_of[begin], 1 + word_of[end - 1] - word_of[begin]) for begin, end in zip(begins, ends, strict=True)
        ]
        masked = plain_mask(policy, np.bincount(word_of).tolist(), pairs, random)
        plain_BL[block, [1 + token for token in masked]] = True
    mask_BL = mask_of(policy, rows, seed=1)
    assert (mask_BL != plain_BL).any(axis=1).mean() > 0.4 and mask_BL.any(axis=1).mean() > 0.95
    for kind, where_BL in (("all", tags_BL >= 0), ("tagged", tags_BL > 0), ("pieces", ~rows.word_starts_BL)):
        more_B = (mask_BL & where_BL).sum(axis=1) - (plain_BL & where_BL).sum(axis=1)
        assert abs(more_B.mean()) <= 5 * more_B.std() / math.sqrt(count), kind
    begins = [(mask[:, 1:] & ~mask[:, :-1]).sum(axis=1) for mask in (mask_BL, plain_BL)]
    is_mean(begins[0] - begins[1], 0.0)


class Figures(NamedTuple):
    """Per-block sums of one simulation [blocks]."""

    masked: np.ndarray
    spans: np.ndarray
    words: np.ndarray
    edges: np.ndarray
    long: np.ndarray
    cut: np.ndarray
    pairs: np.ndarray
    bounded: np.ndarray


@functools.cache
def simulated(text_tokens: int, released: bool) -> Figures:
    """4500 blocks of `text_tokens` tokens, 18% of them continuation pieces."""
    length, count = text_tokens + 2, 4500
    masking = GeometricSpans.as_released() if released else GeometricSpans()
    fetched = repeated(laid_out([[1] * text_tokens], length), count)
    fetched.word_starts_BL[np.random.default_rng(text_tokens).random((count, length)) < 0.18] = False
    spec = FeedSpec(1, count, masking, Boundaries(specials=not released))
    batch = batch_of(fetched, spec, np.ones(text_tokens, np.int64))
    used = batch["slot_weight_BK"] > 0
    row, position = np.nonzero(used)[0], batch["slot_position_BK"][used]
    begins = np.append(True, (np.diff(row) != 0) | (np.diff(position) != 1))
    ends = np.append(begins[1:], True)
    first, last, span_row = position[begins], position[ends], row[begins]
    starts_BL = fetched.word_starts_BL.copy()
    starts_BL[:, 1] = True
    after = np.minimum(last + 1, length - 1)
    is_cut = (last < text_tokens) & ~starts_BL[span_row, after]
    word_number_BL = np.cumsum(starts_BL, axis=1)
    words = word_number_BL[span_row, last] - word_number_BL[span_row, first] + 1
    edge = (first == 1) | (last == text_tokens)

    def per_block(values: np.ndarray, rows_of: np.ndarray) -> np.ndarray:
        return np.bincount(rows_of, weights=values, minlength=count)

    one = np.ones(len(first))
    return Figures(
        masked=per_block(np.ones(len(row)), row),
        spans=per_block(one, span_row),
        words=per_block(words, span_row),
        edges=per_block(edge, span_row),
        long=per_block(last - first + 1 > 15, span_row),
        cut=per_block(is_cut, span_row),
        pairs=per_block(~edge, span_row),
        bounded=batch["slot_boundary_weight_BK"].sum(axis=1),
    )


def agrees(total: np.ndarray, count: np.ndarray, reference: float, rounding: float) -> None:
    """The ratio of two per-block sums against the reference's, within 5 standard errors of both runs plus its
    rounding."""
    ratio = total.sum() / count.sum()
    deviation = (total - ratio * count).std() / count.mean()
    error = deviation * math.sqrt(1 / len(total) + 1 / REFERENCE_BLOCKS)
    assert abs(ratio - reference) <= 5 * error + rounding, f"{ratio:.4f}, reference {reference} +- {error:.4f}"


REFERENCE = {
    510: (77, 15.77, 4.88, 3.85, 0.0116, 0.0081, 0.0128, 0.984, 15.6),
    128: (20, 4.59, 4.35, 3.45, 0.0476, 0.0020, 0.0485, 0.954, 4.37),
    64: (10, 2.63, 3.80, 3.04, 0.0774, 0.0, 0.0853, 0.927, 2.43),
    16: (3, 1.34, 2.23, 1.83, 0.198, 0.0, 0.143, 0.811, 1.08),
}
"""Masked, spans, tokens a span, words a span, edge spans, spans over 15 tokens, cut inside a word, SBO over MLM targets,
spans with boundaries; of 1500 blocks with 18% continuation pieces."""


@pytest.mark.parametrize("tokens", REFERENCE)
def test_as_released_has_the_statistics_of_the_released_code(tokens: int) -> None:
    masked, spans, span_tokens, span_words, edges, long, cut, bounded, pairs = REFERENCE[tokens]
    got, one = simulated(tokens, True), np.ones(4500)
    assert (got.masked == masked).all()
    agrees(got.spans, one, spans, 0.005)
    agrees(got.masked, got.spans, span_tokens, 0.005)
    agrees(got.words, got.spans, span_words, 0.005)
    agrees(got.edges, got.spans, edges, 0.0005 if tokens == 16 else 0.00005)
    agrees(got.long, got.spans, long, 0.00005)
    agrees(got.cut, got.spans, cut, 0.0005 if tokens == 16 else 0.00005)
    agrees(got.bounded, got.masked, bounded, 0.0005)
    agrees(got.pairs, one, pairs, 0.05 if tokens == 510 else 0.005)


def test_the_paper_setting_keeps_words_whole_and_bounds_every_span() -> None:
    got = simulated(510, False)
    assert got.cut.sum() == 0
    assert (got.masked <= 77).all() and got.masked.mean() > 76.9
    agrees(got.masked, np.full(4500, 510.0), 77 / 510, 0.0002)
    assert got.bounded.sum() / got.masked.sum() > 0.99, "only tokens far inside long spans have no boundary"


def test_batch_statistics_are_those_of_the_batch() -> None:
    rows = MemoryRows(50, 128, blocks=4)
    fetched = rows.fetch(np.arange(50))
    batch = batch_of(fetched, FeedSpec(0, 50), rows.unigram_V)
    figures, spans = batch_statistics(batch), 0
    for row in range(50):
        used = batch["slot_position_BK"][row][batch["slot_weight_BK"][row] > 0].tolist()
        spans += sum(position - 1 not in used for position in used)
    slots = batch["slot_weight_BK"].sum()
    assert figures["fill"] == pytest.approx((fetched.tokens_BL != SPECIALS.pad).mean())
    assert figures["masked"] == pytest.approx(slots / (fetched.tokens_BL >= FIRST_TEXT_ID).sum())
    assert figures["span_tokens"] == pytest.approx(slots / spans)
    assert figures["row_spans"] == pytest.approx(spans / 50)
