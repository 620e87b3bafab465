"""The work directory of a run: its run.json, and the lock that admits one run at a time.

A run holds `run.lock` with flock, which the system releases when the process ends, however it ends. On a file system without
flock, the holder touches the file every minute, and another run takes over one not touched for ten.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from spanjax.distributed import collective_call
from spanjax.json_files import parse_json, read_json
from spanjax.run_format import MASKS, STAGES, STARTED_IN, adds_stages, differences_in_paths
from spanjax.storage.local import write_whole
from spanjax.storage.objects import is_remote
from spanjax.storage.outputs import output_problem
from spanjax.training.checkpoint_files import has_checkpoints, steps_of
from spanjax.training.mirror import Mirror
from spanjax.training.redaction import redacted

FILE = "run.lock"
Described = dict[str, Any]
BEAT_SECONDS, STALE_SECONDS = 60.0, 600.0
# Time for another host's rename to become visible without flock (NFS, FUSE). Chosen, not measured: a mount that caches names
# for longer can let two runs in that start within that time; heartbeats every minute keep any later one out.
SETTLE_SECONDS = 1.0
_NO_FLOCK = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL})


class LockedError(ValueError):
    """Another run is at work in the directory; the message names it."""


def in_bucket(address: str) -> bool:
    """Returns True for a work directory in a bucket.

    As a path, so that gs:/bucket with one slash counts; ./gs:/bucket is a folder of this machine.
    """
    return not address.startswith(".") and (is_remote(address) or is_remote(pathlib.Path(address)))


def find_workdir(address: str, cache: str) -> tuple[pathlib.Path, Mirror | None, bool]:
    """Returns the folder in which a run works, the mirror of one in a bucket, and True if the run resumes from a checkpoint.

    Changes nothing. All processes call it; a ValueError on one is one on all. `cache` as in `Mirror`.
    """
    if not in_bucket(address):
        workdir = pathlib.Path(address)
        return workdir, None, bool(address) and has_checkpoints(workdir)
    mirror = collective_call("bucket of the work directory", lambda: Mirror(address, cache))
    return mirror.folder, mirror, collective_call("work directory", mirror.look)


def open_workdir(
    workdir: pathlib.Path, description: Described, resources: contextlib.ExitStack, mirror: Mirror | None = None
) -> Described:
    """Locks the work directory until `resources` closes, and claims it as `claim_workdir`, process 0 before the others.

    With a mirror, `workdir` is its folder, of this process alone; the lease of the bucket is taken as well. Called by all
    processes; a ValueError on one is one on all. LockedError and HeldError name the run that has it.
    """
    first = jax.process_index() == 0

    def claim(mine: bool) -> Described:
        if mine and (first or mirror):
            with _writing(workdir):
                resources.enter_context(sole_run(workdir))
        if mine and mirror:
            mirror.open(resources)
        described = claim_workdir(workdir, description, mirror) if mine else {}
        if mine and mirror and first:
            mirror.send_now("run.json")
        return described

    before = collective_call("work directory", lambda: claim(first))
    return collective_call("work directory", lambda: claim(not first)) or before


def claim_workdir(workdir: pathlib.Path, description: Described, mirror: Mirror | None = None) -> Described:
    """Writes run.json into a new work directory; refuses one that belongs to another run, with a diff.

    `mirror` is the bucket behind it, if any. Returns the stored run.json, which an older version may have written. ValueError if
    it cannot be written or read.
    """
    file = workdir / "run.json"
    if file.is_file():
        # 0.1 wrote secrets of the environment in clear text
        before = redacted(read_json(file, dict, "restore it, or use another --workdir"))
        now = json.loads(json.dumps(description))
        if found := differences_in_paths(before, now, workdir):
            step = max(mirror.steps() if mirror else steps_of(workdir), default=0)
            if adds_stages(before, now, workdir, step):
                with _writing(workdir):
                    write_whole(file, json.dumps({**now, STARTED_IN: before.get(STARTED_IN, "")}, indent=2) + "\n")
                return before
            if now.get(STAGES) != before.get(STAGES):
                found.append(f"  (a run that resumes may add stages from step {step:,}, its newest checkpoint, on)")
            raise ValueError(
                f"--workdir {mirror.place if mirror else workdir} holds another run; what differs (there -> now):\n"
                + "\n".join(found)
                + "\nuse the same settings to continue it, or another --workdir"
            )
        if before.get(MASKS) != now.get(MASKS):
            # the caller announces the new masks now, and no later resume does
            with _writing(workdir):
                write_whole(file, json.dumps({**before, MASKS: now.get(MASKS)}, indent=2) + "\n")
        return before
    with _writing(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        # relative paths of the settings are those of this folder: a report, or the same run resumed elsewhere, finds them by it
        write_whole(file, json.dumps({**description, STARTED_IN: str(pathlib.Path.cwd())}, indent=2) + "\n")
    return description


def stored_start(workdir: pathlib.Path) -> str | None:
    """Returns the folder in which the run of a work directory was started: "" if unknown, None without a run."""
    try:
        start = read_json(workdir / "run.json").get(STARTED_IN)
    except (OSError, ValueError):  # `claim_workdir` reports a damaged file
        return None
    return start if isinstance(start, str) else ""


@contextlib.contextmanager
def _writing(workdir: pathlib.Path) -> Iterator[None]:
    """Wraps writes to the work directory: ValueError if it is no folder or cannot be written."""
    if problem := output_problem(workdir):
        raise ValueError(f"--workdir {workdir}: {problem}")
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"--workdir {workdir} cannot be written ({error.strerror or error}): give a folder that can, with space left"
        ) from error


@contextlib.contextmanager
def sole_run(workdir: pathlib.Path) -> Iterator[None]:
    """Holds the lock of a work directory, which it makes if missing. LockedError names the run that has it."""
    workdir.mkdir(parents=True, exist_ok=True)
    file = workdir / FILE
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if not file.is_symlink():
            raise
        raise ValueError(
            f"{file} is a link to {file.readlink()}, which the lock would overwrite: remove the link, or use another --workdir"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            raise _locked(workdir, _holder(file)) from None
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            held = False
        if held:
            # the descriptor stays open until the run ends: closing it releases the lock
            _write(descriptor, _self())
            yield
            return
    finally:
        os.close(descriptor)
    with _beating(workdir):
        yield


def _self() -> dict[str, Any]:
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": started}


def _write(descriptor: int, content: dict[str, Any]) -> None:
    """Writes the lock's content, which is for people only: on a full disk the lock holds without it."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(content) + "\n").encode(), 0)


def _holder(file: pathlib.Path) -> dict[str, Any]:
    try:
        return parse_json(file.read_bytes(), dict)
    except (OSError, ValueError):
        return {}


def _locked(workdir: pathlib.Path, holder: dict[str, Any], more: str = "") -> LockedError:
    host, pid, started = (holder.get(name, "unknown") for name in ("host", "pid", "started"))
    return LockedError(
        f"--workdir {workdir} is in use by another run: host {host}, process {pid}, started {started};{more}"
        " wait for it, stop it, or use another --workdir"
    )


@contextlib.contextmanager
def _beating(workdir: pathlib.Path) -> Iterator[None]:
    """Holds the lock without flock: the file belongs to the process that it names, as long as that touches it."""
    file, own = workdir / FILE, _self()
    holder = _holder(file)
    if holder and _alive(workdir, holder):
        raise _locked(workdir, holder, f" (if it is dead: in {STALE_SECONDS / 60:.0f} minutes its lock is stale);")
    write_whole(file, json.dumps(own) + "\n")
    time.sleep(SETTLE_SECONDS)
    if _holder(file) != own:  # two came at once: the later one has it
        raise _locked(workdir, _holder(file))
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(file)

    thread = threading.Thread(target=beat, name="spanjax-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(OSError):
            if _holder(file) == own:
                file.unlink()


def _alive(workdir: pathlib.Path, holder: dict[str, Any]) -> bool:
    """True if the holder's process exists (on this host) or touched the lock recently, by the file system's clock."""
    if holder.get("host") == socket.gethostname() and isinstance(holder.get("pid"), int):
        try:
            os.kill(holder["pid"], 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
    probe = workdir / f"{FILE}.clock.{os.getpid()}"
    try:
        probe.write_text("")
        now = probe.stat().st_mtime
        return now - (workdir / FILE).stat().st_mtime < STALE_SECONDS
    finally:
        probe.unlink(missing_ok=True)
