"""Checksums of the shards of a folder of rows, compared with its manifest in the background, once per folder and machine.

A thread compares; it imports nothing. The user's cache folder remembers correct shards by inode, size and times, so that the
next run on this machine compares only shards that were written since.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spanjax.data.shards.manifest import Shard
from spanjax.data.shards.record_file import DamagedRowsError, RecordFile
from spanjax.json_files import read_json
from spanjax.storage.local import write_whole

_REMEMBER_SECONDS = 30.0  # a run that is killed while it compares loses no more than this
SMALL = 256 << 20  # bytes of a folder that are compared at every start, in about a second, instead of remembered
CHECK_SECONDS = 10.0  # that work over few rows waits at its end for their checksums
_ONE_AT_A_TIME = threading.Lock()  # several folders are compared one after the other


class ShardCheck:
    """Compares the shards of one folder with the sha256 in its manifest, from `start` on."""

    def __init__(self, folder: pathlib.Path, shards: Sequence[Shard], files: Sequence[RecordFile]):
        self.folder, self._shards, self._files = folder, tuple(shards), tuple(files)
        self.compared = 0
        """Shards that are correct, remembered ones included."""
        self._damage = ""
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def start(self) -> threading.Thread:
        """Starts comparing, at the first call; the thread that does it."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="spanjax-shard-check", daemon=True)
                self._thread.start()
            return self._thread

    @property
    def missing(self) -> int:
        """Shards that are not compared yet."""
        return len(self._shards) - self.compared

    def raise_damage(self, seconds: float | None = 0.0) -> None:
        """Raises DamagedRowsError if a damaged shard is found by now; waits so long for the end (None: no limit)."""
        if seconds != 0.0:
            self.start().join(seconds)
        if self._damage:
            raise DamagedRowsError(self._damage)

    def _work(self) -> None:
        try:
            size = sum(file.count * file.dtype.itemsize for file in self._files)
            with _ONE_AT_A_TIME, _remembered(self.folder if size >= SMALL else None) as known:
                saved = time.monotonic()
                for shard, file in zip(self._shards, self._files, strict=True):
                    self._compare(shard, file, known)
                    if time.monotonic() > saved + _REMEMBER_SECONDS:
                        known.save()
                        saved = time.monotonic()
        except DamagedRowsError as error:
            self._damage = str(error)

    def _compare(self, shard: Shard, file: RecordFile, known: "_Known") -> None:
        found = file.status(file.handle)
        stamp = [shard.sha256, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        if known.shards.get(shard.name) != stamp:
            digest = file.sha256()
            if digest != shard.sha256:
                raise DamagedRowsError(
                    f"{file.path} is damaged (its sha256 is {digest[:16]}..., {shard.sha256[:16]}... in the manifest):"
                    " prepare or copy the rows again"
                )
            known.shards[shard.name], known.changed = stamp, True
        self.compared += 1


@contextlib.contextmanager
def whole_rows(checks: Sequence[ShardCheck], wait: float = 0.0) -> Iterator[Callable[[], None]]:
    """Starts the checks and yields a function that raises the damage they have found by now.

    At its end the block waits up to `wait` seconds for the checks and raises the damage found until then.
    """

    def look(seconds: float | None = 0.0) -> None:
        for check in checks:
            check.raise_damage(seconds)

    for check in checks:
        check.start()
    try:
        yield look
        until = time.monotonic() + wait
        for check in checks:
            check.raise_damage(max(0.0, until - time.monotonic()))
    except DamagedRowsError:
        raise
    except Exception as error:
        # damaged rows can cause an error that names no file (an IndexError of masking, say): compare all shards first
        try:
            look(None)
        except DamagedRowsError as damage:
            raise damage from error
        raise


class _Known:
    """Shards that were correct: name -> sha256, inode, size and times. Lost where the cache cannot be written."""

    def __init__(self, path: pathlib.Path | None):
        self.path, self.shards, self.changed = path, dict[str, Any](), False
        with contextlib.suppress(OSError, ValueError):
            self.shards = read_json(path) if path else {}

    def save(self) -> None:
        if self.path and self.changed:
            with contextlib.suppress(OSError):
                write_whole(self.path, json.dumps(self.shards).encode())
                self.changed = False


def cache_file(folder: pathlib.Path, environment: Mapping[str, str] = os.environ) -> pathlib.Path | None:
    """$XDG_CACHE_HOME/spanjax/rows/DIGEST.json, else below ~/.cache; one for each folder and host. None without a home."""
    base = pathlib.Path(environment.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        home = environment.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = pathlib.Path(home) / ".cache"
    name = f"{os.uname().nodename}:{folder.resolve()}"
    return base / "spanjax" / "rows" / f"{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:32]}.json"


@contextlib.contextmanager
def _remembered(folder: pathlib.Path | None) -> Iterator[_Known]:
    """The known shards of a folder, saved at the end. One process of a host compares while the others wait for it."""
    with contextlib.ExitStack() as opened:
        path = cache_file(folder) if folder else None
        with contextlib.suppress(OSError):
            if path:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = opened.enter_context(path.with_suffix(".lock").open("ab"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        known = _Known(path)
        try:
            yield known
        finally:
            known.save()
