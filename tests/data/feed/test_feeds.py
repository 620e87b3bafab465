"""Both feeds: equal bit for bit, the same for any number of hosts, resumable at any step, every held-out row once."""

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spanjax.data.feed.batch import Batch, FeedSpec, batch_sizes, batch_spec, batch_statistics
from spanjax.data.feed.feeds import Kind, open_feed, prefetched, seqio_task
from spanjax.data.feed.host_slice import HostShare
from spanjax.data.feed.masking import Boundaries, GeometricSpans, Ngrams, TaggedSpans, Tokens, WholeWords
from spanjax.data.feed.pairing import NextSentence, Single
from tests.data.memory_rows import FIRST_TEXT_ID, SPECIALS, MemoryRows

ROWS: Any = MemoryRows(21, 48, blocks=3)
SPEC = FeedSpec(seed=7, batch_size=8)
KINDS = pytest.mark.parametrize("kind", ["numpy", "tf"])


def taken(kind: Kind, count: int, spec: FeedSpec = SPEC, **settings: Any) -> list[Batch]:
    feed = open_feed(kind, ROWS, spec, **settings)
    batches = list(itertools.islice(feed, count))
    feed.close()
    return batches


def assert_equal(left: Batch, right: Batch) -> None:
    """Equal arrays of every field of the contract; tf.data sorts them by name."""
    assert {*left} == {*right} == {*Batch.__annotations__}
    for name in left:
        assert left[name].dtype == right[name].dtype and (left[name] == right[name]).all(), name


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        FeedSpec(2**62, 32, GeometricSpans.as_released(), Boundaries(specials=False)),
        FeedSpec(7, 8, order="by_length"),
        FeedSpec(7, 8, Tokens(schedule=((0, 0.1), (4, 0.4)))),
        FeedSpec(7, 8, WholeWords()),
        FeedSpec(7, 8, Ngrams()),
        FeedSpec(7, 8, TaggedSpans()),
    ],
    ids=["paper", "released", "by_length", "tokens_scheduled", "whole_words", "ngrams", "tagged"],
)
def test_tensorflow_and_numpy_yield_the_same_batches(spec: FeedSpec) -> None:
    for left, right in zip(taken("tf", 6, spec), taken("numpy", 6, spec), strict=True):
        assert_equal(left, right)
        spec_of = batch_spec(spec.batch_size, 48, left["slot_weight_BK"].shape[1], 3)
        assert {name: (left[name].shape, left[name].dtype) for name in left} == spec_of


@KINDS
@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_together_are_the_global_batch(kind: Kind, hosts: int) -> None:
    whole = taken(kind, 4)
    parts = [taken(kind, 4, host=host, hosts=hosts) for host in range(hosts)]
    for step, batch in enumerate(whole):
        joined: Any = {name: np.concatenate([part[step][name] for part in parts]) for name in batch}
        assert_equal(batch, joined)
        assert joined["row_B"].tolist() == list(range(8))


@KINDS
@pytest.mark.parametrize("order", ["uniform", "by_length"])
def test_resuming_is_the_stream_from_there(kind: Kind, order: Any) -> None:
    spec = FeedSpec(7, 8, order=order)
    for left, right in zip(taken(kind, 7, spec)[4:], taken(kind, 3, spec, start_step=4), strict=True):
        assert_equal(left, right)


def test_an_epoch_has_every_row_once_and_the_next_epoch_other_masks() -> None:
    spec = FeedSpec(7, 21)
    first, second = taken("numpy", 2, spec)
    stored = ROWS.fetch(np.arange(21)).segments_BL
    for batch in (first, second):
        assert sorted(map(bytes, batch["segments_BL"])) == sorted(map(bytes, stored))
    targets = [sorted(map(bytes, batch["slot_position_BK"])) for batch in (first, second)]
    assert targets[0] != targets[1]


@KINDS
@pytest.mark.parametrize("hosts", [1, 2])
def test_held_out_rows_come_once_in_order_and_the_rest_is_empty(kind: Kind, hosts: int) -> None:
    parts = [taken(kind, 99, host=host, hosts=hosts, held_out=True) for host in range(hosts)]
    assert all(len(part) == 3 for part in parts)  # 21 rows in batches of 8
    joined = {name: np.concatenate([part[step][name] for step in range(3) for part in parts]) for name in parts[0][0]}
    stored = ROWS.fetch(np.arange(21))
    assert (joined["segments_BL"][:21] == stored.segments_BL).all()
    unmasked = joined["tokens_BL"][:21].copy()
    row, slot = np.nonzero(joined["slot_weight_BK"][:21])
    unmasked[row, joined["slot_position_BK"][row, slot]] = joined["slot_target_BK"][row, slot]
    assert (unmasked == stored.tokens_BL).all()
    for name, array in joined.items():
        if name not in ("row_B", "tokens_BL"):
            assert (array[21:] == 0).all(), name
    assert (joined["tokens_BL"][21:] == SPECIALS.pad).all()
    assert (joined["tokens_BL"][:21] >= FIRST_TEXT_ID).any()


def test_held_out_masks_are_those_of_epoch_0_whatever_the_batch_size() -> None:
    eight, five = (taken("numpy", 9, FeedSpec(7, size), held_out=True) for size in (8, 5))
    for name in ("tokens_BL", "slot_position_BK", "slot_target_BK"):
        left, right = (np.concatenate([batch[name] for batch in part])[:21] for part in (eight, five))
        assert (left == right).all()


@KINDS
def test_settings_that_do_not_fit_are_refused_at_once(kind: Kind) -> None:
    with pytest.raises(ValueError, match="batch_size 8 is not divisible by 3 hosts"):
        open_feed(kind, ROWS, SPEC, hosts=3)
    with pytest.raises(ValueError, match=r"host is 2: expected 0 \.\.\. hosts - 1 = 1"):
        open_feed(kind, ROWS, SPEC, host=2, hosts=2)
    with pytest.raises(ValueError, match="start_step is -1"):
        open_feed(kind, ROWS, SPEC, start_step=-1)


@KINDS
@pytest.mark.parametrize("pairing", [Single(), NextSentence()], ids=["single", "pairs"])
@pytest.mark.parametrize(("size", "hosts"), [(8, 1), (8, 4), (32, 2)])
def test_by_length_reads_the_longest_rows_in_a_short_batch(kind: Kind, pairing: Any, size: int, hosts: int) -> None:
    """21 rows: every one of them once an epoch, as the same row of the order uniform; what fills the batch up is empty."""
    spec, epoch = FeedSpec(7, size, order="by_length", pairing=pairing), -(-21 // size)
    parts = [taken(kind, 2 * epoch, spec, host=host, hosts=hosts) for host in range(hosts)]
    whole = [
        {name: np.concatenate([part[step][name] for part in parts]) for name in parts[0][0]}
        for step in range(2 * epoch)
    ]
    share = HostShare(ROWS, spec)
    uniform = taken("numpy", 2, dataclasses.replace(spec, batch_size=21, order="uniform"))
    rows_of = HostShare(ROWS, dataclasses.replace(spec, batch_size=21, order="uniform")).global_rows
    for number, batches in enumerate((whole[:epoch], whole[epoch:])):
        seen = []
        for step, batch in enumerate(batches):
            index_R, _ = share.global_rows(number * epoch + step)
            assert batch["row_B"].tolist() == list(range(size)) and len(batch["tokens_BL"]) == size
            back_R = np.array([rows_of(number)[0].tolist().index(row) for row in index_R])
            for name, array in batch.items():
                if name != "row_B":
                    assert (array[: len(index_R)] == uniform[number][name][back_R]).all(), name
                    assert (array[len(index_R) :] == 0).all(), name  # 0 is [PAD] too
            seen += index_R.tolist()
        assert sorted(seen) == list(range(21))
    assert sum(len(share.global_rows(step)[0]) < size for step in range(epoch)) == 1


def test_figures_of_a_short_batch_are_those_of_its_rows() -> None:
    spec = FeedSpec(7, 8, order="by_length")
    short = next(step for step in range(3) if len(HostShare(ROWS, spec).global_rows(step)[0]) == 5)
    batch: Any = taken("numpy", 1, spec, start_step=short)[0]
    rows: Any = {name: array[:5] for name, array in batch.items()}
    filled, alone = batch_statistics(batch), batch_statistics(rows)
    assert filled["fill"] == pytest.approx(5 / 8 * alone["fill"]) and alone["row_spans"] > 1
    assert filled == {**alone, "fill": filled["fill"]} and batch_sizes(batch) == batch_sizes(rows)


def test_every_dataset_of_a_task_begins_at_the_same_step() -> None:
    share = HostShare(ROWS, SPEC)
    task = seqio_task(share, share.steps(5))
    sets = [task.get_dataset(sequence_length=None, split="train", shuffle=False) for _ in range(2)]
    first, second = (next(iter(each.as_numpy_iterator())) for each in sets)
    assert_equal(first, second)
    assert_equal(first, taken("numpy", 1, start_step=5)[0])


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="feed kind is 'jax'"):
        open_feed("jax", ROWS, SPEC)  # pyright: ignore[reportArgumentType]


def workers() -> int:
    return sum(thread.name.startswith("spanjax-numpy-feed") for thread in threading.enumerate())


def test_prefetching_passes_errors_on_and_ends_its_thread() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("disk gone")

    feed = prefetched(items(), 2)
    assert next(feed) == 1 and next(feed) == 2
    with pytest.raises(OSError, match="disk gone"):
        next(feed)
    endless = prefetched(itertools.count(), 2)
    assert [next(endless) for _ in range(5)] == [0, 1, 2, 3, 4]
    endless.close()
    assert list(prefetched(range(3), 2)) == [0, 1, 2]
    assert workers() == 0
