"""The loop, in plain sight: batch, step, log, evaluate, save, stop.

Order within a step is law: (1) the update, (2) the batch of the next step, (3) the log of the step before, (4) evaluation,
(5) the checkpoint, (6) a request to stop. A run that is killed anywhere and started again does the same updates on the same
batches.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from spanjax.data.batch import Batch
from spanjax.distributed import ProcessesMissing, name_of
from spanjax.parallel import to_global
from spanjax.training.checkpoint import Checkpoints
from spanjax.training.guard import NonFiniteError, Watch
from spanjax.training.judging import Judged
from spanjax.training.metrics import Terminal, Writer
from spanjax.training.recording import Profile, Recording
from spanjax.training.saved import SaveError, first_line
from spanjax.training.saving import Saving
from spanjax.training.stalls import DEVICES, EVALUATION, ROWS, SAVING, STEP, Pulse
from spanjax.training.state import TrainState
from spanjax.training.stopping import StopRequest
from spanjax.training.window import Window

# Several processes ask each other only so often whether a save has ended: each time is a rendezvous at the coordinator, and no
# process may decide alone. Chosen, not measured: a finished save is noticed up to nine steps late, which delays nothing.
SETTLE_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Cadence:
    """How often things happen, in steps."""

    log_every: int = 20
    """Steps between records of losses and speed."""
    eval_every: int = 1000
    """Steps between evaluations on the held-out rows; 0 evaluates only at the end."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; the end is always saved."""
    keep: int = 3
    """Newest checkpoints that are kept, besides the best one."""
    retry_save_steps: int = 100
    """Steps after which a checkpoint that could not be written (a full disk) is tried again."""
    eval_batches: int = 0
    """Held-out batches per evaluation; 0 takes all of them."""
    patience: int = 0
    """Evaluations in a row that are no better than the best, after which the run ends early; 0 goes on to the end."""

    def problems(self) -> list[str]:
        """What is wrong with these values, in words; empty when nothing is."""
        lowest = {"log_every": 1, "eval_every": 0, "checkpoint_every": 1, "keep": 1, "eval_batches": 0}
        lowest |= {"retry_save_steps": 1, "patience": 0}
        return [
            f"cadence.{name} is {getattr(self, name)}: expected at least {low}"
            for name, low in lowest.items()
            if getattr(self, name) < low
        ]


@dataclasses.dataclass(frozen=True)
class Loop:
    """Everything `fit` needs besides the state."""

    mesh: Mesh
    steps: int
    cadence: Cadence
    train_step: Callable[[TrainState, Mapping[str, jax.Array]], tuple[TrainState, dict[str, Any]]]
    evaluate: Callable[[Any], dict[str, float]]
    """Parameters -> held-out numbers. Empty when there are no held-out rows."""
    judge: Callable[[Mapping[str, float]], float | None]
    """Held-out numbers -> what the best checkpoint has least of; None where there are none."""
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
    """Looks after updates that are left out."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: TrainState
    step: int
    interrupted: bool
    held_out: dict[str, float]
    best: tuple[int, float] | None = None
    """Step and value of the best evaluation, as `Loop.judge` sees it."""


class Log:
    """Windows that have ended and are not written yet: a step later the devices are at work while their numbers are fetched."""

    def __init__(self, loop: Loop, pulse: Pulse):
        self.loop, self.pulse, self.window, self.ended = loop, pulse, Window(), list[tuple[int, Window]]()
        self.since = time.perf_counter()
        self.waited = self.handed = 0.0  # seconds of waiting for rows and of handing work over, since then

    def end(self, step: int) -> None:
        """The window ends with this step."""
        self.ended.append((step, self.window))
        self.window = Window()

    def write(self, before: int) -> None:
        """Writes the windows that ended before this step, waiting for the devices to finish them."""
        while self.ended and self.ended[0][0] < before:
            step, window = self.ended.pop(0)
            self.pulse.at(DEVICES, step)
            shown = jax.device_get(window.shown)
            now = time.perf_counter()
            self._look(step, shown)
            values = window.record(shown, self.loop.steps - step, now - self.since)
            shares = {"data_wait": self.waited, "host": self.handed}
            values |= {f"speed/{name}": spent / (now - self.since) for name, spent in shares.items()}
            _write(self.loop, step, values)
            self.since, self.waited, self.handed = now, 0.0, 0.0

    def _look(self, step: int, shown: list[dict[str, Any]]) -> None:
        try:
            self.loop.watch.look(step, shown)
        except NonFiniteError:
            with contextlib.suppress(SaveError):
                self.loop.checkpoints.finish()
            raise


def fit(loop: Loop, state: TrainState, start: int) -> Outcome:
    """Trains from step `start` to the end, or until asked to stop; the state is saved either way.

    ProcessesMissing where a step failed because another process is gone.
    """
    with StopRequest(start) as stop, Pulse(loop.watch.guard) as pulse:
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
    """The steps. The host is a step ahead of the devices: it hands a step over, fetches the next batch and sends it on its way,
    and then writes the log of the step before.
    """
    log, held_out = Log(loop, pulse), {}
    saving = Saving(loop.checkpoints, loop.meta, loop.cadence.checkpoint_every, loop.cadence.retry_save_steps)
    recording = Recording(loop.profile, loop.profile_folder)
    judged = Judged(loop.checkpoints.meta(start), start, loop.cadence.patience)
    steps = range(start, start if judged.over else loop.steps)
    feed = loop.open_feed(start) if steps else iter(())
    batch = _next_batch(loop, feed, start, log) if steps else {}
    for step in steps:
        done, last = step + 1, step + 1 == loop.steps
        recording.before(step - start, state)
        began = time.perf_counter()
        pulse.at(STEP, done)
        state, shown = loop.train_step(state, batch)
        log.window.shown.append(shown)
        log.handed += time.perf_counter() - began
        if done % loop.cadence.log_every == 0 or last:
            log.end(done)
        if not last:
            batch = _next_batch(loop, feed, done, log)
        log.write(before=done)

        evaluating = last or (loop.cadence.eval_every and done % loop.cadence.eval_every == 0)
        stopping = stop.agreed(done) and not last
        if jax.process_count() == 1 or done % SETTLE_STEPS == 0:
            saving.settle(done)
        due = last or stopping or saving.due(done)
        if not (evaluating or due):
            continue
        log.write(before=done + 1)
        pulse.at(DEVICES, done)
        jax.block_until_ready(shown)
        paused, loss = time.perf_counter(), None
        if evaluating:
            pulse.at(EVALUATION, done)
            held_out = _evaluate(loop, done, state)
            loss = loop.judge(held_out)
            judged.add(done, loss, held_out)
        early = judged.over and not last
        if due or early:
            pulse.at(SAVING, done)
            saving.meta = {**loop.meta, **judged.meta(done)}
            saving.save(state, done, loss, ends=last or stopping or early)
        log.since += time.perf_counter() - paused  # speeds are of training alone
        if stopping or early:
            recording.close(state)
            return Outcome(state, done, stopping, held_out, judged.best)
    recording.close(state)
    ended = loop.steps if steps else start
    if not held_out:  # the run was already finished when it started
        pulse.at(EVALUATION, ended)
        held_out = _evaluate(loop, ended, state)
    return Outcome(state, ended, False, held_out, judged.best)


def _next_batch(loop: Loop, feed: Iterator[Batch], step: int, log: Log) -> dict[str, jax.Array]:
    """The next batch, on its way to the devices; what it holds is noted in the window of the step that will use it."""
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


def _write(loop: Loop, step: int, values: Mapping[str, float]) -> None:
    for writer in (*loop.writers, *([loop.terminal] if loop.terminal else [])):
        writer.write(step, values)


def _evaluate(loop: Loop, step: int, state: TrainState) -> dict[str, float]:
    held_out = loop.evaluate(state.params)
    if held_out:
        _write(loop, step, {f"eval/{name}": value for name, value in held_out.items()})
    return held_out
