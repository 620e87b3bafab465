"""Inputs of commands that lie in buckets: an address becomes the path of a copy on this machine.

An address may be that of a file, of a folder, of a training run or of one of its checkpoints (RUN/checkpoints/STEP). Of a run
with commits (see `commits`) the copy holds its small files and one checkpoint: the newest, of a fine-tuned run the best. Of a
sweep it holds the results. Any other folder is copied whole.
"""

import dataclasses
import os
import pathlib
from typing import Any, TypeVar

from spanjax.json_files import JsonError, parse_json
from spanjax.storage.cache import Cache, Source, listed, user_files
from spanjax.storage.commits import CHECKPOINTS, Commits, Head
from spanjax.storage.objects import MissingObjectError, Place, StorageError, is_remote, open_store

Options = TypeVar("Options")
SWEEP, RESULT = "sweep.json", "result.json"
"""Files of a sweep: the description of its arms at the top, and the result of every run in ARM/SEED."""
_RUN_FILES = ("run.json", "metrics.jsonl", "summary.json", "tracking.json")


def local_copy(path: str | os.PathLike[str], cache: Cache | None = None) -> str:
    """Returns a local path unchanged, and the path of a copy of the files at an address. StorageError if nothing is there."""
    if not is_remote(path):
        return os.fspath(path)
    place, cache = Place.parse(path), cache or user_files()
    root = place.parent.parent
    if place.parent.name == CHECKPOINTS and place.name.isdigit() and (head := _head(root)) is not None:
        copy = _run_copy(root, head, int(place.name), cache)
        return os.path.join(copy, CHECKPOINTS, place.name)
    if (head := _head(place)) is not None:
        return _run_copy(place, head, None, cache)
    if sources := listed(place):
        return str(cache.fetch(place, _of_sweep(sources)))
    entry = open_store(place).head(place) if place.key else None
    if entry is None:
        raise MissingObjectError(f"{place}: no such file or folder; check the address")
    # a file stands in a folder of its own, under its name
    folder = cache.fetch(place, [Source(place.name, place, entry.size, entry.version)])
    return str(folder / place.name)


def _of_sweep(sources: list[Source]) -> list[Source]:
    """Returns the descriptions and results of a sweep, without its runs; of any other folder all sources."""
    if all(source.name != SWEEP for source in sources):
        return sources
    return [source for source in sources if source.name == SWEEP or source.name.endswith(f"/{RESULT}")]


def local_checkpoint(run: str, step: int, cache: Cache | None = None) -> str:
    """Returns the path of a run on this machine with the checkpoint of a step; of an address a copy that holds no other."""
    if is_remote(run) and _head(Place.parse(run)) is not None:
        return str(pathlib.Path(local_copy(f"{Place.parse(run)}/{CHECKPOINTS}/{step}", cache)).parents[1])
    return local_copy(run, cache)


def with_local_copies(options: Options, *names: str) -> Options:
    """Returns options in which the addresses of these fields, texts or tuples of texts, are paths of copies."""
    changes: dict[str, Any] = {}
    for name in names:
        given: Any = getattr(options, name)
        if isinstance(given, str):
            changes[name] = local_copy(given)
        elif given is not None:
            changes[name] = tuple(map(local_copy, given))
    return dataclasses.replace(options, **changes)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _head(root: Place) -> Head | None:
    """Returns the list of committed checkpoints; None if this is no run with commits."""
    head = Commits(open_store(root), root).read() if root.key else Head()
    return head if head.fencing else None  # a run writes its number, 1 or more, before anything else


def _run_copy(root: Place, head: Head, step: int | None, cache: Cache) -> str:
    store = open_store(root)
    sources = [
        Source(name, root / name, entry.size, entry.version)
        for name in _RUN_FILES
        if (entry := store.head(root / name)) is not None
    ]
    step = _chosen(root, head) if step is None else step
    if step is not None:
        if step not in head.steps:
            kept = ", ".join(map(str, sorted(head.steps))) or "none"
            raise StorageError(f"{root}: no checkpoint of step {step} is committed; those kept are {kept}")
        sources += _checkpoint(root, head.steps[step].commit, step)
    return str(cache.fetch(root, sources))


def _checkpoint(root: Place, commit: str, step: int) -> list[Source]:
    """Returns the objects of a committed checkpoint; the commit names size and checksum of each but the evaluation."""
    try:
        files = Commits(open_store(root), root).files(commit)
    except ValueError as error:
        raise StorageError(f"{root}: the commit of step {step} cannot be read ({error}): name another step") from error
    folder = root / CHECKPOINTS / commit
    found = [Source(f"{CHECKPOINTS}/{step}/{name}", folder / name, *each) for name, each in _sized(files)]
    evaluated = [
        entry for entry in open_store(folder).list(folder) if entry.name not in files and "/" not in entry.name
    ]
    return found + [
        Source(f"{CHECKPOINTS}/{step}/{each.name}", folder / each.name, each.size, each.version) for each in evaluated
    ]


def _sized(files: dict[str, tuple[int, str]]) -> list[tuple[str, tuple[int, str, str]]]:
    return [(name, (size, "", checksum)) for name, (size, checksum) in files.items()]


def _chosen(root: Place, head: Head) -> int | None:
    """Returns the newest step, of a fine-tuned run the best; None without a checkpoint."""
    losses = {step: each.loss for step, each in head.steps.items() if each.loss is not None}
    try:
        tuned = parse_json(open_store(root).read(root / "run.json")[0], dict).get("kind") == "task"
    except (MissingObjectError, JsonError):
        tuned = False
    if tuned and losses:
        return min(losses, key=lambda step: (losses[step], step))
    return max(head.steps, default=None)
