"""Counting by sorting when not everything fits into memory: sorted runs on disk, merged.

A record is a uint64 key and a count. A run holds rising keys, each once. The merged result does not depend on how the
records were spread over runs. `merge_words` does the same with files of words.
"""

import heapq
import itertools
import operator
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

RECORD = np.dtype([("key", np.uint64), ("count", np.int64)])
_LEAST_BLOCK = 64  # records of a run that are read at once
_MOST_TOGETHER = 64  # runs, or files of words, that are merged at once


def summed(records: np.ndarray) -> np.ndarray:
    """RECORDs in any order -> RECORDs of rising keys, each once with the sum of its counts."""
    order = np.argsort(records["key"])
    keys = records["key"][order]
    first = np.flatnonzero(np.concatenate([np.ones(min(1, len(keys)), bool), keys[1:] != keys[:-1]]))
    found = np.empty(len(first), RECORD)
    found["key"] = keys[first]
    found["count"] = np.add.reduceat(records["count"][order], first) if len(first) else 0
    return found


class SortedRuns:
    """Gathers counts by key; at most `most` records lie in memory, about 60 bytes each while they are sorted."""

    def __init__(self, folder: pathlib.Path, most: int):
        """Runs are written into `folder`, which holds nothing else."""
        self._folder, self._most = folder, most
        self._waiting: list[np.ndarray] = []
        self._held = 0
        self.written = 0  # runs
        self._runs: list[_Run] = []

    def add(self, keys: np.ndarray) -> None:
        """Counts every one of these keys once more."""
        for start in range(0, len(keys), self._most):
            part = np.empty(len(keys[start : start + self._most]), RECORD)
            part["key"], part["count"] = keys[start : start + self._most], 1
            self._waiting.append(summed(part))
            self._held += len(self._waiting[-1])
            if self._held > self._most:
                self._waiting = [summed(np.concatenate(self._waiting))]
                self._held = len(self._waiting[0])
            if self._held > self._most // 2:
                self._spill()

    def _spill(self) -> None:
        self._write([summed(np.concatenate(self._waiting))])
        self._waiting, self._held = [], 0

    def _write(self, blocks: Iterable[np.ndarray]) -> None:
        path, size = self._folder / f"{self.written:06d}", 0
        with open(path, "wb") as file:
            for block in blocks:
                block.tofile(file)
                size += len(block)
        self._runs.append(_Run(path, size))
        self.written += 1

    def merged(self) -> Iterator[np.ndarray]:
        """Yields all records in blocks: keys rise from block to block, each once with its count. Removes the runs."""
        if self._waiting:
            self._spill()
        while len(self._runs) > _MOST_TOGETHER:
            some, self._runs = self._runs[:_MOST_TOGETHER], self._runs[_MOST_TOGETHER:]
            self._write(_merged_runs(some, self._most))
        yield from _merged_runs(self._runs, self._most)


class _Run(NamedTuple):
    path: pathlib.Path
    size: int  # records


def _merged_runs(runs: Sequence[_Run], most: int) -> Iterator[np.ndarray]:
    """The records of some runs, as `SortedRuns.merged` yields them; `most` of them are in memory. Removes the runs."""
    block = max(_LEAST_BLOCK, most // max(1, len(runs)))
    read = [0] * len(runs)
    ahead = [np.empty(0, RECORD) for _ in runs]
    while True:
        for number, (path, size) in enumerate(runs):
            if not len(ahead[number]) and read[number] < size:
                ahead[number] = np.fromfile(path, RECORD, block, offset=read[number] * RECORD.itemsize)
                read[number] += len(ahead[number])
        more = [part["key"][-1] for part, done, run in zip(ahead, read, runs, strict=True) if done < run.size]
        if not more and not any(map(len, ahead)):
            break
        # no key up to `last` comes later in any run
        last = min(more) if more else np.uint64(np.iinfo(np.uint64).max)
        cuts = [int(np.searchsorted(part["key"], last, side="right")) for part in ahead]
        yield summed(np.concatenate([part[:cut] for part, cut in zip(ahead, cuts, strict=True)]))
        ahead = [part[cut:] for part, cut in zip(ahead, cuts, strict=True)]
    for run in runs:
        run.path.unlink()


def write_words(path: pathlib.Path, words: Iterator[tuple[str, int]]) -> None:
    """Writes words and their counts, a line each, in the order of the words."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word}\t{count}\n" for word, count in words)


def read_words(path: pathlib.Path) -> Iterator[tuple[str, int]]:
    """The words and counts that `write_words` wrote."""
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            word, _, count = line.rpartition("\t")
            yield word, int(count)


def merge_words(paths: Sequence[pathlib.Path], folder: pathlib.Path) -> Iterator[tuple[str, int]]:
    """Every word of files that `write_words` wrote, in order, with the sum of its counts; few files are open at once.

    `folder` is for intermediate files and holds nothing else.
    """
    number = 0
    while len(paths) > _MOST_TOGETHER:
        joined = folder / f"{number:06d}"
        write_words(joined, _merged(paths[:_MOST_TOGETHER]))
        paths = [*paths[_MOST_TOGETHER:], joined]
        number += 1
    yield from _merged(paths)


def _merged(paths: Sequence[pathlib.Path]) -> Iterator[tuple[str, int]]:
    merged = heapq.merge(*map(read_words, paths))
    for word, group in itertools.groupby(merged, operator.itemgetter(0)):
        yield word, sum(count for _, count in group)
