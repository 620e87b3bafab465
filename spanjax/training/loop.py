"""The training loop: batch, step, log, save, stop, evaluate.

The order within a step is fixed: (1) the update, (2) the batch of the next step, (3) the log of the step before, (4) the
checkpoint, (5) a request to stop, (6) evaluation, whose results are stored with the checkpoint. A stop waits neither for an
evaluation nor for a compilation; the resumed run repeats an interrupted evaluation. A run that is killed anywhere and
restarted does the same updates on the same batches.
"""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import jax
import numpy as np
import tyro
from jax.sharding import Mesh

from spanjax.bounds import AtLeast0, AtLeast1, Derived0, Derived1
from spanjax.data.vocab.base import Vocabulary
from spanjax.distributed import ProcessesMissing
from spanjax.sharding import to_global
from spanjax.training.checkpoint_files import SaveError, first_line
from spanjax.training.eval_history import EvalHistory
from spanjax.training.metrics import MetricsWindow, Terminal, Writer
from spanjax.training.nonfinite import Guard, NonFiniteError, Watch
from spanjax.training.preemption import StopRequest
from spanjax.training.profiler import Profile, Recording
from spanjax.training.state import Outcome, TrainState
from spanjax.training.trackers import Tracking
from spanjax.training.watchdog import COMPILING, DEVICES, EVALUATION, ROWS, SAVING, STEP, Watchdog

if TYPE_CHECKING:
    # orbax takes a sixth of a second to import, which `train --help` would wait for
    from spanjax.training.checkpoint import Checkpoints, Saving

AUTO = -1  # of a setting: derived from the run's other settings
# Several processes ask each other only so often whether a save has ended: each time is a rendezvous at the coordinator, and no
# process may decide alone. Chosen, not measured: a finished save is noticed up to nine steps late, which delays nothing.
SETTLE_STEPS = 10
FIRST_STEPS = 5  # steps after which the terminal gets its first line of metrics
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
    probe_every: AtLeast0 = 0
    """Steps between evaluations that also compute the quick suite of `spanjax.evaluate suite`, in pretraining; 0: none."""
    probe_data: Annotated[str, tyro.conf.arg(metavar="FOLDER")] = ""
    """Data folder of that suite."""


TrainStep = Callable[[TrainState, Mapping[str, jax.Array]], tuple[TrainState, dict[str, Any]]]
Batch = Any
"""This process's rows of a batch: NumPy arrays by name, [batch_size / processes, ...]; each session has its own type."""
Evaluate = Callable[[Any, Callable[[], None]], dict[str, float]]


class Settings(Protocol):
    """Settings of a run that training reads; `spanjax.run.Run` has them."""

    @property
    def steps(self) -> int: ...
    @property
    def cadence(self) -> Cadence: ...
    @property
    def guard(self) -> Guard: ...
    @property
    def profile(self) -> Profile: ...
    @property
    def tracking(self) -> Tracking: ...
    @property
    def init_from(self) -> str: ...


class Session(Protocol):
    """A run whose data are open and whose settings are valid. `spanjax.experiment` has two: of pretraining and of a task.

    All processes call each method alike. None of them writes files.
    """

    @property
    def run(self) -> Settings:
        """Settings, with a number wherever they were to be derived."""
        ...

    @property
    def mesh(self) -> Mesh:
        """Mesh of all devices; the rows of a batch are split over it."""
        ...

    @property
    def abstract(self) -> TrainState:
        """Shapes, types and shardings of the state."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Facts about the data and derived settings, to print before training."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the tokens in the batches."""
        ...

    def identity(self) -> dict[str, Any]:
        """Returns extra entries of run.json, JSON values that identify the training data."""
        ...

    def about(self) -> dict[str, Any]:
        """Returns extra entries of a checkpoint's meta, JSON values: its kind, its data, the classes that are not spanjax's."""
        ...

    def resume_notes(self, workdir: str, stored: Mapping[str, Any]) -> list[str]:
        """Returns notes on what changes from here on in a run that resumes; `stored` is its run.json."""
        ...

    def initial_weights(self) -> Any:
        """Reads and checks the weights of `init_from`; None if the run samples all of its own. ValueError if they do not fit.

        They have `lines`, messages on the parameters that were loaded, sampled and skipped.
        """
        ...

    def fresh_state(self, weights: Any) -> TrainState:
        """Builds the state of step 0, sharded as `abstract`, with `weights` of `initial_weights`."""
        ...

    def open_step(self, start: int) -> TrainStep:
        """Returns (state, global batch) -> (state after one update, its metrics) for the batches from step `start` on.

        It is compiled already, or by its first call. The metrics are those of `StepBuilder.train_step`.
        """
        ...

    def feed(self, start: int) -> Iterator[Batch]:
        """Yields this process's rows of batch `start`, `start + 1`, ...

        ValueError if rows are damaged or have changed on the disk.
        """
        ...

    def statistics(self, batch: Batch) -> dict[str, float]:
        """Returns numbers for logs about this process's rows of a batch: fill, masked share, span length."""
        ...

    def flops(self, batch: Batch) -> float:
        """Returns the floating point operations of one step over these rows, forward and backward."""
        ...

    def batch_rows(self, number: int) -> list[int]:
        """Returns the indices of the rows of global batch `number`, of all processes."""
        ...

    def check_data(self, seconds: float) -> None:
        """Waits up to `seconds` for a check that still runs; ValueError if the data are known to be damaged."""

    def evaluator(self) -> Evaluate:
        """Builds (weights, a function to call between batches, which may raise) -> held-out metrics; {} without such data."""
        ...

    def probes(self, weights: Any) -> dict[str, float]:
        """Returns the figures of the quick suite; {} for a run that has none."""
        ...

    def selection_metric(self, values: Mapping[str, float]) -> float | None:
        """Returns the checkpoint-selection metric, lower is better, of held-out metrics; None if there is none."""
        ...

    def dry_run_lines(self) -> list[str]:
        """Describes the run before it starts: mesh, parameters, memory of the compiled step, steps, an example."""
        ...

    def summary_lines(self, outcome: "Outcome", workdir: str) -> list[str]:
        """Summarises a finished run: its results, an example, what to do next."""
        ...


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Destinations of a run's results."""

    workdir: pathlib.Path
    checkpoints: "Checkpoints"
    meta: dict[str, Any]
    """Stored with every checkpoint."""
    writers: Sequence[Writer]
    """Take the metrics; none on processes that do not write."""
    terminal: Terminal | None = None
    """Displays the progress of training."""

    def phase(self, name: str, done: str = "") -> contextlib.AbstractContextManager[None]:
        """Displays work that may take long, see `Terminal.phase`."""
        return contextlib.nullcontext() if self.terminal is None else self.terminal.phase(name, done)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Passes a record to every writer."""
        for writer in self.writers:
            writer.write(step, values)


class Log:
    """Windows that have ended but are not written yet: a step later, the devices compute while the host fetches metrics."""

    def __init__(self, session: Session, outputs: Outputs, watchdog: Watchdog, start: int):
        self.session, self.outputs, self.watchdog = session, outputs, watchdog
        self.start = start
        self.ended = list[tuple[int, MetricsWindow]]()
        folder = outputs.workdir if jax.process_index() == 0 else None
        self.watch = Watch(session.run.guard, folder, session.batch_rows)
        self.window = MetricsWindow(outputs.checkpoints.meta(start))
        self.shapes = set[tuple[int, ...]]()  # of the batches so far: the step is compiled for each
        self.first: float | None = None  # time at which the first step was done
        self.since = self.began = time.perf_counter()
        self.counted = 0.0  # seconds of steps whose update was applied, without waiting for rows
        self.waited = self.handed = 0.0  # seconds of waiting for rows and of dispatching work since then

    def end(self, step: int) -> None:
        """Ends the window with this step."""
        self.ended.append((step, self.window))
        self.window = MetricsWindow()

    def write(self, before: int) -> None:
        """Writes the windows that ended before this step, waiting for the devices to finish them."""
        while self.ended and self.ended[0][0] < before:
            step, window = self.ended.pop(0)
            self.watchdog.at(DEVICES, step)
            metrics = window.all_metrics(jax.device_get(window.metrics))
            now = time.perf_counter()
            self._look(step, metrics)
            values = window.record(metrics, self.session.run.steps - step, now - self.since)
            shares = {"data_wait": self.waited, "host": self.handed}
            values |= {f"speed/{name}": spent / (now - self.since) for name, spent in shares.items()}
            applied = 1 - sum(bool(entry["skipped"]) for entry in metrics) / len(metrics)
            self.counted += applied * (now - self.since - self.waited)
            values["speed/goodput"] = self.counted / (now - self.began)
            self.outputs.write(step, values)
            self.since, self.waited, self.handed = now, 0.0, 0.0

    def skip(self, seconds: float) -> None:
        """Leaves out seconds of an evaluation or a save: speeds are of training alone."""
        self.since += seconds
        self.first = None if self.first is None else self.first + seconds

    def display(self, step: int, metrics: dict[str, Any]) -> None:
        """Passes a dispatched step to the terminal; once also the metrics of the steps after the first, up to FIRST_STEPS.

        The first record may take minutes. Waits for a step before the newest dispatched one, as `write` does. The first step is
        no measure of speed.
        """
        window, terminal = self.window, self.outputs.terminal
        if terminal is not None:
            terminal.dispatched(step, metrics["learning_rate"])
        if terminal is None or window.before["shown"] or len(window.metrics) != step - self.start:
            return
        if len(window.metrics) == 2:
            jax.block_until_ready(window.metrics[0])
            self.first = time.perf_counter()
        elif len(window.metrics) == FIRST_STEPS + 1 and self.first is not None:
            early = MetricsWindow()
            early.metrics, early.statistics = (part[1:FIRST_STEPS] for part in (window.metrics, window.statistics))
            fetched, done = jax.device_get(early.metrics), step - 1
            values = early.record(fetched, self.session.run.steps - done, time.perf_counter() - self.first)
            known = ("speed/tokens_per_s", "speed/eta_s")
            terminal.write(done, {n: value for n, value in values.items() if n.startswith("train/") or n in known})

    def _look(self, step: int, metrics: list[dict[str, Any]]) -> None:
        try:
            self.watch.look(step, metrics)
        except NonFiniteError:
            with contextlib.suppress(SaveError):
                self.outputs.checkpoints.finish()
            raise


class EvaluationStopped(Exception):
    """A stop request during an evaluation."""


class Evaluations:
    """The evaluations of one run and their history."""

    def __init__(self, session: Session, outputs: Outputs, stop: StopRequest, log: Log, saving: "Saving", start: int):
        self.session, self.outputs, self.stop, self.log, self.saving = session, outputs, stop, log, saving
        self.evaluate = session.evaluator()
        self.history = EvalHistory(outputs.checkpoints.meta(start), start, session.run.cadence.patience)
        self.held_out: dict[str, float] = {}
        """Metrics of the newest one."""

    def run(self, state: TrainState, step: int) -> bool:
        """Evaluates the state of this step; returns True if it gave up because of a stop request."""
        self.log.watchdog.at(EVALUATION, step)
        if self.saving.newest != step:
            self.saving.meta = self.meta(step)  # a request to stop may save before the evaluation has ended

        def save() -> bool:
            try:
                self.session.check_data(0.0)
            except ValueError:
                return False  # the loop stops at its next question, and raises it
            return self.saving.complete(state, step)

        # one of several processes cannot save alone: they may exit only if the state is saved already
        leavable = jax.process_count() == 1 or self.saving.newest == step
        try:
            with (
                self.outputs.phase("evaluating"),
                self.stop.leavable(save) if leavable else contextlib.nullcontext(),
            ):
                self.held_out = self.evaluate(state.weights, self._ask)
                if self._probing(step):
                    self.held_out |= self.session.probes(state.weights)
        except EvaluationStopped:
            return True
        if not self.held_out:
            return False
        self.outputs.write(step, {f"eval/{name}": value for name, value in self.held_out.items()})
        if self.history.value(step) is None:  # a restarted finished run evaluates for its summary alone
            loss = self.session.selection_metric(self.held_out)
            self.history.add(step, loss, self.held_out)
            self.outputs.checkpoints.add_evaluation(step, self.history.meta(step), loss)
        return False

    def meta(self, step: int) -> dict[str, Any]:
        """Returns a checkpoint's meta: that of the run, all evaluations so far, and steps that are not logged yet."""
        return {**self.outputs.meta, **self.history.meta(step), **self.log.window.meta()}

    def _ask(self) -> None:
        if self.stop.requested():
            raise EvaluationStopped

    def due(self, step: int) -> bool:
        """Returns True if an evaluation is due after this step."""
        run = self.session.run
        evaluates = run.cadence.eval_every > 0 and step % run.cadence.eval_every == 0
        return step == run.steps or evaluates or self._probing(step)

    def _probing(self, step: int) -> bool:
        every = self.session.run.cadence.probe_every
        return every > 0 and (step % every == 0 or step == self.session.run.steps)

    def missing(self, step: int) -> bool:
        """Returns True if the checkpoint of this step lacks its evaluation: the run ended before or during it."""
        return step > 0 and self.due(step) and self.history.value(step) is None


def fit(session: Session, state: TrainState, outputs: Outputs, stop: StopRequest) -> Outcome:
    """Trains from the step of the state to the end, or until asked to `stop`, which is open; saves the state either way.

    SaveError if the last checkpoint cannot be saved, NonFiniteError after too many skipped updates, ValueError if rows are
    damaged, ProcessesMissing if a step failed because another process is gone, or did not come to a collective in time.
    """
    cadence = session.run.cadence
    assert cadence.eval_every >= 0 < cadence.checkpoint_every, "the run has its defaults: run.with_defaults"
    with Watchdog(session.run.guard) as watchdog:
        try:
            return _fit(session, state, outputs, stop, watchdog)
        except jax.errors.JaxRuntimeError as error:
            why = watchdog.failure_of_others(error)
            if not why:
                raise
            raise ProcessesMissing(
                f"after step {watchdog.now[0]}: {why} ({first_line(error)[:200]}); look at the output there, and run the same"
                " command again on all"
            ) from error


def _fit(session: Session, state: TrainState, outputs: Outputs, stop: StopRequest, watchdog: Watchdog) -> Outcome:
    """Runs the steps. The host is a step ahead of the devices: it dispatches a step, fetches the next batch and starts its
    transfer, and then writes the log of the step before.
    """
    from spanjax.training.checkpoint import Saving

    run, cadence, start = session.run, session.run.cadence, int(state.step)
    log, recording = Log(session, outputs, watchdog, start), Recording(run.profile, str(outputs.workdir / "profile"))
    saving = Saving(outputs.checkpoints, outputs.meta, cadence.checkpoint_every, cadence.retry_save_steps)
    saving.newest = start  # the initial state is on the disk, or the seed reproduces it
    evaluations = Evaluations(session, outputs, stop, log, saving, start)
    history = evaluations.history

    def ended(step: int, interrupted: bool) -> Outcome:
        recording.close(state)
        return Outcome(state, step, interrupted, evaluations.held_out, history.best)

    if start == run.steps or history.over or evaluations.missing(start):
        if evaluations.run(state, start):
            return ended(start, True)
        if start == run.steps or history.over:
            return ended(start, False)
    with stop.leavable():  # nothing to lose before the first step, which may compile for minutes
        train_step, feed, batch = _opened(session, outputs, start, log)
    for step in range(start, run.steps):
        done, last = step + 1, step + 1 == run.steps
        recording.before(step - start, state)
        with _compiling(stop, outputs) if step == start else contextlib.nullcontext():
            state, metrics = _dispatch(train_step, state, batch, done, log)
        if done % cadence.log_every == 0 or last:
            log.end(done)
        if not last:
            batch = _next_batch(session, feed, done, log)
        log.write(before=done)
        log.display(done, metrics)

        stopping = stop.agreed(done) and not last
        if jax.process_count() == 1 or done % SETTLE_STEPS == 0:
            saving.settle(done)
        evaluating, due = evaluations.due(done), last or stopping or saving.due(done)
        if not (evaluating or due):
            continue
        log.write(before=done + 1)
        watchdog.at(DEVICES, done)
        jax.block_until_ready(metrics)
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
        log.skip(time.perf_counter() - paused)
    return ended(run.steps, False)


def _opened(session: Session, outputs: Outputs, start: int, log: Log) -> tuple[TrainStep, Iterator[Batch], Any]:
    """The step function, the feed, and its first batch."""
    with outputs.phase("compiling", "compiled"):
        train_step = session.open_step(start)
    with outputs.phase("reading the first rows", "read the first rows"):
        feed = session.feed(start)
        return train_step, feed, _next_batch(session, feed, start, log)


@contextlib.contextmanager
def _compiling(stop: StopRequest, outputs: Outputs) -> Iterator[None]:
    """The first step, which may compile for minutes."""
    with stop.leavable(), outputs.phase("compiling", "compiled"):
        yield


def _dispatch(train_step: TrainStep, state: TrainState, batch: Any, done: int, log: Log) -> tuple[TrainState, Any]:
    """Passes a step to the devices without waiting for it."""
    began = time.perf_counter()
    shape = batch["segments_BL"].shape
    log.watchdog.at(STEP if shape in log.shapes else COMPILING, done)
    log.shapes.add(shape)
    state, metrics = train_step(state, batch)
    log.window.metrics.append(metrics)
    log.handed += time.perf_counter() - began
    return state, metrics


def _save(evaluations: Evaluations, state: TrainState, step: int, ends: bool) -> None:
    """Starts the save of this step unless it was started; waits for it if the run ends. ValueError if rows are damaged."""
    saving, session = evaluations.saving, evaluations.session
    evaluations.log.watchdog.at(SAVING, step)
    session.check_data(CHECK_SECONDS if step == session.run.steps else 0.0)
    if saving.newest != step:
        saving.meta = evaluations.meta(step)
        saving.save(state, step, evaluations.history.value(step), ends)
    elif ends:
        saving.checkpoints.finish()


def _next_batch(session: Session, feed: Iterator[Batch], step: int, log: Log) -> dict[str, jax.Array]:
    """Starts the transfer of the next batch; its statistics go into the window of the step that will use it."""
    asked = time.perf_counter()
    log.watchdog.at(ROWS, step)
    rows = next(feed)
    log.watchdog.at(STEP, step)
    got = time.perf_counter()
    log.waited += got - asked
    log.window.statistics.append({**session.statistics(rows), "tokens": float(np.sum(rows["segments_BL"] > 0))})
    log.window.flops += session.flops(rows)
    batch = to_global(rows, session.mesh)
    log.handed += time.perf_counter() - got
    return batch
