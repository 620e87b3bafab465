"""The loop with everything around it replaced by what notes when it is called."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
import signal
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.distributed import ProcessesMissing
from spanjax.objectives.base import Mean
from spanjax.sharding import MeshConfig, make_mesh
from spanjax.training import loop as loops
from spanjax.training.checkpoint_files import SaveError
from spanjax.training.eval_history import EvalHistory, stored_values
from spanjax.training.loop import Cadence, Outputs, fit
from spanjax.training.nonfinite import Guard, NonFiniteError
from spanjax.training.preemption import StopRequest
from spanjax.training.profiler import Profile
from spanjax.training.state import TrainState

pytestmark = pytest.mark.unit


@dataclasses.dataclass
class Settings:
    """The settings that the loop reads."""

    steps: int
    cadence: Cadence
    guard: Guard = Guard()
    profile: Profile = Profile()


class Noted:
    """Every event of a run in its order, and the numbers that were logged. A session, its checkpoints and a writer."""

    run: Settings
    mesh: Any = None
    evaluate: Any = None
    check: Any = None

    def __init__(self) -> None:
        self.events: list[str] = []
        self.logged: dict[int, dict[str, float]] = {}
        self.losses: list[float] = []
        self.metas: dict[int, dict[str, Any]] = {}

    def feed(self, start: int) -> Iterator[Any]:
        for step in range(start, 1000):
            self.events.append(f"batch {step + 1}")
            yield {"segments_BL": np.full((4, 2), 1), "number_B": np.full(4, step + 1)}

    def open_step(self, start: int) -> Any:
        return self.train_step

    def evaluator(self) -> Any:
        return self.evaluate or (lambda params, between: {"loss": self.losses.pop(0) if self.losses else 1.0})

    def probes(self, weights: Any) -> dict[str, float]:
        self.events.append("probes")
        return {"probe/tags": 50.0}

    def selection_metric(self, values: dict[str, float]) -> float | None:
        return values.get("loss")

    def statistics(self, batch: Any) -> dict[str, float]:
        return {}

    def flops(self, batch: Any) -> float:
        return 1.0

    def batch_rows(self, number: int) -> list[int]:
        return []

    def check_data(self, seconds: float) -> None:
        if self.check:
            self.check(seconds)

    def train_step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Any]]:
        number = int(batch["number_B"][0])
        assert number == int(state.step) + 1
        self.events.append(f"step {number}")
        means = {"mlm/loss": Mean(jnp.float32(number), jnp.float32(1))}
        shown = {"means": means, "gradient_norm": jnp.float32(1), "learning_rate": jnp.float32(number)}
        shown["skipped"] = jnp.int32(0)
        return TrainState(state.step + 1, {}, {}), shown

    def write(self, step: int, values: dict[str, float]) -> None:
        self.events.append(f"{'held out' if 'eval/loss' in values else 'log'} {step}")
        self.logged.setdefault(step, {}).update(values)

    def save(self, state: TrainState, step: int, meta: Any, loss: float | None) -> None:
        assert int(state.step) == step
        self.metas[step] = meta
        self.events.append(f"save {step}")

    def meta(self, step: int) -> dict[str, Any]:
        return self.metas.get(step, {})

    def add_evaluation(self, step: int, found: Any, loss: float | None) -> None:
        self.metas[step] = {**self.metas.get(step, {}), **found}

    def check_lease(self) -> None: ...

    def pending(self) -> bool:
        return False

    def wait(self) -> bool:
        return True

    def busy(self) -> bool:
        return False

    def finish(self) -> None:
        self.events.append("finish")


def run(
    steps: int,
    cadence: Cadence,
    noted: Noted,
    start: int = 0,
    evaluate: Any = None,
    leave: Any = None,
    check: Any = None,
    terminal: Any = None,
) -> loops.Outcome:
    defaults = {name: 1000 for name in ("eval_every", "checkpoint_every") if getattr(cadence, name) == loops.AUTO}
    cadence = dataclasses.replace(cadence, **defaults)
    noted.run, noted.mesh = Settings(steps, cadence), make_mesh(MeshConfig())
    noted.evaluate, noted.check = evaluate, check
    outputs = Outputs(pathlib.Path("missing"), noted, {}, (noted,), terminal)  # pyright: ignore[reportArgumentType]
    with StopRequest(leave) as stop:
        return fit(noted, TrainState(jnp.int32(start), {}, {}), outputs, stop)  # pyright: ignore[reportArgumentType]


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_next_batch_and_log_come_while_a_step_runs() -> None:
    noted = Noted()
    outcome = run(5, Cadence(log_every=2, eval_every=0, checkpoint_every=100), noted)
    assert noted.events == [
        *("batch 1", "step 1", "batch 2", "step 2", "batch 3"),
        *("step 3", "batch 4", "log 2", "step 4", "batch 5"),
        *("step 5", "log 4", "log 5", "save 5", "finish", "held out 5"),
    ]
    assert outcome.step == 5 and not outcome.interrupted
    assert [noted.logged[step]["train/mlm/loss"] for step in (2, 4, 5)] == [1.5, 3.5, 5.0]
    assert [noted.logged[step]["train/learning_rate"] for step in (2, 4, 5)] == [2, 4, 5]


def test_probes_come_with_an_evaluation_at_their_own_steps_and_at_the_end() -> None:
    noted = Noted()
    outcome = run(5, Cadence(log_every=20, eval_every=0, checkpoint_every=100, probe_every=2), noted)
    assert [event for event in noted.events if event.startswith(("probes", "held out"))] == [
        *("probes", "held out 2", "probes", "held out 4", "probes", "held out 5")
    ]
    assert outcome.held_out == {"loss": 1.0, "probe/tags": 50.0}
    assert noted.logged[4]["eval/probe/tags"] == 50.0
    without = Noted()
    run(5, Cadence(log_every=20, eval_every=2, checkpoint_every=100), without)
    assert "probes" not in without.events


class Screen:
    """A terminal that notes what it is given."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.steps: list[int] = []
        self.lines: dict[int, dict[str, float]] = {}

    @contextlib.contextmanager
    def phase(self, name: str, done: str = "") -> Iterator[None]:
        self.phases.append(name)
        yield

    def dispatched(self, step: int, metric: Any) -> None:
        assert float(metric) == step  # the learning rate of `Noted`
        self.steps.append(step)

    def write(self, step: int, values: dict[str, float]) -> None:
        self.lines[step] = values


def test_the_terminal_alone_gets_the_first_steps_early() -> None:
    noted, screen = Noted(), Screen()
    run(8, Cadence(log_every=20, eval_every=0), noted, start=1, terminal=screen)
    assert screen.steps == [2, 3, 4, 5, 6, 7, 8]
    assert screen.phases == ["compiling", "reading the first rows", "compiling", "evaluating"]
    (values,) = screen.lines.values()
    assert [*screen.lines] == [6] and values["train/mlm/loss"] == 4.5  # of the steps 3 to 6: the first may compile
    assert {name for name in values if not name.startswith("train/")} == {"speed/tokens_per_s", "speed/eta_s"}
    assert [step for step, found in noted.logged.items() if "train/mlm/loss" in found] == [8]
    assert noted.logged[8]["train/mlm/loss"] == 5.0, "the record has all steps"


def test_only_the_first_steps_have_an_early_line() -> None:
    screen = Screen()
    run(30, Cadence(log_every=10, eval_every=0), Noted(), terminal=screen)
    assert [*screen.lines] == [5]


@pytest.mark.parametrize(("log_every", "steps"), [(1, 9), (5, 9), (6, 9), (20, 5)])
def test_no_early_line_where_the_log_comes_as_early(log_every: int, steps: int) -> None:
    screen = Screen()
    run(steps, Cadence(log_every=log_every, eval_every=0), Noted(), terminal=screen)
    assert screen.lines == {}


def test_a_log_is_written_before_its_step_is_evaluated_or_saved() -> None:
    noted = Noted()
    run(4, Cadence(log_every=1, eval_every=2, checkpoint_every=3), noted)
    for step, later in ((2, "held out 2"), (3, "save 3"), (4, "held out 4")):
        assert noted.events.index(f"log {step}") < noted.events.index(later)
    assert [event for event in noted.events if event.startswith("log")] == [f"log {step}" for step in range(1, 5)]


def test_going_on_takes_the_batches_from_there() -> None:
    noted = Noted()
    run(4, Cadence(log_every=10), noted, start=2)
    assert noted.events == ["batch 3", "step 3", "batch 4", "step 4", "log 4", "save 4", "finish", "held out 4"]


def test_a_request_to_stop_saves_and_writes_no_half_window(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted()
    step = noted.train_step

    def stopped(state: TrainState, batch: Any) -> Any:
        if int(state.step) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(state, batch)

    monkeypatch.setattr(noted, "train_step", stopped)
    outcome = run(9, Cadence(log_every=2), noted)
    assert outcome.interrupted and outcome.step == 3
    assert noted.events[-4:] == ["batch 4", "log 2", "save 3", "finish"]


def test_a_stop_between_two_logs_changes_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps that were not logged yet are in the checkpoint, bit for bit; speeds are of this process alone."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(20, 4)).astype(np.float32)

    class Drawn(Noted):
        def train_step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Any]]:
            after, shown = super().train_step(state, batch)
            loss, accuracy, norm, rate = (jnp.float32(each) for each in draws[int(after.step)])
            means = {"mlm/loss": Mean(loss, jnp.float32(1)), "mlm/accuracy": Mean(accuracy, jnp.float32(3))}
            skipped = jnp.int32(int(after.step) == 5)
            return after, {"means": means, "gradient_norm": norm, "learning_rate": rate, "skipped": skipped}

    def record(step: int, noted: Noted) -> dict[str, float]:
        return {name: v for name, v in noted.logged[step].items() if not name.startswith(("speed/", "memory/"))}

    cadence = Cadence(log_every=7, eval_every=4, checkpoint_every=5)
    whole, parts = Drawn(), Drawn()
    run(16, cadence, whole)
    for start, end in ((0, 3), (3, 6), (6, 7), (7, 9), (9, 99)):
        monkeypatch.setattr(loops.StopRequest, "agreed", lambda self, step, end=end: step == end)
        if start:  # as JSON keeps it
            parts.metas[start] = json.loads(json.dumps(parts.metas[start]))
        outcome = run(16, cadence, parts, start=start)
    assert outcome.step == 16 and "window" not in parts.metas[7] and len(parts.metas[6]["window"]["shown"]) == 6
    assert [*whole.logged] == [*parts.logged] and {7, 14, 16} <= whole.logged.keys()
    for step in whole.logged:
        assert record(step, whole) == record(step, parts), step
    del parts.metas[9]["window"]  # of version 0.1
    old = Drawn()
    old.metas = parts.metas
    run(16, cadence, old, start=9)
    assert record(14, old) != record(14, whole) and record(16, old) == record(16, whole)


def test_speeds_leave_out_evaluation_and_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, clock = Noted(), [0.0]
    monkeypatch.setattr(loops.time, "perf_counter", lambda: clock[0])
    step, write = noted.train_step, noted.save

    def timed(state: TrainState, batch: Any) -> Any:
        clock[0] += 2.0
        return step(state, batch)

    def slow(*arguments: Any) -> None:
        clock[0] += 100.0
        write(*arguments)

    monkeypatch.setattr(noted, "train_step", timed)
    monkeypatch.setattr(noted, "save", slow)
    run(8, Cadence(log_every=4, eval_every=0, checkpoint_every=2), noted)
    assert [noted.logged[step]["speed/step_ms"] for step in (4, 8)] == [2000.0, 2000.0]
    assert [noted.logged[step]["speed/host"] for step in (4, 8)] == [
        1.0,
        1.0,
    ]  # handing over is all that takes time here


class Full(Noted):
    """A disk on which the saves of some steps fail: when they begin, or later, when it is asked what has become of them."""

    def __init__(self, at_once: set[int], later: set[int]):
        super().__init__()
        self.at_once, self.later, self.under_way = at_once, later, 0

    def save(self, state: TrainState, step: int, meta: Any, loss: float | None) -> None:
        super().save(state, step, meta, loss)
        if step in self.at_once:
            raise SaveError(pathlib.Path("run/checkpoints"), step, "No space left on device", [1])
        self.under_way = step

    def pending(self) -> bool:
        return bool(self.under_way)

    def finish(self) -> None:
        step, self.under_way = self.under_way, 0
        if step in self.later:
            raise SaveError(pathlib.Path("run/checkpoints"), step, "No space left on device", [])


def saves(noted: Noted) -> list[str]:
    return [event for event in noted.events if event.startswith("save")]


def test_parameters_that_are_not_finite_are_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update may be infinite where loss and gradient are not."""
    noted = Noted()
    step = noted.train_step

    def overflowing(state: TrainState, batch: Any) -> Any:
        after, shown = step(state, batch)
        return after._replace(params={"kernel": jnp.array([1.0, jnp.inf if int(after.step) > 4 else 2.0])}), shown

    monkeypatch.setattr(noted, "train_step", overflowing)
    with pytest.raises(NonFiniteError, match=r"step 6: parameters are not finite.*lower optimizer\.learning_rate"):
        run(9, Cadence(log_every=50, eval_every=0, checkpoint_every=3), noted)
    assert saves(noted) == ["save 3"]


def test_a_save_that_fails_is_said_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    noted = Full(at_once={4}, later={6})
    cadence = Cadence(log_every=50, eval_every=0, checkpoint_every=4, retry_save_steps=2)
    outcome = run(13, cadence, noted)
    # 6 fails after it has begun, which is seen at 7: the next regular one, 8, comes before another try would
    assert outcome.step == 13 and saves(noted) == ["save 4", "save 6", "save 8", "save 12", "save 13"]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "the checkpoint of step 4 could not be written to run/checkpoints: No space left on device; the newest good one is"
        " that of step 1; training continues, the next try is after step 6",
        "the checkpoint of step 6 could not be written to run/checkpoints: No space left on device; there is no good one"
        " yet; training continues, the next try is after step 8",
    ]


@pytest.mark.parametrize("kind", ["at_once", "later"])
def test_the_last_save_is_not_to_fail(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = {"at_once": set[int](), "later": set[int](), kind: {5}}
    with pytest.raises(SaveError, match="it (continues from step 1|starts again from step 0)"):
        run(5, Cadence(log_every=50), Full(**fails))
    noted = Full(**{"at_once": set[int](), "later": set[int](), kind: {3}})
    monkeypatch.setattr(loops.StopRequest, "agreed", lambda self, step: step == 3)
    with pytest.raises(SaveError, match="run the same command"):
        run(5, Cadence(log_every=50), noted)


def test_a_failure_of_before_does_not_end_a_run_whose_last_save_works() -> None:
    noted = Full(at_once=set(), later={4})
    assert run(5, Cadence(log_every=50, eval_every=0, checkpoint_every=4), noted).step == 5
    assert saves(noted) == ["save 4", "save 5"]


def test_a_run_ends_when_it_has_not_got_better_for_too_long() -> None:
    cadence = Cadence(eval_every=2, checkpoint_every=100, patience=2)
    noted = Noted()
    noted.losses = [3.0, 2.0, 2.5, 2.0, 1.0]
    outcome = run(50, cadence, noted)
    assert (outcome.step, outcome.interrupted, outcome.best) == (8, False, (4, 2.0))
    assert "save 8" in noted.events and noted.metas[8]["judged"] == [[2, 3.0], [4, 2.0], [6, 2.5], [8, 2.0]]
    assert stored_values(noted.metas[8]) == {"loss": 2.0}
    again = Noted()
    again.metas = noted.metas
    assert run(50, cadence, again, start=8).step == 8 and not any(event.startswith("step") for event in again.events)


def test_a_checkpoint_has_the_numbers_of_its_own_evaluation() -> None:
    noted = Noted()
    noted.losses = [3.0, 2.0, 1.5]
    run(6, Cadence(eval_every=2, checkpoint_every=1, keep=9), noted)
    assert [stored_values(noted.metas[step]) for step in range(1, 7)] == [
        *({}, {"loss": 3.0}, {}, {"loss": 2.0}, {}),
        {"loss": 1.5},
    ]
    judged = EvalHistory(noted.metas[6], 6, patience=0)
    judged.add(8, 1.0, {"loss": 1.0, "score/pearson": math.nan})
    assert stored_values(judged.meta(8)) == {"loss": 1.0}, "numbers that are none are left out"
    assert stored_values({"evaluated": 7}) == stored_values({"evaluated": {"loss": "low"}}) == {}


def test_patience_goes_on_where_the_run_does() -> None:
    """A run that was stopped after two evaluations ends where it would have ended."""
    cadence = Cadence(eval_every=1, checkpoint_every=2, patience=3)
    noted = Noted()
    noted.losses = [1.0, 2.0]
    noted.metas = {2: {"judged": [[1, 1.0], [2, 2.0]]}}
    noted.losses = [3.0, 3.0]
    assert run(50, cadence, noted, start=2).step == 4


def test_a_checkpoint_comes_before_the_evaluation_of_its_step() -> None:
    noted = Noted()
    run(4, Cadence(log_every=50, eval_every=2, checkpoint_every=2), noted)
    kept = [event for event in noted.events if event.startswith(("save", "held"))]
    assert kept == ["save 2", "held out 2", "save 4", "held out 4"]
    assert stored_values(noted.metas[2]) == {"loss": 1.0}, "its results are stored with it"


@pytest.mark.parametrize("saved", [True, False])
def test_a_stop_does_not_wait_for_an_evaluation(saved: bool) -> None:
    """The state is saved, before the evaluation or instead of its rest, and nothing of half an evaluation is kept."""
    noted, batches = Noted(), list[int]()

    def evaluate(params: Any, between: Any) -> dict[str, float]:
        for batch in range(100):
            between()
            batches.append(batch)
            if batch == 3:
                os.kill(os.getpid(), signal.SIGTERM)
        return {"loss": 1.0}

    outcome = run(9, Cadence(log_every=2, eval_every=4, checkpoint_every=4 if saved else 100), noted, evaluate=evaluate)
    assert outcome.interrupted and outcome.step == 4 and batches == [0, 1, 2, 3]
    assert noted.events[-2:] == ["save 4", "finish"] and "held out 4" not in noted.events
    assert "judged" not in noted.metas.get(4, {})


def test_a_stop_in_an_evaluation_saves_nothing_that_damaged_rows_have_trained() -> None:
    noted, damaged = Noted(), list[bool]()

    def evaluate(params: Any, between: Any) -> dict[str, float]:
        damaged.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)  # in which another thread would save and end the process
        between()
        return {"loss": 1.0}

    def check(seconds: float) -> None:
        if damaged:
            raise ValueError("rows-00000.bin is damaged")

    cadence = Cadence(log_every=2, eval_every=4, checkpoint_every=100)
    with pytest.raises(ValueError, match="is damaged"):
        run(9, cadence, noted, evaluate=evaluate, leave=lambda: noted.events.append("leave"), check=check)
    assert not {"save 4", "leave"} & {*noted.events}


def test_a_stop_asked_for_before_an_evaluation_leaves_it_out() -> None:
    noted = Noted()
    step = noted.train_step

    def stopped(state: TrainState, batch: Any) -> Any:
        if int(state.step) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(state, batch)

    noted.train_step = stopped  # pyright: ignore[reportAttributeAccessIssue]
    outcome = run(9, Cadence(log_every=2, eval_every=4, checkpoint_every=4), noted)
    assert outcome.interrupted and outcome.step == 4 and noted.events[-2:] == ["save 4", "finish"]


def test_an_evaluation_that_was_given_up_is_made_by_the_run_that_resumes() -> None:
    cadence = Cadence(log_every=50, eval_every=2, checkpoint_every=2)
    noted = Noted()
    noted.metas = {2: {}}
    run(4, cadence, noted, start=2)
    assert noted.events[:2] == ["held out 2", "batch 3"] and noted.metas[4]["judged"] == [[2, 1.0], [4, 1.0]]
    again = Noted()
    again.metas = {2: {"judged": [[2, 1.0]]}}
    run(4, cadence, again, start=2)
    assert again.events[0] == "batch 3", "one that took place is not made again"


def test_a_process_leaves_in_the_middle_of_an_evaluation_that_asks_nothing() -> None:
    """As where the main thread compiles: another one completes the save and ends the process."""
    noted, left = Noted(), threading.Event()

    def evaluate(params: Any, between: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        assert left.wait(20), "nobody ended the process"
        between()
        return {}

    def leave() -> None:
        noted.events.append("leave")
        left.set()

    cadence = Cadence(log_every=50, eval_every=2, checkpoint_every=100)
    run(4, cadence, noted, evaluate=evaluate, leave=leave)
    assert noted.events.index("save 2") < noted.events.index("leave")


def test_a_process_leaves_while_its_first_step_compiles() -> None:
    noted, left = Noted(), threading.Event()
    step = noted.train_step

    def compiling(state: TrainState, batch: Any) -> Any:
        if int(state.step) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            assert left.wait(20), "nobody ended the process"
        return step(state, batch)

    noted.train_step = compiling  # pyright: ignore[reportAttributeAccessIssue]
    run(4, Cadence(log_every=50), noted, leave=left.set)
    assert not any(event.startswith("save") for event in noted.events[: noted.events.index("step 1")])


def test_a_save_that_fails_keeps_a_process_from_leaving() -> None:
    noted, left = Full(at_once={2}, later=set()), list[int]()

    def evaluate(params: Any, between: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        between()
        return {}

    cadence = Cadence(log_every=50, eval_every=2, checkpoint_every=100)
    with pytest.raises(SaveError):
        run(4, cadence, noted, evaluate=evaluate, leave=lambda: left.append(1))
    assert not left


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        ([1], "after step 0: process 1 is gone (UNKNOWN: Gloo AllReduce failed: Read timeout); look"),
        ([], "after step 0: a collective failed, process 1 waits for rows (step 3) for 31 s (UNKNOWN: Gloo AllReduce"),
    ],
)
def test_a_failed_collective_is_missing_processes(
    silent: list[int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launchers start the run again, also where the process that did not come is alive."""

    def failed(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllReduce failed: Read timeout\nand more")

    def gone(watchdog: Any) -> list[int]:
        watchdog.blocked_by = "process 1 waits for rows (step 3) for 31 s"
        return silent

    monkeypatch.setattr(loops, "_fit", failed)
    monkeypatch.setattr(loops.Watchdog, "gone", gone)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr("spanjax.training.watchdog.put_mark", lambda *_: None)
    noted = Noted()
    noted.run = Settings(1, Cadence(eval_every=0, checkpoint_every=1))
    with pytest.raises(ProcessesMissing, match=re.escape(words)):
        fit(noted, None, None, None)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    with pytest.raises(jax.errors.JaxRuntimeError):  # one process has nobody to wait for
        fit(noted, None, None, None)  # pyright: ignore[reportArgumentType]


def test_damaged_rows_end_the_run_before_the_next_save() -> None:
    """Every save asks; the one of the last step waits for a check that still runs."""
    noted, waits = Noted(), []

    def check(seconds: float) -> None:
        waits.append(seconds)
        if noted.events[-1] == "log 4":
            raise ValueError("rows-00000.bin is damaged")

    with pytest.raises(ValueError, match=r"rows-00000\.bin is damaged"):
        run(6, Cadence(log_every=1, eval_every=0, checkpoint_every=2), noted, check=check)
    assert [event for event in noted.events if event.startswith("save")] == ["save 2"] and waits == [0.0, 0.0]
    noted, waits = Noted(), []
    run(3, Cadence(log_every=1, eval_every=0, checkpoint_every=2), noted, check=waits.append)
    assert waits == [0.0, loops.CHECK_SECONDS]


def test_goodput_is_the_share_of_time_in_steps_that_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take 3 s, batches 1 s, evaluations 10 s; one of the four updates is skipped."""
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(loops, "time", types.SimpleNamespace(perf_counter=lambda: clock.now))

    class Slow(Noted):
        def feed(self, start: int) -> Iterator[Any]:
            for batch in super().feed(start):
                clock.now += 1
                yield batch

        def train_step(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Any]]:
            clock.now += 3
            after, shown = super().train_step(state, batch)
            return after, {**shown, "skipped": jnp.int32(int(after.step) == 2)}

    def evaluate(params: Any, between: Any) -> dict[str, float]:
        clock.now += 10
        return {"loss": 1.0}

    noted = Slow()
    run(4, Cadence(log_every=2, eval_every=2, checkpoint_every=1000), noted, evaluate=evaluate)
    # the batch after a window's last step is fetched before that window is written
    first, last = (noted.logged[step] for step in (2, 4))
    assert first["speed/goodput"] == pytest.approx(0.5 * 6 / 9) and first["speed/data_wait"] == pytest.approx(3 / 9)
    assert last["speed/goodput"] == pytest.approx((3 + 6) / (9 + 10 + 7))
