"""Objects in buckets (s3://, gs://) and in the memory of this process (memory://): read, written, listed, copied, deleted.

Transient errors are retried here, and nowhere else; all others become a `StorageError`. `open_store(place)` gives the store
of an address. The packages of a scheme (`objects_s3`, `objects_gs`) load when an address with it is first used.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import enum
import hashlib
import importlib
import logging
import math
import os
import pathlib
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from spanjax.storage.arriving import ArrivingFile, Part
from spanjax.storage.checksums import crc32c
from spanjax.storage.errors import ConditionFailedError, DamagedError, MissingObjectError, StorageError, TransientError

log = logging.getLogger(__name__)
Found = TypeVar("Found")

RETRY_SECONDS = 300.0
"""Total time of the tries of one call."""
UNREACHED_SECONDS = 20.0
"""Total time of the tries of a call to an endpoint that has not answered once: its address is probably wrong."""
FIRST_DELAY, MAX_DELAY = 0.5, 20.0
"""Seconds between tries: the first, doubled up to the largest, each varied by half."""
REQUEST_SECONDS, SLOWEST = 60.0, 256 * 1024
"""Time limit of one request: seconds, and the bytes per second that a body must reach on top."""
PART = 16 * 2**20
"""Bytes: larger files travel in parts of this size, several at a time."""
RANGE = 8 * 2**20
"""Bytes of one range of a large object that is fetched."""
LOOPS = 4
"""Event loops of a client: a single one passes all bytes through one thread."""
CONNECTIONS = 8
"""Parts or ranges of one file that travel at the same time."""
NONCE = "spanjax-write"  # name of the nonce in the metadata of an object
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://?(.*)", re.DOTALL)
_MODULES = {"s3": "objects_s3", "gs": "objects_gs", "memory": "objects_memory"}
_OTHER_NAMES = {"gcs": "gs", "s3a": "s3"}
_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
           "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    "gs": ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"),
    "memory": (),
}  # fmt: skip
RANDOM = "random:"
"""Prefix of weights in `init_from` of a task, and in a suite: their architecture and vocabulary with newly sampled weights."""


class Absent(enum.Enum):
    """The condition that no object is at an address."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Returns True for an address (scheme://...), False for a path of this machine.

    A `Path` that was made of an address has lost one of its slashes and counts as the address.
    """
    text = os.fspath(path)
    return bool(_ADDRESS.fullmatch(text)) and ("://" in text or not isinstance(path, str))


def has_store(text: str) -> bool:
    """Returns True for an address with the scheme of an object store."""
    found = _ADDRESS.fullmatch(text)
    return is_remote(text) and found is not None and found[1].lower() in (*_MODULES, *_OTHER_NAMES)


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """Address of an object, of a folder of objects, or of a bucket (an empty key)."""

    scheme: str
    bucket: str
    key: str = ""

    @classmethod
    def parse(cls, address: "str | os.PathLike[str] | Place") -> "Place":
        """Returns the place of an address; one without a bucket, or with an unknown scheme, raises StorageError."""
        if isinstance(address, Place):
            return address
        text = os.fspath(address)
        found = _ADDRESS.fullmatch(text)
        scheme = _OTHER_NAMES.get(found[1].lower(), found[1].lower()) if found else ""
        if found is None or scheme not in _MODULES:
            raise StorageError(f"{text}: expected an address of an object store, gs://BUCKET/NAME or s3://BUCKET/NAME")
        bucket, _, key = found[2].rstrip("/").partition("/")
        parts = [part for part in key.split("/") if part]
        if not bucket or {".", ".."} & {bucket, *parts}:
            raise StorageError(f"{text}: expected {scheme}://BUCKET/NAME, with a bucket and without . or .. as names")
        return cls(scheme, bucket, "/".join(parts))

    def __truediv__(self, name: str | os.PathLike[str]) -> "Place":
        parts = [part for part in [*self.key.split("/"), *os.fspath(name).split("/")] if part]
        return dataclasses.replace(self, key="/".join(parts))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    @property
    def name(self) -> str:
        """The last part: of the key, or the bucket."""
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def parent(self) -> "Place":
        """The folder of this place; a bucket's is the bucket."""
        return dataclasses.replace(self, key=self.key.rpartition("/")[0])


class Entry(NamedTuple):
    """An object: its name relative to the listed folder, its size in bytes, its version."""

    name: str
    size: int
    version: str


class Written(NamedTuple):
    """The answer to a write: the version, and the md5 or crc32c that the store computed ("md5:HEX"; empty: none)."""

    version: str
    checksum: str = ""


class Backend(Protocol):
    """One scheme: each method is a single request, whose errors `explain` sorts. `Store` adds retries and checks."""

    def head(self, place: Place) -> Entry | None:
        """Returns size and version of the object; None for no object."""
        ...

    def get(
        self, place: Place, start: int, stop: int | None, version: str | None, write: Callable[[bytes], object]
    ) -> str:
        """Passes bytes [start, stop) to `write`, piece by piece as they arrive, and returns the version.

        `version` is the one expected, None for any. `write` runs on the thread that receives the bytes.
        """
        ...

    def put(self, place: Place, data: bytes, only_if: "str | Absent | None", nonce: str) -> Written:
        """Writes an object on a condition. The nonce is stored with it."""
        ...

    def nonce(self, place: Place) -> tuple[str, str]:
        """Returns the nonce stored with an object, and its version; empty for no object."""
        ...

    def upload(self, file: pathlib.Path, place: Place, size: int, tries: "Tries") -> Written:
        """Writes a large file in parts."""
        ...

    def list_page(self, place: Place, token: str) -> tuple[list[Entry], str]:
        """Returns one page of the objects below a folder, and the token of the next; empty: no more."""
        ...

    def delete(self, places: list[Place]) -> None:
        """Deletes objects; missing ones are no error."""
        ...

    def explain(self, error: BaseException, place: Place) -> Exception:
        """Returns a TransientError or a StorageError for what a request raised."""
        ...


class Tries:
    """Repeats the requests of one call while they fail for a transient reason, and logs once that it took several."""

    def __init__(self, store: "Store", what: str, place: Place):
        self._store, self._what, self._place = store, what, place
        self._end: float | None = None
        self.repeated, self.reason = 0, ""
        self._lock = threading.Lock()

    def run(self, request: Callable[[int], Found], place: Place | None = None) -> Found:
        """Returns what `request(number of failed tries)` returns; StorageError after the total time, or for a permanent one."""
        place, began, failed = place or self._place, time.monotonic(), 0
        while True:
            try:
                found = request(failed)
            except StorageError:
                self._store.reached = True
                raise
            except Exception as error:
                problem = self._store.backend.explain(error, place)
                if not isinstance(problem, TransientError):
                    raise problem from error
                failed += 1
                self._wait(place, str(problem), failed, began, error)
            else:
                self._store.reached = True
                return found

    def _wait(self, place: Place, reason: str, failed: int, began: float, error: Exception) -> None:
        with self._lock:
            self.repeated, self.reason = self.repeated + 1, reason
        delay = min(MAX_DELAY, FIRST_DELAY * 2.0 ** (failed - 1)) * random.uniform(0.5, 1.5)
        # an endpoint that never answered is a wrong address more often than a service that is down
        total = RETRY_SECONDS if self._store.reached else min(RETRY_SECONDS, UNREACHED_SECONDS)
        spent = time.monotonic() - began
        if spent + delay > total:
            remedy = "run the same command again when the service answers"
            if not self._store.reached:
                remedy = f"check the network and {' and '.join(_VARIABLES[place.scheme][:1]) or 'the address'}"
            raise StorageError(
                f"{place}: the attempt to {self._what} it failed {failed} times in {spent:.0f} s, the last time with"
                f" {reason!r}: {remedy}"
            ) from error
        time.sleep(delay)


class Store:
    """Objects behind one endpoint. Every method may be called from several threads, and raises `StorageError`."""

    def __init__(self, backend: Backend):
        self.backend = backend
        self.reached = False
        """True once the endpoint has answered."""

    @contextlib.contextmanager
    def _tries(self, what: str, place: Place) -> Iterator[Tries]:
        tries = Tries(self, what, place)
        yield tries
        if tries.repeated:
            log.warning("%s of %s took %d tries (%s)", what, place, tries.repeated + 1, tries.reason)

    def read(self, place: Place) -> tuple[bytes, str]:
        """Returns content and version of an object; MissingObjectError if there is none."""
        with self._tries("read", place) as tries:

            def get(_: int) -> tuple[bytes, str]:
                found = list[bytes]()
                version = self.backend.get(place, 0, None, None, found.append)
                return b"".join(found), version

            return tries.run(get)

    def head(self, place: Place) -> Entry | None:
        """Returns size and version of an object (its name is empty); None if there is none."""
        with self._tries("look up", place) as tries:
            return tries.run(lambda _: self.backend.head(place))

    def read_version(self, place: Place) -> str | None:
        """Returns the version of an object; None if there is none."""
        entry = self.head(place)
        return None if entry is None else entry.version

    def write(self, place: Place, data: bytes, *, only_if: str | Absent | None = None) -> str:
        """Writes an object and returns its version.

        `only_if` is `ABSENT`, or the version that must still be the current one; ConditionFailedError if it is not. S3's
        version is the ETag, so equal contents have equal versions: give objects that are compared a content of their own.
        """
        nonce = uuid.uuid4().hex

        def put(_: int) -> str:
            try:
                written = self.backend.put(place, data, only_if, nonce)
            except Exception as error:
                if isinstance(self.backend.explain(error, place), ConditionFailedError):
                    # an earlier try, of this loop or of the HTTP client, may have been carried out and its answer lost
                    stored, version = self.backend.nonce(place)
                    if stored == nonce:
                        return version
                raise
            _compare(written, hashlib.md5(data).hexdigest, lambda: crc32c(data))
            return written.version

        with self._tries("write", place) as tries:
            return tries.run(put)

    def upload(self, file: pathlib.Path, place: Place) -> str:
        """Copies a file of this machine to an object and returns its version; the store's checksum or size is compared."""
        size = file.stat().st_size
        if size <= PART:
            return self.write(place, file.read_bytes())
        with self._tries("upload", place) as tries:
            written = self.backend.upload(file, place, size, tries)
            if not written.checksum:
                entry = tries.run(lambda _: self.backend.head(place))
                if entry is None or entry.size != size:
                    raise StorageError(
                        f"{place}: the store has {entry.size if entry else 0:,} bytes, expected the {size:,} of {file}:"
                        " somebody else writes there; upload it again"
                    )
            return written.version

    def download(
        self,
        place: Place,
        file: pathlib.Path,
        size: int | None = None,
        checksum: str | None = None,
        *,
        version: str | None = None,
        flush: bool = True,
        progress: Callable[[int], object] = lambda count: None,
    ) -> str:
        """Copies an object to a file of this machine, whole or not at all, and returns its version.

        Ranges of objects over `PART` bytes are fetched by several connections. `size` and `version` are the expected ones;
        `checksum` is "sha256:HEX", "md5:HEX", "crc32:HEX" or "crc32c:HEX" of the content. Without `flush`
        the content may not be on disk yet. `progress` receives the numbers of bytes that have arrived, from several threads.
        """
        if size is None:
            entry = self.head(place)
            if entry is None:
                raise MissingObjectError(f"{place}: no such object; check the address")
            size = entry.size
        file.parent.mkdir(parents=True, exist_ok=True)
        # next to the file, as only a rename inside one file system is atomic
        temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
        try:
            with self._tries("download", place) as tries, open(temporary, "x+b") as opened:
                arriving = ArrivingFile(opened.fileno(), (checksum or "").partition(":")[0])
                version = self._fetch(place, arriving, size, version, tries, progress)
                if flush:
                    os.fsync(opened.fileno())
            if checksum and arriving.checksum != checksum:
                raise DamagedError(
                    f"{place}: its content has {arriving.checksum}, expected {checksum}: it is damaged; upload it again"
                )
            os.replace(temporary, file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return version

    def _fetch(
        self,
        place: Place,
        file: ArrivingFile,
        size: int,
        version: str | None,
        tries: Tries,
        progress: Callable[[int], object],
    ) -> str:
        """Writes the content to an open file and returns the version."""
        file.reserve(size)
        if size > PART:
            entry = tries.run(lambda _: self.backend.head(place))
            if entry is None:
                raise MissingObjectError(f"{place}: no such object; check the address")
            if entry.size != size:
                raise _size_problem(place, entry.size, size)
            version = version or entry.version

        def fetch(start: int) -> str:
            # a smaller object has one range, whose answer tells the version and the size
            stop = min(size, start + RANGE) if size > PART else None

            def get(_: int) -> str:
                part = Part(file, start)
                found = self.backend.get(place, start, stop, version, part.write)
                if stop is None and part.size != size:
                    raise _size_problem(place, part.size, size)
                if stop is not None and part.size != stop - start:
                    raise TransientError(f"{part.size:,} of {stop - start:,} bytes arrived")
                file.complete(part)
                return found

            found = tries.run(get)
            progress((stop or size) - start)
            return found

        with file.own_errors():
            return in_parallel(fetch, range(0, size, RANGE))[0] if size > PART else fetch(0)

    def list(self, place: Place) -> list[Entry]:
        """Returns all objects below a folder, at any depth, sorted by their names relative to it; empty for no folder."""
        found, token = list[Entry](), ""
        with self._tries("list", place) as tries:
            while True:
                page, token = tries.run(lambda _, token=token: self.backend.list_page(place, token))
                # consoles create empty objects that stand for folders
                found += [entry for entry in page if entry.name and not entry.name.endswith("/")]
                if not token:
                    return sorted(found)

    def delete(self, places: Iterable[Place]) -> None:
        """Deletes objects; missing ones are no error."""
        every = list(places)
        if every:
            with self._tries("delete", every[0]) as tries:
                for start in range(0, len(every), 1000):  # S3's limit of one request
                    tries.run(lambda _, start=start: self.backend.delete(every[start : start + 1000]))


_stores: dict[tuple[Any, ...], Store] = {}
_stores_lock = threading.Lock()


def open_store(place: Place) -> Store:
    """Returns the store of an address: one for each endpoint and credentials of the environment, shared by threads."""
    given = tuple(os.environ.get(name) for name in _VARIABLES[place.scheme])
    with _stores_lock:
        key = (place.scheme, os.getpid(), *given)
        if key not in _stores:
            try:
                module = importlib.import_module(f"spanjax.storage.{_MODULES[place.scheme]}")
            except ModuleNotFoundError as error:
                raise StorageError(
                    f"{place}: {place.scheme}:// needs the package {error.name}: pip install 'spanjax[{place.scheme}]'"
                ) from error
            _stores[key] = Store(module.connect())
        return _stores[key]


def new_loop() -> asyncio.AbstractEventLoop:
    """Returns an event loop that runs on a thread of its own until the process ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="spanjax-storage-loop", daemon=True).start()
    return loop


def in_parallel(work: Callable[[Any], Found], items: Iterable[Any], connections: int = 0) -> list[Found]:
    """Returns `work(item)` for every item, in order, on several threads; the first error ends what has not begun."""
    with concurrent.futures.ThreadPoolExecutor(connections or CONNECTIONS, "spanjax-storage") as pool:
        running = [pool.submit(work, item) for item in items]
        try:
            return [each.result() for each in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def request_seconds(size: int) -> float:
    """Time limit of a request whose body has `size` bytes."""
    return REQUEST_SECONDS + size / SLOWEST


def part_size(size: int, most: int) -> int:
    """Bytes of the parts of a file of `size` bytes, a multiple of 1 MiB, if the store takes at most `most` parts."""
    return max(PART, math.ceil(size / most / 2**20) * 2**20)


def _compare(written: Written, md5: Callable[[], str], crc: Callable[[], str]) -> None:
    kind, _, value = written.checksum.partition(":")
    if kind and value != (md5 if kind == "md5" else crc)():
        raise TransientError("the store's checksum is not that of the bytes sent")


def _size_problem(place: Place, found: int, expected: int) -> StorageError:
    return StorageError(
        f"{place}: it has {found:,} bytes, expected {expected:,}: it was replaced or cut; write the folder again, or give the"
        " folder that it belongs to"
    )
