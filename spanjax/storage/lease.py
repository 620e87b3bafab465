"""Lease of a work directory in a bucket: one run at a time, by conditional writes to one object.

The holder rewrites the object every `RENEW_SECONDS`. A taker watches it on its own monotonic clock and takes over one that did
not change for `VALID_SECONDS`, so the clocks of hosts are never compared. A holder that sleeps for longer can still wake up and
believe to hold it: it finds out at its next write here, and `commits.py` refuses its commits before that.
"""

import contextlib
import datetime
import json
import logging
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from spanjax.json_files import parse_json
from spanjax.storage.commits import FencedError
from spanjax.storage.objects import ABSENT, ConditionFailedError, MissingObjectError, Place, StorageError, Store

log = logging.getLogger(__name__)
RENEW_SECONDS, VALID_SECONDS = 20.0, 120.0
WATCH_SECONDS = 2.0
"""Seconds between two looks of a taker at a lease that is held."""


class HeldError(StorageError):
    """An active run holds the lease; the message names it."""


class Lease:
    """A lease at one object. `take` starts the renewals, `release` ends them."""

    def __init__(self, store: Store, place: Place, name: str):
        """`name` is the work directory in messages."""
        self.store, self.place, self.name = store, place, name
        self.holder, self.fencing = uuid.uuid4().hex, 0
        self.lost: FencedError | None = None
        """Set once another run has taken over."""
        self._version: str | None = None
        self._renewals, self._writing, self._ended = 0, threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._renew_regularly, name="spanjax-lease", daemon=True)

    def take(self, at_least: int = 0, sleep: Callable[[float], Any] = time.sleep) -> int:
        """Takes the lease with a fencing number above all earlier ones and above `at_least`; returns the number.

        HeldError if another run renews it, StorageError if it cannot be read or written. Waits for up to `VALID_SECONDS` if
        the holder is silent, unless it was a process of this machine that has ended.
        """
        content, self._version = self._read()
        if content and not content.get("released") and not _ended_here(content):
            content, self._version = self._watched(content, sleep)
        before = content.get("fencing")
        self.fencing = max(at_least, before if type(before) is int else 0) + 1
        try:
            self._write()
        except ConditionFailedError as error:  # somebody came at the same time
            raise self._held(self._read()[0]) from error
        self._thread.start()
        return self.fencing

    def _watched(self, content: Mapping[str, Any], sleep: Callable[[float], Any]) -> tuple[dict[str, Any], str | None]:
        """Returns the content and version of a lease that is free now; HeldError as soon as its holder renews it."""
        seconds = content.get("valid_seconds")
        # the holder's own promise, bounded: a damaged number must not block this run
        valid = min(float(seconds), 10 * VALID_SECONDS) if isinstance(seconds, int | float) else VALID_SECONDS
        log.warning("%s: waiting up to %.0f s for a sign of %s", self.name, valid, _named(content))
        began, seen = time.monotonic(), self._version
        while True:
            sleep(min(WATCH_SECONDS, valid / 4))
            now, version = self._read()
            if not now or now.get("released"):
                return now, version
            if version != seen:
                raise self._held(now)
            if time.monotonic() - began > valid:
                log.warning("%s: no sign of %s for %.0f s; its lease is taken over", self.name, _named(now), valid)
                return now, version

    def _read(self) -> tuple[dict[str, Any], str | None]:
        try:
            data, version = self.store.read(self.place)
        except MissingObjectError:
            return {}, None
        try:
            return parse_json(data, dict), version
        except ValueError:  # damaged by hand: watched like any other, then replaced
            return {"host": "unknown"}, version

    def _write(self, released: bool = False) -> None:
        content = {"holder": self.holder, "fencing": self.fencing, "released": released, "renewals": self._renewals + 1}
        content |= {"valid_seconds": VALID_SECONDS, **_self()}
        data = (json.dumps(content) + "\n").encode()
        self._version = self.store.write(self.place, data, only_if=ABSENT if self._version is None else self._version)
        self._renewals += 1

    def _held(self, content: Mapping[str, Any]) -> HeldError:
        return HeldError(
            f"--workdir {self.name} is in use by another run: {_named(content)}; wait for it, stop it, or use another --workdir"
        )

    def renew(self) -> None:
        """Renews the lease now; FencedError if another run has taken over, StorageError if the bucket does not answer."""
        with self._writing:
            if self._ended.is_set():
                return
            try:
                self._write()
            except ConditionFailedError as error:
                self.lost = FencedError(
                    f"--workdir {self.name} was taken over by another run, {_named(self._read()[0])}, while this one was paused"
                    " or cut off; what that run saves is kept, this one ends: look which of the two should continue"
                )
                raise self.lost from error

    def check(self) -> None:
        """Raises the FencedError of a lease that is known to be lost; costs nothing."""
        if self.lost is not None:
            raise self.lost

    def _renew_regularly(self) -> None:
        reported = False
        while not self._ended.wait(RENEW_SECONDS):
            try:
                self.renew()
                reported = False
            except FencedError as error:
                log.warning("%s", error)
                return
            except StorageError as error:
                if not reported:
                    log.warning("the lease of %s could not be renewed, which is retried: %s", self.name, error)
                reported = True

    def release(self) -> None:
        """Ends the renewals and frees the lease; one that is lost or cannot be written stays as it is."""
        with self._writing:
            if not self._ended.is_set() and self.fencing and self.lost is None:
                with contextlib.suppress(StorageError):  # it expires
                    self._write(released=True)
            self._ended.set()


def _machine() -> str:
    """Identifies this boot of this machine and the numbering of its processes; empty if the system does not say."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _self() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "machine": _machine(), "started": _STARTED}


_STARTED = datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _named(content: Mapping[str, Any]) -> str:
    host, pid, started = (content.get(name, "unknown") for name in ("host", "pid", "started"))
    return f"host {host}, process {pid}, started {started}"


def _ended_here(content: Mapping[str, Any]) -> bool:
    """True if the holder was a process of this machine, since its last start, that exists no more."""
    pid = content.get("pid")
    # a host name alone proves nothing: machines share names, and containers have process ids of their own
    if not isinstance(pid, int) or not _machine() or content.get("machine") != _machine():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
