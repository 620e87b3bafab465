"""Intervals and tests that were computed before, by the content of what they are of, in WORKDIR/quick/resampled.json.

Resampling takes seconds an encoder, and a table of sixty is written again after each sitting.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from spanjax.json_files import read_json
from spanjax.scoring.resampling import Difference, Interval, Units, differences, intervals
from spanjax.storage.local import write_whole

VERSION = 1
"""Change it with `scoring.resampling`: stored figures of another version are computed again."""
FILE = "resampled.json"


class Resampled:
    """Intervals and differences of the score `score`, computed once for equal units."""

    def __init__(self, folder: pathlib.Path | None = None):
        """`folder` holds the file; None keeps the figures in memory alone."""
        self.file = folder and folder / FILE
        self.before: dict[str, Any] = {}
        self.used: dict[str, Any] = {}
        if self.file and self.file.is_file():
            try:
                content = read_json(self.file)
                if content.get("version") == VERSION:
                    self.before = dict(content["figures"])
            except (ValueError, KeyError, TypeError):
                pass  # a damaged file costs its computation

    def interval(self, units: Units, samples: int) -> Interval:
        """Returns the bootstrap interval of the units' score."""
        found = self._stored(lambda: dataclasses.asdict(intervals(units, samples)["score"]), (units,), samples)
        return Interval(**found)

    def difference(self, first: Units, second: Units, samples: int, permutations: int) -> Difference:
        """Returns the first minus the second system's score, tested."""
        found = self._stored(
            lambda: dataclasses.asdict(differences(first, second, samples, permutations)["score"]),
            (first, second),
            samples,
            permutations,
        )
        return Difference(**found)

    def _stored(self, compute: Callable[[], dict[str, float]], units: tuple[Units, ...], *sizes: int) -> Any:
        digest = hashlib.sha256(repr(sizes).encode())
        for each in units:
            arrays = [value for value in vars(each).values() if isinstance(value, np.ndarray)]
            digest.update(repr((type(each).__name__, [(a.shape, a.dtype.str) for a in arrays])).encode())
            for array in arrays:
                digest.update(array.tobytes())
        key = digest.hexdigest()
        if key not in self.used:
            self.used[key] = self.before[key] if key in self.before else compute()
        return self.used[key]

    def write(self) -> None:
        """Writes the figures of this table; those that it no longer has are dropped."""
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, json.dumps({"version": VERSION, "figures": self.used}) + "\n")
