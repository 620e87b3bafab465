"""What holds for the masks and slots of any rows, any policy, any pairing: by hypothesis, as the feed makes them.

Read token by token from the rows, with no code of the masking but the settings of the policies.
"""

import functools
import math
import types
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spanjax.data.feed.batch import FeedSpec, RowKeys, build_batch
from spanjax.data.feed.host_slice import HostShare
from spanjax.data.feed.masking import (
    Boundaries,
    GeometricSpans,
    MaskingPolicy,
    Ngrams,
    Replacement,
    SpanPolicy,
    TaggedSpans,
    Tokens,
    WholeWords,
)
from spanjax.data.feed.pairing import FullSentences, NextSentence, SentenceOrder, Single, UnmaskedRows
from spanjax.data.feed.rows import RowBatch, slots_needed
from spanjax.data.feed.slots import restarted_positions
from spanjax.data.shards.packing import SENTENCE_START, tag_flags
from spanjax.data.vocab.loading import WordPieceVocabulary
from tests.data.memory_rows import FIRST_TEXT_ID, SPECIALS, laid_out

VOCABULARY = WordPieceVocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"piece{n}" for n in range(200))])
RATES = st.sampled_from([0.01, 0.15, 0.3, 1 / 3, 0.55, 0.9, 1.0]) | st.floats(0.01, 1)
SHARES = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)
FIXED = functools.partial(settings, derandomize=True, deadline=None, database=None)

Word = tuple[int, int, bool]
"""Pieces, tag (0, 1 begins, 2 goes on), whether it begins a sentence."""


class WrittenRows:
    """Rows of given words with the interface of `Rows`; every block is a document."""

    def __init__(self, rows: list[list[list[Word]]], spare: int):
        sizes = [[[pieces for pieces, _, _ in block] for block in row] for row in rows]
        tokens = [[sum(block) for block in row] for row in sizes]
        self.length = max(sum(row) + 2 * len(row) for row in tokens) + spare
        made = [laid_out(row, self.length) for row in sizes]
        self.rows = RowBatch(*(np.concatenate(arrays) for arrays in zip(*made, strict=True)))
        text_BL = self.rows.tokens_BL >= FIRST_TEXT_ID
        number = np.cumsum(text_BL).reshape(text_BL.shape)[text_BL]
        self.rows.tokens_BL[text_BL] = FIRST_TEXT_ID + number % 190  # the last ten ids do not come
        self.rows.flags_BL[text_BL] = [flag for row in rows for block in row for flag in flags_of(block)]
        self.vocabulary, self.unknown_count = VOCABULARY, 0
        self.unigram_V = np.bincount(self.rows.tokens_BL[text_BL], minlength=VOCABULARY.size).astype(np.int64)
        most = [0] * (1 + max(map(len, rows)))
        for row in tokens:
            most[len(row)] = max(most[len(row)], sum(row))
        self.manifest: Any = types.SimpleNamespace(text_tokens_by_blocks=tuple(most), tags=("entities",))

    def __len__(self) -> int:
        return len(self.rows.tokens_BL)

    def fetch(self, index_B: np.ndarray) -> RowBatch:
        return RowBatch(*(array[index_B] for array in self.rows))

    def block_documents(self, row_M: np.ndarray, block_M: np.ndarray) -> np.ndarray:
        return row_M * 128 + block_M


def flags_of(block: list[Word]) -> list[int]:
    """Flags of every token; a tag goes on only where one has begun."""
    flags, inside = [], False
    for pieces, tag, sentence in block:
        tag = 1 if tag == 2 and not inside else tag
        inside = tag > 0
        tags = np.array([tag] + [min(2, 2 * tag)] * (pieces - 1))
        flags += (tag_flags(tags, 0) | np.eye(1, pieces, dtype=np.uint8)[0] * (SENTENCE_START * sentence)).tolist()
    return flags


WORDS = st.tuples(st.integers(1, 6), st.integers(0, 2), st.booleans())
ONE_PIECE = st.tuples(st.just(1), st.integers(0, 2), st.booleans())
BLOCKS = st.lists(WORDS, min_size=1, max_size=12) | st.lists(ONE_PIECE, min_size=1, max_size=40)
ROWS = st.builds(
    WrittenRows, st.lists(st.lists(BLOCKS, min_size=1, max_size=5), min_size=1, max_size=4), st.integers(0, 3)
)
PAIRINGS = st.sampled_from(
    [Single(), FullSentences(), NextSentence(), NextSentence(short=0.5), SentenceOrder(short=0.2)]
)
BOUNDARIES = st.builds(Boundaries, specials=st.booleans(), max_offset=st.sampled_from([1, 2, 15]))
REPLACEMENTS = st.builds(
    lambda mask, random, unit: Replacement(mask, random * (1 - mask), unit),
    SHARES, SHARES, st.sampled_from(["span", "token"]),
)  # fmt: skip
SPANS = {
    "rate": RATES,
    "schedule": st.just(()) | st.builds(lambda first, second: ((2, first), (5, second)), RATES, RATES),
    "replacement": REPLACEMENTS,
    "starts": st.sampled_from(["words", "pieces"]),
    "cut": st.sampled_from(["words", "exact"]),
}
POLICIES: st.SearchStrategy[SpanPolicy] = st.one_of(
    st.builds(Tokens, **SPANS),
    st.builds(WholeWords, **SPANS),
    st.builds(GeometricSpans, **SPANS, p=st.floats(0.05, 0.95), max_words=st.integers(1, 12)),
    st.builds(Ngrams, **SPANS, max_words=st.integers(1, 6)),
    st.builds(TaggedSpans, **SPANS, share=SHARES, longest=st.integers(1, 5)),
)
STEPS = st.integers(0, 7) | st.integers(0, 2**40)
SPECS = st.builds(
    FeedSpec,
    seed=st.integers(0, 2**63 - 1),
    batch_size=st.sampled_from([1, 4]),
    masking=POLICIES,
    boundaries=BOUNDARIES,
    pairing=PAIRINGS,
)


def made(rows: WrittenRows, spec: FeedSpec, step: int) -> tuple[HostShare, UnmaskedRows, RowKeys, dict[str, Any]]:
    share = HostShare(rows, spec)  # pyright: ignore[reportArgumentType]
    found, keys = share.read(step)
    return share, found, keys, dict(build_batch(found, keys, spec, share.facts))


def parts_of(rows: UnmaskedRows, row: int) -> list[list[int]]:
    """The positions of every text between special tokens: the blocks of a row, or the segments of its pairs."""
    parts: list[list[int]] = []
    for position, token in enumerate(rows.tokens_BL[row].tolist()):
        if token >= FIRST_TEXT_ID:
            last = parts[-1][-1] if parts else -2
            joined = last == position - 1 and rows.segments_BL[row, last] == rows.segments_BL[row, position]
            parts[-1].append(position) if joined else parts.append([position])
    return parts


def masked_of(batch: dict[str, Any], row: int) -> list[int]:
    """The positions of the used slots of a row, which come first and rise."""
    used = batch["slot_weight_BK"][row] == 1
    count = int(used.sum())
    assert used[:count].all() and not batch["slot_weight_BK"][row, count:].any()
    for name in ("position", "target", "left", "right", "offset", "boundary_weight"):
        assert not batch[f"slot_{name}_BK"][row, count:].any(), f"{name} of an unused slot"
    masked = batch["slot_position_BK"][row, :count].tolist()
    assert masked == sorted({*masked}), "slots rise, and no token comes twice"
    return masked


@FIXED(max_examples=250)
@given(rows=ROWS, spec=SPECS, step=STEPS)
def test_masks_keep_budgets_words_and_segments(rows: WrittenRows, spec: FeedSpec, step: int) -> None:
    policy: Any = spec.masking
    _, found, _, batch = made(rows, spec, step)
    slots = slots_needed(rows.manifest, policy.most, spec.pairing.parts)
    assert batch["slot_weight_BK"].shape == (spec.batch_size, slots) and slots % 8 == 0
    for row in range(spec.batch_size):
        masked, parts = {*masked_of(batch, row)}, parts_of(found, row)
        assert masked <= {position for part in parts for position in part}, "a special or padding is masked"
        assert len(parts) == found.segments_BL[row].max() + found.pair_weight_BP[row].sum() or isinstance(
            spec.pairing, FullSentences
        )
        for part in parts:
            here = [position in masked for position in part]
            budget = math.ceil(policy.rate_at(step) * len(part))
            assert sum(here) <= budget
            starts = np.cumsum([at == 0 or found.word_starts_BL[row, position] for at, position in enumerate(part)])
            halves = {word for word in starts if len({m for m, w in zip(here, starts, strict=True) if w == word}) > 1}
            if isinstance(policy, Tokens):
                assert sum(here) == budget or policy.rate_at(step) > 0.5, (
                    "tokens always fit, but their rounds may run out"
                )
            else:
                assert len(halves) <= (policy.cut == "exact"), "words are whole, but for the last one of an exact cut"


@FIXED(max_examples=250)
@given(rows=ROWS, spec=SPECS, step=STEPS)
def test_slots_say_what_was_there_and_where_spans_end(rows: WrittenRows, spec: FeedSpec, step: int) -> None:
    _, found, _, batch = made(rows, spec, step)
    boundaries, replacement = spec.boundaries, spec.masking.replacement
    for row in range(spec.batch_size):
        masked = masked_of(batch, row)
        original, seen, segments = found.tokens_BL[row], batch["tokens_BL"][row], found.segments_BL[row]
        assert np.flatnonzero(original != seen).tolist() == [at for at in masked if original[at] != seen[at]]
        kinds = {}
        for slot, position in enumerate(masked):
            assert batch["slot_target_BK"][row, slot] == original[position]
            first, last = position, position
            while first - 1 in masked:
                first -= 1
            while last + 1 in masked:
                last += 1
            span = slice(first, last + 1)
            assert (original[span] >= FIRST_TEXT_ID).all() and len({*segments[span]}) == 1
            assert len({*found.types_BL[row, span]}) == 1, "a span crosses from one segment of a pair to the other"
            left, right, offset = (batch[f"slot_{name}_BK"][row, slot] for name in ("left", "right", "offset"))
            ends = {original[first - 1], original[last + 1]} & {SPECIALS.cls, SPECIALS.sep}
            bounded = position - first < boundaries.max_offset and (boundaries.specials or not ends)
            assert batch["slot_boundary_weight_BK"][row, slot] == bounded
            assert (left, right, offset) == ((first - 1, last + 1, position - first) if bounded else (0, 0, 0))
            if bounded:
                assert (
                    left not in masked
                    and right not in masked
                    and segments[left] == segments[right] == segments[position]
                )
                assert seen[left] == original[left] and seen[right] == original[right]
            may_be = {SPECIALS.mask: replacement.mask > 0, int(original[position]): True}
            if seen[position] not in may_be:
                assert replacement.random > 0 and rows.unigram_V[seen[position]] > 0
            else:
                assert may_be[int(seen[position])]
            kinds.setdefault(first, set()).add(bool(seen[position] == SPECIALS.mask))
        if replacement.unit == "span":
            assert all(len(kind) == 1 for kind in kinds.values()), "a span is [MASK] as a whole, or nowhere"
    for name in ("segments_BL", "types_BL", "pair_position_BP", "pair_label_BP", "pair_weight_BP"):
        assert (batch[name] == getattr(found, name)).all()
    assert (batch["positions_BL"] == restarted_positions(found.segments_BL)).all()
    assert (batch["row_B"] == np.arange(spec.batch_size)).all()


@FIXED(max_examples=120)
@given(rows=ROWS, spec=SPECS, steps=st.tuples(*[st.integers(0, 5)] * 3), data=st.data())
def test_a_row_is_the_same_in_any_batch(
    rows: WrittenRows, spec: FeedSpec, steps: tuple[int, ...], data: st.DataObject
) -> None:
    """Rows of several steps in one batch, in another order, and alone: each as in its own batch."""
    share = HostShare(rows, spec)  # pyright: ignore[reportArgumentType]
    own, keys = [], []
    for step in steps:
        found, key = share.read(step)
        assert key.policy is spec.masking
        own.append(build_batch(found, key, spec, share.facts))
        keys.append(key[:4])
    whole: Any = {name: np.concatenate([batch[name] for batch in own]) for name in own[0]}
    epoch_B, index_B, row_B, rate_B = (np.concatenate(arrays) for arrays in zip(*keys, strict=True))
    order = data.draw(st.permutations(range(len(index_B))))
    for chosen in (order, order[:2], order[-1:]):
        key = RowKeys(epoch_B[chosen], index_B[chosen], row_B[chosen], rate_B[chosen])
        found = spec.pairing.examples(rows, key.index_B, key.epoch_B, spec.seed, share.facts.pairs)
        for name, array in build_batch(found, key, spec, share.facts).items():
            assert (array == whole[name][chosen]).all(), name


@FIXED(max_examples=1_000)
@example(rows=[[100]], rate=0.56, cuts=[0])  # 0.56 * 100 is 56.00000000000001
@example(rows=[[3, 3, 3]], rate=1 / 3, cuts=[1])
@example(rows=[[7] * 20], rate=1 / 7, cuts=[3])
@given(
    rows=st.lists(st.lists(st.integers(1, 600), min_size=1, max_size=30), min_size=1, max_size=3),
    rate=RATES | st.integers(2, 500).map(lambda parts: 1 / parts) | st.integers(1, 100).map(lambda part: part / 100),
    cuts=st.lists(st.integers(0, 600), min_size=1, max_size=5),
)
def test_there_are_slots_for_every_budget(rows: list[list[int]], rate: float, cuts: list[int]) -> None:
    """The budgets of the blocks of any row, and of the two segments that each of them becomes, fit the slots."""
    most = [0] * 31
    for row in rows:
        most[len(row)] = max(most[len(row)], sum(row))
    manifest: Any = types.SimpleNamespace(text_tokens_by_blocks=tuple(most))
    for row in rows:
        assert np.ceil(rate * np.array(row)).sum() <= slots_needed(manifest, rate)
        a = np.minimum(np.resize(cuts, len(row)), np.array(row) - 1)
        assert np.ceil(rate * np.stack([a, row - a])).sum() <= slots_needed(manifest, rate, 2)
    tokens = max(map(sum, rows))
    blocks = max(map(len, rows))
    assert slots_needed(manifest, rate) <= min(tokens, rate * tokens + blocks + 1e-6) + 8, "no more than it takes"


SCHEDULES = st.lists(st.tuples(st.integers(0, 10**6), RATES), min_size=1, max_size=4, unique_by=lambda point: point[0])


@FIXED(max_examples=500)
@given(points=SCHEDULES, rate=RATES, steps=st.lists(st.integers(0, 10**6), max_size=5))
def test_scheduled_rates_stay_inside_the_schedule(
    points: list[tuple[int, float]], rate: float, steps: list[int]
) -> None:
    """No step has a rate above the highest, which the slots are counted for."""
    policy: MaskingPolicy = Tokens(rate, tuple(sorted(points)))
    rates = [value for _, value in points]
    for step in [*steps, *(step + near for step, _ in points for near in (0, 1, -1) if step + near >= 0)]:
        assert min(rates) <= policy.rate_at(step) <= max(rates) <= policy.most
    assert all(policy.rate_at(step) == value for step, value in points)
