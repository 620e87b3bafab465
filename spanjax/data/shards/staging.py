"""Folders that appear finished or not at all, and work on them that a killed process leaves to the next one.

The work on FOLDER lies in `.FOLDER.unfinished` next to it: `result`, which becomes FOLDER by a rename when it is whole;
`plan.json`, the inputs and settings of the work; and its other files. One process at a time works there.
"""

import contextlib
import fcntl
import functools
import json
import logging
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spanjax.json_files import parse_json
from spanjax.storage.local import flush, swap_in, write_whole
from spanjax.storage.outputs import Written, replace_problem

_LOCK, _PLAN, _RESULT, _REPLACED = "being-written", "plan.json", "result", "replaced"
_SHOWN = 5  # differences of a kind that are reported
log = logging.getLogger("spanjax.prepare")


class Unfinished:
    """The folder of unfinished work; made by `unfinished_folder`."""

    def __init__(self, folder: pathlib.Path, continued: bool):
        self.folder = folder
        self.result = folder / _RESULT
        self.continued = continued  # whether an earlier process left work with the same plan
        self.worthless = not continued  # nothing stays when the work fails; to be cleared when something is finished

    def subfolder(self, *names: str) -> pathlib.Path:
        """A folder inside, made if need be."""
        found = self.folder.joinpath(*names)
        found.mkdir(parents=True, exist_ok=True)
        return found


def unfinished_path(folder: pathlib.Path) -> pathlib.Path:
    """Path of the unfinished work on `folder`."""
    folder = pathlib.Path(os.path.abspath(folder))
    return folder.parent / f".{folder.name}.unfinished"


def flush_tree(folder: pathlib.Path) -> None:
    """Asks the system to put every file and folder under `folder` on disk."""
    for path in [*folder.rglob("*"), folder]:
        flush(path)


def _same_file(handle: int, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _locked(work: pathlib.Path, folder: pathlib.Path) -> Iterator[None]:
    """Holds the lock of `work`, made if need be; ValueError where another process holds it."""
    while True:
        work.mkdir(parents=True, exist_ok=True)
        try:
            lock = (work / _LOCK).open("ab")
        except FileNotFoundError:  # another process has just finished and removed it
            continue
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{folder}: another process is writing it now; wait for that one or stop it") from None
            if _same_file(lock.fileno(), work / _LOCK):
                yield
                return


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Differences of two plans, a line each."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
    elif isinstance(old, list) and isinstance(new, list):
        gone, come = [each for each in old if each not in new], [each for each in new if each not in old]
        lines = [*(f"{name}: {each} there, not now" for each in gone), *(f"{name}: {each} now" for each in come)]
        yield from lines[:_SHOWN]
        if len(lines) > _SHOWN:
            yield f"{name}: {len(lines) - _SHOWN:,} more"
        elif not lines and old != new:
            yield f"{name}: in another order"
    elif old != new:
        yield f"{name}: {old!r} there, {new!r} now"


def _empty(work: pathlib.Path) -> None:
    for path in work.iterdir():
        if path.name == _LOCK:
            continue
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _continues(work: pathlib.Path, plan: Mapping[str, Any], overwrite: bool) -> bool:
    """True if there is work with this plan; ValueError where it has another and may not be thrown away."""
    try:
        old = parse_json((work / _PLAN).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    if not (work / _RESULT).is_dir():
        return False
    lines = list(_differences(old, json.loads(json.dumps(plan))))
    if lines and not overwrite:
        listed = "\n".join(f"  - {line}" for line in lines)
        raise ValueError(
            f"{work} holds unfinished work of other settings or another input:\n{listed}\n"
            "continue it with its settings and input, or throw it away and start again with --overwrite"
        )
    if lines:
        log.info("%s: the unfinished work there has another plan and is thrown away", work)
    return not lines


def _clear_up(work: pathlib.Path) -> None:
    """Removes what killed processes were writing: `write_whole` writes under names that begin with a dot."""
    for path in work.rglob(".*"):
        path.unlink(missing_ok=True)


def _check(folder: pathlib.Path, written: Written, reads: Iterable[str], overwrite: bool) -> None:
    if problem := replace_problem(folder, overwrite, written, reads):
        raise ValueError(f"{folder} {problem}")


def _put_in_place(work: Unfinished, folder: pathlib.Path) -> None:
    _clear_up(work.result)
    flush_tree(work.result)
    shutil.rmtree(work.folder / _REPLACED, ignore_errors=True)
    swap_in(work.result, folder, work.folder / _REPLACED)
    shutil.rmtree(work.folder, ignore_errors=True)


@contextlib.contextmanager
def unfinished_folder(
    folder: pathlib.Path,
    plan: Mapping[str, Any],
    overwrite: bool = False,
    written: Written = lambda _: (),
    reads: Iterable[str] = (),
) -> Iterator[Unfinished]:
    """Yields the folder of unfinished work; its `result` becomes `folder` when the block ends without an error.

    When the block fails or the process is killed the work stays, and the next one with the same plan finds it
    (`continued`). ValueError where `folder` exists and `overwrite` is not set, where it may not be replaced (`written` and
    `reads` as in `replace_problem`), where there is work with another plan and `overwrite` is not set, or while another
    process works there.
    """
    folder = pathlib.Path(os.path.abspath(folder))
    check = functools.partial(_check, folder, written, [*reads])
    check(overwrite)
    path = unfinished_path(folder)
    with _locked(path, folder):
        restored = (path / _REPLACED).is_dir() and not folder.exists()
        if restored:  # an earlier process with --overwrite was killed between the two renames
            os.rename(path / _REPLACED, folder)
        continued = _continues(path, plan, overwrite)
        if continued:
            _clear_up(path)
        else:
            _empty(path)
            (path / _RESULT).mkdir()
            write_whole(path / _PLAN, json.dumps(plan, indent=1).encode())
        work = Unfinished(path, continued)
        try:
            yield work
            check(overwrite or restored)  # somebody may have written there meanwhile
            _put_in_place(work, folder)
        except BaseException as error:
            if work.worthless:
                shutil.rmtree(path, ignore_errors=True)
            else:
                error.add_note(f"what is finished stays in {path}: the same command continues there")
            raise
