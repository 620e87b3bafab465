"""Progress of long work: nothing for short work, plain lines at intervals, a bar on a terminal; nothing is waited for."""

import io
import re
import sys
from collections.abc import Iterator

import jax
import pytest
import rich.console

from spanjax.cli import Progress, format_duration
from spanjax.training.metrics import Terminal

pytestmark = pytest.mark.unit


class Clock:
    """Time that stands until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread sleeps: the tests call `show`."""
    monkeypatch.setattr(Progress, "OFTEN", 1000.0)


@pytest.fixture
def screen() -> Iterator[rich.console.Console]:
    yield rich.console.Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def drawn(screen: rich.console.Console) -> list[str]:
    """Every line that was on a screen at some time, without the codes that move the cursor, each once."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())  # pyright: ignore[reportAttributeAccessIssue]
    return list(dict.fromkeys(line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()))


def test_plain_lines_come_at_intervals() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress("reading", 40, "batches", stream=out, clock=clock) as progress:
        progress.done = 10
        for clock.now in (101.0, 109.9, 110.0, 111.0, 119.9):
            progress.show()
        progress.done, progress.text = 20, "some words"
        progress.printed()
        for clock.now in (120.0, 129.8, 130.0):
            progress.show()
    assert out.getvalue().splitlines() == [
        "reading: 10 of 40 batches, 10s, 30s left",
        "reading: 20 of 40 batches, some words, 30s, 30s left",
    ]


def test_short_work_displays_nothing(screen: rich.console.Console) -> None:
    clock, out = Clock(), io.StringIO()
    for options in ({"stream": out}, {"console": screen}):
        with Progress("work", clock=clock, **options) as progress:  # pyright: ignore[reportArgumentType]
            clock.now += 0.9
            progress.show()
    assert out.getvalue() == "" and drawn(screen) == []


def test_a_bar_appears_moves_and_goes(screen: rich.console.Console) -> None:
    clock = Clock()
    with Progress("preparing train", 4e6, "MB", console=screen, clock=clock) as progress:
        for clock.now, progress.done in ((101.0, 1e6), (102.0, 2e6), (104.0, 4e6)):
            progress.show()
    lines = drawn(screen)
    assert all(line.startswith("preparing train ━") or "1.0 of" in line for line in lines)
    assert [re.sub(r"^preparing train [━╸╺ ]+", "", line) for line in lines] == [
        "1.0 of 4.0 MB, 1s, 3s left", "2.0 of 4.0 MB, 2s, 2s left", "4.0 of 4.0 MB, 4s",
    ]  # fmt: skip
    assert screen.file.getvalue().count("\x1b[?25l") == screen.file.getvalue().count("\x1b[?25h") == 1  # pyright: ignore


def test_numbers_of_a_run_that_resumes_count_from_its_start() -> None:
    clock = Clock()
    with Progress("training", 100, "steps", done=60, clock=clock) as progress:
        progress.done = 70
        assert progress.numbers(105.0) == "70 of 100 steps, 5s, 15s left"
        progress.total = None
        assert progress.numbers(105.0) == "70 steps, 5s"
        progress.unit, progress.text = "", "evaluating"
        assert progress.numbers(105.0) == "evaluating, 5s"


def test_nobody_reads_any_more() -> None:
    class Closed(io.StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError

    clock = Clock()
    with Progress("work", stream=Closed(), clock=clock) as progress:
        progress.OFTEN = 0.001
        clock.now += 60
    assert not progress._thread.is_alive()


def test_format_duration() -> None:
    assert [format_duration(seconds) for seconds in (-1, 7.4, 95, 3725)] == ["0s", "7s", "1m35s", "1h02m"]


class Metric:
    """A number that the devices have computed or not."""

    def __init__(self, ready: bool):
        self.ready = ready

    def is_ready(self) -> bool:
        return self.ready


def test_steps_count_when_the_devices_are_done_with_them() -> None:
    terminal = Terminal(10)
    metrics = [Metric(True), Metric(True), Metric(False), Metric(True)]
    for step, metric in enumerate(metrics, start=5):
        terminal.dispatched(step, metric)  # pyright: ignore[reportArgumentType]
    progress = terminal.progress
    assert progress is not None and (progress.done, progress.total) == (4, 10)
    terminal._finished(progress)
    assert progress.done == 6
    metrics[2].ready = True
    terminal._finished(progress)
    assert progress.done == 8
    terminal.close()
    assert terminal.progress is None and not progress._thread.is_alive()


def test_phases_that_take_long_leave_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    terminal = Terminal(10)
    with terminal.phase("compiling", "compiled"):
        pass
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(Progress, "SOON", 0.0)
    with terminal.phase("compiling", "compiled"):
        pass
    with terminal.phase("evaluating"):
        assert terminal.opening is not None and terminal.opening.name == "evaluating"
    assert capsys.readouterr().out == "compiled in 0s\n"
    terminal.dispatched(1, Metric(True))  # pyright: ignore[reportArgumentType]
    assert terminal.progress is not None
    with terminal.phase("evaluating"):
        assert terminal.progress.text == "evaluating"
    assert terminal.progress.text == ""
    terminal.close()


@pytest.mark.parametrize("processes", [1, 2])
def test_one_of_several_processes_draws_nothing_on_its_terminal(
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As mpirun gives a process one, and writes what appears there into a file."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Progress, "SOON", 0.0)
    output = Terminal(10)
    with output.phase("compiling", "compiled"):
        assert output.opening is not None
        output.opening.show()
    output.dispatched(1, Metric(True))  # pyright: ignore[reportArgumentType]
    assert output.progress is not None
    output.progress.show()
    output.close()
    assert ("\x1b" in terminal.getvalue()) == (processes == 1) and "compiled in 0s" in terminal.getvalue()


def test_the_newest_metrics_stand_below_the_bar_and_stay(screen: rich.console.Console) -> None:
    terminal = Terminal(10)
    terminal.console, terminal.live = screen, True
    terminal.dispatched(1, Metric(True))  # pyright: ignore[reportArgumentType]
    terminal.write(1, {"train/mlm/loss": 2.0})
    terminal.note("a note")
    terminal.write(2, {"eval/loss": 1.5})
    progress = terminal.progress
    assert progress is not None
    progress.SOON = 0.0
    progress.show()
    terminal.write(3, {"train/mlm/loss": 1.0})
    progress.show()
    terminal.close()
    lines = drawn(screen)
    assert [line for line in lines if not line.startswith("training")] == [
        "a note", "step 2  held-out  loss 1.5000", "step 1/10  mlm 2.000", "step 3/10  mlm 1.000",
    ]  # fmt: skip
    assert any(line.startswith("training ━") and line.endswith("1 of 10 steps, 0s, 0s left") for line in lines), lines


def test_other_processes_display_nothing(capsys: pytest.CaptureFixture) -> None:
    terminal = Terminal(10)
    terminal.console.quiet = True
    with terminal.phase("compiling", "compiled"):
        assert terminal.opening is None
    terminal.dispatched(1, Metric(True))  # pyright: ignore[reportArgumentType]
    assert terminal.progress is None and capsys.readouterr().out == ""
