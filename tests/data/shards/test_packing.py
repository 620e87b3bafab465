"""Blocks and rows: nothing is lost, nothing is too long, nothing crosses a document."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.shards.packing import block_bounds, pack_rows


@settings(deadline=None, max_examples=200)
@given(
    st.integers(8, 24),
    st.integers(1, 5),
    st.lists(st.lists(st.integers(1, 40), max_size=8), max_size=12),
    st.integers(0, 2**32),
)
def test_no_token_is_lost_and_no_limit_broken(length: int, most: int, documents: list[list[int]], seed: int) -> None:
    draw = np.random.default_rng(seed)
    blocks = []
    for number, sizes in enumerate(documents):
        bounds = block_bounds(sizes, draw.random(sum(sizes)) < 0.5, length - 2)
        covered = [token for first, end in bounds for token in range(first, end)]
        assert covered == list(range(sum(sizes)))
        assert all(1 <= end - first <= length - 2 for first, end in bounds)
        blocks += [[(number, token) for token in range(first, end)] for first, end in bounds]
    rows = pack_rows(blocks, length, most)
    assert all(1 <= len(row) <= most and sum(len(block) + 2 for block in row) <= length for row in rows)
    assert sorted(block for row in rows for block in row) == sorted(blocks)


def test_blocks_take_whole_sentences_while_they_fit() -> None:
    assert block_bounds([4, 3, 4, 2, 1], np.ones(14, bool), 7) == [(0, 7), (7, 14)]
    assert block_bounds([4, 4, 3], np.ones(11, bool), 7) == [(0, 4), (4, 11)]
    assert block_bounds([], np.ones(0, bool), 7) == []


def test_long_sentences_are_cut_before_words() -> None:
    starts_T = np.zeros(40, bool)
    starts_T[[0, 5, 8]] = True
    assert block_bounds([30], starts_T, 10) == [(0, 8), (8, 18), (18, 28), (28, 30)]
    assert block_bounds([10], starts_T, 10) == [(0, 10)]
    starts_T[[2, 32]] = True  # one before, and one after that joins what is left of it
    assert block_bounds([2, 30, 4], starts_T, 10) == [(0, 2), (2, 8), (8, 18), (18, 28), (28, 36)]


def test_small_blocks_fill_the_room_that_large_ones_leave() -> None:
    rows = pack_rows([range(n) for n in [40, 40, 20, 40, 20, 20, 62]], 64, 16)
    assert sorted(sorted(len(block) for block in row) for row in rows) == [[20, 40], [20, 40], [20, 40], [62]]


def test_a_block_goes_where_the_least_room_is_left() -> None:
    rows = pack_rows([range(n) for n in [30, 40, 18]], 64, 16)
    assert sorted([len(block) for block in row] for row in rows) == [[30], [40, 18]]


def test_one_block_a_row_keeps_the_order() -> None:
    assert pack_rows([range(3), range(9), range(2)], 64, 1) == [[range(3)], [range(9)], [range(2)]]


@pytest.mark.parametrize(("length", "most"), [(7, 16), (65_536, 16), (64, 0), (64, 128)])
def test_settings_out_of_range_are_refused(length: int, most: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        pack_rows([], length, most)


def test_blocks_out_of_range_are_refused() -> None:
    for size in (0, 63):
        with pytest.raises(ValueError, match="1 to 62"):
            pack_rows([range(size)], 64, 16)
