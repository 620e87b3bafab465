"""Background delivery to a tracker: a thread of its own, a bounded queue, retries. The loop waits for nothing.

Whatever a tracker does (raise, hang, lose its connection), `write` returns at once and `close` within its time limit.
"""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from spanjax.training.redaction import redacted
from spanjax.training.trackers.base import Connection, Ending, Record, TrackedRun, Tracker

QUEUE_RECORDS = 10_000  # at one record every 20 steps: 200,000 steps without the tracker
GROUP_RECORDS = 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 600.0
HANGING_S = 60.0


def reason_of(error: BaseException) -> str:
    """Formats an error as one line of at most 300 characters, without secrets."""
    text = " ".join(redacted(str(error)).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


class Delivery:
    """Carries records to one tracker in the background.

    `sent` is the newest step of every kind that the tracker surely has: only newer records are sent. `missed` yields all
    records until now, delivered or not, and is read whenever the tracker is opened. `note_sent` gets the newest steps once
    they are durable, `say` prints a line.
    """

    def __init__(
        self,
        tracker: Tracker,
        run: TrackedRun,
        sent: Mapping[str, int],
        missed: Callable[[], Iterable[Record]] = tuple,
        note_sent: Callable[[Mapping[str, int]], None] = lambda sent: None,
        say: Callable[[str], None] = print,
        limit: int = QUEUE_RECORDS,
    ):
        self.tracker, self.run, self.missed, self.note_sent = tracker, run, missed, note_sent
        self.sent = dict(sent)
        self._durable = dict(sent)
        self.limit = limit
        self.failures, self.dropped, self.reason = 0, 0, ""
        self.ending: Ending = "finished"
        self._say, self._warned = say, set[str]()
        self._queue, self._taken = collections.deque[Record](), list[Record]()
        self._changed, self._closing = threading.Condition(), threading.Event()
        self._handed = collections.deque[tuple[float, dict[str, int]]]()  # when, and the newest steps then
        self._calling_since: float | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name=f"tracker-{tracker.service}", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Takes a record; a full queue drops its oldest."""
        with self._changed:
            if len(self._queue) >= self.limit:
                self._queue.popleft()
                self.dropped += 1
            self._queue.append(record)
            self._changed.notify()
        if self.dropped:
            self._once("dropped", f"{self.limit:,} records wait: the oldest are dropped (metrics.jsonl holds them)")
        since = self._calling_since
        if since is not None and time.monotonic() - since > HANGING_S:
            self._once("hangs", f"no answer for {HANGING_S:.0f} s; training continues without it")

    def begin_close(self, ending: Ending) -> None:
        """Lets waiting records be sent now, without further pauses."""
        self.ending = ending
        with self._changed:
            self._closing.set()
            self._changed.notify()

    def end_close(self, deadline: float) -> None:
        """Waits for the thread until time.monotonic() is `deadline`, and reports failures."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        unsent = len(self._queue) + len(self._taken)
        if self._thread.is_alive():
            self.reason = self.reason or "it did not finish in time"
            with contextlib.suppress(Exception):
                self.tracker.abandon()
        if self.failures or self.dropped or unsent or self._thread.is_alive():
            counted = f"{self.failures} failure(s), {self.dropped} record(s) dropped, {unsent} not sent"
            because = f"; the last reason: {self.reason}" if self.reason else ""
            self._once("end", f"{counted}{because}. metrics.jsonl holds every record")
        self._abandoned = True  # a thread that still hangs reports nothing after the end

    def _once(self, topic: str, text: str) -> None:
        if topic not in self._warned and not self._abandoned:
            self._warned.add(topic)
            self._say(f"{self.tracker.service}: {text}")

    def _work(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            last, before = self._closing.is_set(), dict(self.sent)
            try:
                return self._deliver()
            except (Exception, SystemExit) as error:
                self._failed(error)
            finally:
                self._calling_since = None
            if last:
                return
            pause = FIRST_PAUSE_S if self.sent != before else pause
            self._closing.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _failed(self, error: BaseException) -> None:
        self.failures += 1
        self.reason = reason_of(error)
        self._once("failed", f"{self.reason}. Training continues; it is retried, with growing pauses")

    def _deliver(self) -> None:
        """Delivers everything, from opening to the end of the run; raises what the tracker raises."""
        self._calling_since = time.monotonic()
        connection = self.tracker.open(self.run)
        self._calling_since = None
        self._once("open", redacted(connection.location))
        self.sent = dict(self._durable if connection.held is None else connection.held)
        self._handed.clear()
        self._send_all(connection, self.missed())
        while True:
            with self._changed:
                while not (self._taken or self._queue or self._closing.is_set()):
                    self._changed.wait()
                while self._queue and len(self._taken) < GROUP_RECORDS:
                    self._taken.append(self._queue.popleft())
            if not self._taken:
                break
            self._send(connection, self._taken)
            self._taken = []
        self._calling_since = time.monotonic()
        connection.close(self.ending)
        self.note_sent(self.sent)

    def _send_all(self, connection: Connection, records: Iterable[Record]) -> None:
        group = list[Record]()
        for record in records:
            group.append(record)
            if len(group) == GROUP_RECORDS:
                self._send(connection, group)
                group = []
        self._send(connection, group)

    def _send(self, connection: Connection, group: Sequence[Record]) -> None:
        fresh = [record for record in group if record.step > self.sent.get(record.kind, -1)]
        if not fresh:
            return
        self._calling_since = time.monotonic()
        connection.log_all(fresh)
        self._calling_since = None
        self.sent |= {record.kind: record.step for record in fresh}
        self._handed.append((time.monotonic() + connection.durable_after_s, dict(self.sent)))
        before = self._durable
        while self._handed and self._handed[0][0] <= time.monotonic():
            self._durable = self._handed.popleft()[1]
        if self._durable is not before:
            self.note_sent(self._durable)
