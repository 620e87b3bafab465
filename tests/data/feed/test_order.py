"""Which rows a global batch has: every epoch a permutation, stateless, and fast at any step."""

import tracemalloc

import numpy as np
import pytest

from spanjax.data.feed.order import global_rows, sorted_by_length, steps_per_epoch, stream_rows

pytestmark = pytest.mark.unit


def stream(seed: int, steps: int, batch_size: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    parts = [global_rows(seed, step, batch_size, rows) for step in range(steps)]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


@pytest.mark.parametrize(("rows", "batch_size"), [(1, 3), (2, 5), (4, 6), (17, 4), (64, 64), (1000, 7)])
def test_every_epoch_is_a_permutation_and_batches_straddle_epochs(rows: int, batch_size: int) -> None:
    index, epoch = stream(5, -(-3 * rows // batch_size), batch_size, rows)
    assert (epoch == np.arange(len(epoch)) // rows).all()
    for number in range(3):
        assert sorted(index[epoch == number].tolist()) == list(range(rows))


def test_the_example_in_the_docstring() -> None:
    first, second = global_rows(0, 0, 6, 4), global_rows(0, 1, 6, 4)
    assert first[1].tolist() == [0, 0, 0, 0, 1, 1] and second[1].tolist() == [1, 1, 2, 2, 2, 2]
    assert sorted([*first[0], *second[0]]) == sorted([0, 1, 2, 3] * 3)


def test_epochs_and_seeds_differ() -> None:
    index, _ = stream(5, 3, 500, 500)
    orders = {tuple(index[:500]), tuple(index[500:1000]), tuple(index[1000:]), tuple(global_rows(6, 0, 500, 500)[0])}
    assert len(orders) == 4


def test_first_place_is_uniform() -> None:
    """Row at place 0 over 4000 epochs of 10 rows: chi-square with 9 degrees of freedom, limit at 5 deviations."""
    firsts = np.array([global_rows(1, 10 * epoch, 1, 10)[0][0] for epoch in range(4000)])
    counts = np.bincount(firsts, minlength=10)
    assert ((counts - 400) ** 2 / 400).sum() < 9 + 5 * np.sqrt(18)


def test_ten_million_rows_at_step_a_million_are_not_listed() -> None:
    tracemalloc.start()
    index, epoch = global_rows(1, 1_000_000, 2048, 10_000_000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10_000_000  # a list of all rows takes 80 MB
    assert (epoch == 204).all() and len(set(index.tolist())) == 2048 and index.max() < 10_000_000


def by_length(epoch: int, batch_size: int, sorted_N: np.ndarray) -> list[np.ndarray]:
    """The batches of an epoch, which is in none of the next."""
    batches = -(-len(sorted_N) // batch_size)
    found = [global_rows(2, epoch * batches + step, batch_size, len(sorted_N), sorted_N) for step in range(batches)]
    assert all((epochs == epoch).all() and len(epochs) == len(index) for index, epochs in found)
    return [index for index, _ in found]


def test_by_length_keeps_the_batches_and_permutes_their_order() -> None:
    lengths = np.random.default_rng(0).integers(5, 100, 50)
    sorted_N = sorted_by_length(lengths)
    assert (np.diff(lengths[sorted_N]) >= 0).all()
    batches = {tuple(sorted_N[i : i + 8]) for i in range(0, 50, 8)}
    orders = []
    for epoch in range(3):
        got = by_length(epoch, 8, sorted_N)
        assert {tuple(index) for index in got} == batches
        orders.append(tuple(index[0] for index in got))
    assert len(set(orders)) == 3


@pytest.mark.parametrize(("rows", "batch_size"), [(50, 8), (48, 8), (49, 8), (7, 8), (1, 8), (9, 1)])
def test_by_length_reads_every_row_once_an_epoch(rows: int, batch_size: int) -> None:
    """The remainder, the longest rows, is one short batch; version 0.1 never read it."""
    sorted_N = sorted_by_length(np.random.default_rng(1).integers(5, 100, rows))
    for epoch in range(4):
        got = by_length(epoch, batch_size, sorted_N)
        assert sorted(np.concatenate(got).tolist()) == list(range(rows))
        short = [index.tolist() for index in got if len(index) < batch_size]
        rest = rows % batch_size
        assert short == ([sorted_N[-rest:].tolist()] if rest else [])


def test_by_length_keeps_its_order_where_the_batch_size_divides_the_rows() -> None:
    """Pinned by version 0.1: 24 rows in batches of 8, the first rows of nine batches."""
    found = [int(global_rows(5, step, 8, 24, np.arange(24))[0][0]) for step in range(9)]
    assert found == [16, 0, 8, 8, 16, 0, 16, 0, 8]


def test_epochs_have_the_steps_of_their_order() -> None:
    assert steps_per_epoch("uniform", 8, 50) == 6.25 and steps_per_epoch("by_length", 8, 50) == 7
    assert steps_per_epoch("by_length", 8, 48) == steps_per_epoch("streams", 8, 50) == 6


def test_streams_read_consecutive_rows_at_every_place() -> None:
    """Forward at even places and, both ways, backward at odd ones; the next epoch cuts elsewhere."""
    found = [stream_rows(3, step, 4, 30, both_ways=True) for step in range(14)]
    rows, epochs = (np.stack(each) for each in zip(*found, strict=True))
    assert epochs[:7].tolist() == [[0] * 4] * 7 and epochs[7:].tolist() == [[1] * 4] * 7
    for place in range(4):
        steps = (np.diff(rows[:7, place]) + 30) % 30
        assert (steps == (29 if place % 2 else 1)).all()
    assert len({*rows[:7].ravel().tolist()}) == 28 == len({*rows[7:].ravel().tolist()})
    assert {*rows[:7].ravel().tolist()} != {*rows[7:].ravel().tolist()}
    forward = np.stack([stream_rows(3, step, 4, 30, both_ways=False)[0] for step in range(7)])
    np.testing.assert_array_equal(forward[:, ::2], rows[:7, ::2])
    np.testing.assert_array_equal(forward[:, 1::2], rows[:7, 1::2][::-1])


def test_streams_need_a_row_each() -> None:
    with pytest.raises(ValueError, match="3 rows for 4 streams"):
        stream_rows(0, 0, 4, 3, both_ways=False)
