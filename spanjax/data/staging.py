"""Folders that appear finished or not at all: written under another name, flushed to disk, then renamed."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

_MARK = ".unfinished-"
_LOCK = "being-written"


def _remove_stale(folder: pathlib.Path) -> None:
    for old in folder.parent.glob(f".{folder.name}{_MARK}*"):
        with contextlib.suppress(FileNotFoundError), open(old / _LOCK, "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{folder}: another process is writing it now; wait for that one or stop it") from None
        shutil.rmtree(old, ignore_errors=True)


def flush_tree(folder: pathlib.Path) -> None:
    """Asks the system to put every file and folder under `folder` on disk."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _put_in_place(written: pathlib.Path, folder: pathlib.Path) -> None:
    flush_tree(written)
    if folder.exists():
        old = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}{_MARK}", dir=folder.parent))
        os.rename(folder, old / "replaced")
        os.rename(written, folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(written, folder)
    flush = os.open(folder.parent, os.O_RDONLY)
    os.fsync(flush)
    os.close(flush)


@contextlib.contextmanager
def finished_folder(folder: pathlib.Path, overwrite: bool = False) -> Iterator[pathlib.Path]:
    """Gives a folder to write into that becomes `folder` when the block ends well and is removed when it does not.

    What a killed process left behind is removed by the next one that writes the same folder. ValueError where `folder`
    exists and `overwrite` is not set, or while another process is writing it.
    """
    if folder.exists() and not overwrite and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"{folder} exists already; choose another folder, remove it, or ask to overwrite it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder)
    written = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}{_MARK}", dir=folder.parent))
    written.chmod(0o755)
    try:
        with open(written / _LOCK, "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield written
            (written / _LOCK).unlink()
            _put_in_place(written, folder)
    except BaseException:
        shutil.rmtree(written, ignore_errors=True)
        raise
