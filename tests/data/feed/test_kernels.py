"""The compiled loops: the permutation of rows against a plain one, and a machine on which nothing can be cached."""

import numpy as np
import pytest
from numba.core import caching

from spanjax.data.feed import kernels
from spanjax.data.feed.hashing import fold
from spanjax.data.feed.order import ROUNDS, permuted


def plain_permutation(index: int, size: int, key: np.ndarray) -> int:
    """A Feistel network in Python's integers, walking until it is inside."""
    bits = 1
    while 4**bits < size:
        bits += 1
    number = index
    while True:
        left, right = number >> bits, number % 2**bits
        for turn in range(ROUNDS):
            left, right = right, left ^ int(fold(fold(key, turn), right)) % 2**bits
        number = (left << bits) | right
        if number < size:
            return number


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000, 10_000_000])
def test_permutation_of_rows_is_the_plain_one(size: int) -> None:
    index_B = np.unique(np.linspace(0, size - 1, 20).astype(int))
    key_B = fold(7, np.arange(len(index_B)))
    expected = [plain_permutation(int(index), size, key) for index, key in zip(index_B, key_B, strict=True)]
    assert permuted(index_B, size, key_B).tolist() == expected


def test_loops_are_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def doubled(number: int) -> int:
        return 2 * number

    assert kernels.compiled(doubled)(21) == 42
