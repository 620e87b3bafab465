"""Decides what a command may replace: only what spanjax wrote, and never a run, an input, the current folder or the home."""

import contextlib
import os
import pathlib
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator

from spanjax.storage.local import make_readable, swap_in

Written = Callable[[pathlib.Path], Collection[str]]
"""Folder -> names, relative to it, of the files that spanjax writes into a folder like this; none for any other folder."""
_RUN = ("run.json", "run.lock", "metrics.jsonl", "tracking.json")  # files of training, whatever else a folder holds
_SHOWN = 3  # names that a message lists


def is_taken(path: pathlib.Path) -> bool:
    """Returns True if something at this path would be lost: anything but an empty folder."""
    return path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir())))


def output_problem(path: pathlib.Path) -> str:
    """Returns a message if a file at this path or above it is in the way of a folder; else empty."""
    taken = next((each for each in (path, *path.parents) if each.exists()), None)
    return "" if taken is None or taken.is_dir() else f"{taken} is a file, expected a folder: choose another"


def files_problem(folder: pathlib.Path, overwrite: bool) -> str:
    """Returns a message if no files may be written into this folder; `overwrite` allows those of the same names."""
    if problem := output_problem(folder):
        return problem
    return (
        f"{folder} holds files: name another, or write into it with --overwrite"
        if is_taken(folder) and not overwrite
        else ""
    )


@contextlib.contextmanager
def output_files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields an empty folder inside of `folder`, whose files move into `folder` at the end of the block, each atomically.

    If the block ends with a ValueError, a file that cannot be written, the others are moved first.
    """
    work = folder / f".new-{uuid.uuid4().hex[:8]}"
    work.mkdir(parents=True)

    def move() -> None:
        for file in sorted(work.iterdir()):
            os.replace(file, folder / file.name)

    try:
        yield work
        move()
    except ValueError as error:
        move()
        raise ValueError(str(error).replace(str(work), str(folder))) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def files_below(folder: pathlib.Path) -> set[str]:
    """Returns the relative names of all files and links in a folder and its subfolders; does not follow links."""
    found = set()
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        found |= {os.path.relpath(os.path.join(place, name), folder) for name in [*files, *links]}
    return found


def place_problem(path: pathlib.Path, reads: Iterable[str | os.PathLike[str]] = ()) -> str:
    """Returns the reason why a file or folder at this path may not be replaced, whatever it holds; else empty.

    `reads` are the files and folders that the command reads. Links are resolved on both sides.
    """
    real = path.resolve()
    with contextlib.suppress(RuntimeError, OSError):  # no home, or a current folder that is gone
        for what, place in (("the current folder", pathlib.Path.cwd()), ("the home folder", pathlib.Path.home())):
            if real in (place.resolve(), *place.resolve().parents):
                return f"is or holds {what}: name a folder of its own"
    for each in reads:
        source = pathlib.Path(each).resolve()
        if source == real or real in source.parents:
            return f"{'is' if source == real else f'holds {each}, which is'} read: name another"
        if source in real.parents and is_taken(path):
            return f"lies in {each}, which is read, and is there already: name another outside of it"
    return ""


def replace_problem(
    path: pathlib.Path, overwrite: bool, written: Written, reads: Iterable[str | os.PathLike[str]] = ()
) -> str:
    """Returns the reason why no new folder may be put at this path; else empty. `reads` as in `place_problem`."""
    if path.is_symlink():
        return "is a link: give the folder that it leads to, or another"
    if is_taken(path) and not overwrite:
        return "exists already: choose another folder, or replace it with --overwrite"
    if problem := place_problem(path, reads):
        return problem
    if not is_taken(path):
        return ""
    if not path.is_dir():
        return "is no folder: --overwrite replaces folders that spanjax wrote; remove it or name another"
    found = files_below(path)
    run = [name for name in _RUN if name in found]
    if run:
        return f"is a training run ({run[0]}), which no command replaces: remove it yourself, or name another folder"
    try:
        own = set(written(path))
    except (OSError, ValueError, TypeError, LookupError):  # the files are not what they seem
        own = set()
    own -= {name for name in found if (path / name).is_symlink()}
    foreign = sorted(found - own)
    if not own or foreign:
        more = ", ..." if len(foreign) > _SHOWN else ""
        return (
            f"holds files that this command did not write ({', '.join(map(repr, foreign[:_SHOWN]))}{more}):"
            " move them away, or name another folder"
        )
    return ""


@contextlib.contextmanager
def output_folder(
    path: pathlib.Path, overwrite: bool, written: Written, reads: Iterable[str | os.PathLike[str]] = ()
) -> Iterator[pathlib.Path]:
    """Yields a new folder next to `path` to write into, which takes its place when the block ends well.

    Until then the content of `path` stays, and if the block fails nothing is left of the new one. ValueError if `path` is
    taken and `overwrite` is not set, if it may not be replaced (`replace_problem`), or if nothing can be written.
    """

    place = pathlib.Path(os.path.abspath(path))  # `path` may end in .., which has no sibling

    def check() -> None:
        if problem := output_problem(place.parent):
            raise ValueError(f"{path}: {problem}")
        if problem := replace_problem(path, overwrite, written, reads):
            raise ValueError(f"{path} {problem}")

    check()
    work, aside = (place.with_name(f".{place.name}-{name}-{uuid.uuid4().hex[:8]}") for name in ("new", "old"))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        work.mkdir()
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror or error}): give a folder that can") from error
    try:
        yield work
        make_readable(work)
        check()  # somebody may have written there meanwhile
        swap_in(work, place, aside)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(aside, ignore_errors=True)
