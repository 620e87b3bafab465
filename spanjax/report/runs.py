"""Run directories of `spanjax.train`: settings, records, evaluations, the newest checkpoint and their status; groups of runs that
differ only in their seed."""

import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spanjax.bounds import raise_problems
from spanjax.data.sources.tables import is_whole
from spanjax.json_files import read_json
from spanjax.report.labels import rank
from spanjax.run_format import MAY_CHANGE, completed, flat, stored_task
from spanjax.scoring.spread import Spread
from spanjax.tasks.base import SCORE, ReportRow
from spanjax.training.checkpoint_files import steps_of, stored_meta
from spanjax.training.metrics import record_of

Values = dict[str, float]
LOSS = "loss"
BOOKKEEPING = (*MAY_CHANGE, "seed")
"""Settings that may differ inside a group: the seed, and those that do not affect the computation."""


@dataclasses.dataclass(frozen=True)
class LogRecord:
    """Numbers of one step; NaN and infinity are kept."""

    step: int
    values: Values


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A run directory."""

    path: pathlib.Path
    settings: Mapping[str, Any]
    """run.json."""
    training: Sequence[LogRecord]
    """Without "train/"; names of other kinds keep their prefix ("speed/data_wait")."""
    evaluations: Sequence[LogRecord]
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
    def best(self) -> LogRecord | None:
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


def read_metrics(path: pathlib.Path) -> tuple[list[LogRecord], list[LogRecord], int]:
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
            evaluations.append(LogRecord(step, held_out))
        others = {name.removeprefix("train/"): v for name, v in numbers.items() if not name.startswith("eval/")}
        if others:
            training.append(LogRecord(step, others))
    return sorted(training, key=_step), sorted(evaluations, key=_step), bad


def _step(record: LogRecord) -> int:
    return record.step


def _summary(path: pathlib.Path) -> LogRecord | None:
    """Returns the record of a summary.json; None without a readable one."""
    try:
        found = read_json(path)
        held_out = {name: float(value) for name, value in found["eval"].items()}
        return LogRecord(int(found["step"]), held_out)
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
    raise_problems(problems, "")
    return found


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one setting with different seeds, by seed."""

    name: str
    runs: tuple[Recorded, ...]

    @property
    def first(self) -> Recorded:
        """The run with the lowest seed."""
        return self.runs[0]

    @property
    def tuned(self) -> bool:
        """True for fine-tuning runs."""
        return self.first.tuned

    def spread(self, name: str) -> Spread | None:
        """A value of the best evaluations over the seeds; None if no run has it."""
        best = [run.best for run in self.runs]
        return Spread.of(record.values.get(name, math.nan) for record in best if record)


def score_names(runs: Iterable[Recorded]) -> list[str]:
    """Names of the scores of one task's evaluations, the selection metric first; a mean of a single score is that score."""
    known = list(runs)
    records = [record.values for run in known for record in run.evaluations]
    scores = sorted({name for values in records for name in values if name.startswith(SCORE)})
    mean = f"{SCORE}mean"
    if len(scores) == 2 and mean in scores:
        (single,) = (name for name in scores if name != mean)
        if all(values.get(single) == values.get(mean) for values in records):
            return [single]
    metric = next((run.metric for run in known if run.metric), "")
    return sorted(scores, key=lambda name: (name != metric, rank(name)))


def identity(run: Recorded) -> dict[str, Any]:
    """Settings, by their names with slashes, that determine a run's computation, without its seed."""
    return {name: value for name, value in flat(dict(run.settings)).items() if not name.startswith(BOOKKEEPING)}


def tails(paths: Sequence[pathlib.Path]) -> list[str]:
    """Returns for each path the last parts that distinguish it from the others; all differ if the paths do."""
    parts = [path.absolute().parts for path in paths]
    count = [1] * len(parts)
    for _ in range(max(map(len, parts), default=0)):
        names = ["/".join(each[-n:]) for each, n in zip(parts, count, strict=True)]
        for place, name in enumerate(names):
            if any(name == other and parts[place] != parts[at] for at, other in enumerate(names)):
                count[place] += 1
    return ["/".join(each[-n:]).lstrip("/") for each, n in zip(parts, count, strict=True)]


def _group_name(names: Sequence[str]) -> str:
    """Returns the common prefix of the runs' names, or all of them."""
    common = os.path.commonprefix(list(names)).rstrip("-_./ ").removesuffix("seed").rstrip("-_./ ")
    return common if len(names) > 1 and len(common) > 2 else ", ".join(names)


def grouped(runs: Sequence[Recorded]) -> list[Group]:
    """Returns the groups, in the order of their first runs. Runs with the same seed stay in one group."""
    found: dict[str, list[tuple[int, str, Recorded]]] = {}
    for run, name in zip(runs, tails([run.path for run in runs]), strict=True):
        key = json.dumps(identity(run), sort_keys=True, default=str)
        found.setdefault(key, []).append((run.seed, name, run))
    several = [sorted(each, key=lambda one: (one[0], one[1])) for each in found.values()]
    names = [_group_name([name for _, name, _ in each]) for each in several]
    names = [
        with_parent(each[0][2].path.absolute()) if name == "run" else name
        for name, each in zip(names, several, strict=True)
    ]
    for place, each in enumerate(several):
        if names.count(names[place]) > 1:
            names[place] = ", ".join(name for _, name, _ in each)
    return [Group(name, tuple(run for *_, run in each)) for name, each in zip(names, several, strict=True)]


def pretrained_name(run: Recorded) -> str:
    """Name of the weights that a fine-tuning run started from, as recorded: no folders; with the step of a single checkpoint."""
    path = str(run.settings.get("init_from") or "")
    if not path:
        return "fresh weights"
    folder = pretrained_folder(path)
    name = str(run.meta.get("pretrained") or "") or folder.name
    return with_parent(folder) if name == folder.name else name


def with_parent(path: pathlib.Path) -> str:
    """Name of a run directory; with the folder around it if it is only called `run`, as in runs/demo/run."""
    return "/".join(path.parts[-2:]) if path.name == "run" else path.name


def pretrained_folder(path: str) -> pathlib.Path:
    """The run directory or folder of weights that `init_from` names; that of a checkpoint is its run's."""
    folder = pathlib.Path(path)
    return folder.parent.parent if folder.name.isdigit() and folder.parent.name == "checkpoints" else folder


def pretrained_names(runs: Sequence[Recorded]) -> dict[str, str]:
    """Maps each init_from to a unique name: its own, with folders before it if needed, and the step."""
    origins: dict[str, str] = {}
    for run in runs:
        origins.setdefault(str(run.settings.get("init_from") or ""), pretrained_name(run))
    given = [path for path in origins if path]
    short = dict(zip(given, tails([pretrained_folder(path) for path in given]), strict=True))
    names = {}
    for path, stored in origins.items():
        alike = any(other != path and name == stored for other, name in origins.items())
        name = short[path] if path and alike else stored
        checkpoint = pathlib.Path(path)
        if path and pretrained_folder(path) != checkpoint:
            name += f", step {int(checkpoint.name):,}"
        names[path] = name
    return names
