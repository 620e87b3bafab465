"""Outputs of commands that lie in buckets: written to this machine, then uploaded, the files that make a folder valid last.

The rules of `outputs` on what may be replaced hold for buckets too: the command writes to a local stand-in for the address, in
which every existing object is an empty file, or the object itself where the rules read it.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from spanjax.cli import Progress, SomeFailedError
from spanjax.storage.cache import needed_user_cache
from spanjax.storage.inputs import with_local_copies
from spanjax.storage.objects import Entry, Place, StorageError, in_parallel, is_remote, open_store

Options = TypeVar("Options")
Found = TypeVar("Found")
MARK = ".spanjax-upload.json"
"""Object that exists while an upload is under way, or after one that was killed: the names of its files."""
_READ_BYTES = 64 * 2**20  # of existing objects that the rules may read
_FILES = 4  # uploaded at the same time, each by several connections
_LAST = ("checksums.json", "metadata", "modules.json", "config.json", "manifest.json", "run.json")
"""Names of files without which a folder does not read as whole, in the order of their upload."""
_RUN = "commits/HEAD"


class RemoteOutput:
    """A file or folder at an address and its local stand-in, `local`, inside of `parent`."""

    def __init__(self, address: str | os.PathLike[str], parent: pathlib.Path):
        self.place = Place.parse(address)
        if not self.place.key:
            raise StorageError(f"{self.place}: a whole bucket; expected the name of a file or folder in it")
        self.store = open_store(self.place)
        self.local = parent / self.place.name
        self._before: dict[str, Entry] = {}
        self._stamps: dict[str, tuple[int, int]] = {}

    def look(self, overwrite: bool) -> None:
        """Makes the stand-in. StorageError for a run, and for a folder whose upload did not end without `overwrite`."""
        self._before = {entry.name: entry for entry in self.store.list(self.place)}
        if _RUN in self._before:
            raise StorageError(f"{self.place} is a training run, which no command replaces: name another folder")
        if MARK in self._before and not overwrite:
            raise StorageError(
                f"{self.place}: an upload to it was stopped, or is under way: replace it with --overwrite, or name another"
            )
        if not self._before and (entry := self.store.head(self.place)) is not None:
            self.local.parent.mkdir(parents=True, exist_ok=True)
            if entry.size <= _READ_BYTES:
                self.store.download(self.place, self.local, entry.size)
            else:
                self.local.write_bytes(b"\0")  # no rule takes it for a file of a command
        unfinished = MARK in self._before
        for name, entry in self._before.items() if not unfinished else ():
            file = self.local / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if entry.size <= _READ_BYTES and (name.endswith(".json") or file.name == "metadata"):
                self.store.download(self.place / name, file, entry.size)
            else:
                file.touch()
        self._stamps = {name: _stamp(path) for name, path in _files(self.local).items()}

    @contextlib.contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Replaces the path of the stand-in by the address in messages of a ValueError."""
        try:
            yield
        except SomeFailedError:
            raise
        except ValueError as error:
            text = str(error).replace(str(self.local), str(self.place))
            if text == str(error):
                raise
            named = ValueError(text)
            for note in getattr(error, "__notes__", ()):
                named.add_note(note)
            raise named from error

    def upload(self, written: pathlib.Path) -> None:
        """Uploads a file, or a folder with the files that make it valid last; what it replaces is deleted before these."""
        if written.is_file():
            self.store.upload(written, self.place)
            return
        files = _files(written)
        changed = {
            name: path
            for name, path in files.items()
            if written != self.local or _stamp(path) != self._stamps.get(name)
        }
        if not changed:
            return
        valid = sorted((name for name in changed if _rank(name)), key=lambda name: (_rank(name), *_reversed(name)))
        mark = self.place / MARK
        self.store.write(mark, json.dumps(sorted(files)).encode())
        # without them neither the old folder nor the new one reads as whole meanwhile
        gone = [name for name in self._before if name not in files or name in valid]
        self.store.delete(self.place / name for name in sorted(gone, key=lambda name: -_rank(name)))
        total = sum(path.stat().st_size for path in changed.values())
        with Progress(f"uploading to {self.place}", total, "MB") as progress:

            def send(name: str) -> None:
                self.store.upload(changed[name], self.place / name)
                progress.done += changed[name].stat().st_size

            in_parallel(send, sorted({*changed} - {*valid}), _FILES)
            for name in valid:
                send(name)
        self.store.delete([mark])


def staging(address: str) -> pathlib.Path:
    """Folder of this machine for unfinished work on an address, the same for every process; StorageError without a home."""
    return (
        needed_user_cache("unfinished work lies")
        / "unfinished"
        / hashlib.sha256(str(Place.parse(address)).encode()).hexdigest()[:24]
    )


@contextlib.contextmanager
def local_outputs(options: Options, *names: str) -> Iterator[Options]:
    """Yields options in which the addresses of these fields are local stand-ins, and uploads them when the block ends well.

    The rest of a command that failed for some records counts as well. Errors name the addresses. An option `overwrite` allows
    to replace the rest of a stopped upload.
    """
    remote = {name: value for name in names if (value := getattr(options, name)) and is_remote(value)}
    if not remote:
        yield options
        return
    with tempfile.TemporaryDirectory(prefix="spanjax-") as work:
        outputs = {
            name: RemoteOutput(value, pathlib.Path(work, str(number)))
            for number, (name, value) in enumerate(remote.items())
        }
        for output in outputs.values():
            output.local.parent.mkdir()
            output.look(bool(getattr(options, "overwrite", False)))
        changes: dict[str, Any] = {name: str(output.local) for name, output in outputs.items()}
        with contextlib.ExitStack() as naming:
            for output in outputs.values():
                naming.enter_context(output.named_in_errors())
            try:
                yield dataclasses.replace(options, **changes)  # pyright: ignore[reportArgumentType, reportCallIssue]
            except SomeFailedError:
                _upload(outputs)
                raise
        _upload(outputs)


def on_local_files(
    work: Callable[[Options], Found], options: Options, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
) -> Found:
    """Returns what a command does with its options, with local copies in the fields `inputs`, see `with_local_copies`, and
    local stand-ins in the fields `outputs`, see `local_outputs`.
    """
    with local_outputs(options, *outputs) as local:
        return work(with_local_copies(local, *inputs))


def _upload(outputs: dict[str, RemoteOutput]) -> None:
    for output in outputs.values():
        if output.local.exists():
            output.upload(output.local)
            # standard output may be one JSON object
            print(f"uploaded to {output.place}", file=sys.stderr)


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Relative name -> file; those whose name begins with a dot are leftovers of writes."""
    if folder.is_file():
        return {}
    found = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def _stamp(path: pathlib.Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _rank(name: str) -> int:
    last = name.rpartition("/")[2]
    return _LAST.index(last) + 1 if last in _LAST else 0


def _reversed(name: str) -> tuple[int, ...]:
    """Sorts validation/ before train/, without which rows do not open, and inner folders before the outer one."""
    return -name.count("/"), *(-ord(letter) for letter in name)
