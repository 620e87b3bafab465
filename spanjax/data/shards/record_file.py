"""Files of records of fixed size, read by index without memory maps: a file that is cut short is an error, not a SIGBUS.

`ShardCheck` compares the shards of a folder of rows with the checksums in its manifest, in the background, once per folder and
machine. Its thread imports nothing. The user's cache folder remembers correct shards by inode, size and times, so that the next
run on this machine compares only shards that were written since.

Legend: N records of a file, B records that are read.
"""

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import pathlib
import resource
import threading
import time
import tokenize
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spanjax.data.shards.shards import Shard
from spanjax.json_files import read_json
from spanjax.storage.local import user_cache, write_whole

_CHUNK = 1 << 20  # bytes hashed at a time
_SPARE_FILES = 512  # descriptors for everything else in the process


class DamagedRowsError(ValueError):
    """A file of a folder of rows is not what was written; the message names it."""


class RecordFile:
    """The records of one file, which must stay as it was when it was opened. Safe to read from several threads.

    DamagedRowsError, here and from every method, names a file that has another size, has changed or cannot be read.
    """

    def __init__(self, path: pathlib.Path, dtype: np.dtype, count: int, offset: int = 0):
        self.path, self.dtype, self.count, self.offset = path, dtype, count, offset
        handle = self._open()
        status = os.fstat(handle)
        self._stamp = (status.st_size, status.st_mtime_ns)
        stays = _stays_open(handle)
        if not stays:
            os.close(handle)
        else:
            # not at exit: the threads of a feed may still be reading then
            weakref.finalize(self, os.close, handle).atexit = False
        self.handle = handle if stays else None
        expected = offset + count * dtype.itemsize
        if status.st_size != expected:
            raise DamagedRowsError(f"{path} has {status.st_size:,} bytes, expected {expected:,}")

    def __len__(self) -> int:
        return self.count

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> "DamagedRowsError":
        return DamagedRowsError(
            f"{self.path} cannot be read ({error.strerror}): check the disk, prepare or copy the rows again"
        )

    def status(self, handle: int | None = None) -> os.stat_result:
        """The status of the open file; DamagedRowsError where size or time of change differ from those at the start."""
        try:
            found = os.stat(self.path) if handle is None else os.fstat(handle)
        except OSError as error:
            raise self._unreadable(error) from error
        if (found.st_size, found.st_mtime_ns) != self._stamp:
            size = self._stamp[0]
            how = f"{found.st_size:,} bytes, {size:,} before" if found.st_size != size else "it was written again"
            raise DamagedRowsError(
                f"{self.path} has changed while it was in use ({how}): prepare or copy the rows again, and write into no"
                " folder of rows that is in use"
            )
        return found

    def read_into(self, content: memoryview, first: int) -> None:
        """Fills bytes with the records from `first` on."""
        handle = self._open() if self.handle is None else self.handle
        try:
            self._fill(handle, content, self.offset + first * self.dtype.itemsize)
            if self.handle is None:
                self.status(handle)
        finally:
            if self.handle is None:
                os.close(handle)

    def _fill(self, handle: int, content: memoryview, place: int) -> None:
        while len(content):
            try:
                got = os.preadv(handle, [content], place)
            except OSError as error:
                raise self._unreadable(error) from error
            if not got:
                self.status(handle)
                raise DamagedRowsError(f"{self.path} ends early: prepare or copy the rows again")
            content, place = content[got:], place + got

    def read(self, first: int = 0, end: int | None = None) -> np.ndarray:
        """Records `first` to `end` (exclusive): [end - first]."""
        found = np.empty((self.count if end is None else end) - first, self.dtype)
        self.read_into(found.view(np.uint8).data, first)
        self.status(self.handle)
        return found

    def flush(self) -> None:
        """Waits until the content is on disk."""
        handle = self._open() if self.handle is None else self.handle
        try:
            os.fsync(handle)
        finally:
            if self.handle is None:
                os.close(handle)

    def sha256(self) -> str:
        """The checksum of the file's content, read in small parts."""
        digest, buffer, size = hashlib.sha256(), memoryview(bytearray(_CHUNK)), self._stamp[0]
        handle = self._open() if self.handle is None else self.handle
        try:
            for place in range(0, size, _CHUNK):
                part = buffer[: min(_CHUNK, size - place)]
                self._fill(handle, part, place)
                digest.update(part)
            self.status(handle)
        finally:
            if self.handle is None:
                os.close(handle)
        return digest.hexdigest()


def _stays_open(handle: int) -> bool:
    """True where half of the process's descriptors are left; the limit is raised as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * handle + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted and soft != hard:
        with contextlib.suppress(ValueError, OSError):
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft == resource.RLIM_INFINITY or 2 * handle < soft


def read_records(files: Sequence[RecordFile], file_B: np.ndarray, place_B: np.ndarray) -> np.ndarray:
    """Record `place_B` of the file `file_B`, for each of B; neighbours are read together.

    DamagedRowsError where a file has changed since it was opened: noticed before the records are used.
    """
    record_B = np.empty(len(place_B), files[0].dtype)
    content, size = record_B.view(np.uint8).data, record_B.itemsize
    apart = (np.diff(place_B) != 1) | (np.diff(file_B) != 0)
    bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(place_B)] if len(place_B) else []
    numbers, places = file_B.tolist(), place_B.tolist()
    for first, end in itertools.pairwise(bounds):
        files[numbers[first]].read_into(content[first * size : end * size], places[first])
    for number in {*numbers}:
        if files[number].handle is not None:
            files[number].status(files[number].handle)
    return record_B


def open_array(path: pathlib.Path, size: int | None = None) -> RecordFile:
    """The numbers of a .npy file of a folder of rows, of which there are `size`; Python objects are refused.

    DamagedRowsError where the file is damaged or holds something else; a header that claims too many numbers takes no memory.
    """
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(file)
            offset = file.tell()
        if len(shape) != 1 or dtype.kind not in "iu":
            raise ValueError("not a line of whole numbers")
        if size is not None and shape[0] != size:
            raise ValueError(f"{shape[0]:,} numbers, expected {size:,}")
        return RecordFile(path, dtype, shape[0], offset)
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise DamagedRowsError(f"{path} is damaged ({error}): prepare or copy the rows again") from None


def load_array(path: pathlib.Path, size: int | None = None) -> np.ndarray:
    """All numbers of `open_array`."""
    return open_array(path, size).read()


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
            file.flush()  # a copy from a bucket may be in memory alone, and a remembered shard is not compared again
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
    base, name = user_cache(environment), f"{os.uname().nodename}:{folder.resolve()}"
    return base and base / "rows" / f"{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:32]}.json"


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
