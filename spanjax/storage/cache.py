"""Copies of objects in a folder of this machine, shared by its processes and by runs.

A folder or file of a bucket becomes CACHE/DIGEST/NAME: the digest is that of its address and of the names, sizes and versions
of its objects, so a copy never mixes two states. A file is fetched by one process while the others wait for it, and a complete
one stays, also when the process is killed; objects that another copy has are linked. A copy that a process has used stays until
that process ends; any other may be removed to make room, the least recently used first.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from spanjax.cli import Progress
from spanjax.json_files import parse_json
from spanjax.storage.local import user_cache
from spanjax.storage.objects import Place, StorageError, in_parallel, open_store

FILES = 8  # fetched at the same time, each by several connections
SPARE = 64 * 2**20  # bytes of the disk that no copy takes
_LOCK, _USED, _LOCKS, _SOURCES = "lock", "used", "locks", "sources.json"


class Source(NamedTuple):
    """An object that is copied."""

    name: str
    """Relative name of the copy."""
    place: Place
    size: int
    version: str
    """The expected version; empty if the checksum identifies the content."""
    checksum: str = ""
    """As of `Store.download`; empty for none."""
    flush: bool = True
    """False for content that a reader compares and flushes before it trusts it."""

    @property
    def content(self) -> str:
        """Identifies the object and its content."""
        return f"{self.place} {self.size} {self.checksum or self.version}"


@dataclasses.dataclass(frozen=True)
class Cache:
    """A folder of copies."""

    folder: pathlib.Path
    most_bytes: int = 0
    """Size of all copies; 0 sets no limit."""
    flags: tuple[str, str] = ("XDG_CACHE_HOME", "XDG_CACHE_HOME")
    """Names of the settings of the folder and of its size, for messages."""

    def fetch(self, place: Place, sources: Sequence[Source]) -> pathlib.Path:
        """Returns the folder with a copy of every source, which stays while this process lives.

        StorageError if there is no room, or an object has another size, version or checksum.
        """
        identity = [str(place), sorted([each.name, each.size, each.checksum or each.version] for each in sources)]
        base = self.folder / hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
        target = base / place.name
        try:
            with self._locked():
                _hold(base)
                missing = [each for each in sources if not _is_complete(target / each.name, each)]
                if missing:
                    # under the lock, so that nobody removes the other copies meanwhile
                    self._link_known(base, target, missing)
                    missing = [each for each in missing if not _is_complete(target / each.name, each)]
                    names = {each.content: f"{place.name}/{each.name}" for each in sources}
                    (base / _SOURCES).write_text(json.dumps(names))
                self._make_room(place, base, sum(each.size for each in missing), sum(each.size for each in sources))
            if missing:
                self._copy(place, missing, target, base / _LOCKS)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise StorageError(
                f"{place} cannot be copied to {self.folder}: {error.strerror or error}{where}; give another folder by"
                f" {self.flags[0]}"
            ) from error
        return target

    def _link_known(self, base: pathlib.Path, target: pathlib.Path, missing: Sequence[Source]) -> None:
        """Links files that other copies have: of a run that trains, all but the metrics. The caller holds the lock."""
        wanted = {each.content: each for each in missing}
        for file in self.folder.glob(f"*/{_SOURCES}"):
            # one that was cut when the disk was full, or a file system without links: these objects are fetched
            with contextlib.suppress(OSError, ValueError):
                known = {} if file.parent == base else parse_json(file.read_bytes(), dict)
                for content in known.keys() & wanted.keys():
                    source, old = wanted[content], file.parent / known[content]
                    new = target / source.name
                    if _is_complete(old, source) and not new.exists():
                        new.parent.mkdir(parents=True, exist_ok=True)
                        os.link(old, new)

    def _copy(self, place: Place, missing: Sequence[Source], target: pathlib.Path, locks: pathlib.Path) -> None:
        total, counting = sum(each.size for each in missing), threading.Lock()
        locks.mkdir(exist_ok=True)
        with Progress(f"fetching {place}", total, "MB") as progress:

            def count(size: int) -> None:
                with counting:
                    progress.done += size

            def copy(source: Source) -> None:
                file = target / source.name
                with _flocked(locks / hashlib.sha256(source.name.encode()).hexdigest()[:24]):
                    if _is_complete(file, source):  # by another process, while this one waited
                        count(source.size)
                        return
                    for leftover in file.parent.glob(f".{file.name}.*"):  # of a killed process
                        leftover.unlink(missing_ok=True)
                    open_store(place).download(
                        source.place, file, source.size, source.checksum or None,
                        version=source.version or None, flush=source.flush, progress=count,
                    )  # fmt: skip

            # large files first: the last connections to end are those of small ones
            in_parallel(copy, sorted(missing, key=lambda each: -each.size), FILES)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _flocked(self.folder / _LOCK):
            yield

    def _make_room(self, place: Place, base: pathlib.Path, needed: int, size: int) -> None:
        """Removes copies that nobody uses until the disk and the limit have room; StorageError if they have not."""
        others = sorted(
            (path for path in self.folder.iterdir() if path != base and (path / _USED).is_file()),
            key=lambda path: (path / _USED).stat().st_mtime_ns,
        )
        held = sum(map(_bytes, others)) if self.most_bytes else 0

        def lacking() -> bool:
            free = shutil.disk_usage(self.folder).free
            return needed + SPARE > free or bool(self.most_bytes and held + size > self.most_bytes)

        while needed and lacking() and others:
            oldest = others.pop(0)
            space = _bytes(oldest)
            if _remove(oldest):
                held -= space if self.most_bytes else 0
        if needed and lacking():
            free = shutil.disk_usage(self.folder).free
            limit = f", and {self.flags[1]} allows {self.most_bytes / 1e9:,.3f} GB" if self.most_bytes else ""
            raise StorageError(
                f"{place}: {needed / 1e9:,.3f} GB of {size / 1e9:,.3f} GB are to be copied to {self.folder}, where"
                f" {free / 1e9:,.3f} GB are free{limit}; copies in use take {held / 1e9:,.3f} GB: free some space, raise the"
                f" limit, or name another folder by {self.flags[0]}"
            )


def needed_user_cache(what: str, remedy: str = "") -> pathlib.Path:
    """Returns `user_cache` of this process. StorageError without a home: `what` lies there, `remedy` ends the message."""
    if (base := user_cache(os.environ)) is None:
        raise StorageError(f"{what} below $XDG_CACHE_HOME or $HOME, and neither is set: set XDG_CACHE_HOME{remedy}")
    return base


def user_files(folder: str = "", most_gb: float = 0.0) -> Cache:
    """Returns the cache in a folder, by default $XDG_CACHE_HOME/spanjax/storage; StorageError without a home."""
    if folder:
        return Cache(pathlib.Path(folder).absolute(), int(most_gb * 1e9), ("--data.cache", "--data.cache-gb"))
    base = needed_user_cache("copies of objects lie", " to a folder")
    return Cache(base / "storage", int(most_gb * 1e9), ("XDG_CACHE_HOME", "--data.cache-gb"))


def listed(place: Place, checksums: Mapping[str, str] | None = None) -> list[Source]:
    """Returns all objects below a folder; the checksums are by relative name."""
    known = checksums or {}
    return [
        Source(entry.name, place / entry.name, entry.size, entry.version, known.get(entry.name, ""))
        for entry in open_store(place).list(place)
    ]


_held: dict[pathlib.Path, int] = {}
_holding = threading.Lock()


def _hold(base: pathlib.Path) -> None:
    """Marks a copy as used by this process; the caller holds the lock of the cache."""
    with _holding:
        used = base / _USED
        if base not in _held or not used.exists():
            base.mkdir(exist_ok=True)
            handle = os.open(used, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(handle, fcntl.LOCK_SH)
            _held[base] = handle  # open until the process ends
        os.utime(used)


def _remove(base: pathlib.Path) -> bool:
    """Removes a copy unless a process uses it."""
    with open(base / _USED, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        shutil.rmtree(base, ignore_errors=True)
    return True


@contextlib.contextmanager
def _flocked(path: pathlib.Path) -> Iterator[None]:
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_complete(file: pathlib.Path, source: Source) -> bool:
    try:
        return file.stat().st_size == source.size
    except FileNotFoundError:
        return False


def _bytes(base: pathlib.Path) -> int:
    stats = [file.stat() for file in base.rglob("*") if file.is_file()]
    return sum(each.st_size // each.st_nlink for each in stats)  # links of several copies count once
