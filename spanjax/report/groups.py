"""Groups runs that differ only in their seed: names of the groups, and their figures over the seeds."""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spanjax.report.runs import Recorded
from spanjax.run_format import MAY_CHANGE, flat

BOOKKEEPING = (*MAY_CHANGE, "seed")
"""Settings that may differ inside a group: the seed, and those that do not affect the computation."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """A figure over the seeds of a group. `deviation` is that of a sample (n - 1); NaN for one value."""

    mean: float
    deviation: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """Builds the spread of the finite values; None if there are none."""
        known = tuple(value for value in values if math.isfinite(value))
        if not known:
            return None
        mean = math.fsum(known) / len(known)
        square = math.fsum((value - mean) ** 2 for value in known)
        return cls(mean, math.sqrt(square / (len(known) - 1)) if len(known) > 1 else math.nan, known)

    def words(self, show: Callable[[float], str]) -> str:
        """'84.3 ± 0.5 (3)': mean, deviation where there is one, number of runs."""
        spread = "" if math.isnan(self.deviation) else f" ± {show(self.deviation)}"
        return f"{show(self.mean)}{spread} ({len(self.values)})"


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
    for place, each in enumerate(several):
        if names.count(names[place]) > 1:
            names[place] = ", ".join(name for _, name, _ in each)
    return [Group(name, tuple(run for *_, run in each)) for name, each in zip(names, several, strict=True)]


def pretrained_name(run: Recorded) -> str:
    """Name of the weights that a fine-tuning run started from, as recorded: no folders; with the step of a single checkpoint."""
    path = str(run.settings.get("init_from") or "")
    if not path:
        return "fresh weights"
    said = str(run.meta.get("pretrained") or "")
    return said or pretrained_folder(path).name


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
    for path, said in origins.items():
        alike = any(other != path and name == said for other, name in origins.items())
        name = short[path] if path and alike else said
        checkpoint = pathlib.Path(path)
        if path and pretrained_folder(path) != checkpoint:
            name += f", step {int(checkpoint.name):,}"
        names[path] = name
    return names
