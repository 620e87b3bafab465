"""The statistics of span masking: closed forms for the paper's setting, the reference run for the released code's.

Tolerances are five standard errors: of these samples where a closed form is known, of both runs where the reference is
a simulation of 1500 blocks with 18% continuation pieces (per-block deviations are measured here).
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import pytest

from spanjax.data.batch import FeedSpec, RowKeys, batch_statistics, build_batch
from spanjax.data.hashing import Purpose, fold, row_keys, uniform
from spanjax.data.masking import Boundaries, GeometricSpans, Replacement, find_words, proposals
from spanjax.data.rows import slots_needed
from spanjax.data.slots import find_spans, replaced_tokens
from tests.data.memory_rows import FIRST_TEXT_ID, SPECIALS, MemoryRows

REFERENCE_BLOCKS = 1500


def test_length_distribution_has_the_known_mean() -> None:
    policy = GeometricSpans()
    pmf = policy.length_distribution()
    assert pmf.sum() == pytest.approx(1) and len(pmf) == 10
    assert pmf @ np.arange(1, 11) == pytest.approx(3.797098, abs=5e-7)
    assert pmf[[0, 1, 9]] == pytest.approx([0.224058, 0.179246, 0.030073], abs=5e-7)
    assert policy.length_steps()[-1] == 1.0


def test_as_released_draws_pieces_and_cuts_exactly() -> None:
    """D2 hardly moves the statistics below (its anchors are tested by chi-square), so the setting is pinned by name."""
    assert GeometricSpans.as_released() == GeometricSpans(
        0.15, Replacement(0.8, 0.1, "span"), 0.2, 10, "pieces", "exact"
    )


@pytest.mark.parametrize("starts", ["words", "pieces"])
def test_drawn_lengths_and_starts(starts: str) -> None:
    """Chi-square of the drawn lengths against the closed form, and of the anchors: uniform over words, or over pieces
    (D2)."""
    rows = MemoryRows(400, 62, continued=0.5, full=True)
    fetched = rows.fetch(np.zeros(400, int))  # the same row under 400 keys
    policy = GeometricSpans(starts=starts)  # pyright: ignore[reportArgumentType]
    text = find_words(fetched, SPECIALS)
    key_M = fold(row_keys(5, Purpose.MASK, 0, np.arange(400)), 0)
    words_RA, anchor_RA = proposals(policy, text, key_M, np.arange(400), np.arange(100))
    anchor_RA = anchor_RA - text.first_word_M
    uncut = anchor_RA + 10 <= text.words_M[0]
    drawn, total = np.bincount(words_RA[uncut], minlength=11)[1:], uncut.sum()
    expected = policy.length_distribution() * total
    assert ((drawn - expected) ** 2 / expected).sum() < 9 + 5 * math.sqrt(18)
    count = int(text.words_M[0])
    share = np.full(count, 1 / count) if starts == "words" else text.pieces_W[:count] / 60
    expected, drawn = share * anchor_RA.size, np.bincount(anchor_RA.ravel(), minlength=count)
    assert ((drawn - expected) ** 2 / expected).sum() < count - 1 + 5 * math.sqrt(2 * (count - 1))


@pytest.mark.parametrize("unit", ["span", "token"])
def test_replacement_shares_and_unigram_draws(unit: str) -> None:
    rows = MemoryRows(600, 128, full=True)
    fetched = rows.fetch(np.arange(600))
    index_B = np.arange(600)
    mask_BL = GeometricSpans().token_mask(fetched, SPECIALS, row_keys(0, Purpose.MASK, 0, index_B))
    masked = find_spans(mask_BL, fetched.segments_BL)
    counts = np.zeros(200, np.int64)
    counts[[150, 160, 170, 180]] = [1, 2, 3, 4]
    original = np.where(mask_BL, 199, fetched.tokens_BL)  # an id that is never drawn
    keys = (row_keys(0, Purpose.REPLACE, 0, index_B), row_keys(0, Purpose.UNIGRAM, 0, index_B))
    replacement = Replacement(unit=unit)  # pyright: ignore[reportArgumentType]
    seen = replaced_tokens(original, masked, replacement, SPECIALS.mask, np.cumsum(counts), keys)
    seen_X = seen[masked.row_X, masked.position_X]
    kind_X = np.where(seen_X == SPECIALS.mask, 0, np.where(seen_X == 199, 2, 1))
    begins_X = masked.first_X == masked.position_X
    same = kind_X[1:][~begins_X[1:]] == kind_X[:-1][~begins_X[1:]]
    assert same.all() if unit == "span" else abs(same.mean() - 0.66) < 5 * math.sqrt(0.66 * 0.34 / same.size)
    units = kind_X[begins_X] if unit == "span" else kind_X
    for kind, share in enumerate([0.8, 0.1, 0.1]):
        assert abs((units == kind).mean() - share) < 5 * math.sqrt(share * (1 - share) / len(units))
    drawn = np.bincount(seen_X[kind_X == 1], minlength=200)[[150, 160, 170, 180]]
    expected = drawn.sum() * np.array([0.1, 0.2, 0.3, 0.4])
    assert drawn.sum() == (kind_X == 1).sum() and ((drawn - expected) ** 2 / expected).sum() < 3 + 5 * math.sqrt(6)


def test_draws_of_kinds_are_independent_of_masks() -> None:
    """Correlation of the mask key's and the replacement key's first draws over 100,000 rows: within 5/sqrt(n)."""
    keys = [row_keys(0, purpose, 0, np.arange(100_000)) for purpose in (Purpose.MASK, Purpose.REPLACE)]
    first, second = (uniform(fold(key, 0)) for key in keys)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(100_000)


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
    rows = MemoryRows(count, length, full=True, seed=text_tokens)
    masking = GeometricSpans.as_released() if released else GeometricSpans()
    spec = FeedSpec(1, count, masking, Boundaries(specials=not released))
    index_B = np.arange(count)
    fetched = rows.fetch(index_B)
    slots = slots_needed(rows.manifest, masking.rate)
    batch = build_batch(fetched, RowKeys(index_B * 0, index_B, index_B), spec, SPECIALS, rows.unigram_V, slots)
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
    assert abs(ratio - reference) < 5 * error + rounding, f"{ratio:.4f}, reference {reference} +- {error:.4f}"


REFERENCE = {
    510: (77, 15.77, 4.88, 3.85, 0.0116, 0.0081, 0.0128, 0.984),
    128: (20, 4.59, 4.35, 3.45, 0.0476, 0.0020, 0.0485, 0.954),
    64: (10, 2.63, 3.80, 3.04, 0.0774, 0.0, 0.0853, 0.927),
}
"""Masked, spans, tokens a span, words a span, edge spans, spans over 15 tokens, cut inside a word, SBO over MLM
targets."""


@pytest.mark.parametrize("tokens", REFERENCE)
def test_as_released_has_the_statistics_of_the_released_code(tokens: int) -> None:
    masked, spans, span_tokens, span_words, edges, long, cut, bounded = REFERENCE[tokens]
    got, one = simulated(tokens, True), np.ones(4500)
    assert (got.masked == masked).all()
    agrees(got.spans, one, spans, 0.005)
    agrees(got.masked, got.spans, span_tokens, 0.005)
    agrees(got.words, got.spans, span_words, 0.005)
    agrees(got.edges, got.spans, edges, 0.00005)
    agrees(got.long, got.spans, long, 0.00005)
    agrees(got.cut, got.spans, cut, 0.00005)
    agrees(got.bounded, got.masked, bounded, 0.0005)
    if tokens == 510:
        agrees(got.pairs, one, 15.6, 0.05)


def test_the_paper_setting_keeps_words_whole_and_bounds_every_span() -> None:
    got = simulated(510, False)
    assert got.cut.sum() == 0
    assert (got.masked <= 77).all() and got.masked.mean() > 76.9
    agrees(got.masked, np.full(4500, 510.0), 77 / 510, 0.0002)
    assert got.bounded.sum() / got.masked.sum() > 0.99, "only tokens far inside long spans have no boundary"


def test_batch_statistics_are_those_of_the_batch() -> None:
    rows = MemoryRows(50, 128, blocks=4)
    index_B = np.arange(50)
    batch = build_batch(
        rows.fetch(index_B), RowKeys(index_B, index_B, index_B), FeedSpec(0, 50), SPECIALS, rows.unigram_V, 24
    )
    fetched, figures = rows.fetch(index_B), batch_statistics(batch)
    spans = 0
    for row in range(50):
        used = batch["slot_position_BK"][row][batch["slot_weight_BK"][row] > 0].tolist()
        spans += sum(position - 1 not in used for position in used)
    slots = batch["slot_weight_BK"].sum()
    assert figures["fill"] == pytest.approx((fetched.tokens_BL != SPECIALS.pad).mean())
    assert figures["masked"] == pytest.approx(slots / (fetched.tokens_BL >= FIRST_TEXT_ID).sum())
    assert figures["span_tokens"] == pytest.approx(slots / spans)
    assert figures["row_spans"] == pytest.approx(spans / 50)
