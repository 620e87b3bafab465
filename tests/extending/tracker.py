"""A tracker: every number of a run as a line of a CSV file in its work directory."""

import dataclasses
import pathlib
from collections.abc import Mapping

from spanjax.training.trackers.base import Connection, Ending, TrackedRun, Tracker


class Curve(Connection):
    """An open file."""

    def __init__(self, path: pathlib.Path, digits: int):
        self.location, self.file, self.digits = str(path), path.open("a", buffering=1), digits

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends a line "step,name,value" for every number."""
        self.file.writelines(f"{step},{name},{value:.{self.digits}g}\n" for name, value in metrics.items())

    def close(self, ending: Ending) -> None:
        """Closes the file."""
        self.file.close()


@dataclasses.dataclass(frozen=True)
class Csv(Tracker):
    """Curves as CSV; the file has the run's id as its name."""

    digits: int = 17
    """Significant digits of a value."""

    def open(self, run: TrackedRun) -> Connection:
        """Opens the file of the run, also of one that resumes."""
        return Curve(run.workdir / f"{run.ids['id']}.csv", self.digits)
