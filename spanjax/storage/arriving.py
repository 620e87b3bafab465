"""A file of this machine whose ranges arrive from a store, several at a time, and its checksum, computed meanwhile."""

import contextlib
import os
import threading
from collections.abc import Iterator

from spanjax.storage.checksums import BLOCK, hasher
from spanjax.storage.errors import StorageError


class DiskError(StorageError):
    """This machine's disk refused bytes; the cause is the OSError. As a StorageError no try to fetch is repeated for it."""


class ArrivingFile:
    """An open file in the making.

    Its bytes are hashed while others arrive: reading the file at the end would keep one core busy, and the network idle. A
    thread that completes a range hashes everything that is complete up to there, unless another thread is about it.
    """

    def __init__(self, handle: int, kind: str):
        """`handle` is open for reading and writing; an empty `kind` computes no checksum."""
        self.handle, self.kind = handle, kind
        self._hasher = hasher(kind) if kind else None
        self._complete: dict[int, int] = {}  # start -> end of ranges that are not hashed yet
        self._hashed, self._hashing, self._lock = 0, False, threading.Lock()

    def reserve(self, size: int) -> None:
        """Takes the space: a full disk fails here, before anything is fetched."""
        if size:
            os.posix_fallocate(self.handle, 0, size)

    @contextlib.contextmanager
    def own_errors(self) -> Iterator[None]:
        """Raises the OSError of a DiskError, which the handling of errors of the network would take for one of those."""
        try:
            yield
        except DiskError as error:
            raise error.__cause__ or error from None

    @property
    def checksum(self) -> str:
        """ "KIND:HEX" of the whole file; empty for none."""
        return "" if self._hasher is None else f"{self.kind}:{self._hasher.hexdigest()}"

    def complete(self, part: "Part") -> None:
        """Takes a range that has arrived whole."""
        if self._hasher is None:
            return
        with self._lock:
            if part.hasher is not None:
                self._hasher, self._hashed = part.hasher, part.stop
            else:
                self._complete[part.start] = part.stop
            if self._hashing:  # that thread will find it
                return
            self._hashing = True
        self._hash_complete()

    def _hash_complete(self) -> None:
        while self._hasher is not None:
            with self._lock:
                end = self._complete.pop(self._hashed, None)
                if end is None:
                    self._hashing = False
                    return
            while self._hashed < end:  # the bytes are still in the page cache
                data = os.pread(self.handle, min(BLOCK, end - self._hashed), self._hashed)
                self._hasher.update(data)
                self._hashed += len(data)


class Part:
    """One try to fetch the range of a file that begins at `start`."""

    def __init__(self, file: ArrivingFile, start: int):
        self._file, self.start, self.stop = file, start, start
        self.hasher = hasher(file.kind) if file.kind and start == 0 else None
        """Checksum of the first range, computed from memory."""

    @property
    def size(self) -> int:
        """Bytes that have arrived."""
        return self.stop - self.start

    def write(self, data: bytes) -> None:
        """Writes the next bytes."""
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._file.handle, memoryview(data)[written:], self.stop + written)
        except OSError as error:
            raise DiskError(f"{error.strerror or error}") from error
        if self.hasher is not None:
            self.hasher.update(data)
        self.stop += len(data)
