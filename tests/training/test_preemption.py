"""Requests to stop: one process, and several as threads around a coordinator of dictionaries."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from spanjax.cli import STOP_SIGNALS
from spanjax.distributed import ProcessesMissing
from spanjax.training import preemption
from spanjax.training.preemption import StopRequest


def test_signals_are_noted_and_given_back() -> None:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        with StopRequest() as stop:
            assert not stop.requested()
            os.kill(os.getpid(), number)
            assert stop.requested() and stop.signal == number
    assert {number: signal.getsignal(number) for number in STOP_SIGNALS} == before


def test_a_second_interrupt_does_not_wait() -> None:
    with StopRequest() as stop, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


class Coordinator:
    """Marks and one gathering of several processes that are threads here."""

    def __init__(self, count: int):
        self.count, self.marks, self.told = count, threading.Event(), list[str]()
        self.all = threading.Barrier(count)

    def ask(self, name: str, why: str) -> None:
        assert (name, why) == (preemption.ASKED, "SIGUSR1")
        self.marks.set()

    def asked(self, name: str, timeout_s: float) -> bool:
        return self.marks.wait(timeout_s)

    def all_gather_text(self, name: str, value: str, timeout_s: float) -> list[str]:
        self.told.append(value)
        try:
            self.all.wait(min(timeout_s, 2))
        except threading.BrokenBarrierError as error:
            raise ProcessesMissing("barrier: process 1 did not come") from error
        return self.told


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    found = Coordinator(3)
    for name in ("ask", "asked", "all_gather_text"):
        monkeypatch.setattr(preemption, name, getattr(found, name))
    monkeypatch.setattr(preemption, "preempted", lambda step: False)
    monkeypatch.setattr(preemption, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(jax, "process_count", lambda: found.count)
    yield found


def test_all_stop_after_the_same_step_that_nobody_has_passed(coordinator: Coordinator) -> None:
    ended: dict[int, tuple[int, int]] = {}
    begun = threading.Barrier(3)

    def loop(process: int, pace: float) -> None:
        with StopRequest() as stop:
            begun.wait()
            for step in range(1, 10_000):
                if process == 1 and step == 5:
                    stop.signal = signal.SIGUSR1
                if stop.requested():
                    ended[process] = (step, stop._questions)
                    return
                time.sleep(pace)

    threads = [threading.Thread(target=loop, args=pair) for pair in enumerate((0.001, 0.01, 0.004))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({step for step, _ in ended.values()}) == 1 and len(ended) == 3
    (step, _), furthest = ended[0], max(map(int, coordinator.told))
    assert step == furthest + 1 and len(set(coordinator.told)) > 1  # the processes were at different steps


def test_processes_that_do_not_answer_end_the_wait(coordinator: Coordinator) -> None:
    coordinator.count = 3  # and only one of them looks
    with StopRequest() as stop:
        stop.signal = signal.SIGUSR1
        with pytest.raises(ProcessesMissing, match="process 1 did not come"):
            for _ in range(1, 1000):
                assert not stop.requested()
                time.sleep(0.01)


def test_the_preemption_service_is_asked_at_every_step(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(preemption, "preempted", lambda step: steps.append(step) or step == 3)
    with StopRequest() as stop:
        assert [stop.requested() for _ in range(3)] == [False, False, True]
    assert steps == [1, 2, 3]


def test_several_leave_where_all_of_them_may_and_agree_on_a_question_where_not(coordinator: Coordinator) -> None:
    """Of three processes one is at the furthest question and may leave: the others must still stop where it does."""
    for may_leave in ((True, True, True), (True, False, True)):
        coordinator.told.clear()
        coordinator.marks.clear()
        coordinator.all.reset()
        ended, left, begun = dict[int, int](), list[int](), threading.Barrier(3)

        def loop(process: int, may: bool, ended=ended, left=left, begun=begun) -> None:  # pyright: ignore
            with StopRequest(lambda: left.append(process)) as stop:
                for _ in range(3 * process):  # the processes are at different questions
                    stop.requested()
                with stop.leavable() if may else contextlib.nullcontext():
                    begun.wait()
                    if process == 1:
                        stop.signal = signal.SIGUSR1
                    time.sleep(0.3)
                for _ in range(100):
                    if stop.requested():
                        ended[process] = stop._questions
                        return
                    time.sleep(0.01)

        threads = [threading.Thread(target=loop, args=pair) for pair in enumerate(may_leave)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(left) == ([0, 1, 2] if all(may_leave) else [])
        assert set(ended.values()) == {7} and len(ended) == 3, "the question after the furthest, 6"
