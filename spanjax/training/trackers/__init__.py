"""Trackers of a run: settings, the ids by which a later process resumes the same curve, and the writer of process 0.

The ids live in the work directory's `tracking.json` and in the meta of every checkpoint. Trackers get the records of
metrics.jsonl; one that is added late, or was not reachable, gets the records that it lacks when it answers.
"""

import dataclasses
import json
import pathlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spanjax.json_files import parse_json
from spanjax.storage.local import write_whole
from spanjax.training.checkpoint_files import stored_meta
from spanjax.training.metrics import record_of
from spanjax.training.redaction import redacted
from spanjax.training.trackers.backends import MLflow, Wandb, import_problem
from spanjax.training.trackers.queue import Delivery, Record
from spanjax.training.trackers.settings import Tracking

CLOSE_S = 30.0
KINDS = ("train", "eval")


def require(settings: Tracking) -> None:
    """Raises ValueError, before the first step, if the package of a requested tracker does not import."""
    if problems := [problem for name in settings.to if (problem := import_problem(name))]:
        raise ValueError("\n".join(problems))


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

    def of(self, name: str) -> dict[str, str]:
        """Returns the ids of one tracker, sampled if it has none. `id` is the tracker's own, "" until MLflow assigns it."""
        fresh = {"id": "", "tag": uuid.uuid4().hex} if name == "mlflow" else {"id": uuid.uuid4().hex[:12]}
        self.ids[name] = {**fresh, **self.ids.get(name, {})}
        return self.ids[name]

    def set_id(self, name: str, id: str) -> None:
        """Stores the id that the tracker assigned."""
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


class Trackers:
    """Writer of all trackers, on process 0 only; no failure of a tracker gets past it."""

    def __init__(self, settings: Tracking, workdir: pathlib.Path, begin: int, steps: int, config: Any, say: Any):
        self.newest, self.steps = begin, steps
        self.identity = Identity(workdir, begin, say)
        shown = {each: redacted(getattr(settings, each)) for each in ("project", "name", "group", "tags")}
        settings = dataclasses.replace(settings, **{**shown, "tags": tuple(shown["tags"])})
        name = settings.name or redacted(workdir.absolute().name)
        self.deliveries = list[Delivery]()
        trackers = list[Any]()
        for which in settings.to:
            ids = self.identity.of(which)
            if which == "wandb":
                trackers.append(Wandb(settings, ids["id"], name, config, workdir))
            else:
                trackers.append(
                    MLflow(settings, ids, lambda id: self.identity.set_id("mlflow", id), name, config, workdir)
                )
        # ids are on the disk before anything is sent, so that a process that is killed early resumes the same curves
        if trackers:
            self.identity.write()
        for tracker in trackers:
            self.deliveries.append(
                Delivery(
                    tracker,
                    sent=self.identity.sent.get(tracker.name, {}),
                    missed=lambda: read_records(workdir / "metrics.jsonl"),
                    note_sent=lambda sent, name=tracker.name: self.identity.set_sent(name, sent),
                    say=say,
                )
            )

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
