"""Replaces files and folders of this machine atomically: readers find the old content or the new one, whole."""

import contextlib
import errno
import os
import pathlib
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that appears at `path`, on disk, when the block ends; an older file stays until then.

    A failing block leaves nothing behind, a killed process a file whose name begins with a dot. OSError if a folder or a
    device (/dev/stdout) is at `path`.
    """
    if problem := irregular_problem(path):
        raise OSError(problem)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def found_again(name: str, bases: Iterable[str | pathlib.Path]) -> str:
    """Returns a stored path as one that exists: relative to the first of `bases` that has it, "" being the current folder.

    A name that no base has, and one of a service (scheme:...), comes back unchanged.
    """
    if not name or ":" in name:
        return name
    return next((str(path) for base in bases if (path := pathlib.Path(base, name)).exists()), name)


def write_whole(path: pathlib.Path, content: bytes | str) -> None:
    """Writes a `whole_file`, text as UTF-8."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def swap_in(new: pathlib.Path, path: pathlib.Path, aside: pathlib.Path) -> None:
    """Renames the folder `new` to `path`. An older one moves to `aside`, and back if the rename fails."""
    replaces = path.exists()
    if replaces:
        os.rename(path, aside)
    try:
        os.rename(new, path)
    except BaseException:
        if replaces:
            os.rename(aside, path)
        raise
    flush(path.parent)


def flush(path: pathlib.Path) -> None:
    """Waits until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def user_cache(environment: Mapping[str, str]) -> pathlib.Path | None:
    """$XDG_CACHE_HOME/spanjax, else ~/.cache/spanjax; None without a home."""
    # the XDG specification ignores relative paths
    base, home = environment.get("XDG_CACHE_HOME", ""), environment.get("HOME", "")
    if os.path.isabs(base):
        return pathlib.Path(base, "spanjax")
    return pathlib.Path(home, ".cache", "spanjax") if os.path.isabs(home) else None


def make_readable(folder: pathlib.Path) -> None:
    """Gives the files of a folder that this process has just made the modes of its umask.

    Some libraries write for the owner alone.
    """
    mode = (
        stat.S_IMODE(folder.stat().st_mode) & 0o666
    )  # mkdir has applied the umask, which is only readable by setting it
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(mode)


def copy_files(folder: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a folder of plain files and folders to `target`, which does not exist. OSError for links, pipes and devices."""
    target.mkdir(parents=True)
    for path in folder.iterdir():
        kind = stat.S_IFMT(path.lstat().st_mode)
        if kind == stat.S_IFDIR:
            copy_files(path, target / path.name)
        elif kind == stat.S_IFREG:
            shutil.copyfile(path, target / path.name)
        else:
            # a link could lead out of the folder
            raise OSError(errno.EINVAL, "neither a file nor a folder", str(path))


def irregular_problem(path: pathlib.Path) -> str:
    """Returns the reason why a path is no file to read and write: a folder, a pipe, a device. Empty for a file or nothing."""
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return ""
    return "" if kind == stat.S_IFREG else f"{path} is {kinds.get(kind, 'a device')}, expected a file"


def is_file_name(name: Any) -> bool:
    """True if a name read from a file is that of a file in the same folder: no path, neither up nor elsewhere."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")
