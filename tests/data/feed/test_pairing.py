"""Pairings: equal to the plain rules bit for bit, every token accounted for, shares as stated."""

import dataclasses
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.hashing import uniform
from spanjax.data.feed.host_slice import HostShare
from spanjax.data.feed.pairing import (
    FullSentences,
    NextSentence,
    Pairing,
    SentenceOrder,
    Single,
    TwoSegments,
    UnmaskedRows,
)
from spanjax.data.feed.rows import Rows, slots_needed
from spanjax.data.shards.packing import SENTENCE_START, Block, tag_flags
from tests.data.numbered_rows import CLS, FIRST_ID, SEP, block, made_rows, paired, pairs_of, random_rows
from tests.data.pairing_oracle import plain_examples

PAIRINGS = (
    NextSentence(),
    NextSentence(random=0.2, short=0.4),
    SentenceOrder(),
    SentenceOrder(swap=0.7, short=0.3),
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return random_rows(tmp_path_factory.mktemp("random"), 1, 60, 64, 20)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 12),
    length=st.sampled_from([8, 17, 48]),
    documents=st.integers(1, 5),
)
def test_equal_to_the_plain_rules(seed: int, count: int, length: int, documents: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = random_rows(pathlib.Path(folder), seed, count, length, documents)
        for pairing in PAIRINGS:
            found = paired(pairing, rows, np.arange(count), epoch=seed % 3, seed=seed)
            for row in range(count):
                plain = plain_examples(pairing, rows, row, seed % 3, seed, pairs_of(rows))
                for name, field, expected in zip(UnmaskedRows._fields, found, plain, strict=True):
                    np.testing.assert_array_equal(field[row], expected, err_msg=f"{pairing} {name} of row {row}")


def test_types_and_shapes(rows: Rows) -> None:
    bytes_ = {"word_starts_BL": np.bool_, "flags_BL": np.uint8, "pair_weight_BP": np.float32}
    for pairing in (*PAIRINGS, Single(), FullSentences()):
        found = paired(pairing, rows, np.array([3, 1]))
        for name, field in found._asdict().items():
            assert field.dtype == bytes_.get(name, np.int32), (pairing, name)
            assert field.shape == (2, pairs_of(rows) if name.endswith("P") else 64)


@pytest.mark.parametrize("pairing", PAIRINGS, ids=repr)
def test_every_token_comes_from_where_it_should(pairing: TwoSegments, rows: Rows) -> None:
    """Without the draws: A and B are runs of stored text, of the right blocks, in the right order."""
    index = np.arange(len(rows))
    stored, found = rows.fetch(index), paired(pairing, rows, index)
    text = stored.tokens_BL >= FIRST_ID
    row_of, place_of = (
        dict(zip(stored.tokens_BL[text].tolist(), where.tolist(), strict=True)) for where in np.nonzero(text)
    )
    for row in index:
        for number in range(1, stored.segments_BL[row].max() + 1):
            places = np.flatnonzero(stored.segments_BL[row] == number)
            size, weight = len(places) - 2, found.pair_weight_BP[row, number - 1]
            line, kinds = (array[row, places] for array in (found.tokens_BL, found.types_BL))
            used = found.segments_BL[row, places] > 0
            assert set(found.segments_BL[row, places][used]) == {number}
            assert np.array_equal(np.sort(~used), ~used), "padding comes last"
            assert not line[~used].any() and not found.flags_BL[row, places][~used].any()
            if size < 3:
                assert weight == 0 and np.array_equal(line, stored.tokens_BL[row, places]) and not kinds.any()
                continue
            assert weight == 1 and found.pair_position_BP[row, number - 1] == places[0] and line[0] == CLS
            first_sep, second_sep = np.flatnonzero(line == SEP)
            a, b = line[1:first_sep], line[first_sep + 1 : second_sep]
            assert len(a) and len(b) and second_sep == used.sum() - 1 and len(a) + len(b) <= size - 1
            assert np.array_equal(kinds, (np.arange(size + 2) > first_sep) & used)
            assert np.array_equal(a, np.arange(a[0], a[-1] + 1)) and np.array_equal(b, np.arange(b[0], b[-1] + 1))
            own = stored.tokens_BL[row, places[1:-1]]
            here = [bool(np.isin(segment, own).all()) for segment in (a, b)]
            label = found.pair_label_BP[row, number - 1]
            if all(here):
                assert (b[0] > a[-1]) == (label == 0 or isinstance(pairing, NextSentence))
                assert len(a) + len(b) == size - 1 or pairing.short
            else:
                assert label == 1 and here[0]
                other, place = row_of[int(b[0])], place_of[int(b[0])]
                assert {(row_of[int(t)], stored.segments_BL[row_of[int(t)], place_of[int(t)]]) for t in b} == {
                    (other, stored.segments_BL[other, place])
                }
            for segment, begin in ((a, 1), (b, first_sep + 1)):
                for offset, token in enumerate(segment.tolist()):
                    there = row_of[token], place_of[token]
                    at = row, places[begin + offset]
                    assert found.word_starts_BL[at] == (offset == 0 or stored.word_starts_BL[there])
                    assert offset == 0 or found.flags_BL[at] == stored.flags_BL[there]
        beyond = stored.segments_BL[row] == 0
        assert not found.tokens_BL[row, beyond].any() and not found.segments_BL[row, beyond].any()


@pytest.mark.parametrize("pairing", PAIRINGS, ids=repr)
def test_a_row_depends_on_seed_epoch_and_index_alone(pairing: TwoSegments, rows: Rows) -> None:
    index = np.random.default_rng(0).integers(0, len(rows), 40)
    together = paired(pairing, rows, index, epoch=2)
    for place in range(0, 40, 7):
        alone = paired(pairing, rows, index[[place]], epoch=2)
        for field, expected in zip(together, alone, strict=True):
            np.testing.assert_array_equal(field[[place]], expected)
    mixed = pairing.examples(rows, index, np.arange(40) % 2 + 1, 3, pairs_of(rows))
    np.testing.assert_array_equal(mixed.tokens_BL[1::2], together.tokens_BL[1::2])
    assert not np.array_equal(mixed.tokens_BL[::2], together.tokens_BL[::2]), "another epoch has other pairs"
    other = paired(pairing, rows, index, epoch=2, seed=4)
    assert not np.array_equal(other.tokens_BL, together.tokens_BL), "another seed has other pairs"


def test_one_document_gives_its_own_text_after_ten_tries(tmp_path: pathlib.Path) -> None:
    rows = made_rows(tmp_path, [[block([4, 4], 0, 10)], [block([5, 3], 0, 30)]], 16)
    found = paired(NextSentence(random=1.0), rows, np.array([0, 1]))
    assert found.pair_label_BP.tolist() == [[1], [1]]
    assert ((found.types_BL == 1) & (found.tokens_BL >= FIRST_ID)).any(axis=1).all()


def test_a_block_of_one_word_is_cut_anywhere(tmp_path: pathlib.Path) -> None:
    word = Block(np.full(6, FIRST_ID + 1, np.int32), np.eye(1, 6, dtype=np.uint8)[0], 0)
    rows = made_rows(tmp_path, [[word], *[[block([1, 1, 1, 1, 1], 1, 100)]] * 30], 8)
    sizes = set()
    for epoch in range(100):
        found = paired(NextSentence(), rows, np.array([0]), epoch)
        sizes.add(int((found.tokens_BL[0] == FIRST_ID + 1).sum()))
        assert found.pair_weight_BP[0, 0] == 1
    assert sizes == {1, 2, 3, 4}


def test_tiny_blocks_stay_single(tmp_path: pathlib.Path) -> None:
    rows = made_rows(tmp_path, [[block([1], 0, 10), block([1, 1], 1, 20), block([2, 1], 2, 30)]], 16)
    for pairing in PAIRINGS:
        found = paired(pairing, rows, np.array([0]))
        assert found.tokens_BL[0, :7].tolist() == [CLS, 10, SEP, CLS, 20, 21, SEP]
        assert found.segments_BL[0, :7].tolist() == [1, 1, 1, 2, 2, 2, 2] and not found.types_BL[0, :7].any()
        assert found.pair_weight_BP.tolist() == [[0, 0, 1]] and found.pair_position_BP.tolist() == [[0, 0, 7]]


def test_swapped_segments_change_places(tmp_path: pathlib.Path) -> None:
    rows = made_rows(tmp_path, [[block([4, 4], 0, 10)]], 16)
    for swap, first in ((0.0, 10), (1.0, 14)):
        found = paired(SentenceOrder(swap=swap), rows, np.array([0]))
        kept = found.tokens_BL[0, 1 : int(np.flatnonzero(found.tokens_BL[0] == SEP)[0])]
        assert set(kept.tolist()) <= set(range(first, first + 4)) and found.pair_label_BP[0, 0] == swap


def test_a_tag_span_that_lost_its_beginning_begins_where_it_goes_on(tmp_path: pathlib.Path) -> None:
    """One tag span over a whole block: in every segment it begins at the first token and goes on from there, in its layer."""
    tags = np.array([1] + [2] * 9)
    for layer in range(3):
        rows = made_rows(tmp_path / str(layer), [[block([4, 6], 0, 10, tag_flags(tags, layer))]], 16)
        for epoch in range(20):
            found = paired(NextSentence(random=0.0), rows, np.array([0]), epoch)
            text = found.tokens_BL[0] >= FIRST_ID
            begins = text & ~np.append(False, text[:-1])
            expected = np.where(begins, 1, np.where(text, 2, 0)) << (1 + 2 * layer)
            np.testing.assert_array_equal(found.flags_BL[0] & ~SENTENCE_START, expected)


def test_full_sentences_is_the_row_without_its_inner_cls(rows: Rows) -> None:
    index = np.arange(len(rows))
    stored, found = rows.fetch(index), paired(FullSentences(), rows, index)
    for row in index:
        keep = stored.segments_BL[row] > 0
        keep[1:] &= stored.tokens_BL[row, 1:] != CLS
        empty = np.zeros(64 - keep.sum(), int)
        for name in ("tokens_BL", "word_starts_BL", "flags_BL"):
            expected = np.append(getattr(stored, name)[row, keep], empty)
            np.testing.assert_array_equal(getattr(found, name)[row], expected, err_msg=name)
        np.testing.assert_array_equal(found.segments_BL[row], np.append(np.ones(keep.sum()), empty))
    assert not found.types_BL.any() and not found.pair_weight_BP.any()
    assert (stored.segments_BL.max(axis=1) > 1).sum() > 10, "the rows of this test have several blocks"


def test_single_is_the_row(rows: Rows) -> None:
    index = np.array([5, 5, 0])
    for field, expected in zip(paired(Single(), rows, index), rows.fetch(index), strict=False):
        np.testing.assert_array_equal(field, expected)


@pytest.mark.parametrize("pairing", [*PAIRINGS, FullSentences(), Single()], ids=repr)
def test_batches_of_pairs_fit_their_slots_and_held_out_ends_are_empty(pairing: Pairing, rows: Rows) -> None:
    from spanjax.data.feed.feeds import open_feed

    spec = FeedSpec(seed=0, batch_size=16, pairing=pairing)
    batches = list(open_feed("numpy", rows, spec, held_out=True))
    slots = slots_needed(rows.manifest, spec.masking.rate, pairing.parts)
    assert len(batches) == 4 and batches[0]["slot_weight_BK"].shape[1] == slots
    assert HostShare(rows, spec).facts.slots == slots
    last = batches[-1]
    assert len(rows) % 16 == 12 and last["segments_BL"][:12].any(axis=1).all()
    for name in ("tokens_BL", "segments_BL", "types_BL", "pair_label_BP", "pair_weight_BP"):
        assert not last[name][12:].any(), name
    for batch in batches:  # what is masked is text of one segment, never [CLS] or [SEP]
        used = batch["slot_weight_BK"] > 0
        assert (batch["slot_target_BK"][used] >= FIRST_ID).all()


def test_settings_out_of_range_are_all_named() -> None:
    with pytest.raises(ValueError, match=r"NextSentence: .*short is -0.1.*random is 1.5|random is 1.5.*short is -0.1"):
        NextSentence(random=1.5, short=-0.1)
    with pytest.raises(ValueError, match="swap is 2"):
        SentenceOrder(swap=2)


def test_pairings_say_what_they_need() -> None:
    assert [(p.parts, p.types, p.label) for p in (Single(), FullSentences(), NextSentence(), SentenceOrder())] == [
        (1, 1, ""), (1, 1, ""), (2, 2, "nsp"), (2, 2, "sop"),
    ]  # fmt: skip
    assert dataclasses.replace(NextSentence(), short=0.1) == NextSentence(short=0.1)
    assert float(uniform(2**63)) == 0.5
