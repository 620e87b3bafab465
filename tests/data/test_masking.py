"""Span masking against a plain loop written from docs/design.md, its invariants, the examples of the docstrings, and
TensorFlow."""

import math

import numpy as np
import pytest

from spanjax.data.batch import FeedSpec, RowKeys, build_batch
from spanjax.data.hashing import Purpose, Unsigned, fold, row_keys, uniform
from spanjax.data.masking import (
    Boundaries,
    GeometricSpans,
    MaskingPolicy,
    Replacement,
    find_words,
    leading_pieces,
)
from spanjax.data.rows import RowBatch, slots_needed
from spanjax.data.slots import find_spans, replaced_tokens, restarted_positions, slot_arrays
from tests.data.memory_rows import FIRST_TEXT_ID, SPECIALS, MemoryRows, laid_out

PAPER = (GeometricSpans(), Boundaries())
RELEASED = (GeometricSpans.as_released(), Boundaries(specials=False))
BY_TOKEN = (GeometricSpans(rate=0.4, max_words=3, replacement=Replacement(0.5, 0.4, "token")), Boundaries(max_offset=2))
LONG_WORDS = (GeometricSpans(rate=0.3, starts="words", cut="exact"), Boundaries(specials=False, max_offset=3))
SETTINGS = pytest.mark.parametrize(
    "setting", [PAPER, RELEASED, BY_TOKEN, LONG_WORDS], ids=["paper", "released", "by_token", "long_words"]
)
ROWS = {
    "one_block": MemoryRows(40, 128, full=True),
    "packed": MemoryRows(40, 100, blocks=7, seed=1),
    "long_words": MemoryRows(40, 64, blocks=3, continued=0.7, seed=2),
    "short": MemoryRows(60, 12, blocks=2, seed=3),
}
KINDS = pytest.mark.parametrize("kind", ROWS)


def keys_of(rows: MemoryRows, epoch: int = 3) -> RowKeys:
    index_B = np.arange(len(rows))
    return RowKeys(np.full_like(index_B, epoch), index_B, index_B)


def batch_of(rows: MemoryRows, setting: tuple[MaskingPolicy, Boundaries], seed: int = 11, epoch: int = 3) -> dict:
    spec = FeedSpec(seed, len(rows), *setting)
    slots = slots_needed(rows.manifest, spec.masking.rate)
    keys = keys_of(rows, epoch)
    return dict(build_batch(rows.fetch(keys.index_B), keys, spec, SPECIALS, rows.unigram_V, slots))


def oracle_block(policy: GeometricSpans, starts: list[bool], key: Unsigned) -> set[int]:
    """The masked tokens of one block of which `starts` says where words begin: the text of the design, token by
    token."""
    begins = [place for place, start in enumerate(starts) if start or place == 0]
    words = [list(range(a, b)) for a, b in zip(begins, [*begins[1:], len(starts)], strict=True)]
    word_of = {place: number for number, word in enumerate(words) for place in word}
    weights = [policy.p * (1 - policy.p) ** i for i in range(policy.max_words)]
    budget, masked = math.ceil(policy.rate * len(starts)), set()
    for round_ in range(16 + 4 * budget):
        if len(masked) == budget:
            break
        u_length, u_anchor = (float(uniform(fold(key, 2 * round_ + draw))) for draw in (0, 1))
        span = 1 + sum(u_length >= sum(weights[: i + 1]) / sum(weights) for i in range(policy.max_words - 1))
        by_word = policy.starts == "words"
        anchor = int(u_anchor * len(words)) if by_word else word_of[int(u_anchor * len(starts))]
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


def oracle_mask(policy: GeometricSpans, rows: RowBatch, seed: int, epoch: int) -> np.ndarray:
    mask_BL = np.zeros(rows.tokens_BL.shape, bool)
    for index, (segments, starts) in enumerate(zip(rows.segments_BL, rows.word_starts_BL, strict=True)):
        for number in range(segments.max()):
            places = np.flatnonzero(segments == number + 1)[1:-1]
            key = fold(row_keys(seed, Purpose.MASK, epoch, index), number)
            for token in oracle_block(policy, starts[places].tolist(), key):
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
    left = int(float(uniform(fold(row_keys(11, Purpose.UNIGRAM, 3, row), here))) * rows.unigram_V.sum())
    for token, count in enumerate(rows.unigram_V):
        left -= count
        if left < 0:
            return token
    raise AssertionError("a draw is below the sum of the counts")


@KINDS
@SETTINGS
def test_equals_a_plain_loop(setting: tuple[GeometricSpans, Boundaries], kind: str) -> None:
    rows = ROWS[kind]
    keys = keys_of(rows)
    fetched = rows.fetch(keys.index_B)
    got = setting[0].token_mask(fetched, SPECIALS, row_keys(11, Purpose.MASK, keys.epoch_B, keys.index_B))
    assert (got == oracle_mask(setting[0], fetched, 11, 3)).all()
    assert got.any(axis=1).mean() > 0.5


@KINDS
@SETTINGS
def test_tensorflow_is_equal_bit_for_bit(setting: tuple[GeometricSpans, Boundaries], kind: str) -> None:
    import tensorflow as tf

    from spanjax.data import masking_tf

    rows = ROWS[kind]
    expected, keys = batch_of(rows, setting), keys_of(rows)
    slots = expected["slot_weight_BK"].shape[1]
    spec = FeedSpec(11, len(rows), *setting)

    @tf.function
    def build(tensors, keys):  # noqa: ANN001, ANN202
        return masking_tf.build_batch(tensors, keys, spec, SPECIALS, rows.unigram_V, slots)

    tensors = RowBatch(*map(tf.constant, rows.fetch(keys.index_B)))  # pyright: ignore[reportArgumentType]
    built = build(tensors, tuple(map(tf.constant, keys)))
    assert list(built) == list(expected)
    for name, array in expected.items():
        assert built[name].numpy().dtype == array.dtype, name
        assert (built[name].numpy() == array).all(), name


@KINDS
@SETTINGS
def test_invariants_of_masks(setting: tuple[GeometricSpans, Boundaries], kind: str) -> None:
    rows, policy = ROWS[kind], setting[0]
    fetched = rows.fetch(np.arange(len(rows)))
    mask_BL = policy.token_mask(fetched, SPECIALS, row_keys(1, Purpose.MASK, 0, np.arange(len(rows))))
    assert (fetched.tokens_BL[mask_BL] >= FIRST_TEXT_ID).all(), "a special or padding is masked"
    for row in range(len(rows)):
        for block in range(1, fetched.segments_BL[row].max() + 1):
            places = np.flatnonzero(fetched.segments_BL[row] == block)[1:-1]
            masked = mask_BL[row, places]
            budget = math.ceil(policy.rate * len(places))
            assert masked.sum() <= budget
            if policy.cut == "exact":
                assert masked.sum() == budget
            else:
                words = np.cumsum(fetched.word_starts_BL[row, places])
                assert all(len(set(masked[words == word].tolist())) == 1 for word in set(words.tolist()))


@KINDS
@SETTINGS
def test_invariants_of_slots(setting: tuple[GeometricSpans, Boundaries], kind: str) -> None:
    rows, boundaries = ROWS[kind], setting[1]
    batch, fetched = batch_of(rows, setting), rows.fetch(np.arange(len(ROWS[kind])))
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


def test_a_row_has_the_same_mask_in_any_batch() -> None:
    rows, spec = ROWS["packed"], FeedSpec(4, 8)
    index_B = np.array([7, 3, 3, 12, 39, 0, 25, 8])
    epoch_B = np.array([0, 0, 1, 5, 0, 0, 2, 0])
    whole = build_batch(
        rows.fetch(index_B), RowKeys(epoch_B, index_B, np.arange(8)), spec, SPECIALS, rows.unigram_V, 24
    )
    for place in range(8):
        one = slice(place, place + 1)
        keys = RowKeys(epoch_B[one], index_B[one], np.array([place]))
        alone = build_batch(rows.fetch(index_B[one]), keys, spec, SPECIALS, rows.unigram_V, 24)
        assert all((alone[name][0] == whole[name][place]).all() for name in alone)
    assert (whole["tokens_BL"][1] != whole["tokens_BL"][2]).any(), "another epoch, another mask"


def test_find_words_as_drawn() -> None:
    text = find_words(laid_out([[2, 1], [1]], 9), SPECIALS)
    assert text.first_W.tolist() == [1, 3, 6] and text.pieces_W.tolist() == [2, 1, 1]
    assert text.first_M.tolist() == [1, 6] and text.tokens_M.tolist() == [3, 1]
    assert text.first_word_M.tolist() == [0, 2] and text.words_M.tolist() == [2, 1]
    assert text.row_M.tolist() == [0, 0] and text.number_M.tolist() == [0, 1]


def test_what_begins_a_block_begins_a_word() -> None:
    row = laid_out([[2, 1]], 6)
    row.word_starts_BL[0, 1] = False
    assert find_words(row, SPECIALS).first_W.tolist() == [1, 3]


def test_leading_pieces_find_spans_and_positions_as_drawn() -> None:
    mask = leading_pieces(np.array([1, 3]), np.array([1, 2]), (1, 7))
    assert np.flatnonzero(mask).tolist() == [1, 3, 4]
    spans = find_spans(np.array([[0, 0, 1, 1, 0, 1, 0]], bool), np.ones((1, 7), int))
    assert spans.position_X.tolist() == [2, 3, 5] and spans.first_X.tolist() == [2, 2, 5]
    assert spans.last_X.tolist() == [3, 3, 5] and spans.count_B.tolist() == [3]
    assert restarted_positions(np.array([[1, 1, 1, 2, 2, 0]])).tolist() == [[0, 1, 2, 0, 1, 0]]


def test_one_word_larger_than_its_budget() -> None:
    """A word of five pieces has budget 1: whole words leave it alone, the released code masks its first piece."""
    row, key = laid_out([[5]], 8), row_keys(0, Purpose.MASK, 0, np.arange(1))
    assert not GeometricSpans().token_mask(row, SPECIALS, key).any()
    assert np.flatnonzero(GeometricSpans.as_released().token_mask(row, SPECIALS, key)).tolist() == [1]


def test_rows_without_text() -> None:
    rows = laid_out([[]], 8)
    keys = RowKeys(np.zeros(1, int), np.zeros(1, int), np.zeros(1, int))
    batch = build_batch(rows, keys, FeedSpec(0, 1), SPECIALS, np.ones(9, int), 8)
    assert batch["slot_weight_BK"].sum() == 0 and (batch["tokens_BL"] == rows.tokens_BL).all()


def test_more_masked_tokens_than_slots_is_refused() -> None:
    rows = laid_out([[1] * 6], 8)
    masked = find_spans(rows.tokens_BL >= FIRST_TEXT_ID, rows.segments_BL)
    assert slot_arrays(rows, masked, Boundaries(), SPECIALS, 6)["slot_position_BK"].tolist() == [[1, 2, 3, 4, 5, 6]]
    with pytest.raises(AssertionError, match="more masked tokens than slots"):
        slot_arrays(rows, masked, Boundaries(), SPECIALS, 5)


def test_random_tokens_never_have_count_zero() -> None:
    rows = ROWS["one_block"].fetch(np.arange(40))
    masked = find_spans(rows.tokens_BL >= FIRST_TEXT_ID, rows.segments_BL)
    counts = np.array([0, 0, 0, 0, 0, 0, 3, 0, 1, 0])
    keys = (row_keys(0, Purpose.REPLACE, 0, np.arange(40)), row_keys(0, Purpose.UNIGRAM, 0, np.arange(40)))
    all_random = Replacement(mask=0.0, random=1.0)
    seen = replaced_tokens(rows.tokens_BL, masked, all_random, SPECIALS.mask, np.cumsum(counts), keys)
    assert set(seen[masked.row_X, masked.position_X].tolist()) == {6, 8}


def test_all_wrong_settings_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"rate is 0.*p is 1.0.*max_words is 0.*starts is 'x'.*cut is 'y'"):
        GeometricSpans(rate=0, p=1.0, max_words=0, starts="x", cut="y")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"random is -1.*unit is 'word'"):
        Replacement(random=-1, unit="word")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at most 1, lower one"):
        Replacement(mask=0.8, random=0.3)
    with pytest.raises(ValueError, match="max_offset is 0"):
        Boundaries(max_offset=0)


def test_a_policy_without_a_twin_is_refused() -> None:
    from spanjax.data import masking_tf

    with pytest.raises(ValueError, match="use the feed of kind 'numpy'"):
        masking_tf.token_mask(Replacement(), None, SPECIALS, None)  # pyright: ignore[reportArgumentType]
