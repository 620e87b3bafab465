"""Requests to stop, and the one step after which all processes do."""

import signal
import threading
from types import TracebackType
from typing import Any

import jax

from spanjax.distributed import ask, asked, gather, preempted

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
LOOK_SECONDS = 1.0
# The threads of all processes answer within LOOK_SECONDS of the mark. A minute is for one whose main thread holds the interpreter
# (tracing, a large import); chosen, not measured.
AGREE_SECONDS = 60.0
ASKED, TOLD = "asked to stop", "how far each process is"


class StopRequest:
    """SIGTERM or SIGUSR1 (a scheduler that wants the machine back), Ctrl-C, or jax's preemption service, on any process.

    A process with a signal puts a mark at the coordinator. A thread of every process looks for it there, then tells which step
    its loop has last come to; the loop waits at its next one until all have told. They stop after the step that
    follows the furthest one: nobody has passed it, and everybody can still reach it. Until then steps cost nothing.
    """

    def __init__(self, start: int) -> None:
        self.signal: int | None = None
        self._step, self._last, self._waiting = start, None, False
        self._error: Exception | None = None
        self._changed, self._ended = threading.Condition(), threading.Event()
        self._before: dict[int, Any] = {}
        self._thread = threading.Thread(target=self._listen, name="spanjax-stop", daemon=True)

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        if jax.process_count() > 1:
            self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._thread.is_alive() and error is None:
            self._thread.join(2 * LOOK_SECONDS)

    def _note(self, number: int, _: Any) -> None:
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait for a checkpoint
        self.signal = number

    def agreed(self, step: int) -> bool:
        """Whether all processes stop after this step. Called once a step, on all of them."""
        if jax.process_count() == 1:
            return self.signal is not None
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            if self._error is not None:
                raise self._error
            self._step = step
            if self._last is not None:
                return step >= self._last
        return preempted(step)

    def _listen(self) -> None:
        """The thread: from the mark to the agreement. Ends with the loop."""
        told = False
        while not self._ended.is_set():
            try:
                if self.signal is not None and not told:
                    ask(ASKED, signal.Signals(self.signal).name)
                    told = True
                if not asked(ASKED, LOOK_SECONDS):
                    continue
                with self._changed:
                    self._waiting, mine = True, self._step
                last, error = 1 + max(int(step) for step in gather(TOLD, str(mine), AGREE_SECONDS)), None
            except Exception as failed:
                last, error = None, failed
            with self._changed:
                self._last, self._error, self._waiting = last, error, False
                self._changed.notify_all()
            return
