"""Stall detection: reports the process that blocks a step, and why."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from spanjax.cli import PROCESSES_MISSING
from spanjax.distributed import PARTING_SECONDS, collective_failed, coordinator_gone, marks, name_of, put_mark
from spanjax.training.nonfinite import Guard

log = logging.getLogger(__name__)
TICK_SECONDS, SILENT_TICKS = 2.0, 3
LOST_TICKS = 20
"""Ticks without a sign of a process after which one that waits for it ends. jax would abort it some 30 seconds later."""
ROWS, DEVICES, STEP, COMPILING, EVALUATION, SAVING = (
    "waits for rows",
    "waits for its devices",
    "passes a step to its devices",
    "compiles a step",
    "evaluates",
    "saves",
)
# jax blocks in STEP, too, when the steps before do not end: a process that waits for a blocked one may be in any of them
ENDLESS = (ROWS, DEVICES, STEP)
"""Phases in which a long wait means a fault."""
MEETING = (EVALUATION, SAVING)
"""Phases that may take long, and in which processes wait for each other without a collective that would fail."""


class Watchdog:
    """Sends heartbeats to the other processes and names the one that blocks a step, on a thread of its own.

    A process is silent when its mark has not changed for a few ticks: it is stopped, cut off, or dead.
    """

    def __init__(self, guard: Guard, end: Callable[[int], None] = os._exit):
        self.guard, self.end = guard, end
        limits = [seconds for seconds in (guard.stall_seconds, guard.stall_exit_seconds) if seconds]
        self.tick = min(TICK_SECONDS, *(seconds / 10 for seconds in limits)) if limits else TICK_SECONDS
        self.now = (0, COMPILING, time.monotonic())
        self.heartbeats, self.listens, self.reported = 0, 0, -1.0
        self.blocked_by = ""
        """Last report on a slow step, for the message of an exit."""
        self.answered = time.monotonic()
        """Time at which the coordinator answered last."""
        self.heard: dict[int, tuple[str, float]] = {}
        """Process id -> its mark, and when it was first seen so."""
        self.unchanged: dict[int, tuple[Any, int]] = {}
        """Process id -> its mark, and the number of looks since it changed; in ticks, as clocks run on while a host sleeps."""
        # around `heard`: the watchdog's thread and `gone`, on the main thread, both listen
        self._hearing = threading.Lock()
        self._ended = threading.Event()
        # two, as the heartbeats wait for a coordinator that may be stopped
        self._threads = [
            threading.Thread(target=target, name="spanjax-watchdog", daemon=True)
            for target in (self._beat, self._limit)
        ]

    def __enter__(self) -> "Watchdog":
        self.at(COMPILING, self.now[0])
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(self.tick + 1)

    def at(self, phase: str, step: int) -> None:
        """Sets the phase of the loop and its step from now on."""
        self.now = (step, phase, time.monotonic())

    def _beat(self) -> None:
        while not self._ended.wait(self.tick):
            step, phase, since = self.now
            spent = time.monotonic() - since
            self.heartbeats += 1
            try:
                if jax.process_count() > 1:
                    put_mark("heartbeat", json.dumps([self.heartbeats, step, phase, round(spent)]))
                self.answered = time.monotonic()
                if self.guard.stall_seconds and spent > self.guard.stall_seconds and self.reported != since:
                    self.reported = since if self._say(step, phase, spent) else self.reported
                if jax.process_count() > 1 and phase in MEETING and self._ends_alone(step, phase):
                    return
                if phase not in MEETING:
                    self.unchanged.clear()
            except Exception as error:  # the coordinator is gone: jax ends the process
                log.debug("watchdog: %s", error)

    def _ends_alone(self, step: int, phase: str) -> bool:
        """Ends this process with a message if another one has not been heard of for `LOST_TICKS`; returns True then."""
        for each, mark in self._listen()[0].items():
            before, looks = self.unchanged.get(each, (None, 0))
            self.unchanged[each] = (mark, looks + 1 if mark == before else 0)
        lost = [each for each, (_, looks) in sorted(self.unchanged.items()) if looks >= LOST_TICKS]
        if not lost:
            return False
        log.error(
            "step %d: %s is gone, without a sign for over %.0f s, and this process %s and waits for it; the run ends: look at the"
            " output there, and run the same command again on all",
            *(step, " and ".join(map(name_of, lost)), LOST_TICKS * self.tick, phase),
        )
        logging.shutdown()
        if jax.process_index() == 0:  # the coordinator ends with it, and the others are about to say the same
            time.sleep(PARTING_SECONDS)
        self.end(PROCESSES_MISSING)
        return True

    def _limit(self) -> None:
        """Ends the process after `stall_exit_seconds`, alone: it asks nobody, since nobody may answer."""
        while self.guard.stall_exit_seconds and not self._ended.wait(self.tick):
            step, phase, since = self.now
            spent = time.monotonic() - since
            if phase in ENDLESS and spent > self.guard.stall_exit_seconds:
                why = self.blocked_by if self.reported == since else f"this process {phase}"
                if time.monotonic() - self.answered > SILENT_TICKS * self.tick:
                    why = f"{name_of(0)}, the coordinator, has not been heard of for {time.monotonic() - self.answered:.0f} s"
                log.error(
                    "step %d has not ended for %.0f s (guard.stall_exit_seconds): %s; the run ends: run the same command again",
                    *(step, spent, why),
                )
                logging.shutdown()
                self.end(PROCESSES_MISSING)
                return

    def _say(self, step: int, phase: str, spent: float) -> bool:
        """Reports what blocks the step; the first process that is not silent logs it. Returns False while that is unknown."""
        if jax.process_count() == 1:
            self.blocked_by = f"this process {phase}"
            log.warning("step %d does not end: %s for %.0f s", step, self.blocked_by, spent)
            return True
        reported, silent = self._listen()
        self.listens += 1
        if self.listens < SILENT_TICKS + 2:
            return False
        self.listens, self.blocked_by = 0, blame(reported, silent)
        if min(reported.keys() - silent.keys()) == jax.process_index():
            log.warning("step %d does not end for %.0f s: %s", step, spent, self.blocked_by)
        return True

    def _listen(self) -> tuple[dict[int, list[Any]], dict[int, float]]:
        """Returns process id -> its mark [beats, step, phase, seconds], and silent process id -> seconds of silence."""
        found, now = marks("heartbeat"), time.monotonic()
        with self._hearing:
            for each, text in found.items():
                if each not in self.heard or self.heard[each][0] != text:
                    self.heard[each] = (text, now)
            silent = {each: now - at for each, (_, at) in self.heard.items() if now - at > SILENT_TICKS * self.tick}
        return {each: json.loads(text) for each, text in found.items()}, silent

    def failure_of_others(self, error: BaseException) -> str:
        """Returns why other processes made a step of this one fail, as text; "" if they did not. Takes a few ticks."""
        if jax.process_count() == 1:
            return ""
        if gone := self.gone():
            return f"{' and '.join(map(name_of, gone))} is gone"
        # all are alive: one came too late, or the network between them failed
        return f"a collective failed, {self.blocked_by}" if collective_failed(error) else ""

    def gone(self) -> list[int]:
        """Returns the silent processes, and renews `blocked_by`; takes a few ticks.

        Process 0 if the coordinator, which it runs, does not answer. Names nobody if asking fails for another reason, which is
        logged: that tells nothing about any process.
        """
        reported, silent = dict[int, list[Any]](), dict[int, float]()
        for _ in range(2 * (SILENT_TICKS + 2)):
            try:
                reported, silent = self._listen()
            except Exception as error:
                if coordinator_gone(error):
                    return [0]
                log.warning("cannot ask which processes are silent (%s: %s)", type(error).__name__, error)
                return []
            time.sleep(self.tick / 2)
        self.blocked_by = blame(reported, silent)
        return sorted(silent)


def blame(reported: Mapping[int, list[Any]], silent: Mapping[int, float]) -> str:
    """Names the processes that block a step, as text: silent ones, and those that work on an earlier step than others."""
    parts = [f"{name_of(each)} has not been heard of for {seconds:.0f} s" for each, seconds in sorted(silent.items())]
    busy = {each: mark for each, mark in sorted(reported.items()) if each not in silent and mark[2] != DEVICES}
    behind = min((step for _, step, _, _ in busy.values()), default=0)
    parts += [
        f"{name_of(each)} {phase} (step {step}) for {seconds} s"
        for each, (_, step, phase, seconds) in busy.items()
        if step == behind
    ]
    return "; ".join(parts[:10]) if parts else "all processes wait for their devices: look at the network between them"
