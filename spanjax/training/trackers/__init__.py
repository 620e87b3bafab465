"""Trackers of a run: the setting that names them, and their writer, which sends the records of metrics.jsonl to all of them.

A tracker that is added late, or could not be reached, gets the missing records once it answers.
"""

import dataclasses
import functools
import json
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

import tyro

from spanjax.bounds import raise_problems
from spanjax.json_files import parse_json
from spanjax.storage.local import write_whole
from spanjax.training.checkpoint_files import stored_meta
from spanjax.training.metrics import record_of
from spanjax.training.redaction import redacted
from spanjax.training.trackers.base import Record, TrackedRun, Tracker
from spanjax.training.trackers.mlflow import MLflow
from spanjax.training.trackers.queue import Delivery, reason_of
from spanjax.training.trackers.wandb import Wandb

CLOSE_S = 30.0
KINDS = ("train", "eval")  # of records
NAMES = ("wandb", "mlflow")
# the command line takes names only: an object of a config file stays unless --tracking.to replaces it
_BY_NAME = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="{" + ",".join(NAMES) + "}",
    instance_from_str=lambda words: words[0],
    is_instance=lambda value: value in NAMES or isinstance(value, Tracker),
    str_from_instance=lambda value: [value.service if isinstance(value, Tracker) else value],
    choices=NAMES,
)


@dataclasses.dataclass(frozen=True)
class Tracking:
    """Trackers in addition to metrics.jsonl and TensorBoard. Pass keys and passwords by environment or the tool's own login.

    A name in `to` stands for a tracker with the settings here; an object of a config file has settings of its own.
    """

    to: tuple[Annotated[Literal["wandb", "mlflow"] | Tracker, _BY_NAME], ...] = ()
    """Trackers: wandb (pip install wandb), mlflow (pip install mlflow-skinny)."""
    project: str = "spanjax"
    """Project in wandb, experiment in MLflow. The team in wandb is WANDB_ENTITY."""
    name: str = ""
    """Name of the run; by default that of the work directory."""
    group: str = ""
    """Group in wandb, the tag `group` in MLflow."""
    tags: tuple[str, ...] = ()
    """Tags; in MLflow NAME=VALUE, or NAME for NAME=true."""
    mode: Literal["online", "offline"] = "online"
    """wandb: online as WANDB_MODE says, or offline: into the folder `wandb` of the work directory, for `wandb sync`."""
    uri: str = ""
    """MLflow's server or store; by default MLFLOW_TRACKING_URI, else the folder `mlruns` of the work directory."""

    def _named(self) -> dict[str, Tracker]:
        common: Any = {each: getattr(self, each) for each in ("project", "name", "group", "tags")}
        return {"wandb": Wandb(**common, mode=self.mode), "mlflow": MLflow(**common, uri=self.uri)}

    def trackers(self) -> tuple[Tracker, ...]:
        """Returns the trackers of `to` as objects."""
        named = self._named()
        return tuple(named[each] if isinstance(each, str) else each for each in self.to)

    def problems(self) -> list[str]:
        """Returns a message for every problem of these values; empty if there is none. Repeats no credential."""
        if wrong := [each for each in self.to if each not in NAMES and not isinstance(each, Tracker)]:
            return [
                f"tracking.to holds {wrong[0]!r:.60}: expected {', '.join(NAMES)}, or an object of a class derived from"
                " spanjax.training.trackers.base.Tracker"
            ]
        found, services = [], [each.service for each in self.trackers()]
        if len(set(services)) < len(services):
            found.append(f"tracking.to is {' '.join(services)}: name every tracker once")
        found += [f"tracking.{problem}" for each in self._named().values() for problem in each.problems()]
        objects = {place: each for place, each in enumerate(self.to) if isinstance(each, Tracker)}
        found += [f"tracking.to.{place}.{problem}" for place, each in objects.items() for problem in each.problems()]
        unused = [f.name for f in dataclasses.fields(self) if f.name != "to" and getattr(self, f.name) != f.default]
        if unused and objects and len(objects) == len(self.to):
            found.append(
                f"tracking.{unused[0]} is set, but every tracker of tracking.to has settings of its own: set it there, or give"
                f" one of {', '.join(NAMES)} by its name"
            )
        return list(dict.fromkeys(found))


def require(settings: Tracking) -> None:
    """Raises ValueError, before the first step, if the package of a requested tracker does not import."""
    problems = []
    for tracker in settings.trackers():
        try:
            tracker.require()
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError)
            reason = f"does not import ({error})" if missing else f"fails to import ({reason_of(error)})"
            remedy = f"pip install {tracker.package}, or " if tracker.package else ""
            problems.append(
                f"tracking.to names {tracker.service}, whose package {reason}: {remedy}leave {tracker.service} out of"
                " --tracking.to"
            )
    raise_problems(problems)


class Trackers:
    """Writer of all trackers, on process 0 only; no failure of a tracker gets past it."""

    def __init__(self, settings: Tracking, workdir: pathlib.Path, begin: int, steps: int, config: Any, say: Any):
        self.newest, self.steps = begin, steps
        self.identity = Identity(workdir, begin, say)
        name, config = redacted(workdir.absolute().name), redacted(config)
        trackers = {each.service: each for each in settings.trackers()}
        ids = {service: self.identity.of(tracker) for service, tracker in trackers.items()}
        # ids are on the disk before anything is sent, so that a process that is killed early resumes the same curves
        if trackers:
            self.identity.write()
        self.deliveries = [
            Delivery(
                tracker,
                TrackedRun(ids[service], functools.partial(self.identity.set_id, service), name, config, workdir),
                sent=self.identity.sent.get(service, {}),
                missed=lambda: read_records(workdir / "metrics.jsonl"),
                note_sent=functools.partial(self.identity.set_sent, service),
                say=say,
            )
            for service, tracker in trackers.items()
        ]

    def meta(self) -> dict[str, Any]:
        """Returns entries for every checkpoint's meta: {"tracking": ids}, {} for a run that never had a tracker.

        The ids are those of this object: one that MLflow assigns later is in the checkpoints that follow.
        """
        return {"tracking": self.identity.ids} if self.identity.ids else {}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Puts one record into every tracker's queue."""
        self.newest = max(self.newest, step)
        record = Record(step, dict(values), time.time_ns() // 1_000_000)
        for delivery in self.deliveries:
            delivery.write(record)

    def close(self) -> None:
        """Sends waiting records, for at most CLOSE_S seconds over all trackers, and reports how the run ended."""
        failed = sys.exc_info()[0] is not None
        for delivery in self.deliveries:
            delivery.begin_close("failed" if failed else "finished" if self.newest >= self.steps else "stopped")
        deadline = time.monotonic() + CLOSE_S
        for delivery in self.deliveries:
            delivery.end_close(deadline)


def read_records(path: pathlib.Path) -> Iterator[Record]:
    """Yields the records of a metrics file, without half lines; nothing if there is no file."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for values in filter(None, map(record_of, file)):
            yield Record(values.pop("step"), values, time.time_ns() // 1_000_000)


class Identity:
    """Ids and newest steps sent, in `tracking.json`, replaced as a whole at every change.

    A new work directory takes the ids from the checkpoint that it resumes from; its step is then the newest step sent.
    """

    def __init__(self, workdir: pathlib.Path, begin: int, say: Callable[[str], None]):
        self.path, self.say, self.lock = workdir / "tracking.json", say, threading.Lock()
        self.ids: dict[str, dict[str, str]] = {}
        self.sent: dict[str, dict[str, int]] = {}
        self.failed = False
        self._read(workdir, begin)

    def _read(self, workdir: pathlib.Path, begin: int) -> None:
        try:
            stored = parse_json(self.path.read_bytes(), dict)
            ids = {name: dict(id) for name, id in stored["ids"].items()}
            self.sent = {
                name: {kind: int(step) for kind, step in sent.items()} for name, sent in stored["sent"].items()
            }
            self.ids = ids
            return
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            self.say(f"{self.path} cannot be read ({error}): ids are taken from the checkpoint")
        if begin:
            self.ids = {name: dict(id) for name, id in stored_meta(workdir, begin).get("tracking", {}).items()}
            self.sent = {name: dict.fromkeys(KINDS, begin) for name in self.ids}

    def of(self, tracker: Tracker) -> dict[str, str]:
        """Returns the ids of one tracker, new ones if it has none."""
        self.ids[tracker.service] = {**tracker.new_ids(), **self.ids.get(tracker.service, {})}
        return self.ids[tracker.service]

    def set_id(self, name: str, id: str) -> None:
        """Stores the id that the service assigned."""
        if self.ids[name]["id"] != id:
            self.ids[name]["id"] = id
            self.write()

    def set_sent(self, name: str, sent: Mapping[str, int]) -> None:
        """Stores the newest steps whose records were sent."""
        with self.lock:
            self.sent[name] = dict(sent)
        self.write()

    def write(self) -> None:
        """Replaces the file. A write failure is reported once and otherwise ignored: the checkpoints hold the ids too."""
        with self.lock:
            try:
                write_whole(self.path, json.dumps({"ids": self.ids, "sent": self.sent}, indent=2) + "\n")
            except OSError as error:
                if not self.failed:
                    self.say(f"{self.path} could not be written: {error}")
                self.failed = True
