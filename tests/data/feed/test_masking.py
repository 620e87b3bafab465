"""Span masking against a plain loop written from docs/design.md, its invariants, and the examples of the docstrings."""

import math

import numpy as np
import pytest

from spanjax.data.feed.batch import FeedSpec, RowFacts, RowKeys, build_batch
from spanjax.data.feed.hashing import Purpose, Unsigned, fold, row_keys, uniform
from spanjax.data.feed.masking import (
    Boundaries,
    EveryToken,
    GeometricSpans,
    Ngrams,
    Replacement,
    SpanPolicy,
    TaggedSpans,
    Tokens,
    WholeWords,
)
from spanjax.data.feed.pairing import UnmaskedRows
from spanjax.data.feed.rows import RowBatch, slots_needed
from spanjax.data.feed.slots import LaidOut, lay_out, restarted_positions
from spanjax.data.inspect.masking_figures import find_spans, find_words
from spanjax.data.shards.packing import layer_tags, tag_flags
from tests.data.memory_rows import FIRST_TEXT_ID, SPECIALS, MemoryRows, examples_of, keys_of, laid_out, text_of

PAPER = (GeometricSpans(), Boundaries())
RELEASED = (GeometricSpans.as_released(), Boundaries(specials=False))
UNKNOWN = Replacement(0.3, 0.6, "token", unknown=True)
BY_TOKEN = (
    GeometricSpans(rate=0.4, max_words=3, replacement=Replacement(0.5, 0.4, "token")),
    Boundaries(max_offset=2),
)
LONG_WORDS = (GeometricSpans(rate=0.3, starts="words", cut="exact"), Boundaries(specials=False, max_offset=3))
POLICIES: dict[str, tuple[SpanPolicy, Boundaries]] = {
    "paper": PAPER,
    "released": RELEASED,
    "by_token": BY_TOKEN,
    "long_words": LONG_WORDS,
    "tokens": (Tokens(), Boundaries()),
    "many_tokens": (Tokens(rate=0.6), Boundaries()),
    "whole_words": (WholeWords(), Boundaries()),
    "exact_words": (WholeWords(rate=0.5, cut="exact", starts="pieces"), Boundaries()),
    "ngrams": (Ngrams(), Boundaries()),
    "tagged": (TaggedSpans(), Boundaries()),
    "tagged_geometric": (TaggedSpans(share=0.3, fallback="geometric"), Boundaries()),
    "tagged_released": (
        TaggedSpans(rate=0.3, starts="pieces", cut="exact", fallback="geometric", replacement=UNKNOWN),
        Boundaries(specials=False),
    ),
    "only_tagged": (TaggedSpans(rate=0.5, share=1.0, longest=2, cut="exact"), Boundaries(specials=False)),
}
SETTINGS = pytest.mark.parametrize("setting", POLICIES.values(), ids=POLICIES)
ROWS = {
    "one_block": MemoryRows(40, 128, full=True),
    "packed": MemoryRows(40, 100, blocks=7, seed=1),
    "long_words": MemoryRows(40, 64, blocks=3, continued=0.7, seed=2),
    "short": MemoryRows(60, 12, blocks=2, seed=3),
}
KINDS = pytest.mark.parametrize("kind", ROWS)


def examples_at(rows: MemoryRows, index_B: np.ndarray) -> UnmaskedRows:
    return examples_of(rows.fetch(index_B), len(rows.manifest.text_tokens_by_blocks) - 1)


def facts_of(rows: MemoryRows, rate: float) -> RowFacts:
    slots = slots_needed(rows.manifest, rate)
    return RowFacts(
        SPECIALS,
        np.cumsum(rows.unigram_V),
        slots,
        len(rows.manifest.text_tokens_by_blocks) - 1,
        ("entities",),
        rows.unknown_count,
    )


def batch_at(rows: MemoryRows, setting: tuple[SpanPolicy, Boundaries], seed: int = 11, epoch: int = 3) -> dict:
    spec, keys = FeedSpec(seed, len(rows), *setting), keys_of(len(rows), setting[0].rate, epoch)
    return dict(build_batch(examples_at(rows, keys.index_B), keys, spec, facts_of(rows, setting[0].rate)))


def mask_of(policy: SpanPolicy, rows: MemoryRows, seed: int, epoch: int) -> np.ndarray:
    keys = keys_of(len(rows), policy.rate, epoch)
    key_B = row_keys(seed, Purpose.MASK, keys.epoch_B, keys.index_B)
    fetched = rows.fetch(keys.index_B)
    return mask_at(policy.masked_places(text_of(fetched), SPECIALS, key_B, keys.rate_B), fetched)


def mask_at(place_X: np.ndarray, rows: RowBatch) -> np.ndarray:
    assert (np.diff(place_X) > 0).all(), "places rise, none comes twice"
    mask_BL = np.zeros(rows.tokens_BL.shape, bool)
    mask_BL.ravel()[place_X] = True
    return mask_BL


def lengths_of(policy: SpanPolicy) -> list[float]:
    """The distribution of the number of words, written out."""
    if isinstance(policy, GeometricSpans):
        weights = [policy.p * (1 - policy.p) ** i for i in range(policy.max_words)]
    elif isinstance(policy, TaggedSpans) and policy.fallback == "geometric":
        weights = [0.2 * 0.8**i for i in range(10)]
    else:
        weights = [1 / n for n in range(1, policy.max_words + 1)] if isinstance(policy, Ngrams) else [1.0]
    return [weight / sum(weights) for weight in weights]


def oracle_block(policy: SpanPolicy, starts: list[bool], tags: list[int], key: Unsigned) -> set[int]:
    """The masked tokens of one block of which `starts` says where words begin: the text of the design, token by
    token."""
    begins = [place for place, start in enumerate(starts) if start or place == 0 or policy.every_token]
    words = [list(range(a, b)) for a, b in zip(begins, [*begins[1:], len(starts)], strict=True)]
    word_of = {place: number for number, word in enumerate(words) for place in word}
    tagged = []
    for place in [place for place, tag in enumerate(tags) if tag == 1]:
        end = next((other for other in range(place + 1, len(tags)) if tags[other] != 2), len(tags))
        tagged.append((word_of[place], len({word_of[other] for other in range(place, end)})))
    lengths = lengths_of(policy)
    budget, masked = math.ceil(policy.rate * len(starts)), set()
    for round_ in range(16 + 4 * budget):
        if len(masked) == budget:
            break
        u_length, u_anchor, u_kind, u_tag = (float(uniform(fold(fold(key, round_), draw))) for draw in range(4))
        span = 1 + sum(u_length >= sum(lengths[: i + 1]) for i in range(len(lengths) - 1))
        by_word = policy.starts == "words"
        anchor = int(u_anchor * len(words)) if by_word else word_of[int(u_anchor * len(starts))]
        if isinstance(policy, TaggedSpans) and tagged and u_kind < policy.share:
            anchor, span = tagged[int(u_tag * len(tagged))]
            span = min(span, policy.longest)
        if words[anchor][0] in masked:
            continue
        for word in words[anchor : anchor + span]:
            new = [place for place in word if place not in masked]
            if len(masked) + len(new) > budget:
                if policy.cut == "exact":
                    masked.update(new[: budget - len(masked)])
                break
            masked.update(new)
    return masked


def oracle_mask(policy: SpanPolicy, rows: RowBatch, seed: int, epoch: int) -> np.ndarray:
    mask_BL = np.zeros(rows.tokens_BL.shape, bool)
    for index, (segments, starts) in enumerate(zip(rows.segments_BL, rows.word_starts_BL, strict=True)):
        for number in range(segments.max()):
            places = np.flatnonzero(segments == number + 1)[1:-1]
            key = fold(row_keys(seed, Purpose.MASK, epoch, index), number)
            tags = layer_tags(rows.flags_BL[index, places], 0).tolist()
            for token in oracle_block(policy, starts[places].tolist(), tags, key):
                mask_BL[index, places[token]] = True
    return mask_BL


def oracle_replacement(replacement: Replacement, rows: MemoryRows, row: int, first: int, here: int) -> int:
    """What stands at a masked position: the kind from its purpose, the random token by walking through the counts."""
    kind_place = first if replacement.unit == "span" else here
    kind = float(uniform(fold(row_keys(11, Purpose.REPLACE, 3, row), kind_place)))
    if kind < replacement.mask:
        return SPECIALS.mask
    if kind >= replacement.mask + replacement.random:
        return int(rows.fetch(np.array([row])).tokens_BL[0, here])
    counts = rows.unigram_V.tolist()
    counts[SPECIALS.unk] = rows.unknown_count if replacement.unknown else 0
    left = int(float(uniform(fold(row_keys(11, Purpose.UNIGRAM, 3, row), here))) * sum(counts))
    for token, count in enumerate(counts):
        left -= count
        if left < 0:
            return token
    raise AssertionError("a draw is below the sum of the counts")


@KINDS
@SETTINGS
def test_equals_a_plain_loop(setting: tuple[SpanPolicy, Boundaries], kind: str) -> None:
    rows = ROWS[kind]
    got = mask_of(setting[0], rows, 11, 3)
    assert (got == oracle_mask(setting[0], rows.fetch(np.arange(len(rows))), 11, 3)).all()
    assert got.any(axis=1).mean() > 0.4


@KINDS
@SETTINGS
def test_invariants_of_masks(setting: tuple[SpanPolicy, Boundaries], kind: str) -> None:
    rows, policy = ROWS[kind], setting[0]
    fetched = rows.fetch(np.arange(len(rows)))
    mask_BL = mask_of(policy, rows, 1, 0)
    assert (fetched.tokens_BL[mask_BL] >= FIRST_TEXT_ID).all(), "a special or padding is masked"
    for row in range(len(rows)):
        for block in range(1, fetched.segments_BL[row].max() + 1):
            places = np.flatnonzero(fetched.segments_BL[row] == block)[1:-1]
            masked = mask_BL[row, places]
            budget = math.ceil(policy.rate * len(places))
            assert masked.sum() <= budget
            if isinstance(policy, Tokens) or (policy.cut == "exact" and not isinstance(policy, TaggedSpans)):
                assert masked.sum() == budget
            elif policy.cut == "words":
                words = np.cumsum(fetched.word_starts_BL[row, places])
                assert all(len(set(masked[words == word].tolist())) == 1 for word in set(words.tolist()))


@KINDS
@SETTINGS
def test_invariants_of_slots(setting: tuple[SpanPolicy, Boundaries], kind: str) -> None:
    rows, boundaries = ROWS[kind], setting[1]
    batch, fetched = batch_at(rows, setting), rows.fetch(np.arange(len(ROWS[kind])))
    tokens, segments = fetched.tokens_BL, fetched.segments_BL
    mask_BL = oracle_mask(setting[0], fetched, 11, 3)
    changed = batch["tokens_BL"] != tokens
    assert not (changed & ~mask_BL).any()
    for row in range(len(rows)):
        used = batch["slot_weight_BK"][row] == 1
        assert (np.diff(used.astype(int)) <= 0).all(), "used slots come first"
        positions = batch["slot_position_BK"][row][used]
        assert positions.tolist() == np.flatnonzero(mask_BL[row]).tolist()
        assert (batch["slot_target_BK"][row][used] == tokens[row, positions]).all()
        assert all((array[row][~used] == 0).all() for name, array in batch.items() if name.startswith("slot_"))
        for slot in np.flatnonzero(used):
            here = int(batch["slot_position_BK"][row, slot])
            first, last = here, here
            while mask_BL[row, first - 1]:
                first -= 1
            while mask_BL[row, last + 1]:
                last += 1
            assert (segments[row, first - 1 : last + 2] == segments[row, here]).all(), "boundaries are in the block"
            assert batch["tokens_BL"][row, here] == oracle_replacement(setting[0].replacement, rows, row, first, here)
            special = {tokens[row, first - 1], tokens[row, last + 1]} & {SPECIALS.cls, SPECIALS.sep}
            bounded = here - first < boundaries.max_offset and (boundaries.specials or not special)
            assert batch["slot_boundary_weight_BK"][row, slot] == bounded
            expected = (first - 1, last + 1, here - first) if bounded else (0, 0, 0)
            assert tuple(batch[f"slot_{name}_BK"][row, slot] for name in ("left", "right", "offset")) == expected


@SETTINGS
def test_a_row_has_the_same_mask_in_any_batch(setting: tuple[SpanPolicy, Boundaries]) -> None:
    rows, spec = ROWS["packed"], FeedSpec(4, 8, *setting)
    index_B = np.array([7, 3, 3, 12, 39, 0, 25, 8])
    epoch_B = np.array([0, 0, 1, 5, 0, 0, 2, 0])
    facts, rate_B = facts_of(rows, setting[0].rate), np.full(8, setting[0].rate)
    whole = build_batch(examples_at(rows, index_B), RowKeys(epoch_B, index_B, np.arange(8), rate_B), spec, facts)
    for place in range(8):
        one = slice(place, place + 1)
        keys = RowKeys(epoch_B[one], index_B[one], np.array([place]), rate_B[one])
        alone = build_batch(examples_at(rows, index_B[one]), keys, spec, facts)
        assert all((alone[name][0] == whole[name][place]).all() for name in alone)
    assert (mask_of(setting[0], rows, 4, 0) != mask_of(setting[0], rows, 4, 1)).any(), "another epoch, another mask"


def test_find_words_as_drawn() -> None:
    text = find_words(text_of(laid_out([[2, 1], [1]], 9)), SPECIALS)
    assert text.first_W.tolist() == [1, 3, 6] and text.row_M.tolist() == [0, 0]
    assert text.first_M.tolist() == [1, 6] and text.tokens_M.tolist() == [3, 1]


def test_what_begins_a_block_begins_a_word() -> None:
    row = laid_out([[2, 1]], 6)
    row.word_starts_BL[0, 1] = False
    assert find_words(text_of(row), SPECIALS).first_W.tolist() == [1, 3]


def test_find_spans_and_positions_as_drawn() -> None:
    spans = find_spans(np.array([2, 3, 5]), np.ones((1, 7), int))
    assert spans.position_X.tolist() == [2, 3, 5] and spans.first_X.tolist() == [2, 2, 5]
    assert spans.last_X.tolist() == [3, 3, 5] and spans.row_X.tolist() == [0, 0, 0]
    assert restarted_positions(np.array([[1, 1, 1, 2, 2, 0]])).tolist() == [[0, 1, 2, 0, 1, 0]]


def test_tagged_spans_as_drawn() -> None:
    """Three spans: words 2 and 3, word 4 by its second piece, word 5 of three pieces."""
    row = laid_out([[1, 2, 1, 1, 3]], 12)
    row.flags_BL[0, 1:9] = tag_flags(np.array([0, 1, 2, 2, 1, 1, 2, 2]), 0)
    first, words = TaggedSpans(share=1.0).proposals(
        text_of(row), SPECIALS, row_keys(0, Purpose.MASK, 0, np.arange(1)), 40
    )
    assert {*zip(first[0].tolist(), words[0].tolist(), strict=True)} == {(1, 2), (3, 1), (4, 1)}


def test_one_word_larger_than_its_budget() -> None:
    """A word of five pieces has budget 1: whole words leave it alone, the released code masks its first piece."""
    row, key = text_of(laid_out([[5]], 8)), row_keys(0, Purpose.MASK, 0, np.arange(1))
    rate = np.array([0.15])
    assert not len(GeometricSpans().masked_places(row, SPECIALS, key, rate))
    assert GeometricSpans.as_released().masked_places(row, SPECIALS, key, rate).tolist() == [1]


def test_rows_without_text() -> None:
    none, stored = np.zeros((1, 1), np.int32), laid_out([[]], 8)
    rows = UnmaskedRows(*stored, np.zeros_like(stored.tokens_BL), none, none, none.astype(np.float32))
    keys = RowKeys(np.zeros(1, int), np.zeros(1, int), np.zeros(1, int), np.full(1, 0.15))
    for policy in (GeometricSpans(), Tokens(), TaggedSpans()):
        facts = RowFacts(SPECIALS, np.arange(9), 8, 1, policy.tags)
        batch = build_batch(rows, keys, FeedSpec(0, 1, policy), facts)
        assert batch["slot_weight_BK"].sum() == 0 and (batch["tokens_BL"] == rows.tokens_BL).all()


def test_a_scheduled_rate_is_linear_between_its_points() -> None:
    policy = GeometricSpans(schedule=((10, 0.3), (20, 0.1)))
    assert [policy.rate_at(step) for step in (0, 10, 15, 20, 99)] == pytest.approx([0.3, 0.3, 0.2, 0.1, 0.1])
    assert policy.most == 0.3 and GeometricSpans().rate_at(7) == GeometricSpans().most == 0.15
    with pytest.raises(ValueError, match=r"rates \[2\].*steps \[5, 5\]"):
        Tokens(schedule=((5, 0.1), (5, 2)))


def laid_out_slots(rows: RowBatch, replacement: Replacement, counts: np.ndarray, slots: int) -> LaidOut:
    """Every token of text masked."""
    count = np.arange(len(rows.tokens_BL))
    keys = (row_keys(0, Purpose.REPLACE, 0, count), row_keys(0, Purpose.UNIGRAM, 0, count))
    place_X = np.flatnonzero(rows.tokens_BL >= FIRST_TEXT_ID)
    settings = (replacement, Boundaries(), SPECIALS, np.cumsum(counts), keys, slots)
    return lay_out(rows.tokens_BL, rows.segments_BL, place_X, *settings)


def test_more_masked_tokens_than_slots_is_refused() -> None:
    rows = laid_out([[1] * 6], 8)
    found = laid_out_slots(rows, Replacement(), np.ones(9, int), 6)
    assert found.slots["slot_position_BK"].tolist() == [[1, 2, 3, 4, 5, 6]]
    with pytest.raises(AssertionError, match="6 masked tokens, more than its 5 slots"):
        laid_out_slots(rows, Replacement(), np.ones(9, int), 5)


def test_random_tokens_never_have_count_zero() -> None:
    rows = ROWS["one_block"].fetch(np.arange(40))
    counts = np.array([0, 0, 0, 0, 0, 0, 3, 0, 1, 0])
    found = laid_out_slots(rows, Replacement(mask=0.0, random=1.0), counts, 128)
    assert set(found.tokens_BL[rows.tokens_BL >= FIRST_TEXT_ID].tolist()) == {6, 8}


def test_all_wrong_settings_are_named_at_once() -> None:
    for policy in (GeometricSpans, Ngrams):
        assert len(policy(max_words=65_535).length_distribution()) == 65_535
        with pytest.raises(ValueError, match="max_words is 1000000000: expected at least 1 and at most 65,535"):
            policy(max_words=10**9)
    with pytest.raises(ValueError, match=r"rates \[0\].*starts is 'x'.*cut is 'y'.*p is 1.0.*max_words is 0"):
        GeometricSpans(rate=0, p=1.0, max_words=0, starts="x", cut="y")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"unit is 'word'.*random is -1"):
        Replacement(random=-1, unit="word")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at most 1, lower one"):
        Replacement(mask=0.8, random=0.3)
    with pytest.raises(ValueError, match="max_offset is 0"):
        Boundaries(max_offset=0)
    with pytest.raises(ValueError, match=r"tag is empty.*share is 2.*longest is 0"):
        TaggedSpans(tag="", share=2, longest=0)


@KINDS
def test_every_token_is_all_of_the_text_unchanged(kind: str) -> None:
    stored = ROWS[kind].fetch(np.arange(8))
    places = EveryToken().masked_places(
        text_of(stored), SPECIALS, row_keys(0, Purpose.MASK, 0, np.arange(8)), np.ones(8)
    )
    expected = [
        row * stored.tokens_BL.shape[1] + place
        for row, place in np.ndindex(stored.tokens_BL.shape)
        if stored.segments_BL[row, place] and stored.tokens_BL[row, place] not in (SPECIALS.cls, SPECIALS.sep)
    ]
    assert places.tolist() == expected and EveryToken().most == 1
    assert (EveryToken().replacement.mask, EveryToken().replacement.random) == (0, 0)
    with pytest.raises(
        ValueError, match=r"rate is 0.5 and schedule \(\): expected 1 and none, .*; use Tokens for less"
    ):
        EveryToken(rate=0.5)
