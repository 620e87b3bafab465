"""Rows of tasks: batches hold every row once an epoch, whatever the hosts; padding is nothing but padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.tasks import rows as rows_module
from spanjax.tasks.rows import (
    POOL,
    Row,
    TaskRows,
    batches_of_epoch,
    host_share,
    lengths_up_to,
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
