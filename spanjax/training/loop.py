"""The loop, in plain sight: batch, step, log, save, stop, evaluate.

The order within a step is fixed: (1) the update, (2) the batch of the next step, (3) the log of the step before, (4) the
checkpoint, (5) a request to stop, (6) evaluation, whose results are stored with the checkpoint. A stop waits neither for an
evaluation nor for a compilation; the resumed run repeats an evaluation that was given up. A run that is killed anywhere and
restarted does the same updates on the same batches.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from spanjax.bounds import AtLeast0, AtLeast1, Derived0, Derived1, range_problems
from spanjax.data.feed.batch import Batch
from spanjax.distributed import ProcessesMissing, name_of
from spanjax.objectives.base import Mean
from spanjax.sharding import to_global
from spanjax.training.checkpoint import Checkpoints, Saving
from spanjax.training.checkpoint_files import SaveError, first_line
from spanjax.training.eval_history import Judged
from spanjax.training.metrics import Terminal, Writer, memory_values, utilisation
from spanjax.training.nonfinite import NonFiniteError, Watch
from spanjax.training.preemption import StopRequest
from spanjax.training.profiler import Profile, Recording
from spanjax.training.state import TrainState
from spanjax.training.watchdog import DEVICES, EVALUATION, ROWS, SAVING, STEP, Pulse

KEY = "window"  # in the meta of a checkpoint
Stored = dict[str, Any]


class Window:
    """Losses, speed and batch statistics since the last log record."""

    def __init__(self, meta: Mapping[str, Any] | None = None) -> None:
        """`meta` of a checkpoint holds the steps that were not logged when it was saved; 0.1 stored none."""
        self.before: Stored = dict((meta or {}).get(KEY, {"names": [], "shown": [], "statistics": []}))
        """Steps that an earlier process trained, as `meta` returns them; they do not count for speed."""
        self.shown: list[dict[str, Any]] = []
        self.statistics: list[dict[str, float]] = []
        self.flops = 0.0

    def meta(self) -> dict[str, Any]:
        """Returns the steps so far, as entries of a checkpoint's meta. Floats keep their bits: JSON writes all their digits."""
        if not self.shown and not self.before["shown"]:
            return {}
        fetched = jax.device_get(self.shown)
        named = [_named(entry) for entry in fetched]
        shown = [[each.item() for each in entry.values()] for entry in named]
        statistics = self.statistics[: len(shown)]  # the batch of the next step is here already
        return {
            KEY: {
                "names": list(named[-1]) if named else self.before["names"],
                "shown": [*self.before["shown"], *shown],
                "statistics": [*self.before["statistics"], *statistics],
            }
        }

    def all_shown(self, fetched: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the metrics of every step: those that a checkpoint held, with the types of `fetched`, then `fetched`."""
        newest = _named(fetched[-1])
        if list(newest) != self.before["names"]:  # none, or stored by a version with other metrics
            return fetched
        structure = jax.tree.structure(fetched[-1])
        types = [each.dtype for each in newest.values()]
        return [
            *(structure.unflatten(map(np.asarray, entry, types)) for entry in self.before["shown"]),
            *fetched,
        ]

    def record(self, shown: list[dict[str, Any]], left: int, seconds: float) -> dict[str, float]:
        """Summarises the window, from `shown` of `all_shown`, the steps `left` in the run and the seconds that it took.

        Losses and norm cover the steps whose update was applied; without any, both are absent.
        """
        own = len(self.statistics)
        values: dict[str, float] = {}
        done = [entry for entry in shown if not entry["skipped"]]
        for name in shown[0]["means"] if done else ():
            means = [Mean(*entry["means"][name]) for entry in done]
            values[f"train/{name}"] = Mean(sum(m.total for m in means), sum(m.count for m in means)).value()
        if done:
            values["train/gradient_norm"] = float(np.mean([entry["gradient_norm"] for entry in done]))
        values["train/learning_rate"] = float(shown[-1]["learning_rate"])
        values["train/skipped"] = float(len(shown) - len(done))
        # `shown` may begin with steps of an earlier process: they count for losses and statistics, but not for speed
        statistics = [*self.before["statistics"], *self.statistics] if len(shown) > own else self.statistics
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


AUTO = -1  # of a setting: derived from the run's other settings
# Several processes ask each other only so often whether a save has ended: each time is a rendezvous at the coordinator, and no
# process may decide alone. Chosen, not measured: a finished save is noticed up to nine steps late, which delays nothing.
SETTLE_STEPS = 10
CHECK_SECONDS = 10.0  # a short run over few rows is over before their checksums are compared


@dataclasses.dataclass(frozen=True)
class Cadence:
    """Intervals of logs, evaluations and checkpoints, in steps."""

    log_every: AtLeast1 = 20
    """Steps between records of losses and speed."""
    eval_every: Derived0 = AUTO
    """Steps between evaluations on the held-out rows; 0 evaluates only at the end. -1: 1000; of a task, as many as
    objective.evaluations says."""
    checkpoint_every: Derived1 = AUTO
    """Steps between checkpoints; the end is always saved. -1: 1000; of a task, those between evaluations."""
    keep: AtLeast1 = 3
    """Newest checkpoints that are kept, in addition to the best one."""
    retry_save_steps: AtLeast1 = 100
    """Steps before a failed save (a full disk) is retried."""
    eval_batches: AtLeast0 = 0
    """Held-out batches per evaluation; 0 takes all of them."""
    patience: AtLeast0 = 0
    """Consecutive evaluations no better than the best after which the run stops early; 0 disables early stopping."""

    def problems(self) -> list[str]:
        """Returns a message for every problem of these values; empty if there is none."""
        return range_problems(self, "cadence.")


TrainStep = Callable[[TrainState, Mapping[str, jax.Array]], tuple[TrainState, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Loop:
    """Everything that `fit` needs in addition to the state."""

    mesh: Mesh
    steps: int
    cadence: Cadence
    open_step: Callable[[int], TrainStep]
    """The first step -> the training step, compiled for every batch that follows or by its first call."""
    evaluate: Callable[[Any, Callable[[], None]], dict[str, float]]
    """(parameters, a function to call between batches, which may raise) -> held-out metrics. Empty without held-out rows."""
    judge: Callable[[Mapping[str, float]], float | None]
    """Held-out metrics -> checkpoint-selection metric, lower is better; None if there is none."""
    open_feed: Callable[[int], Iterator[Batch]]
    """The first step -> this process's rows of every batch from there on."""
    statistics: Callable[[Batch], dict[str, float]]
    """Numbers about a batch: fill, masked share, span length."""
    flops: Callable[[Batch], float]
    """Floating point operations of one step over this process's rows of a batch, by the formula of the objective."""
    checkpoints: Checkpoints
    meta: dict[str, Any]
    """Stored with every checkpoint."""
    writers: tuple[Writer, ...]
    terminal: Terminal | None
    profile: Profile = Profile()
    profile_folder: str = ""
    watch: Watch = Watch()
    """Reports skipped updates."""
    check_data: Callable[[float], None] = lambda seconds: None
    """(seconds to wait for a check that still runs): raises ValueError if the data are known to be damaged."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Passes a record to every writer."""
        for writer in (*self.writers, *([self.terminal] if self.terminal else [])):
            writer.write(step, values)

    def evaluates(self, step: int) -> bool:
        """Returns True if an evaluation is due after this step."""
        every = self.cadence.eval_every
        return step == self.steps or (every > 0 and step % every == 0)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    state: TrainState
    step: int
    interrupted: bool
    held_out: dict[str, float]
    best: tuple[int, float] | None = None
    """Step and value of the best evaluation, by `Loop.judge`."""


class Log:
    """Windows that have ended but are not written yet: a step later, the devices compute while the host fetches metrics."""

    def __init__(self, loop: Loop, pulse: Pulse, start: int):
        self.loop, self.pulse, self.ended = loop, pulse, list[tuple[int, Window]]()
        self.window = Window(loop.checkpoints.meta(start))
        self.since = time.perf_counter()
        self.waited = self.handed = 0.0  # seconds of waiting for rows and of dispatching work since then

    def end(self, step: int) -> None:
        """Ends the window with this step."""
        self.ended.append((step, self.window))
        self.window = Window()

    def write(self, before: int) -> None:
        """Writes the windows that ended before this step, waiting for the devices to finish them."""
        while self.ended and self.ended[0][0] < before:
            step, window = self.ended.pop(0)
            self.pulse.at(DEVICES, step)
            shown = window.all_shown(jax.device_get(window.shown))
            now = time.perf_counter()
            self._look(step, shown)
            values = window.record(shown, self.loop.steps - step, now - self.since)
            shares = {"data_wait": self.waited, "host": self.handed}
            values |= {f"speed/{name}": spent / (now - self.since) for name, spent in shares.items()}
            self.loop.write(step, values)
            self.since, self.waited, self.handed = now, 0.0, 0.0

    def _look(self, step: int, shown: list[dict[str, Any]]) -> None:
        try:
            self.loop.watch.look(step, shown)
        except NonFiniteError:
            with contextlib.suppress(SaveError):
                self.loop.checkpoints.finish()
            raise


class EvaluationStopped(Exception):
    """A stop request during an evaluation."""


class Evaluations:
    """The evaluations of one loop and their history."""

    def __init__(self, loop: Loop, stop: StopRequest, log: Log, saving: Saving, start: int):
        self.loop, self.stop, self.log, self.pulse, self.saving = loop, stop, log, log.pulse, saving
        self.history = Judged(loop.checkpoints.meta(start), start, loop.cadence.patience)
        self.held_out: dict[str, float] = {}
        """Metrics of the newest one."""

    def run(self, state: TrainState, step: int) -> bool:
        """Evaluates the state of this step; returns True if it gave up because of a stop request."""
        self.pulse.at(EVALUATION, step)
        if self.saving.newest != step:
            self.saving.meta = self.meta(step)  # a request to stop may save before the evaluation has ended

        def save() -> bool:
            try:
                self.loop.check_data(0.0)
            except ValueError:
                return False  # the loop stops at its next question, and raises it
            return self.saving.complete(state, step)

        # one of several processes cannot save alone: they may exit only if the state is saved already
        leavable = jax.process_count() == 1 or self.saving.newest == step
        try:
            with self.stop.leavable(save) if leavable else contextlib.nullcontext():
                self.held_out = self.loop.evaluate(state.params, self._ask)
        except EvaluationStopped:
            return True
        if not self.held_out:
            return False
        self.loop.write(step, {f"eval/{name}": value for name, value in self.held_out.items()})
        if not self.history.knows(step):  # a restarted finished run evaluates for its summary alone
            loss = self.loop.judge(self.held_out)
            self.history.add(step, loss, self.held_out)
            self.loop.checkpoints.add_evaluation(step, self.history.meta(step), loss)
        return False

    def meta(self, step: int) -> dict[str, Any]:
        """Returns a checkpoint's meta: that of the run, all evaluations so far, and steps that are not logged yet."""
        return {**self.loop.meta, **self.history.meta(step), **self.log.window.meta()}

    def _ask(self) -> None:
        if self.stop.requested():
            raise EvaluationStopped

    def missing(self, step: int) -> bool:
        """Returns True if the checkpoint of this step lacks its evaluation: the run ended before or during it."""
        return step > 0 and self.loop.evaluates(step) and not self.history.knows(step)


def fit(loop: Loop, state: TrainState, start: int, stop: StopRequest) -> Outcome:
    """Trains from step `start` to the end, or until asked to `stop`, which is open; saves the state either way.

    Raises ProcessesMissing if a step failed because another process is gone.
    """
    assert loop.cadence.eval_every >= 0 < loop.cadence.checkpoint_every, "the run has its defaults: run.with_defaults"
    with Pulse(loop.watch.guard) as pulse:
        try:
            return _fit(loop, state, start, stop, pulse)
        except jax.errors.JaxRuntimeError as error:
            gone = pulse.gone() if jax.process_count() > 1 else []
            if not gone:
                raise
            raise ProcessesMissing(
                f"after step {pulse.now[0]}: {' and '.join(map(name_of, gone))} is gone ({first_line(error)[:200]});"
                " look at the output there, and run the same command again on all"
            ) from error


def _fit(loop: Loop, state: TrainState, start: int, stop: StopRequest, pulse: Pulse) -> Outcome:
    """Runs the steps. The host is a step ahead of the devices: it dispatches a step, fetches the next batch and starts its
    transfer, and then writes the log of the step before.
    """
    log, recording = Log(loop, pulse, start), Recording(loop.profile, loop.profile_folder)
    saving = Saving(loop.checkpoints, loop.meta, loop.cadence.checkpoint_every, loop.cadence.retry_save_steps)
    saving.newest = start  # the initial state is on the disk, or the seed reproduces it
    evaluations = Evaluations(loop, stop, log, saving, start)
    history = evaluations.history

    def ended(step: int, interrupted: bool) -> Outcome:
        recording.close(state)
        return Outcome(state, step, interrupted, evaluations.held_out, history.best)

    if start == loop.steps or history.over or evaluations.missing(start):
        if evaluations.run(state, start):
            return ended(start, True)
        if start == loop.steps or history.over:
            return ended(start, False)
    with stop.leavable():  # nothing to lose before the first step, which may compile for minutes
        train_step, feed = loop.open_step(start), loop.open_feed(start)
        batch = _next_batch(loop, feed, start, log)
    for step in range(start, loop.steps):
        done, last = step + 1, step + 1 == loop.steps
        recording.before(step - start, state)
        with stop.leavable() if step == start else contextlib.nullcontext():
            state, shown = _dispatch(train_step, state, batch, done, log)
        if done % loop.cadence.log_every == 0 or last:
            log.end(done)
        if not last:
            batch = _next_batch(loop, feed, done, log)
        log.write(before=done)

        stopping = stop.agreed(done) and not last
        if jax.process_count() == 1 or done % SETTLE_STEPS == 0:
            saving.settle(done)
        evaluating, due = loop.evaluates(done), last or stopping or saving.due(done)
        if not (evaluating or due):
            continue
        log.write(before=done + 1)
        pulse.at(DEVICES, done)
        jax.block_until_ready(shown)
        paused = time.perf_counter()
        if due:
            _save(evaluations, state, done, ends=last or stopping)
        if stopping:
            return ended(done, True)
        if evaluating and evaluations.run(state, done):
            _save(evaluations, state, done, ends=True)
            return ended(done, True)
        if history.over and not last:
            _save(evaluations, state, done, ends=True)
            return ended(done, False)
        log.since += time.perf_counter() - paused  # speeds are of training alone
    return ended(loop.steps, False)


def _dispatch(
    train_step: TrainStep, state: TrainState, batch: Any, done: int, log: Log
) -> tuple[TrainState, dict[str, Any]]:
    """Passes a step to the devices without waiting for it."""
    began = time.perf_counter()
    log.pulse.at(STEP, done)
    state, shown = train_step(state, batch)
    log.window.shown.append(shown)
    log.handed += time.perf_counter() - began
    return state, shown


def _save(evaluations: Evaluations, state: TrainState, step: int, ends: bool) -> None:
    """Starts the save of this step unless it was started; waits for it if the run ends. ValueError if rows are damaged."""
    saving = evaluations.saving
    evaluations.pulse.at(SAVING, step)
    evaluations.loop.check_data(CHECK_SECONDS if step == evaluations.loop.steps else 0.0)
    if saving.newest != step:
        saving.meta = evaluations.meta(step)
        saving.save(state, step, evaluations.history.value(step), ends)
    elif ends:
        saving.checkpoints.finish()


def _next_batch(loop: Loop, feed: Iterator[Batch], step: int, log: Log) -> dict[str, jax.Array]:
    """Starts the transfer of the next batch; its statistics go into the window of the step that will use it."""
    asked = time.perf_counter()
    log.pulse.at(ROWS, step)
    rows = next(feed)
    log.pulse.at(STEP, step)
    got = time.perf_counter()
    log.waited += got - asked
    log.window.statistics.append({**loop.statistics(rows), "tokens": float(np.sum(rows["segments_BL"] > 0))})
    log.window.flops += loop.flops(rows)
    batch = to_global(rows, loop.mesh)
    log.handed += time.perf_counter() - got
    return batch
