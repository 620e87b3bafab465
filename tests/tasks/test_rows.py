"""Rows of tasks: batches hold every row once an epoch, whatever the hosts; padding is nothing but padding."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.tasks import rows as rows_module
from spanjax.tasks.rows import (
    POOL,
    PROGRAM,
    Row,
    TaskRows,
    batches_of_epoch,
    few_lengths,
    finer_lengths,
    host_share,
    lengths_of_steps,
    lengths_up_to,
    rows_by_positions,
    rows_in_order,
    rows_of_step,
)

PAD = 7


def made(lengths: list[int], most: int = 40) -> TaskRows:
    """Rows whose tokens and tags tell row and place."""
    return TaskRows(
        (
            Row(
                np.arange(length) + 100 * number,
                np.arange(length) % 2,
                number // 2,
                {
                    "label_B": np.int32(number),
                    "tag_BL": np.arange(length) + 1,
                    "piece_BSP": np.full((2, 3), number / 2),
                },
            )
            for number, length in enumerate(lengths)
        ),
        PAD,
        lambda _: lengths_up_to(most),
    )


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@given(sizes, st.integers(1, 9), st.integers(0, 2**31 - 1))
def test_an_epoch_holds_every_row_once(lengths: list[int], batch_size: int, seed: int) -> None:
    rows, steps = made(lengths), batches_of_epoch(len(lengths), batch_size)
    for epoch in range(2):
        seen = np.concatenate(
            [rows_of_step(rows, seed, step, batch_size) for step in range(epoch * steps, (epoch + 1) * steps)]
        )
        assert sorted(seen[seen >= 0]) == list(range(len(lengths)))
        assert len(seen) == steps * batch_size


def test_epochs_differ_and_batches_are_of_like_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 41, 4000).tolist()
    rows, size = made(lengths), 8
    first = [rows_of_step(rows, 3, step, size) for step in range(2 * batches_of_epoch(4000, size))]
    half = len(first) // 2
    assert not np.array_equal(np.stack(first[:half]), np.stack(first[half:]))
    spread = np.mean([np.ptp(rows.lengths_N[index]) for index in first])
    assert spread < 2, "rows of a batch come from a sorted pool"
    means = [rows.lengths_N[index].mean() for index in first[:POOL]]
    assert np.abs(np.corrcoef(means, np.arange(POOL))[0, 1]) < 0.4, "batches of a pool come in a drawn order"


@given(sizes, st.sampled_from([1, 2, 4]), st.integers(0, 5))
def test_hosts_share_a_batch_of_one_length(lengths: list[int], hosts: int, step: int) -> None:
    rows = made(lengths)
    index_B = rows_of_step(rows, 0, step, 8)
    whole = host_share(rows, index_B, 0, 1)
    parts = [host_share(rows, index_B, host, hosts) for host in range(hosts)]
    for name, value in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), value, err_msg=name)


def test_a_batch_says_what_its_rows_say() -> None:
    rows = made([3, 40, 5])
    batch = rows.batch(np.array([2, -1, 0]), np.array([4, 5, 6]), 16)
    assert batch["tokens_BL"][0].tolist() == [200, 201, 202, 203, 204, *[PAD] * 11]
    assert batch["tokens_BL"][1].tolist() == [PAD] * 16
    assert batch["segments_BL"].sum(axis=1).tolist() == [5, 0, 3]
    assert batch["positions_BL"][0].tolist() == [0, 1, 2, 3, 4, *[0] * 11]
    assert batch["tag_BL"][2].tolist() == [1, 2, 3, *[0] * 13]
    assert batch["label_B"].tolist() == [2, 0, 0] and batch["label_B"].dtype == np.int32
    assert batch["weight_B"].tolist() == [1, 0, 1]
    assert batch["piece_BSP"].shape == (3, 2, 3) and batch["piece_BSP"][:, 0, 0].tolist() == [1.0, 0.0, 0.0]
    assert batch["row_B"].tolist() == [4, 5, 6]


@pytest.mark.parametrize(("longest", "expected"), [(1, 16), (16, 16), (17, 32), (33, 40)])
def test_lengths_are_few(longest: int, expected: int) -> None:
    assert made([longest, 1]).length_of(np.array([0, 1, -1])) == expected


def test_evaluation_goes_through_all_rows_once() -> None:
    rows = made([9, 2, 40, 7, 1])
    batches = list(rows_in_order(rows, 2))
    assert np.concatenate(batches).tolist() == [4, 1, 3, 0, 2, -1]


def test_the_fingerprint_is_of_all_that_is_trained_on() -> None:
    assert made([3, 4]).fingerprint == made([3, 4]).fingerprint
    other = made([3, 4])
    other._columns["label_B"][0] = 9
    assert other.fingerprint != made([3, 4]).fingerprint != made([4, 3]).fingerprint


def test_rows_are_packed_in_parts_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [3, 40, 5, 1, 17, 2, 9]
    whole = made(lengths)
    monkeypatch.setattr(rows_module, "PACKED", 3)
    parts = made(lengths)
    assert parts.fingerprint == whole.fingerprint and parts.example_N.tolist() == [0, 0, 1, 1, 2, 2, 3]
    for number, length in enumerate(lengths):
        row = parts.row(number)
        assert row.tokens_T.tolist() == [100 * number + place for place in range(length)]
        assert row.types_T.tolist() == [place % 2 for place in range(length)] and row.example == number // 2
        assert row.fields["tag_BL"].tolist() == [place + 1 for place in range(length)]
        assert row.fields["label_B"] == number and row.fields["piece_BSP"].tolist() == [[number / 2] * 3] * 2
    assert len(made([])) == 0


candidates = st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True).map(sorted)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12), candidates, st.integers(1, 400), st.sets(st.integers(1, 60))
)
def test_few_lengths_cost_least_of_all_choices(
    longest: list[int], lengths: list[int], rows: int, compiled: set[int]
) -> None:
    """The dynamic programme against every subset of the candidates."""
    lengths = [*lengths, 61]

    def cost(chosen: tuple[int, ...]) -> float:
        padded = sum(rows * min(each for each in chosen if each >= batch) for batch in longest)
        return padded + PROGRAM * sum(each not in compiled for each in chosen)

    subsets = (some for size in range(1, len(lengths) + 1) for some in itertools.combinations(lengths, size))
    least = min(cost(some) for some in subsets if some[-1] >= max(longest))
    assert cost(few_lengths(np.array(longest), lengths, rows, compiled)) == least


def test_few_rows_have_few_lengths_and_many_rows_all() -> None:
    lengths = np.random.default_rng(0).integers(8, 128, 4000).tolist()
    counts = []
    for count in (1, 40, 400, 4000):
        rows = made(lengths[:count], most=128)
        rows.use_few_lengths(16)
        counts.append(len(rows.buckets))
        for step in range(2 * batches_of_epoch(count, 16)):
            index_B = rows_of_step(rows, 0, step, 16)
            longest = rows.lengths_N[index_B[index_B >= 0]].max()
            assert longest <= rows.length_of(index_B) <= 128
    assert counts[:2] == [1, 1] and counts[2] in (3, 4) and counts[3] >= 6, counts
    rows = made(lengths[:400], most=128)
    rows.use_few_lengths(16, steps=100 * batches_of_epoch(400, 16))
    assert len(rows.buckets) >= 6, "padding of a hundred epochs costs more than programs"


def test_lengths_with_a_program_are_taken_again() -> None:
    compiled: set[int] = set()
    made([40], most=512).use_few_lengths(16, compiled=compiled)
    assert compiled == {48}
    rows = made([120], most=512)
    rows.use_few_lengths(16, compiled=compiled)
    assert rows.buckets == (128,) and compiled == {48, 128}
    rows = made([20], most=512)
    rows.use_few_lengths(16, compiled=compiled)
    assert rows.buckets == (48,), "a program for 32 would save 256 tokens"


def test_finer_lengths_lie_between_those_of_the_task() -> None:
    assert finer_lengths((16, 30)) == (4, 8, 12, 16, 20, 24, 28, 30) and finer_lengths((3,)) == (3,)
    assert [*finer_lengths(lengths_up_to(128))] == [*range(4, 65, 4), *range(72, 129, 8)]
    assert [*finer_lengths(lengths_up_to(512))[-25:]] == [*range(128, 513, 16)]


@pytest.mark.parametrize(("longest", "share"), [(128, 0.6), (40, 0.4)])
def test_finer_lengths_save_padding_in_a_long_run(longest: int, share: float) -> None:
    """Of the padding beyond the longest rows of batches, at most this share is left."""
    lengths = np.random.default_rng(0).integers(4, longest, 4000).tolist()
    rows, more = made(lengths, most=128), made(lengths, most=128)
    rows.use_few_lengths(16, steps=2000)
    more.use_few_lengths(16, steps=2000, finer=True)
    index_SB = [rows_of_step(rows, 0, step, 16) for step in range(batches_of_epoch(4000, 16))]
    padded, less = (sum(each.length_of(index_B) for index_B in index_SB) for each in (rows, more))
    needed = sum(int(rows.lengths_N[index_B].max()) for index_B in index_SB)
    assert less - needed < share * (padded - needed), (needed, less, padded)


@given(sizes)
def test_the_choice_of_lengths_changes_padding_alone(lengths: list[int]) -> None:
    few, all_of_them = made(lengths), made(lengths)
    few.use_few_lengths(4)
    for index_B in rows_in_order(few, 4):
        one, other = host_share(few, index_B, 0, 1), host_share(all_of_them, index_B, 0, 1)
        for name, value in other.items():
            if name.rpartition("_")[2].startswith("BL"):
                np.testing.assert_array_equal(one[name][:, : value.shape[1]], value)
                assert not one["segments_BL"][:, value.shape[1] :].any()
            else:
                np.testing.assert_array_equal(one[name], value)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=400), st.integers(1, 9), st.integers(0, 60), st.integers(0, 60)
)
def test_lengths_of_steps_are_those_of_their_batches(
    lengths: list[int], batch_size: int, first: int, count: int
) -> None:
    """All lengths that these steps have; others of the same pools may be among them."""
    packed, epoch = made(lengths), batches_of_epoch(len(lengths), batch_size)
    found = lengths_of_steps(packed, 7, range(first, first + count), batch_size)
    loop = {packed.length_of(rows_of_step(packed, 7, step, batch_size)) for step in range(first, first + count)}
    assert loop <= found
    everything = range(first // epoch * epoch, (first + count) // epoch * epoch + epoch)
    assert found <= {packed.length_of(rows_of_step(packed, 7, step, batch_size)) for step in everything}


@given(sizes, st.integers(1, 9), st.integers(8, 200), st.sampled_from([1, 2, 4]))
def test_batches_that_positions_bound_hold_every_row_once(
    lengths: list[int], batch_size: int, most: int, multiple: int
) -> None:
    rows = made(lengths)
    batches = list(rows_by_positions(rows, batch_size, most, multiple))
    seen = np.concatenate(batches)
    assert sorted(seen[seen >= 0]) == list(range(len(lengths)))
    full: dict[int, set[int]] = {}
    for number, index_B in enumerate(batches):
        assert len(index_B) % multiple == 0
        assert len(index_B) == multiple or len(index_B) <= batch_size and len(index_B) * rows.length_of(index_B) <= most
        filled = int((index_B >= 0).sum())
        if number + 1 < len(batches):
            assert filled == len(index_B)
            full.setdefault(rows.length_of(index_B), set()).add(len(index_B))
        else:
            assert len(index_B) < 2 * filled + multiple, "few rows are no batch of many"
    assert all(len(each) == 1 for each in full.values()), "one program for a length"
