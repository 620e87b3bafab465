"""Checkpoint folders: finds whole and unfinished ones, and checks that there is room for one more."""

import contextlib
import functools
import json
import logging
import math
import os
import pathlib
import re
import shutil
import sys
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax

from spanjax.distributed import all_gather_text
from spanjax.json_files import parse_json, read_json
from spanjax.storage.local import write_whole
from spanjax.storage.objects import Place
from spanjax.training.eval_history import KEY

CHECKSUMS = "checksums.json"
UNCHECKED = f"without {CHECKSUMS}: the save was killed before its end, or the file was removed"
EVALUATION = "evaluation.json"  # results of an evaluation, stored after the checksums and not covered by them


LARGE = 1 << 20
"""Bytes of a file whose checksum takes longer than a look at it."""
Chosen = Callable[[Mapping[str, int]], Collection[str]]
"""Picks some of the files (relative name -> bytes) of a step."""


def small(sizes: Mapping[str, int]) -> Collection[str]:
    """Picks the files of less than `LARGE` bytes: indexes and descriptions."""
    return [name for name, size in sizes.items() if size < LARGE]


def large(sizes: Mapping[str, int]) -> Collection[str]:
    """Picks what `small` does not: the arrays."""
    return sizes.keys() - set(small(sizes))


def own_share(sizes: Mapping[str, int]) -> Collection[str]:
    """Picks the files that this process reads for all, about as many bytes as every other one; all of them if it is alone."""
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    return ordered[jax.process_index() :: jax.process_count()]


def damage(folder: pathlib.Path, chosen: Chosen = list) -> str | None:
    """Compares a step's files with its checksums: the damage as text; None if they agree or none were written.

    All must be there; only the content of those `chosen` is compared.
    """
    path = folder / CHECKSUMS
    if not path.exists():
        return None
    try:
        expected = parse_json(path.read_bytes(), dict)
    except (OSError, ValueError) as error:
        return f"{CHECKSUMS} is no list of files with their checksums: {error}"
    sizes = _sizes(folder)
    missing = sorted(expected.keys() - sizes.keys())
    known = {name: size for name, size in sizes.items() if name in expected}
    actual = _contents(folder, chosen(known))
    changed = sorted(name for name in actual if expected[name] != actual[name])
    return f"missing files {missing[:3]}, changed files {changed[:3]}" if missing or changed else None


def incomplete(folder: pathlib.Path) -> str | None:
    """Names the parts that a step's folder lacks, as text; None if it has them."""
    missing = [name for name in ("state", "meta/metadata") if not (folder / name).exists()]
    return f"without {' and '.join(missing)}" if missing else None


def write_checksums(folder: pathlib.Path) -> None:
    """Flushes every file of a step to the disk, writes their checksums, and reads them back. OSError if they differ."""
    write_whole(folder / CHECKSUMS, json.dumps(_contents(folder, _sizes(folder), to_disk=True)))
    if reason := damage(folder) or incomplete(folder):
        raise OSError(f"what was read back is not what was written ({reason})")


def write_shared_checksums(folder: pathlib.Path, failed: Exception | None = None) -> None:
    """`write_checksums` of a folder that all processes share: each reads its share of the files. All call it alike.

    `failed` is the reason why this process has nothing to read; it is raised again, after the others know. If one failed, no
    list is written. OSError on a process whose share cannot be read or differs.
    """
    answer: dict[str, Any] = {}
    try:
        if failed is not None:
            raise failed
        answer["files"] = _contents(folder, own_share(_sizes(folder)), to_disk=True)
    except Exception as error:
        # raised after the rendezvous, at which the others would wait
        failed = error
    answers = [parse_json(text, dict) for text in all_gather_text("checksums are known", json.dumps(answer))]
    if failed is not None:
        raise failed
    if jax.process_index() == 0 and all("files" in each for each in answers):
        files = {name: entry for each in answers for name, entry in each["files"].items()}
        write_whole(folder / CHECKSUMS, json.dumps(dict(sorted(files.items()))))
    again = _contents(folder, answer["files"])
    changed = sorted(name for name, entry in answer["files"].items() if again[name] != entry)
    reason = f"changed files {changed[:3]}" if changed else incomplete(folder)
    if reason:
        raise OSError(f"what was read back is not what was written ({reason})")


def _sizes(folder: pathlib.Path) -> dict[str, int]:
    """Relative name -> bytes of the files of a step that have a checksum."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith((CHECKSUMS, EVALUATION)))
    return {str(p.relative_to(folder)): p.stat().st_size for p in files}


def _contents(folder: pathlib.Path, names: Collection[str], to_disk: bool = False) -> dict[str, list[int]]:
    """Relative name -> [bytes, crc32] of some files of a step."""
    return {name: sized_crc(folder / name, to_disk) for name in names}


def sized_crc(path: pathlib.Path, to_disk: bool = False) -> list[int]:
    """Returns [bytes, crc32] of a file, as checksums.json has them; `to_disk` flushes it, and takes it out of the page cache."""
    # not crc32c: TensorStore's indexes end with their own, so all of a length have the same
    size, value, block = 0, 0, memoryview(bytearray(LARGE))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            size, value = size + count, zlib.crc32(block[:count], value)
        if to_disk:
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):  # so that the next read comes from the disk and not from memory
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return [size, value]


UNFINISHED = ".orbax-checkpoint-tmp"  # in the names of folders that are being written
PROBE_BYTES = 1 << 16


class CheckpointError(ValueError):
    """A checkpoint that could not be written or read; the message says what to do."""


class SaveError(CheckpointError):
    """A save that failed. The message is for a run that ends with it; one that continues reports `what` and `newest`."""

    def __init__(self, where: pathlib.Path | Place, step: int, reason: str, whole: list[int]):
        self.what = f"the checkpoint of step {step} could not be written to {where}: {reason}"
        self.newest = f"the newest good one is that of step {whole[-1]}" if whole else "there is no good one yet"
        again = f"continues from step {whole[-1]}" if whole else "starts again from step 0"
        mend = (
            "free some space (or mend the folder)"
            if isinstance(where, pathlib.Path)
            else "mend the access to the bucket"
        )
        super().__init__(f"{self.what}; {mend} and run the same command: it {again}")


def remove_unfinished(folder: pathlib.Path, first: bool) -> None:
    """Removes leftovers of killed or failed saves; called again later, as other writes of a failed one may still end.

    Only for the `first` process of those that share the folder.
    """
    for path in folder.glob(f"*{UNFINISHED}*") if first else ():
        shutil.rmtree(path, ignore_errors=True)


def no_room(folder: pathlib.Path, state: Any) -> OSError | None:
    """Returns an error if a state (a tree of arrays) cannot be saved below a folder: too few bytes free, or not writable."""
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    probe = folder / f"probe{UNFINISHED}-{uuid.uuid4().hex}"
    try:
        probe.mkdir()
        (probe / "bytes").write_bytes(bytes(PROBE_BYTES))
        free = shutil.disk_usage(folder).free
        if free < needed:
            return OSError(f"{free / 1e6:,.1f} MB are free, up to {needed / 1e6:,.1f} MB are needed")
    except OSError as error:
        return error
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    return None


def has_checkpoints(workdir: pathlib.Path) -> bool:
    """Returns True if a run in this work directory would resume from a checkpoint."""
    return bool(steps_of(workdir))


def whole_step(workdir: pathlib.Path) -> tuple[int, list[str]]:
    """Finds the newest step with a whole checkpoint; also returns notes on those passed over. Moves nothing.

    CheckpointError if there is none.
    """
    return _first_whole(workdir, steps_of(workdir)[::-1])


def best_step(workdir: pathlib.Path) -> tuple[int, list[str]]:
    """As `whole_step`, but the step whose evaluation was best, the first of equals; the newest if none was evaluated."""
    losses = stored_losses(workdir)

    def rank(step: int) -> tuple[float, int]:
        return losses.get(step, math.inf), step if step in losses else -step

    return _first_whole(workdir, sorted(steps_of(workdir), key=rank))


def steps_of(workdir: pathlib.Path) -> list[int]:
    """Steps of a work directory that have a folder of their own, whole or not, oldest first."""
    folder = workdir / "checkpoints"
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []


def stored_losses(workdir: pathlib.Path, kept: Collection[int] | None = None) -> dict[int, float]:
    """Returns step -> evaluation value, lower is better, of the steps that are kept and were evaluated.

    The meta of every checkpoint lists all evaluations before it, so that of a damaged one is known too, and that of a `kept`
    one without a folder here; None takes those with one.
    """
    found: dict[int, float] = {}
    steps = steps_of(workdir) if kept is None else sorted(kept)
    for step in steps_of(workdir):
        with contextlib.suppress(TypeError, ValueError, AttributeError, OverflowError):  # a damaged meta
            found |= {int(at): float(value) for at, value in stored_meta(workdir, step).get(KEY, [])}
    return {step: found[step] for step in steps if math.isfinite(found.get(step, math.nan))}


def _first_whole(workdir: pathlib.Path, steps: list[int]) -> tuple[int, list[str]]:
    folder, notes = workdir / "checkpoints", []
    unfinished = [p.name for p in folder.glob(f"*{UNFINISHED}*")] if folder.is_dir() else []
    notes += [f"{name} was never finished: passed over" for name in sorted(unfinished)]
    for step in steps:
        reason = damage(folder / str(step)) or incomplete(folder / str(step))
        if reason is None:
            unchecked = not (folder / str(step) / CHECKSUMS).exists()
            return step, [
                *notes,
                f"checkpoint {step} is {UNCHECKED}; its files were not checked",
            ] if unchecked else notes
        notes.append(f"checkpoint {step} is damaged ({reason}): passed over")
    raise CheckpointError(
        "\n".join([f"{workdir}: no whole checkpoint in {folder}: give another run, or copy it again", *notes])
    )


def stored_meta(workdir: pathlib.Path, step: int) -> dict[str, Any]:
    """Returns the meta of one checkpoint of a work directory; {} if it cannot be read."""
    try:
        return read_meta(workdir / "checkpoints" / str(step))
    except (OSError, ValueError):
        return {}


def read_meta(folder: pathlib.Path) -> dict[str, Any]:
    """Reads the meta of a step's folder, and the results of an evaluation after the save. OSError, ValueError if damaged."""
    meta = read_json(folder / "meta" / "metadata")
    with contextlib.suppress(OSError, ValueError):  # none, or cut by a kill: the run evaluates that step again
        meta |= read_json(folder / EVALUATION)
    return meta


def write_evaluation(folder: pathlib.Path, found: Mapping[str, Any]) -> None:
    """Stores the results of an evaluation next to the finished checkpoint of the same step; replaced as a whole."""
    write_whole(folder / EVALUATION, json.dumps(found))


def name_in_merged(name: str, process: int, processes: int) -> str | None:
    """Returns the name that a file of one process's checkpoint has in the checkpoint of all, which `merge_indexes` completes.

    None for a file that every process has and process 0 gives. A single process keeps its names. With several, whose folders
    Orbax writes each for itself, the arrays of process N and their index lie below state/process_N.
    """
    top, _, rest = name.partition("/")
    if processes == 1:
        return name
    if top == "state" and rest.startswith(("manifest.ocdbt", "d/", "ocdbt.process_")):
        return f"state/process_{process}/{rest}"
    return name if process == 0 else None


def is_index(name: str) -> bool:
    """True for the files that `merge_indexes` reads, by their names in the checkpoint of all processes."""
    return bool(re.fullmatch(r"state/process_\d+/(manifest\.ocdbt|d/[^/]+)", name))


def merge_indexes(folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the index of the arrays of all processes below folder/state, from their own indexes; returns the new files.

    The arrays themselves need not be here, as an index refers to them by name. OSError if an array has no values.
    """
    # large, and only runs of several processes in a bucket need it
    import tensorstore

    context, state = tensorstore.Context(), folder / "state"

    def opened(path: pathlib.Path) -> Any:
        return tensorstore.KvStore.open(
            {"driver": "ocdbt", "base": f"file://{path.absolute()}/"}, context=context
        ).result()

    merged, parts = opened(state), [opened(path) for path in sorted(state.glob("process_*"))]
    transaction = tensorstore.Transaction(atomic=True)
    for copying in [part.experimental_copy_range_to(merged.with_transaction(transaction)) for part in parts]:
        copying.result()
    transaction.commit_sync()
    names = [key.decode() for key in merged.list().result()]
    described = {name.removesuffix("/.zarray") for name in names if name.endswith("/.zarray")}
    # TensorStore reads an array without chunks as zeros
    if lacking := described ^ {name.rpartition("/")[0] for name in names if not name.endswith("/.zarray")}:
        raise OSError(f"no process has written {sorted(lacking)[:3]} whole")
    return [state / "manifest.ocdbt", *sorted((state / "d").iterdir())]


def agreed(name: str, reason: str | None) -> str | None:
    """Returns a checkpoint's problem on any process: all of them take it, or none."""
    return next(filter(None, all_gather_text(name, reason or "")), None)


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, at most 300 characters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def reason_of(error: Exception) -> str:
    """Returns the system's text for the error number that TensorStore gives in a chain of paths; else the first line."""
    number = re.search(r"\[os_error_code='(\d+)'\]", str(error))
    return os.strerror(int(number[1])) if number else first_line(error)


@functools.cache
def silence_orbax() -> None:
    """Silences reads that are still under way when Orbax gives up on a damaged checkpoint, whose error we report."""
    # tracebacks of Orbax, whose exceptions we catch and report in a line
    logging.getLogger("absl").addFilter(lambda record: not (record.exc_info and "orbax" in record.pathname))
    logging.getLogger("absl").addFilter(lambda record: "Global object size" not in record.msg)
    # asyncio's reports of tasks that nobody waited for
    logging.getLogger("asyncio").addFilter(lambda record: not record.exc_info)
    hook = sys.unraisablehook

    def show(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    sys.unraisablehook = show


@contextlib.contextmanager
def quiet_orbax() -> Iterator[None]:
    """Silences Orbax's warnings of files that a manager writes and a single save does not."""
    silence_orbax()
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
