"""Metrics between two log records, and their writers: a JSON-lines file, TensorBoard, and the terminal. Only process 0 writes."""

import collections
import contextlib
import json
import logging
import os
import pathlib
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np
import rich.console

from spanjax.cli import Progress, format_duration
from spanjax.hardware import peak_flops
from spanjax.json_files import parse_json
from spanjax.objectives.base import Mean
from spanjax.storage.local import irregular_problem, write_whole

log = logging.getLogger(__name__)
FLUSH_SECONDS = 30.0  # between flushes of TensorBoard's file


class Writer(Protocol):
    """Takes the metrics of a step; a run has several writers."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Takes one record."""

    def close(self) -> None:
        """Ends the writer."""


def record_of(line: bytes) -> dict[str, Any] | None:
    """Returns the record in a line of metrics.jsonl; None if it holds none."""
    try:
        found = parse_json(line, dict)
    except ValueError:
        return None
    step = found.get("step")
    return found if type(step) is int and 0 <= step < 2**63 else None


class JsonLines:
    """Writes one JSON object per line with `step` and the values; lines after `resumed_from` are cut off first.

    A record of that very step is not written twice: a resumed run may repeat an evaluation.
    Damaged lines are reported and dropped; the half line of a killed process is dropped silently.
    """

    def __init__(self, path: pathlib.Path, resumed_from: int):
        self.resumed_from, self.known = resumed_from, set[frozenset[str]]()
        if problem := irregular_problem(path):  # opening a pipe would wait for ever
            raise OSError(problem)
        if path.exists():
            lines = path.read_bytes().split(b"\n")
            steps: list[int | None] = []
            for record in map(record_of, lines):
                steps.append(record["step"] if record else None)
                if record and record["step"] == resumed_from:
                    self.known.add(frozenset(record))
            if bad := [n for n, line in enumerate(lines[:-1], 1) if line.strip() and steps[n - 1] is None]:
                listed = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
                log.warning("%s: %d damaged line(s) dropped, the others are kept (line %s)", path, len(bad), listed)
            kept = (line for line, step in zip(lines, steps, strict=True) if step is not None and step <= resumed_from)
            write_whole(path, b"".join(line + b"\n" for line in kept))
        self.file = path.open("a", buffering=1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a line."""
        record = {"step": step, **values}
        if step != self.resumed_from or frozenset(record) not in self.known:
            self.file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


class TensorBoard:
    """Writes scalars in TensorBoard's format; on a resume, events after `resumed_from` are hidden.

    Avoids tensorboardX's own thread: that ends at the first error, and training would wait for it for ever.
    """

    def __init__(self, folder: pathlib.Path, resumed_from: int):
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.record_writer import RecordWriter

        self.scalar, self.event = summary.scalar, Event
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.iterdir()))
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{number}"
        self.file, self.flushed = RecordWriter(str(folder / name)), time.monotonic()
        self._add(0, file_version="brain.Event:2")
        if resumed_from:
            self._add(resumed_from + 1, session_log=SessionLog(status=SessionLog.START))

    def _add(self, step: int, **content: Any) -> None:
        self.file.write(self.event(wall_time=time.time(), step=step, **content).SerializeToString())

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds every value as a scalar."""
        for name, value in values.items():
            self._add(step, summary=self.scalar(name, value))
        if time.monotonic() - self.flushed > FLUSH_SECONDS:
            self.flushed = time.monotonic()
            self.file.flush()

    def close(self) -> None:
        """Flushes and closes."""
        try:
            self.file.flush()
        finally:
            self.file.close()


class ResilientWriter:
    """A writer whose disk never stops a run: write failures are logged once, and the writer is opened again for the next record.

    Only errors of files are caught. `open_writer` takes the step after which earlier records are void. ModuleNotFoundError if it
    needs a missing package.
    """

    def __init__(self, name: str, open_writer: Callable[[int], Writer], resumed_from: int):
        self.name, self.open_writer, self.last = name, open_writer, resumed_from
        self.writer: Writer | None = None
        self.reported = False
        self._carefully(self._open)

    def _open(self) -> Writer:
        self.writer = self.writer or self.open_writer(self.last)
        return self.writer

    def _carefully(self, action: Callable[[], Any]) -> bool:
        try:
            action()
            return True
        except (OSError, UnicodeError) as error:  # disks and what lies on them; an error in our own code ends the run
            if not self.reported:
                log.warning(
                    "%s cannot be written (%s): training continues without it, and it is retried at every log",
                    self.name,
                    error,
                )
            self.reported = True
            broken, self.writer = self.writer, None
            with contextlib.suppress(OSError):
                if broken is not None:
                    broken.close()
            return False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes a record, or logs the failure."""
        if self._carefully(lambda: self._open().write(step, values)):
            self.last = step

    def close(self) -> None:
        """Closes the writer; a failure is logged."""
        if self.writer is not None:
            self._carefully(self.writer.close)


DATA_BOUND = 0.05
"""Share of the time spent waiting for rows from which a run is data-bound: the host fetches a step ahead, so its devices idle."""


def progress_line(step: int, steps: int, values: Mapping[str, float]) -> str:
    """Formats a training record as one line for the terminal."""
    parts = [f"step {step:,}/{steps:,}"]
    metrics = {name.removeprefix("train/"): value for name, value in values.items() if name.startswith("train/")}
    parts += [f"{name[:-5]} {value:.3f}" for name, value in metrics.items() if name.endswith("/loss")]
    parts += [f"{name[:-9]} acc {value:.1%}" for name, value in metrics.items() if name.endswith("/accuracy")]
    if values.get("train/skipped"):
        parts.append(f"{values['train/skipped']:.0f} skipped (not finite)")
    if "speed/tokens_per_s" in values:
        parts.append(f"{values['speed/tokens_per_s']:,.0f} tokens/s")
    if "speed/data_wait" in values:
        wait = values["speed/data_wait"]
        parts.append(f"data wait {wait:.0%} ({'data' if wait > DATA_BOUND else 'compute'}-bound)")
    for name, label in (("speed/mfu", "MFU"), ("speed/goodput", "goodput")):
        parts += [f"{label} {values[name]:.0%}"] if name in values else []
    if "speed/eta_s" in values:
        parts.append(f"ETA {format_duration(values['speed/eta_s'])}")
    return "  ".join(parts)


class Terminal:
    """A bar of the steps with the newest metrics on a terminal, plain lines elsewhere; evaluations and notes stay on the screen.

    Process 0 alone writes. Raises nothing when nobody reads any more (a closed terminal, a launcher that was killed).
    """

    SELDOM = 60.0
    """Seconds between plain lines of progress once the first record is there: records are printed too."""

    def __init__(self, steps: int = 0):
        self.steps = steps
        # mpirun gives a process a terminal of its own and writes what appears there into a file
        terminal = False if jax.process_count() > 1 else None
        self.console = rich.console.Console(highlight=False, quiet=jax.process_index() > 0, force_terminal=terminal)
        self.live = self.console.is_terminal
        self.opening: Progress | None = None
        """Bar of a phase before the training."""
        self.progress: Progress | None = None
        """Bar of the training, from its first step on."""
        self.running = collections.deque[tuple[int, jax.Array]]()

    def _open(self, name: str, total: int | None = None, unit: str = "", done: int = 0, text: str = "") -> Progress:
        return Progress(
            name, total, unit, done=done, text=text, console=self.console, stream=sys.stdout, update=self._finished
        )

    @contextlib.contextmanager
    def phase(self, name: str, done: str = "") -> Iterator[None]:
        """Displays the name of work with its seconds while a `with` block does it; prints `done` with them at the end.

        Work of less than a second leaves no line.
        """
        if self.console.quiet:
            yield
            return
        began = time.monotonic()
        if self.progress is None:
            with self._open(name) as self.opening:
                yield
        else:
            self.progress.text = name
            try:
                yield
            finally:
                self.progress.text = ""
        if done and time.monotonic() - began >= Progress.SOON:
            self.note(f"{done} in {format_duration(time.monotonic() - began)}")

    def dispatched(self, step: int, metric: jax.Array) -> None:
        """Takes a step that the devices have begun: it counts as done when its metric is ready. Waits for nothing."""
        if self.console.quiet:
            return
        if self.progress is None:
            self.progress = self._open("training", self.steps, "steps", step - 1)
            self.progress.__enter__()
        self.running.append((step, metric))

    def _finished(self, progress: Progress) -> None:
        # on the thread of the bar: the host runs ahead of the devices, so dispatched steps say nothing
        while self.running and self.running[0][1].is_ready():  # pyright: ignore[reportAttributeAccessIssue]
            progress.done = self.running.popleft()[0]

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Displays a training record, or prints held-out results."""
        held_out = {name: value for name, value in values.items() if name.startswith("eval/")}
        if held_out:
            listed = "  ".join(f"{name[5:]} {value:.4f}" for name, value in held_out.items())
            self.note(f"step {step:,}  held-out  {listed}")
            return
        line = progress_line(step, self.steps, values)
        if self.progress is not None:
            self.progress.below, self.progress.seldom = line, self.SELDOM
        if not self.live:
            with contextlib.suppress(OSError):
                print(line, flush=True)
            if self.progress is not None:
                self.progress.printed()

    def note(self, text: str) -> None:
        """Prints a line that stays."""
        with contextlib.suppress(OSError, SystemExit):  # rich turns a broken pipe into SystemExit
            self.console.print(text, soft_wrap=True, markup=False)

    def close(self) -> None:
        """Ends the bar, also in the middle of a phase; the last line stays on the screen."""
        for each in filter(None, (self.opening, self.progress)):
            each.__exit__()
        self.opening = self.progress = None


def utilisation(tflops: float) -> dict[str, float]:
    """{"speed/mfu": ...}, the model's FLOPs over the data sheet's peak of all devices; {} for an unknown device kind."""
    peak = peak_flops(jax.devices()[0].device_kind)
    return {} if peak is None else {"speed/mfu": tflops * 1e12 / (peak * jax.device_count())}


def memory_values() -> dict[str, float]:
    """Peak memory in GiB of this process and of its first device (if the device reports it)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    values = {"memory/host_peak_gib": peak / 2**30}
    device = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in device:
        values["memory/device_peak_gib"] = device["peak_bytes_in_use"] / 2**30
    return values


KEY = "window"  # in the meta of a checkpoint, with the entries of version 0.1: "shown" are the metrics
Stored = dict[str, Any]


class MetricsWindow:
    """Losses, speed and batch statistics since the last log record."""

    def __init__(self, meta: Mapping[str, Any] | None = None) -> None:
        """`meta` of a checkpoint holds the steps that were not logged when it was saved; 0.1 stored none."""
        self.before: Stored = dict((meta or {}).get(KEY, {"names": [], "shown": [], "statistics": []}))
        """Steps that an earlier process trained, as `meta` returns them; they do not count for speed."""
        self.metrics: list[dict[str, Any]] = []
        self.statistics: list[dict[str, float]] = []
        self.flops = 0.0

    def meta(self) -> dict[str, Any]:
        """Returns the steps so far, as entries of a checkpoint's meta. Floats keep their bits: JSON writes all their digits."""
        if not self.metrics and not self.before["shown"]:
            return {}
        fetched = jax.device_get(self.metrics)
        named = [_named(entry) for entry in fetched]
        metrics = [[each.item() for each in entry.values()] for entry in named]
        statistics = self.statistics[: len(metrics)]  # the batch of the next step is here already
        return {
            KEY: {
                "names": list(named[-1]) if named else self.before["names"],
                "shown": [*self.before["shown"], *metrics],
                "statistics": [*self.before["statistics"], *statistics],
            }
        }

    def all_metrics(self, fetched: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the metrics of every step: those that a checkpoint held, with the types of `fetched`, then `fetched`."""
        newest = _named(fetched[-1])
        if list(newest) != self.before["names"]:  # none, or stored by a version with other metrics
            return fetched
        structure = jax.tree.structure(fetched[-1])
        types = [each.dtype for each in newest.values()]
        return [structure.unflatten(map(np.asarray, entry, types)) for entry in self.before["shown"]] + fetched

    def record(self, metrics: list[dict[str, Any]], left: int, seconds: float) -> dict[str, float]:
        """Summarises the window, from `metrics` of `all_metrics`, the steps `left` in the run and the seconds that it took.

        Losses and norm cover the steps whose update was applied; without any, both are absent.
        """
        own = len(self.statistics)
        values: dict[str, float] = {}
        done = [entry for entry in metrics if not entry["skipped"]]
        for name in metrics[0]["means"] if done else ():
            means = [Mean(*entry["means"][name]) for entry in done]
            values[f"train/{name}"] = Mean(sum(m.total for m in means), sum(m.count for m in means)).value()
        if done:
            values["train/gradient_norm"] = float(np.mean([entry["gradient_norm"] for entry in done]))
        values["train/learning_rate"] = float(metrics[-1]["learning_rate"])
        values["train/skipped"] = float(len(metrics) - len(done))
        # `metrics` may begin with steps of an earlier process: they count for losses and statistics, but not for speed
        statistics = [*self.before["statistics"], *self.statistics] if len(metrics) > own else self.statistics
        for name in self.statistics[0]:
            values[f"data/{name}"] = float(np.mean([entry[name] for entry in statistics]))
        tokens = sum(entry["tokens"] for entry in self.statistics) * jax.process_count()
        values["speed/tokens_per_s"] = tokens / seconds
        values["speed/steps_per_s"] = own / seconds
        values["speed/step_ms"] = 1000 * seconds / own
        values["speed/model_tflops"] = self.flops * jax.process_count() / seconds / 1e12
        values |= utilisation(values["speed/model_tflops"])
        values["speed/eta_s"] = left * seconds / own
        return values | memory_values()


def _named(entry: dict[str, Any]) -> dict[str, np.ndarray]:
    """Metrics of one step by the paths of their names, in the order of `jax.tree.leaves`."""
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(entry)}
