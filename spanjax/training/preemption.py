"""Stop requests: all processes agree on the step after which they stop, or exit at once if nothing would be lost."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import jax

from spanjax.cli import StopSignals
from spanjax.distributed import all_gather_text, ask, asked, preempted

LOOK_SECONDS = 1.0
# The threads of all processes answer within LOOK_SECONDS of the mark. A minute is for one whose main thread holds the interpreter
# (tracing, a large import); chosen, not measured.
AGREE_SECONDS = 60.0
ASKED, TOLD, LEAVES = "asked to stop", "how far each process is", "leaves"


class StopRequest:
    """A signal of `cli.STOP_SIGNALS`, or jax's preemption service, on any process.

    A process with a signal puts a mark at the coordinator. A thread of every process looks for it there, then publishes how
    many times its loop has asked (at every step and at every batch of an evaluation); the loop waits at its next question
    until all have answered. They stop at the question that follows the furthest one: nobody has passed it, and everybody can
    still reach it. Until then steps cost nothing.

    Inside `leavable` the process does not wait for a question: a thread ends it as soon as the signal arrives, even while the
    main thread compiles. With several processes, all must be inside.
    """

    def __init__(self, leave: Callable[[], None] | None = None) -> None:
        """`leave` ends the process; without it, `leavable` changes nothing. It may be replaced outside of `leavable`."""
        self.signal: int | None = None
        self.leave = leave
        self._questions, self._last, self._waiting = 0, None, False
        self._error: Exception | None = None
        self._changed, self._ended = threading.Condition(), threading.Event()
        self._interrupted = False
        self._exit = threading.RLock()  # held by the thread that ends the process: the main thread cannot pass it
        self._prepare: Callable[[], bool] | None = None
        self._signals = StopSignals(self._arrived, self._note)
        self._thread = threading.Thread(target=self._listen, name="spanjax-stop", daemon=True)

    def __enter__(self) -> "StopRequest":
        several = jax.process_count() > 1  # may start the backend, which takes a while: before the handlers change
        self._signals.__enter__()
        if several:
            self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._signals.__exit__(kind, error, trace)
        if self._thread.is_alive() and error is None:
            self._thread.join(2 * LOOK_SECONDS)

    def _note(self, number: int, _: Any) -> None:
        """Handles the signal in the main thread."""
        if number == signal.SIGINT and self._interrupted:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait for a checkpoint
        self._interrupted |= number == signal.SIGINT
        self.signal = number

    def _arrived(self, number: int) -> None:
        """Handles it on the thread of `StopSignals`: a single process ends here where that is allowed."""
        self.signal = number
        if jax.process_count() == 1:
            with self._exit:
                self._end()

    @contextlib.contextmanager
    def leavable(self, prepare: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Opens a block that a stop request may end at any moment, and the process with it.

        `prepare` completes the save of the state first, on the thread that ends the process. If it fails (returns False), the
        block continues and the loop stops at its next question.
        """
        with self._exit:
            self._prepare = prepare
            if self.signal is not None and jax.process_count() == 1:
                self._end()
        try:
            yield
        finally:
            with self._exit:
                self._prepare = None

    def _end(self) -> None:
        """Ends the process if it is inside `leavable`."""
        if self._prepare is not None and self.leave is not None and self._prepare():
            self.leave()

    def agreed(self, step: int) -> bool:
        """Returns True if all processes stop after this step. Called once a step, on all of them."""
        del step  # the processes count their questions, of which an evaluation asks some too
        return self.requested()

    def requested(self) -> bool:
        """Returns True if all processes stop here. Every process asks equally often and in the same order."""
        if jax.process_count() == 1:
            return self.signal is not None
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            if self._error is not None:
                raise self._error
            self._questions += 1
            if self._last is not None:
                return self._questions >= self._last
        return preempted(self._questions)

    def _listen(self) -> None:
        """Runs on a thread, with several processes: from the mark to the agreement. Ends with the loop."""
        reported = False
        while not self._ended.is_set():
            try:
                if self.signal is not None and not reported:
                    ask(ASKED, signal.Signals(self.signal).name)
                    reported = True
                if not asked(ASKED, LOOK_SECONDS):
                    continue
                with self._exit:  # a process that announces its exit stays inside `leavable` until all have answered
                    last, error = self._agree(), None
            except Exception as failed:
                last, error = None, failed
            with self._changed:
                self._last, self._error, self._waiting = last, error, False
                self._changed.notify_all()
            return

    def _agree(self) -> int:
        """Returns the question at which all stop; does not return if all of them can exit."""
        with self._changed:
            self._waiting, mine = True, self._questions
        leaves = self._prepare is not None and self.leave is not None
        answers = all_gather_text(TOLD, f"{mine} {LEAVES}" if leaves else str(mine), AGREE_SECONDS)
        if all(answer.endswith(LEAVES) for answer in answers):
            self._end()
        return 1 + max(int(answer.split()[0]) for answer in answers)
