"""Objects at memory://, in fsspec's file system of this process: a store without a server, for tests and notebooks."""

import pathlib
import threading
import uuid
from collections.abc import Callable

from fsspec.implementations.memory import MemoryFileSystem

from spanjax.storage.objects import (
    ABSENT,
    Absent,
    ConditionFailedError,
    Entry,
    MissingObjectError,
    Place,
    StorageError,
    Tries,
    Written,
)

_lock = threading.RLock()


def _path(place: Place) -> str:
    return f"/{place.bucket}/{place.key}".rstrip("/")


class Memory:
    """The backend of memory://. Files that others wrote through fsspec get a version when they are first seen."""

    def __init__(self) -> None:
        self._system = MemoryFileSystem(skip_instance_cache=True, use_listings_cache=False)

    def head(self, place: Place) -> Entry | None:
        """Size and version."""
        with _lock:
            file = self._system.store.get(_path(place))
            if file is None:
                return None
            if not hasattr(file, "version"):
                file.version, file.nonce = uuid.uuid4().hex, ""
            return Entry("", len(file.getbuffer()), file.version)

    def get(
        self, place: Place, start: int, stop: int | None, version: str | None, write: Callable[[bytes], object]
    ) -> str:
        """All bytes in one piece."""
        with _lock:
            entry = self.head(place)
            if entry is None:
                raise MissingObjectError(f"{place}: no such object; check the address")
            if version not in (None, entry.version):
                raise StorageError(f"{place}: it was replaced while it was read; run the same command again")
            write(bytes(self._system.store[_path(place)].getbuffer()[start:stop]))
            return entry.version

    def put(self, place: Place, data: bytes, only_if: str | Absent | None, nonce: str) -> Written:
        """Writes under the lock."""
        with _lock:
            entry = self.head(place)
            if only_if is ABSENT and entry is not None:
                raise ConditionFailedError(f"{place} exists already")
            if isinstance(only_if, str) and (entry is None or entry.version != only_if):
                raise ConditionFailedError(f"{place} has another version")
            self._system.pipe_file(_path(place), data)
            file = self._system.store[_path(place)]
            file.version, file.nonce = uuid.uuid4().hex, nonce
            return Written(file.version)

    def nonce(self, place: Place) -> tuple[str, str]:
        """The nonce of the last write."""
        with _lock:
            entry = self.head(place)
            return ("", "") if entry is None else (self._system.store[_path(place)].nonce, entry.version)

    def upload(self, file: pathlib.Path, place: Place, size: int, tries: Tries) -> Written:
        """Writes a file in one piece."""
        return self.put(place, file.read_bytes(), None, "")

    def list_page(self, place: Place, token: str) -> tuple[list[Entry], str]:
        """All objects in one page."""
        with _lock:
            prefix = f"{_path(place)}/"
            names = [path.removeprefix(prefix) for path in list(self._system.store) if path.startswith(prefix)]
            found = [(name, self.head(place / name)) for name in names]
            return [Entry(name, entry.size, entry.version) for name, entry in found if entry is not None], ""

    def delete(self, places: list[Place]) -> None:
        """Deletes under the lock."""
        with _lock:
            for place in places:
                self._system.store.pop(_path(place), None)

    def explain(self, error: BaseException, place: Place) -> Exception:
        """Every error is permanent."""
        return error if isinstance(error, StorageError) else StorageError(f"{place}: {error}")


def connect() -> Memory:
    """Returns the backend."""
    return Memory()
