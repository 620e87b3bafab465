"""Sorted runs: keys and words counted on disk as in memory."""

import collections
import pathlib
import tempfile
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.ngrams.sorted_runs import SortedRuns, merge_words, read_words, write_words

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


@pytest.mark.slow
def test_what_lies_in_memory_is_bounded(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    runs, distinct = SortedRuns(tmp_path, 5_000), 400_000
    tracemalloc.start()
    for start in range(0, distinct, 2_500):
        runs.add(rng.permutation(np.arange(start, start + 2_500, dtype=np.uint64)))
        runs.add(np.arange(500, dtype=np.uint64))  # in every run
    assert runs.written > 64 and max(path.stat().st_size for path in tmp_path.iterdir()) <= 16 * 5_000
    place = 0
    for block in runs.merged():
        assert (block["key"] == np.arange(place, place + len(block))).all()
        place += len(block)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert place == distinct
    assert most < 1_500_000  # all records together take 6.4 MB


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
