"""Work directory of a sweep, a folder of this machine or one in a bucket: its lock, descriptions and results."""

import contextlib
import json
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from spanjax.json_files import JsonError, parse_json, read_json
from spanjax.storage.inputs import RESULT
from spanjax.storage.lease import Lease
from spanjax.storage.local import write_whole
from spanjax.storage.objects import MissingObjectError, Place, open_store
from spanjax.training.workdir import find_workdir, in_bucket, sole_run

RESTORE = "restore it, or remove it to repeat the run"


class SweepFolder:
    """The work directory of a sweep; each run has WORKDIR/ARM/SEED."""

    def __init__(self, workdir: str):
        self._path = pathlib.Path(workdir)
        self._place = Place.parse(workdir) if in_bucket(workdir) else None
        self._store = open_store(self._place) if self._place else None
        self._lease: Lease | None = None

    def __str__(self) -> str:
        return str(self._place or self._path)

    def run(self, arm: str, seed: int) -> str:
        """Returns the work directory of a run."""
        return str(self._place / f"{arm}/{seed}" if self._place else self._path / arm / str(seed))

    def opened(self, arm: str, seed: int, cache: str) -> tuple[pathlib.Path, bool]:
        """Returns the folder of this machine with the files of a run, and True if the run has a checkpoint.

        `cache` as in `Mirror`. Of a run in a bucket the folder has run.json, and after its training here all other files.
        """
        folder, _, begun = find_workdir(self.run(arm, seed), cache)
        return folder, begun

    def remove_copy(self, folder: pathlib.Path) -> None:
        """Removes this machine's copy of a run in a bucket, which has ended: a sweep would fill the disk with them."""
        if self._place is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def read(self, name: str) -> dict[str, Any] | None:
        """Returns the content of a JSON file; None without one. JsonError if it is damaged."""
        if self._place is None or self._store is None:
            file = self._path / name
            return read_json(file, dict, RESTORE) if file.is_file() else None
        try:
            return parse_json(self._store.read(self._place / name)[0], dict)
        except MissingObjectError:
            return None
        except JsonError as error:
            raise JsonError(f"{self._place / name} is not readable JSON ({error}): {RESTORE}") from None

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file; FencedError if another sweep has taken the bucket over."""
        text = json.dumps(content, indent=1) + "\n"
        if self._place is None or self._store is None:
            file = self._path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, text)
            return
        if self._lease is not None:
            self._lease.check()
        self._store.write(self._place / name, text.encode())

    def finished(self, arm: str, seed: int) -> bool:
        """True if a run has ended well."""
        found = self.read(f"{arm}/{seed}/{RESULT}")
        return found is not None and "error" not in found

    @contextlib.contextmanager
    def sole(self) -> Iterator[None]:
        """Admits one sweep at a time. LockedError or HeldError names the other."""
        if self._place is None or self._store is None:
            with sole_run(self._path):
                yield
            return
        self._lease = Lease(self._store, self._place / "run.lock", str(self._place))
        self._lease.take()
        try:
            yield
        finally:
            self._lease.release()
