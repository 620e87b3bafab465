"""Work directory in a bucket: a run works in a folder of its machine, and this connects that folder with the bucket.

`spanjax.storage.commits` describes the layout. Every process has a folder of its own, so hosts need no common disk. Process 0
holds the lease, mirrors the small files, and commits; every process uploads the parts of a checkpoint that it wrote.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import pathlib
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import jax

from spanjax.distributed import all_gather_text
from spanjax.json_files import parse_json
from spanjax.storage.cache import needed_user_cache
from spanjax.storage.checksums import file_checksum
from spanjax.storage.commits import CHECKPOINTS, Commits, FencedError
from spanjax.storage.errors import DamagedError
from spanjax.storage.lease import Lease
from spanjax.storage.objects import (
    ABSENT,
    ConditionFailedError,
    Entry,
    MissingObjectError,
    Place,
    StorageError,
    in_parallel,
    open_store,
)
from spanjax.training.checkpoint_files import (
    CHECKSUMS,
    EVALUATION,
    is_index,
    merge_indexes,
    name_in_merged,
    sized_crc,
    steps_of,
    stored_losses,
)

log = logging.getLogger(__name__)
MIRROR_SECONDS = 30.0
"""Seconds between uploads of metrics and other small files."""
UPLOADED_SECONDS = 3600.0
"""Seconds that a process waits for the uploads of the others."""
_LOCAL = (CHECKPOINTS, "run.lock", "profile")  # not mirrored: checkpoints are committed, traces are large


class Mirror:
    """The work directory at `address`, and this process's folder for it. All processes call each method alike."""

    def __init__(self, address: str, cache: str = ""):
        """`cache` is the folder for such copies; empty takes that of the user. StorageError, ValueError if there is none."""
        self.place = Place.parse(address)
        what, remedy = "a run in a bucket works in a folder", " to a folder with space for a few checkpoints"
        base = pathlib.Path(cache) if cache else needed_user_cache(f"--workdir {self.place}: {what}", remedy)
        key = hashlib.sha256(str(self.place).encode()).hexdigest()[:12]
        self.host = base / "runs" / f"{self.place.name}-{key}"
        """Folder of this machine for the run; its processes share it."""
        self.folder = self.host / f"process_{jax.process_index()}"
        self.store = open_store(self.place)
        self.commits = Commits(self.store, self.place)
        self.lease = Lease(self.store, self.place / "run.lock", str(self.place))
        self.keep = 1
        """Newest checkpoints that stay in the bucket, in addition to the best one."""
        self.losses: dict[int, float] = {}
        """Evaluation values by step; `Checkpoints` shares its own."""
        self._sent: dict[str, tuple[Any, str | None]] = {}  # relative name -> (size and time when sent, version)
        self._sending, self._ended, self._reported = threading.Lock(), threading.Event(), False
        self._thread = threading.Thread(target=self._send_regularly, name="spanjax-mirror", daemon=True)

    def look(self) -> bool:
        """Fetches run.json, for a run that has begun, and returns True if that has a checkpoint. Takes nothing."""
        try:
            self._fetch_file("run.json", None)
        except MissingObjectError:  # one in the folder is that of a run whose objects somebody removed
            (self.folder / "run.json").unlink(missing_ok=True)
        return bool(self.commits.read().steps)

    def open(self, resources: contextlib.ExitStack) -> None:
        """Takes the lease (process 0, before the others) and fetches the run's files, but no checkpoint, until `resources` close.

        HeldError names an active run. Call it with the folder locked: files from an earlier run in it are replaced.
        """
        first = jax.process_index() == 0
        if first:
            resources.callback(self.lease.release)
            fencing = self.lease.take(self.commits.read().fencing)
            self.commits.claim(fencing, self.lease.holder)
        else:
            self.commits.read()
        self._clear()
        entries = {entry.name: entry for entry in self.store.list(self.place) if self._mirrored(entry.name)}
        # the other processes need the description of the run alone
        wanted = [name for name in entries if first or name == "run.json"]
        in_parallel(lambda name: self._fetch_file(name, entries[name]), wanted)
        if first:
            self._thread.start()
            resources.callback(self.close)

    def _clear(self) -> None:
        """Removes what earlier runs left in the local folder; their checkpoints move aside, as a store of known files."""
        old = self.folder / f"{CHECKPOINTS}.old"
        with contextlib.suppress(OSError):
            if steps_of(self.folder):
                shutil.rmtree(old, ignore_errors=True)
                os.rename(self.folder / CHECKPOINTS, old)
        for path in self.folder.iterdir():
            if path.name in ("run.lock", old.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    @staticmethod
    def _mirrored(name: str) -> bool:
        top, *more = name.split("/")
        return top not in (*_LOCAL, f"{CHECKPOINTS}.old", "commits") and not any(
            n.startswith(".") for n in (top, *more)
        )

    def _fetch_file(self, name: str, entry: Entry | None) -> None:
        target, known = self.folder / name, (None, None) if entry is None else (entry.size, entry.version)
        found = self.store.download(self.place / name, target, known[0], version=known[1])
        self._sent[name] = (_signature(target), found)

    def steps(self) -> list[int]:
        """Steps that are committed, oldest first."""
        return sorted(self.commits.head.steps)

    def check(self) -> None:
        """Raises FencedError once another run has taken over."""
        self.lease.check()

    # ---- checkpoints

    def fetch(self, step: int) -> str | None:
        """Fetches a committed checkpoint into the local folder, whole or not at all; returns the damage as text, None if none.

        Files that a folder of this machine already has, by their checksums, are linked. StorageError if the bucket does not
        answer.
        """
        commit = self.commits.head.steps[step].commit
        target = self.folder / CHECKPOINTS / str(step)
        work = self.folder / f".fetched-{step}"
        shutil.rmtree(work, ignore_errors=True)
        try:
            files = self.commits.files(commit)
        except StorageError as error:
            # a service that does not answer is no damage: falling back would throw steps away
            if isinstance(error, MissingObjectError):
                return str(error)
            raise
        except ValueError as error:
            return str(error)
        with self._alone():
            listed = {entry.name: entry.size for entry in self.store.list(self.commits.folder(commit))}
            if reason := _difference(files, listed):
                return reason
            known = self._known()
            fetched = in_parallel(
                lambda name: self._fetch_checked(commit, name, work / name, files[name], known), sorted(files)
            )
            if damaged := [name for name in fetched if name]:
                shutil.rmtree(work, ignore_errors=True)
                return f"changed files {damaged[:3]}"
            if EVALUATION in listed:
                self.store.download(self.commits.folder(commit) / EVALUATION, work / EVALUATION)
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(exist_ok=True)
            os.rename(work, target)
        return None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps the other processes of this machine waiting: they link then what this one fetched."""
        with open(self.host / "fetch.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _known(self) -> dict[tuple[str, int], list[pathlib.Path]]:
        """(Last name, bytes) -> files of checkpoints that processes of this machine have."""
        known: dict[tuple[str, int], list[pathlib.Path]] = {}
        for path in self.host.glob(f"process_*/{CHECKPOINTS}*/*/**/*"):
            with contextlib.suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    known.setdefault((path.name, path.stat().st_size), []).append(path)
        return known

    def _fetch_checked(
        self,
        commit: str,
        name: str,
        target: pathlib.Path,
        expected: tuple[int, str],
        known: dict[Any, list[pathlib.Path]],
    ) -> str:
        """Links or downloads one file; returns its name if its content is not the committed one, else empty."""
        size, checksum = expected
        target.parent.mkdir(parents=True, exist_ok=True)
        for path in known.get((target.name, size), ()):
            with contextlib.suppress(OSError):  # another file system, or removed meanwhile
                if file_checksum(path, "crc32") == checksum:
                    os.link(path, target)
                    return ""
        try:
            # not flushed: a copy is used by the process that has compared it, and after a crash it is compared again
            self.store.download(self.commits.folder(commit) / name, target, size, checksum, flush=False)
        except DamagedError:
            return name
        return ""

    def restored(self) -> None:
        """Removes copies of earlier checkpoints, which `fetch` no longer needs; learns the losses of all committed steps."""
        shutil.rmtree(self.folder / f"{CHECKPOINTS}.old", ignore_errors=True)
        found = stored_losses(self.folder, self.steps())
        stored = {step: each.loss for step, each in self.commits.head.steps.items() if each.loss is not None}
        self.losses.update({**stored, **found})

    def set_aside(self, steps: list[int]) -> None:
        """Takes damaged checkpoints off the list; process 0 calls it."""
        self.commits.set_aside(steps)

    def upload(self, step: int, failed: Exception | None) -> None:
        """Uploads this process's files of a local checkpoint; process 0 then commits it. Runs on a thread.

        `failed` is the reason why this process has no such files. It is raised again, after the others know; StorageError on
        every process whose upload failed, on process 0 also for those of others; FencedError if another run has taken over.
        """
        answer: dict[str, Any] = {}
        try:
            if failed is not None:
                raise failed
            answer["files"] = self._upload_files(step)
        except Exception as error:
            # raised after the rendezvous, at which the others would wait
            failed, answer["problem"] = error, str(error)
        texts = all_gather_text("checkpoint is uploaded", json.dumps(answer), UPLOADED_SECONDS)
        if failed is not None:
            raise failed
        if jax.process_index() == 0:
            answers = [parse_json(text, dict) for text in texts]
            if absent := [each for each, answer in enumerate(answers) if "files" not in answer]:
                raise StorageError(f"process {absent[0]}: {answers[absent[0]]['problem']}")
            self._commit(step, {name: entry for answer in answers for name, entry in answer["files"].items()})

    def _upload_files(self, step: int) -> dict[str, Any]:
        """Uploads the files that this process wrote; returns name -> [bytes, crc32]."""
        local, count = self.folder / CHECKPOINTS / str(step), jax.process_count()
        target = self.commits.folder(self.commits.name(step))
        checked = parse_json((local / CHECKSUMS).read_bytes(), dict)
        names = {name: name_in_merged(name, jax.process_index(), count) for name in checked}

        def send(name: str) -> tuple[str, Any]:
            self.check()
            self.store.upload(local / name, target / (stored := str(names[name])))
            return stored, checked[name]

        return dict(in_parallel(send, sorted(name for name in names if names[name])))

    def _commit(self, step: int, files: dict[str, Any]) -> None:
        """Writes the parts that no process has, sends the small files, and commits."""
        target = self.commits.folder(self.commits.name(step))
        work = self.folder / f".merged-{step}"
        shutil.rmtree(work, ignore_errors=True)
        try:
            work.mkdir()
            if jax.process_count() > 1:
                indexes = [name for name in files if is_index(name)]
                in_parallel(lambda name: self.store.download(target / name, work / name, files[name][0]), indexes)
                for path in merge_indexes(work):
                    name = str(path.relative_to(work))
                    self.store.upload(path, target / name)
                    files[name] = sized_crc(path)
            sums = work / CHECKSUMS
            sums.write_text(json.dumps(files))
            self.store.upload(sums, target / CHECKSUMS)
            files[CHECKSUMS] = sized_crc(sums)
            self.send_files()  # before the commit: a resumed run has the records up to this step
            self._fenced(lambda: self.commits.commit(step, _listed(files), self.losses, self.keep))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        try:
            self.commits.remove_leftovers()
        except StorageError as error:
            log.warning("old checkpoints stay in %s for now: %s", self.place, error)

    def _fenced(self, change: Any) -> None:
        try:
            change()
        except FencedError as error:
            try:
                self.lease.renew()  # raises an error that names the other run
            except FencedError:
                raise
            except StorageError:
                pass
            self.lease.lost = error
            raise

    def adopt(self, step: int) -> None:
        """Commits a checkpoint that process 0 has copied into its folder; called by process 0 alone."""
        local = self.folder / CHECKPOINTS / str(step)
        names = [str(p.relative_to(local)) for p in local.rglob("*") if p.is_file()]
        target = self.commits.folder(self.commits.name(step))
        in_parallel(lambda name: self.store.upload(local / name, target / name), names)
        # an evaluation is no part of the commit: a later one replaces it
        files = _listed({name: sized_crc(local / name) for name in names if name != EVALUATION})
        self._fenced(lambda: self.commits.commit(step, files, self.losses, self.keep))

    # ---- small files

    def send_files(self) -> None:
        """Uploads the small files that changed since; a failure is logged once and retried the next time."""
        with self._sending:
            self._carefully(self._send)

    def send_now(self, name: str) -> None:
        """Uploads one small file; StorageError if that fails."""
        with self._sending:
            self._send_file(name, self.folder / name)

    def _carefully(self, action: Any) -> None:
        try:
            self.check()
            action()
            self._reported = False
        except FencedError:
            pass  # the loop ends the run
        except (StorageError, OSError) as error:
            if not self._reported:
                log.warning("%s: metrics could not be uploaded, which is retried: %s", self.place, error)
            self._reported = True

    def _send(self) -> None:
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            if self._mirrored(name) and path.is_file() and not path.is_symlink():
                self._send_file(name, path)
        for step, (commit, _) in self.commits.head.steps.items():
            path = self.folder / CHECKPOINTS / str(step) / EVALUATION
            if path.is_file():
                self._send_file(f"{CHECKPOINTS}/{commit}/{EVALUATION}", path)

    def _send_file(self, name: str, path: pathlib.Path) -> None:
        before, version = self._sent.get(name, (None, None))
        signature = _signature(path)
        if signature == before:
            return
        data = path.read_bytes()
        try:
            version = self.store.write(self.place / name, data, only_if=ABSENT if version is None else version)
        except ConditionFailedError:
            # left by a run that was taken over and slept in between; its records are in ours up to where we resumed
            self.lease.renew()
            version = self.store.write(
                self.place / name, data, only_if=self.store.read_version(self.place / name) or ABSENT
            )
        self._sent[name] = (signature, version)

    def _send_regularly(self) -> None:
        while not self._ended.wait(MIRROR_SECONDS):
            if self.lease.lost is not None:
                return
            self.send_files()

    def close(self) -> None:
        """Uploads what is new one last time; a second call does nothing."""
        if not self._ended.is_set():
            self._ended.set()
            self.send_files()
            self._carefully(lambda: self._fenced(lambda: self.commits.update_losses(self.losses)))


def _signature(path: pathlib.Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _listed(files: dict[str, list[int]]) -> dict[str, tuple[int, str]]:
    return {name: (size, f"crc32:{crc:08x}") for name, (size, crc) in files.items()}


def _difference(files: dict[str, tuple[int, str]], listed: dict[str, int]) -> str | None:
    missing = sorted(files.keys() - listed.keys())
    changed = sorted(name for name in files.keys() & listed.keys() if files[name][0] != listed[name])
    return f"missing files {missing[:3]}, changed files {changed[:3]}" if missing or changed else None
