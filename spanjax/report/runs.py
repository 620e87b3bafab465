"""Reads run directories of `spanjax.train`: settings, records, evaluations, the newest checkpoint, and their status."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from spanjax.json_files import read_json
from spanjax.run_format import completed, stored_task
from spanjax.tasks.base import SCORE, ReportRow
from spanjax.tasks.tables import is_whole
from spanjax.training.checkpoint_files import steps_of, stored_meta
from spanjax.training.metrics import record_of

Values = dict[str, float]
LOSS = "loss"


@dataclasses.dataclass(frozen=True)
class Record:
    """Numbers of one step; NaN and infinity are kept."""

    step: int
    values: Values


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A run directory."""

    path: pathlib.Path
    settings: Mapping[str, Any]
    """run.json."""
    training: Sequence[Record]
    """Without "train/"; names of other kinds keep their prefix ("speed/data_wait")."""
    evaluations: Sequence[Record]
    """Without "eval/"; the one of summary.json among them."""
    bad_lines: int
    """Lines of metrics.jsonl that are no record."""
    finished: bool
    """True if the run reached its end: it has a summary of its last step."""
    meta: Mapping[str, Any]
    """Metadata of the newest checkpoint; empty without one."""
    checkpoint: int
    """Step of the newest checkpoint, 0 without one."""

    @property
    def objective(self) -> Mapping[str, Any]:
        """Settings of the objective."""
        return self.settings["objective"]

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.settings.get("seed", 0)

    @property
    def tuned(self) -> bool:
        """True for a fine-tuning run."""
        return self.settings["kind"] == "task"

    @functools.cached_property
    def row(self) -> ReportRow:
        """Labels of a fine-tuning run: its task's, or those in its checkpoint if the task is unknown here, or its class."""
        try:
            return stored_task(self.objective).report_row
        except (ValueError, TypeError):
            given, name = self.meta.get("report_row"), str(self.objective.get("class") or "a task")
        if isinstance(given, dict) and given.keys() <= {*ReportRow._fields} and {"name", "metric"} <= given.keys():
            return ReportRow(**{field: str(value) for field, value in given.items()})
        return ReportRow(name, "", name)

    @property
    def step(self) -> int:
        """Newest recorded step."""
        return max((record.step for record in (*self.training, *self.evaluations)), default=0)

    @property
    def metric(self) -> str:
        """Name of the checkpoint-selection metric; "" if nothing was evaluated. Without a `row` that names one of the scores, the
        first score by name."""
        names = {name for record in self.evaluations for name in record.values}
        if not self.tuned:
            return LOSS if LOSS in names else ""
        scores = sorted(name for name in names if name.startswith(SCORE))
        own = f"{SCORE}{self.row.metric}"
        return own if own in names else scores[0] if scores else ""

    @property
    def best(self) -> Record | None:
        """The best evaluation, the first of equals: highest score, or lowest loss. None without a finite one."""
        name, sign = self.metric, -1 if self.tuned else 1
        known = [record for record in self.evaluations if math.isfinite(record.values.get(name, math.nan))]
        return min(known, key=lambda record: sign * record.values[name], default=None)

    @property
    def status(self) -> str:
        """Human-readable progress of the run."""
        steps = self.settings.get("steps", 0)
        if self.finished:
            return f"finished, {self.step:,} steps"
        return f"step {self.step:,} of {steps:,}: stopped or at work"


def _record(line: bytes) -> tuple[int, Values] | None:
    """(step, numbers) of a line; None if it is no record."""
    if (found := record_of(line)) is None:
        return None
    numbers = {
        name: float(value)
        for name, value in found.items()
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return found["step"], numbers


def read_metrics(path: pathlib.Path) -> tuple[list[Record], list[Record], int]:
    """Returns (training records, evaluations, number of bad lines) of a metrics.jsonl; ignores an unfinished last line."""
    training, evaluations, bad = [], [], 0
    if not path.is_file():
        return training, evaluations, bad
    *lines, _ = path.read_bytes().split(b"\n")
    for line in lines:
        found = _record(line)
        if found is None:
            bad += bool(line.strip())
            continue
        step, numbers = found
        held_out = {name.removeprefix("eval/"): value for name, value in numbers.items() if name.startswith("eval/")}
        if held_out:
            evaluations.append(Record(step, held_out))
        others = {name.removeprefix("train/"): v for name, v in numbers.items() if not name.startswith("eval/")}
        if others:
            training.append(Record(step, others))
    return sorted(training, key=_step), sorted(evaluations, key=_step), bad


def _step(record: Record) -> int:
    return record.step


def _summary(path: pathlib.Path) -> Record | None:
    """Returns the record of a summary.json; None without a readable one."""
    try:
        found = read_json(path)
        held_out = {name: float(value) for name, value in found["eval"].items()}
        return Record(int(found["step"]), held_out)
    except (OSError, ValueError, OverflowError, TypeError, KeyError, AttributeError):
        return None


def _settings(path: pathlib.Path) -> dict[str, Any]:
    """Reads run.json; ValueError if it is missing or describes no run."""
    if not path.is_dir():
        raise ValueError(f"{path}: {'a file' if path.exists() else 'no such folder'}: expected a run directory")
    file = path / "run.json"
    if not file.is_file():
        raise ValueError(f"{path} is no run directory (no run.json): give a --workdir of spanjax.train")
    found = read_json(file, object, "restore it, or leave this run out")
    numbers = [found.get(name, 0) for name in ("seed", "steps")] if isinstance(found, dict) else [-1]
    if not all(is_whole(each) and each >= 0 for each in numbers) or not isinstance(found.get("objective"), dict):
        raise ValueError(f"{file} describes no run (its objective, seed or steps): expected what spanjax.train wrote")
    return completed(found)


def read_run(path: pathlib.Path) -> Recorded:
    """Reads a run directory. ValueError if it is none."""
    settings = _settings(path)
    training, evaluations, bad = read_metrics(path / "metrics.jsonl")
    summary = _summary(path / "summary.json")
    if summary and summary.values and summary.step not in {record.step for record in evaluations}:
        evaluations = sorted([*evaluations, summary], key=_step)
    newest = max(steps_of(path), default=0)
    meta = stored_meta(path, newest) if newest else {}
    last = max((record.step for record in training), default=0)
    done = summary is not None and summary.step >= last
    return Recorded(path, settings, training, evaluations, bad, done, meta if isinstance(meta, dict) else {}, newest)


def read_runs(paths: Sequence[str]) -> list[Recorded]:
    """Reads the runs, each folder once. One ValueError with all problems."""
    found, problems, seen = [], [], set()
    for name in paths:
        path = pathlib.Path(name)
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        try:
            found.append(read_run(path))
        except ValueError as error:
            problems.append(str(error))
    if not paths:
        problems.append("no run is given: name run directories, the --workdir of spanjax.train")
    if problems:
        raise ValueError("\n".join(f"  - {problem}" for problem in problems))
    return found
