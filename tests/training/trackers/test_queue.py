"""A tracker that raises, hangs or comes late holds nothing up, and gets what it can be given, once and in order."""

import collections
import dataclasses
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from spanjax.training.trackers import queue
from spanjax.training.trackers.base import Connection, Ending, Record, TrackedRun, Tracker
from spanjax.training.trackers.queue import Delivery
from tests.fake_trackers import Faults

RUN = TrackedRun({}, print, "run", {}, pathlib.Path())


class Listener(Connection):
    """An open tracker that keeps what it is sent."""

    location = "at https://me:pass@host"

    def __init__(self, held: Mapping[str, int] | None = None):
        self.faults, self.held, self.got, self.ending = Faults(), held, list[tuple[str, int]](), ""

    def log_all(self, records: Sequence[Record]) -> None:
        self.faults.at("send")
        self.got += [(record.kind, record.step) for record in records]

    def close(self, ending: Ending) -> None:
        self.faults.at("finish")
        self.ending = ending


@dataclasses.dataclass(frozen=True)
class Listening(Tracker):
    """A tracker that opens always the same connection."""

    connection: Listener

    @property
    def service(self) -> str:
        return "listener"

    def open(self, run: TrackedRun) -> Connection:
        assert run is RUN
        self.connection.faults.at("open")
        return self.connection

    def abandon(self) -> None:
        self.connection.faults.asked.append("abandon")


def record(step: int, kind: str = "train") -> Record:
    return Record(step, {f"{kind}/loss": 1.0 / step}, 1)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(queue, "LONGEST_PAUSE_S", 0.05)


class Carried:
    """A delivery and the lines that it said."""

    def __init__(
        self,
        tracker: Listener,
        sent: Mapping[str, int] | None = None,
        missed: Callable[[], Iterable[Record]] = tuple,
        limit: int = 10_000,
    ):
        self.said, self.noted = list[str](), list[Mapping[str, int]]()
        note = lambda sent: self.noted.append(dict(sent))  # noqa: E731
        self.delivery = Delivery(Listening(tracker), RUN, sent or {}, missed, note, self.said.append, limit)

    def write(self, *records: Record) -> None:
        for one in records:
            self.delivery.write(one)

    def close(self, seconds: float = 20.0, ending: Ending = "finished") -> float:
        began = time.monotonic()
        self.delivery.begin_close(ending)
        self.delivery.end_close(began + seconds)
        return time.monotonic() - began


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_records_arrive_in_order_and_the_end_is_told() -> None:
    tracker = Listener()
    carried = Carried(tracker)
    carried.write(*(record(step) for step in range(1, 51)), record(50, "eval"))
    carried.close(ending="stopped")
    assert tracker.got == [("train", step) for step in range(1, 51)] + [("eval", 50)]
    assert tracker.ending == "stopped" and carried.noted[-1] == {"train": 50, "eval": 50}
    assert carried.said == ["listener: at https://***@host"] and "abandon" not in tracker.faults.asked


def test_what_was_sent_before_is_not_sent_again_and_what_was_missed_is() -> None:
    """Killed after step 7, back to step 5; the eval record of step 5 had not arrived."""
    tracker = Listener()
    missed = [record(step) for step in range(1, 6)] + [record(5, "eval")]
    carried = Carried(tracker, {"train": 7, "eval": 3}, lambda: missed)
    carried.write(*(record(step) for step in range(6, 10)))
    carried.close()
    assert tracker.got == [("eval", 5), ("train", 8), ("train", 9)]


def test_what_the_tracker_says_it_holds_wins() -> None:
    tracker = Listener(held={"train": 2})
    carried = Carried(tracker, {"train": 7}, lambda: map(record, range(1, 5)))
    carried.close()
    assert tracker.got == [("train", 3), ("train", 4)]


def test_progress_is_noted_when_it_is_durable() -> None:
    tracker = Listener()
    tracker.durable_after_s = 0.2
    carried = Carried(tracker)
    carried.write(record(1))
    wait_until(lambda: ("train", 1) in tracker.got)
    carried.write(record(2))
    wait_until(lambda: ("train", 2) in tracker.got)
    assert carried.noted == [], "both could still be lost"
    time.sleep(0.25)
    carried.write(record(3))
    wait_until(lambda: bool(carried.noted))
    assert carried.noted == [{"train": 2}]
    carried.close()
    assert carried.noted[-1] == {"train": 3}


@pytest.mark.parametrize("call", ["open", "send"])
def test_a_failure_is_said_once_and_tried_again(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTENER_TOKEN", "hushhush")
    tracker = Listener()
    tracker.faults.calls[call] = ConnectionError("no route to https://me:pass@host?t=hushhush\nsecond line")
    carried = Carried(tracker)
    carried.write(*map(record, range(1, 4)))
    wait_until(lambda: carried.delivery.failures >= 4)
    assert not carried.noted
    tracker.faults.calls.clear()
    carried.close()
    assert tracker.got == [("train", 1), ("train", 2), ("train", 3)] and tracker.ending == "finished"
    failed = [line for line in carried.said if "retried" in line]
    assert (
        len(failed) == 1
        and "ConnectionError: no route to https://***@host?t=*** second line. Training continues" in failed[0]
    )
    assert f"{carried.delivery.failures} failure(s), 0 record(s) dropped, 0 not sent" in carried.said[-1]


def test_a_failure_at_the_end_is_said() -> None:
    tracker = Listener()
    tracker.faults.calls["finish"] = ConnectionError("gone")
    carried = Carried(tracker)
    carried.write(record(1))
    assert carried.close() < 5.0
    assert tracker.got == [("train", 1)] and tracker.ending == ""
    assert "failure(s), 0 record(s) dropped, 0 not sent; the last reason: ConnectionError: gone" in carried.said[-1]


def test_pauses_grow_and_start_again_after_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "FIRST_PAUSE_S", 1.0)
    monkeypatch.setattr(queue, "LONGEST_PAUSE_S", 5.0)
    pauses = list[float]()
    enough = threading.Event()

    class Counted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None:
                return super().wait()
            pauses.append(timeout)
            tracker.faults.calls["send"] = OSError("gone")
            if len(pauses) == 4:
                tracker.faults.calls.clear()
                carried.write(record(9))
            if len(pauses) == 6:
                enough.set()
                super().wait(20)
            return self.is_set()

    tracker = Listener()
    tracker.faults.calls["send"] = OSError("gone")
    with monkeypatch.context() as patch:
        patch.setattr(queue.threading, "Event", Counted)
        carried = Carried(tracker)
    tracker.log_all, send = (lambda records: failing_after_one(records)), tracker.log_all

    def failing_after_one(records: Sequence[Record]) -> None:
        send(records)
        tracker.faults.calls["send"] = OSError("gone again")
        carried.write(record(10))

    carried.write(record(1))
    assert enough.wait(20)
    carried.close()
    assert pauses[:6] == [1.0, 2.0, 4.0, 5.0, 1.0, 2.0]


def test_records_in_hand_survive_a_failure_in_the_middle() -> None:
    """A send that raises after it took some: the tracker, asked again, says what it holds."""
    tracker = Listener(held={})

    def half(records: Sequence[Record]) -> None:
        first = not tracker.got
        tracker.got += [(one.kind, one.step) for one in (records[:2] if first else records)]
        tracker.held = collections.ChainMap({kind: step for kind, step in tracker.got})
        if first:
            raise TimeoutError("half way")

    tracker.log_all = half  # type: ignore[method-assign]
    tracker.faults.hanging.add("open")
    carried = Carried(tracker)
    carried.write(*map(record, range(1, 6)))
    tracker.faults.hanging.clear()
    tracker.faults.released.set()
    carried.close()
    assert tracker.got == [("train", step) for step in range(1, 6)]


def test_a_full_queue_drops_the_oldest_and_says_so() -> None:
    tracker = Listener()
    tracker.faults.hanging.add("open")
    carried = Carried(tracker, limit=3)
    carried.write(*map(record, range(1, 11)))
    assert carried.delivery.dropped == 7
    tracker.faults.hanging.clear()
    tracker.faults.released.set()
    carried.close()
    assert tracker.got == [("train", 8), ("train", 9), ("train", 10)]
    assert sum("the oldest are dropped" in line for line in carried.said) == 1
    assert "7 record(s) dropped, 0 not sent" in carried.said[-1]


@pytest.mark.parametrize("call", ["open", "send", "finish"])
def test_a_hanging_tracker_holds_nothing_up(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "HANGING_S", 0.05)
    tracker = Listener()
    tracker.faults.hanging.add(call)
    carried = Carried(tracker)
    carried.write(record(1))
    if call != "finish":
        wait_until(lambda: call in tracker.faults.asked)
        time.sleep(0.1)
    began = time.monotonic()
    carried.write(*map(record, range(2, 1000)))
    assert time.monotonic() - began < 1.0
    if call != "finish":
        assert sum("no answer for" in line for line in carried.said) == 1
    assert carried.close(seconds=0.3) < 1.0
    unsent = 0 if call == "finish" else 999
    assert f"{unsent} not sent; the last reason: it did not finish in time" in carried.said[-1]
    assert tracker.faults.asked[-1] == "abandon"
    lines = len(carried.said)
    tracker.faults.calls[call] = OSError("much later")
    tracker.faults.released.set()
    wait_until(lambda: carried.delivery.failures > 0)
    assert len(carried.said) == lines, "nothing is said after the end"


def test_sys_exit_in_a_tracker_is_a_failure() -> None:
    tracker = Listener()
    tracker.faults.calls["open"] = SystemExit(1)
    carried = Carried(tracker)
    carried.write(record(1))
    wait_until(lambda: carried.delivery.failures > 2)
    carried.close()
    assert "1 not sent; the last reason: SystemExit: 1" in carried.said[-1]
