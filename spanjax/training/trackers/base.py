"""Interface of trackers, services that plot runs: settings, the tracked run, an open connection.

`Tracking(to=(...))` takes objects of any class that derives from `Tracker`, also of a user's config file. Process 0 alone calls
them. `queue.Delivery` opens each tracker on a thread of its own, sends it the records of metrics.jsonl in the order of steps, at
most 20 at a time, and closes it. An error is reported once; after a pause of 1 s to 10 min `Delivery` drops the connection,
opens the tracker again, and sends what it lacks. A call that never returns is reported once, and the run ends without it.
"""

import abc
import dataclasses
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from spanjax.training.redaction import SECRET_NAMES, holds_credentials

Ending = Literal["finished", "stopped", "failed"]


@dataclasses.dataclass(frozen=True)
class Record:
    """Numbers of one step."""

    step: int
    values: Mapping[str, float]
    milliseconds: int
    """Time of writing, since 1970."""

    @property
    def kind(self) -> str:
        """ "train" or "eval": a step has at most one record of each."""
        return next(iter(self.values), "").split("/")[0]


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """One run of training as its tracker sees it: the same object whenever this process opens the tracker."""

    ids: Mapping[str, str]
    """`Tracker.new_ids` of the first process, as `set_id` has changed them. tracking.json holds them before anything is sent, and
    so does every checkpoint: a resumed run, also in a new work directory, gets them back and continues the same remote run."""
    set_id: Callable[[str], None]
    """Stores the id that the service assigned, as ids["id"]."""
    name: str
    """Name of the work directory, for a run that its settings do not name."""
    config: Mapping[str, Any]
    """All settings of the run as in run.json, without secrets."""
    workdir: pathlib.Path


class Connection:
    """An open run at the service. Every method may raise anything or never return; it is then not called again."""

    location: str = "open"
    """Address of the run, for the terminal."""
    held: Mapping[str, int] | None = None
    """Newest step of every kind of record (train, eval) that the service has: only newer ones are sent. None if it cannot tell:
    those in tracking.json count, and a failure or a kill can send some records twice."""
    durable_after_s: float = 0.0
    """Seconds after `log` until a record survives the death of this process."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends one record: numbers by names such as train/loss. An evaluation is a record of its own, of the same step."""
        raise NotImplementedError

    def log_all(self, records: Sequence[Record]) -> None:
        """Sends several records; override it instead of `log` where one request may hold them."""
        for record in records:
            self.log(record.step, record.values)

    def close(self, ending: Ending) -> None:
        """Ends the run at the service."""


@dataclasses.dataclass(frozen=True)
class Tracker(abc.ABC):
    """Settings of one tracker: a subclass is a frozen dataclass. They go to run.json, but credentials stay in the environment."""

    package: ClassVar[str] = ""
    """Package of pip, for the message where `require` fails."""
    login: ClassVar[str] = "read it from the environment in `open`"
    """Remedy for a setting that holds a credential."""

    @property
    def service(self) -> str:
        """Name in messages, tracking.json and checkpoints; by default that of the class in lower case."""
        return type(self).__name__.lower()

    def problems(self) -> list[str]:
        """Returns a message for every problem, each beginning with the name of its field; by default one for each field that by
        its name is a secret, or is a URI with a password. Repeats no credential.
        """
        return [
            f"{name} holds a user, password or token: a setting is written to files, so {self.login}"
            for name in (field.name for field in dataclasses.fields(self))
            if isinstance(value := getattr(self, name), str) and value
            if SECRET_NAMES.search(name) or (name.lower().endswith(("uri", "url")) and holds_credentials(value))
        ]

    def require(self) -> None:  # noqa: B027
        """Imports all that `open` needs, before the first step, on the main thread (an import on another can fail while
        tensorflow_datasets loads). May raise anything: process 0 reports it and the run does not start.
        """

    def new_ids(self) -> dict[str, str]:
        """Returns ids for a run that has none. "id" is the service's own: "" where that assigns it, by `TrackedRun.set_id`."""
        return {"id": uuid.uuid4().hex[:12]}

    @abc.abstractmethod
    def open(self, run: TrackedRun) -> Connection:
        """Connects to the run of `run.ids`, new or begun by an earlier process. May raise anything or never return."""

    def abandon(self) -> None:  # noqa: B027
        """Frees the exit of this process from waiting while another call hangs; a daemon thread is not waited for."""
