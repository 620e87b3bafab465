"""Weights & Biases tracker. The only file that imports wandb, and only when it is requested."""

import dataclasses
import os
import pathlib
import signal
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from spanjax.training.redaction import redacted
from spanjax.training.trackers.base import Connection, Ending, TrackedRun, Tracker

# Set unless the user has: no report of errors to the makers.
ENVIRONMENT = {"WANDB_ERROR_REPORTING": "false"}
FINISH_S = 20.0
# A killed process takes wandb's service with it, and the records that the service has not written: measured, all of the first
# seconds at its own interval of 15 s.
FLUSH_S, OFFLINE_DURABLE_S, ONLINE_DURABLE_S = 1.0, 3.0, 30.0


def _wandb() -> Any:
    import wandb  # pyright: ignore[reportMissingImports]

    return wandb


@dataclasses.dataclass(frozen=True)
class Wandb(Tracker):
    """One run of Weights & Biases, under an id of ours: a later process with the same id resumes it.

    The x-axis of every curve is the metric `step`, not the number of calls, so a run that went back a few steps stays one curve.
    Records that a kill may have lost are sent again: up to `durable_after_s` seconds of them can appear twice, at the same step
    with the same losses.
    """

    package: ClassVar[str] = "wandb"
    project: str = "spanjax"
    """Project; the team is WANDB_ENTITY."""
    name: str = ""
    """Name of the run; by default that of the work directory."""
    group: str = ""
    """Group of runs."""
    tags: tuple[str, ...] = ()
    """Tags."""
    mode: Literal["online", "offline"] = "online"
    """online as WANDB_MODE says, or offline: into the folder `wandb` of the work directory, for `wandb sync`."""

    def problems(self) -> list[str]:
        """Implements `Tracker.problems`."""
        return super().problems() + ([] if self.project.strip() else ["project is empty: give a name"])

    def require(self) -> None:
        """Imports wandb."""
        for variable, value in ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        _wandb()

    def open(self, run: TrackedRun) -> Connection:
        """Starts or resumes the run; RuntimeError if it is online and there is no login."""
        wandb, id = _wandb(), run.ids["id"]
        mode = "offline" if self.mode == "offline" else os.environ.get("WANDB_MODE", "online")
        if wandb.run is not None and wandb.run.id == id:
            wandb.teardown()  # its service has failed: wandb.init starts a new one
        if mode == "online" and not wandb.login(prompt=False):
            raise RuntimeError("no login: set WANDB_API_KEY, call `wandb login`, or take --tracking.mode offline")
        opened = wandb.init(
            id=id,
            resume="allow",
            mode=mode,
            dir=str(run.workdir),
            project=redacted(self.project),
            name=redacted(self.name) or run.name,
            group=redacted(self.group) or None,
            tags=redacted(self.tags) or None,
            config=run.config,
            allow_val_change=True,
            settings=wandb.Settings(
                silent=True,
                console="off",  # neither printed text, nor the command line, nor git's remote leaves the machine
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_save_requirements=False,
                x_transaction_log_flush_interval=FLUSH_S,
                finish_timeout=FINISH_S,  # also at the exit of the process
            ),
        )
        opened.define_metric("step")
        opened.define_metric("*", step_metric="step")
        return WandbRun(opened, id, mode, run.workdir / "wandb")

    def abandon(self) -> None:
        """Kills wandb's service: at its exit this process would wait for it, for ever if the service hangs."""
        for children in pathlib.Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                if pathlib.Path("/proc", child, "comm").read_text().strip() == "wandb-core":
                    os.kill(int(child), signal.SIGKILL)


class WandbRun(Connection):
    """A run that wandb.init has started."""

    def __init__(self, run: Any, id: str, mode: str, folder: pathlib.Path):
        self.run = run
        self.durable_after_s = ONLINE_DURABLE_S if mode == "online" else OFFLINE_DURABLE_S
        self.location = f"run {id} ({mode}) in {folder}; `wandb sync {folder}/offline-run-*-{id}` sends it"
        if mode == "online":
            self.location = f"run {id}: {run.url}"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs a record with its step as a metric."""
        self.run.log({"step": step, **metrics})

    def close(self, ending: Ending) -> None:
        """Marks the run as finished, as preempted, or as failed."""
        if ending == "stopped":
            self.run.mark_preempting()
        self.run.finish(exit_code=0 if ending == "finished" else 1)
