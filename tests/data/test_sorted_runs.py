"""Sorted runs: keys and words counted on disk as in memory."""

import collections
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.sorted_runs import SortedRuns, merge_words, read_words, write_words

KEYS = st.lists(st.lists(st.integers(0, 40) | st.just(2**64 - 1), max_size=300), max_size=8)


@settings(max_examples=60, deadline=None)
@given(KEYS, st.integers(1, 50))
def test_runs_count_as_a_counter_does(parts: list[list[int]], most: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = SortedRuns(pathlib.Path(folder), most)
        for part in parts:
            runs.add(np.array(part, np.uint64))
        blocks = list(runs.merged())
        assert not list(pathlib.Path(folder).iterdir())
    found = [(int(key), int(count)) for block in blocks for key, count in block]
    assert found == sorted(collections.Counter(key for part in parts for key in part).items())


def test_what_waits_in_memory_is_bounded(tmp_path: pathlib.Path) -> None:
    runs = SortedRuns(tmp_path, 1_000)
    keys = np.random.default_rng(0).permutation(50_000).astype(np.uint64)
    for part in np.split(keys, 5):
        runs.add(part)
    assert len(runs.runs) >= 50 and max(size for _, size in runs.runs) <= 1_000
    assert sum(path.stat().st_size for path, _ in runs.runs) >= 16 * 49_000
    blocks = list(runs.merged())
    assert len(blocks) > 10  # nothing reads all runs at once
    np.testing.assert_array_equal(np.concatenate(blocks)["key"], np.arange(50_000))


@pytest.mark.parametrize("files", [1, 64, 65, 200])
def test_words_of_many_files_are_merged_in_order(files: int, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(files)
    expected: collections.Counter[str] = collections.Counter()
    paths = []
    for number in range(files):
        some = collections.Counter({chr(code): int(code) for code in rng.integers(97, 2_000, 20)})
        expected.update(some)
        paths.append(tmp_path / str(number))
        write_words(paths[-1], iter(sorted(some.items())))
        assert list(read_words(paths[-1])) == sorted(some.items())
    (tmp_path / "merged").mkdir()
    assert list(merge_words(paths, tmp_path / "merged")) == sorted(expected.items())
