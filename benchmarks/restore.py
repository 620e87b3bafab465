"""python -m benchmarks.restore [--check] [--json FILE] [--millions N] [--from disk s3 gs]: time to restore a checkpoint.

The state is that of N million parameters (default: 110, as a base model) with both moments of AdamW, 12 bytes a parameter.
From a disk: `Checkpoints.restore_newest`, which compares all checksums, next to a pool of threads that read the files into
memory of their own, as a state has it; before each, the files leave the page cache. From a bucket: the same with a work
directory in the bucket and nothing on this machine, next to a pool of threads that download the objects to the disk without
checks and read them. Also the times of the bytes alone: read into one block, downloaded and not read. Figures are seconds.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import timing
from benchmarks.storage import AUTHORIZATION, CONNECTIONS, serving, url

TENSORS = 110
"""Arrays of the parameters, of equal sizes."""
BLOCK = 4 * 2**20


def state_of(parameters: int) -> Any:
    """A train state with this many parameters."""
    import jax
    import numpy as np

    from spanjax.training.state import TrainState

    width = 768
    shape = (parameters // TENSORS // width, width)
    random = np.random.default_rng(0)

    def tree() -> dict[str, Any]:
        # noise: equal or empty blocks would be compressed
        return {f"{number:03d}": random.random(shape, np.float32) for number in range(TENSORS)}

    return jax.device_put(TrainState(jax.numpy.int32(1), tree(), (tree(), tree())))


def abstract_of(state: Any) -> Any:
    """Shapes, types and shardings of a state."""
    import jax

    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


def forget(folder: pathlib.Path) -> list[pathlib.Path]:
    """Drops the files of a folder from the page cache and returns them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    return files


def read(files: list[pathlib.Path], keep: bool) -> list[Any]:
    """Reads files in parallel by blocks; into one array each, which are returned, or over and over into a block."""
    import numpy as np

    def one(job: tuple[int, int, Any]) -> None:
        handle, start, array = job
        block = array[start : start + BLOCK] if keep else np.empty(BLOCK, np.uint8)
        os.preadv(handle, [block.data], start)

    handles = [os.open(path, os.O_RDONLY) for path in files]
    sizes = [os.fstat(handle).st_size for handle in handles]
    arrays = [np.empty(size if keep else 0, np.uint8) for size in sizes]
    jobs = [
        (handle, start, array)
        for handle, size, array in zip(handles, sizes, arrays, strict=True)
        for start in range(0, size, BLOCK)
    ]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(one, jobs))
    for handle in handles:
        os.close(handle)
    return arrays


def rounds(contenders: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]], repeats: int) -> dict[str, float]:
    """Median seconds of every contender, and CPU seconds of this process as "NAME, CPU".

    A contender is (untimed preparation, timed work on what that returned); all run in turn.
    """
    seconds = {each: list[float]() for name in contenders for each in (name, f"{name}, CPU")}
    for _ in range(repeats):
        for name, (prepare, run) in contenders.items():
            prepared = prepare()
            begin, busy = time.perf_counter(), time.process_time()
            run(prepared)
            seconds[f"{name}, CPU"].append(time.process_time() - busy)
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(each) for name, each in seconds.items()}


def on_disk(state: Any, root: pathlib.Path, repeats: int) -> dict[str, float]:
    """Seconds from the disk."""
    from spanjax.training.checkpoint import Checkpoints

    abstract = abstract_of(state)
    with Checkpoints(root, 1) as checkpoints:
        checkpoints.save(state, 1, {}, None)
        checkpoints.finish()

        def restore(_: Any) -> None:
            assert checkpoints.restore_newest(abstract) is not None

        folder = root / "checkpoints"
        return rounds(
            {
                "restore": (lambda: forget(folder), restore),
                "bytes in memory": (lambda: forget(folder), lambda files: read(files, True)),
                "bytes alone": (lambda: forget(folder), lambda files: read(files, False)),
            },
            repeats,
        )


def in_bucket(scheme: str, state: Any, root: pathlib.Path, repeats: int) -> dict[str, float]:
    """Seconds from a bucket."""
    from spanjax.storage.objects import Place, open_store
    from spanjax.training.checkpoint import Checkpoints
    from spanjax.training.workdir import find_workdir, open_workdir

    address, abstract, number = f"{scheme}://bucket/rows/run", abstract_of(state), iter(range(10**6))

    def opened(resources: contextlib.ExitStack) -> Checkpoints:
        folder, mirror, _ = find_workdir(address, str(root / f"cache{next(number)}"))
        open_workdir(folder, {"kind": "pretraining", "steps": 1}, resources, mirror)
        return resources.enter_context(Checkpoints(folder, 1, mirror))

    with contextlib.ExitStack() as resources:
        checkpoints = opened(resources)
        checkpoints.save(state, 1, {}, None)
        checkpoints.finish()
    place = Place.parse(address)
    names = [f"run/{each.name}" for each in open_store(place).list(place) if each.name.startswith("checkpoints/")]

    def restore(resources: contextlib.ExitStack) -> None:
        assert checkpoints_of[resources].restore_newest(abstract) is not None

    checkpoints_of = dict[contextlib.ExitStack, Checkpoints]()

    def release() -> None:
        while checkpoints_of:
            before, checkpoints = checkpoints_of.popitem()
            before.close()
            shutil.rmtree(checkpoints.folder.parent)

    def prepare() -> contextlib.ExitStack:
        release()
        resources = contextlib.ExitStack()
        checkpoints_of[resources] = opened(resources)
        return resources

    def empty() -> pathlib.Path:
        release()
        shutil.rmtree(root / "plain", ignore_errors=True)
        return root / "plain"

    return rounds(
        {
            "restore": (prepare, restore),
            "bytes in memory": (empty, lambda to: read(download(scheme, names, to), True)),
            "bytes alone": (empty, lambda to: download(scheme, names, to)),
        },
        repeats,
    )


def download(scheme: str, names: list[str], folder: pathlib.Path) -> list[pathlib.Path]:
    """Downloads objects below bucket/rows/ with ranges in parallel, as a plain client would; returns the files."""
    folder.mkdir(exist_ok=True)

    def get(job: tuple[int, int, int]) -> None:
        index, start, stop = job
        headers = {"Range": f"bytes={start}-{stop - 1}", **(AUTHORIZATION if scheme == "s3" else {})}
        address = url(scheme, names[index] if scheme == "s3" else names[index].replace("/", "%2F"))
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as source:
            data = source.read()
        os.pwrite(handles[index], data, start)

    from spanjax.storage.objects import RANGE, Place, open_store

    place = Place.parse(f"{scheme}://bucket/rows")
    sizes = {each.name: each.size for each in open_store(place).list(place)}
    handles = [os.open(folder / str(number), os.O_RDWR | os.O_CREAT) for number in range(len(names))]
    jobs = [
        (index, start, min(start + RANGE, sizes[name]))
        for index, name in enumerate(names)
        for start in range(0, sizes[name], RANGE)
    ]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(get, jobs))
    for handle in handles:
        os.close(handle)
    return [folder / str(number) for number in range(len(names))]


def main() -> int:
    """Runs everything; the exit code."""
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--millions", type=int, default=110, help="parameters of the state, in millions")
    more.add_argument("--from", dest="places", nargs="+", default=["disk", "s3", "gs"], choices=["disk", "s3", "gs"])
    found = timing.options(__doc__ or "", more)
    timing.pin(found.cores)
    state, figures, targets = state_of(found.millions * 10**6), dict[str, dict[str, float]](), list[timing.Target]()
    for place in found.places:
        with tempfile.TemporaryDirectory() as folder:
            if place == "disk":
                figures[place] = on_disk(state, pathlib.Path(folder), found.repeats)
            else:
                with serving(place):
                    figures[place] = in_bucket(place, state, pathlib.Path(folder), found.repeats)
        print(
            f"{place}: " + ", ".join(f"{what} {seconds:.2f} s" for what, seconds in figures[place].items()), flush=True
        )
    for name, each in figures.items():
        share = each["restore"] / each["bytes in memory"]
        targets.append(timing.Target(f"{name}: restore, times the bytes in memory", share, most=2.0))
    return timing.report({"seconds": figures}, targets, found)


if __name__ == "__main__":
    sys.exit(main())
