"""Who holds a step up: one process, and several whose marks are a dictionary."""

import json
import logging
import re
import threading
import time

import jax
import pytest

from spanjax.training import watchdog
from spanjax.training.nonfinite import Guard
from spanjax.training.watchdog import COMPILING, DEVICES, ROWS, SAVING, STEP, Watchdog, blame

pytestmark = pytest.mark.unit


def test_a_stalled_feed_is_told_once_and_again_after_it_moved(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Watchdog(Guard(stall_seconds=0.2, stall_exit_seconds=0)) as dog:
        for step in (7, 9):
            dog.at(ROWS, step)
            until = time.monotonic() + 20
            while f"step {step} does not end: this process waits for rows" not in caplog.text:
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(0.2)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("phase", "ends"), [(ROWS, True), (DEVICES, True), (STEP, True), (SAVING, False), (COMPILING, False)]
)
def test_only_a_wait_for_rows_or_devices_ends_a_run(phase: str, ends: bool) -> None:
    codes, ended = list[int](), threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with Watchdog(Guard(stall_seconds=0, stall_exit_seconds=0.2), end) as dog:
        dog.at(phase, 3)
        ended.wait(20 if ends else 0.6)
    assert codes == ([3] if ends else [])


def test_zeros_never_tell_and_never_end(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "TICK_SECONDS", 0.01)
    with Watchdog(Guard(stall_seconds=0, stall_exit_seconds=0), lambda code: pytest.fail(str(code))) as dog:
        dog.at(ROWS, 1)
        until = time.monotonic() + 60
        while dog.heartbeats <= 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert dog.heartbeats > 2
    assert not caplog.records


class Others:
    """The marks of three processes, of which this one is the second and the third may be stopped."""

    def __init__(self) -> None:
        self.marks: dict[int, str] = {}
        self.heartbeats, self.stopped = 0, True

    def put(self, name: str, value: str) -> None:
        self.marks[1] = value

    def read(self, name: str) -> dict[int, str]:
        self.heartbeats += 1
        self.marks[0] = json.dumps([self.heartbeats, 8, DEVICES, 1])
        if not self.stopped or 2 not in self.marks:
            self.marks[2] = json.dumps([self.heartbeats, 7, STEP if self.stopped else ROWS, 4])
        return self.marks


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    found = Others()
    monkeypatch.setattr(watchdog, "put_mark", found.put)
    monkeypatch.setattr(watchdog, "marks", found.read)
    monkeypatch.setattr(watchdog, "name_of", lambda each: f"process {each} (node{each})")
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    return found


@pytest.mark.parametrize(
    ("stopped", "words"),
    [
        (True, "process 2 (node2) has not been heard of for "),
        (False, "process 2 (node2) waits for rows (step 7) for 4 s"),
    ],
)
def test_the_process_that_holds_all_up_is_named(
    others: Others, stopped: bool, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    others.stopped = stopped
    told = threading.Event()
    with caplog.at_level(logging.WARNING), Watchdog(Guard(stall_seconds=0.3, stall_exit_seconds=0)) as dog:
        dog.at(DEVICES, 8)
        until = time.monotonic() + 20
        while not caplog.records and time.monotonic() < until:
            told.wait(0.01)
    assert re.search(rf"step 8 does not end for \d+ s: {re.escape(words)}", caplog.text)  # the machine may pause
    assert "process 0" not in caplog.text and "process 1" not in caplog.text


def test_silent_processes_are_gone(others: Others) -> None:
    dog = Watchdog(Guard(stall_seconds=0.2))
    others.put("heartbeat", '[1, 8, "", 0]')
    others.stopped = False
    assert 2 not in dog.gone() and "process 2 (node2) waits for rows (step 7)" in dog.blocked_by
    others.stopped = True
    assert 2 in Watchdog(Guard(stall_seconds=0.2)).gone()


def test_a_stopped_coordinator_does_not_keep_the_others(
    others: Others, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats wait for it without end; the limit does not."""
    ended, answers = threading.Event(), threading.Event()
    monkeypatch.setattr(watchdog, "put_mark", lambda *_: answers.wait(30))
    with Watchdog(Guard(stall_seconds=0.1, stall_exit_seconds=0.4), lambda code: ended.set()) as dog:
        dog.at(DEVICES, 8)
        assert ended.wait(20)
        answers.set()
    words = r"step 8 has not ended for \d+ s .*: process 0 \(node0\), the coordinator, has not been heard of for \d+ s; the run"
    assert re.search(words, caplog.text)


def test_the_last_message_names_the_process_that_is_waited_for(
    others: Others, caplog: pytest.LogCaptureFixture
) -> None:
    others.stopped, ended = False, threading.Event()
    with Watchdog(Guard(stall_seconds=0.2, stall_exit_seconds=2), lambda code: ended.set()) as dog:
        dog.at(DEVICES, 8)
        assert ended.wait(20)
    last = caplog.records[-1].getMessage()
    assert "(guard.stall_exit_seconds): process 2 (node2) waits for rows (step 7) for 4 s; the run ends" in last


@pytest.mark.parametrize("stopped", [True, False])
def test_a_process_lost_in_a_save_ends_the_others(
    others: Others, stopped: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody ends while its marks change, nor in a phase whose collectives would fail."""
    monkeypatch.setattr(watchdog, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(watchdog, "PARTING_SECONDS", 0.0)
    codes, ended = list[int](), threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    others.stopped = stopped
    with Watchdog(Guard(stall_seconds=0, stall_exit_seconds=0), end) as dog:
        dog.at(DEVICES, 8)
        assert not ended.wait(1.0)
        dog.at(SAVING, 8)
        assert ended.wait(20 if stopped else 1.5) == stopped
    assert codes == ([3] if stopped else [])
    if stopped:
        words = (
            r"step 8: process 2 \(node2\) is gone, without a sign for over 0 s, and this process saves and waits for it"
        )
        assert re.search(words, caplog.text) and "process 0" not in caplog.text


GONE = jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed\nAdditional GRPC error information ...")


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (GONE, [0]),
        (jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: no answer"), [0]),
        (jax.errors.JaxRuntimeError("INVALID_ARGUMENT: a key with a zero"), []),
        (KeyError("beats"), []),
        (json.JSONDecodeError("a torn mark", "[1", 2), []),
    ],
)
def test_only_a_coordinator_that_does_not_answer_is_process_0(
    error: Exception, blamed: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(name: str) -> dict[int, str]:
        raise error

    monkeypatch.setattr(watchdog, "marks", refused)
    assert Watchdog(Guard(stall_seconds=0.2)).gone() == blamed
    assert bool(blamed) != (type(error).__name__ in caplog.text)


class Watched(dict):
    """Marks that were heard, which note who writes or reads them without the lock."""

    def __init__(self, lock: "threading.Lock"):
        super().__init__()
        self.lock, self.bare = lock, 0

    def __setitem__(self, key: int, value: tuple[str, float]) -> None:
        self.bare += not self.lock.locked()
        super().__setitem__(key, value)

    def items(self):
        self.bare += not self.lock.locked()
        return super().items()


def test_what_was_heard_is_only_touched_under_its_lock(others: Others) -> None:
    """The watchdog's thread and the main thread listen at the same time."""
    dog = Watchdog(Guard(stall_seconds=0.2))
    dog.heard = heard = Watched(dog._hearing)
    threads = [threading.Thread(target=dog.gone) for _ in range(2)]
    others.put("heartbeat", '[1, 8, "", 0]')
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heard) == 3 and heard.bare == 0


def test_words() -> None:
    assert blame({0: [1, 2, DEVICES, 3], 1: [1, 2, DEVICES, 3]}, {}).startswith("all processes wait for their devices")
    # the host of process 1 is three steps ahead, as far as jax lets it: it waits
    assert (
        blame({0: [1, 17, STEP, 9], 1: [1, 20, STEP, 8]}, {})
        == "process 0 passes a step to its devices (step 17) for 9 s"
    )
    assert blame({0: [1, 2, ROWS, 3]}, {}) == "process 0 waits for rows (step 2) for 3 s"
