"""Wrong addresses of object stores, missing rights, wrong endpoints, and what lies there."""

import atexit
import contextlib
import functools
import json
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from spanjax.storage.commits import Head
from spanjax.storage.objects import Place, open_store
from tests.bad_inputs import Case, World
from tests.storage import servers

_running = contextlib.ExitStack()
atexit.register(_running.close)


class Serving(Mapping[str, str]):
    """Variables of a server that starts when they are first read, and runs to the end of the process."""

    def __init__(self, start: Callable[[], contextlib.AbstractContextManager[Mapping[str, str]]], **more: str):
        self._start, self._more = start, more

    @functools.cached_property
    def _found(self) -> dict[str, str]:
        return {**_running.enter_context(self._start()), **self._more}

    def __getitem__(self, name: str) -> str:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


@contextlib.contextmanager
def page() -> Iterator[dict[str, str]]:
    """A web page where Google's store is expected."""
    with servers.web_page() as address:
        yield {"STORAGE_EMULATOR_HOST": address}


S3 = Serving(functools.partial(servers.serving, "s3"))
GS = Serving(functools.partial(servers.serving, "gs"))
DENIED = Serving(lambda: servers.serving("s3", servers.Faults(deny=frozenset({"GET", "PUT"}))))
GS_DENIED = Serving(lambda: servers.serving("gs", servers.Faults(deny=frozenset({"POST"}))))
NOBODY = Serving(
    functools.partial(servers.serving, "s3"),
    AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="", AWS_SHARED_CREDENTIALS_FILE="/none", AWS_CONFIG_FILE="/none",
)  # fmt: skip
PAGE = Serving(page)
to_torch = functools.partial(Case, "convert to-torch")
train = functools.partial(Case, "train")


def memory(folder: pathlib.Path, name: str) -> str:
    """Copies a folder to an address in memory."""
    system = MemoryFileSystem()
    for path in folder.rglob("*"):
        if path.is_file():
            system.pipe_file(f"/bucket/{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return f"memory://bucket/{name}"


def cut_rows(world: World) -> list[Any]:
    """Training on rows whose upload lost the end of a shard."""
    rows = memory(world.rows, "cut")
    shard = sorted(map(str, MemoryFileSystem().glob("/bucket/cut/train/rows-*.bin")))[0]
    MemoryFileSystem().pipe_file(shard, MemoryFileSystem().cat_file(shard)[:-7])
    return world.train(rows=rows)


def uncommitted(world: World) -> list[Any]:
    """A step that its run in a bucket never committed."""
    head = {"fencing": 1, "steps": {"20": {"commit": "20-1", "loss": None}}, "damaged": [], "writer": "x", "number": 1}
    MemoryFileSystem().pipe_file("/bucket/run/commits/HEAD", json.dumps(head).encode())
    return ["memory://bucket/run/checkpoints/10", world.here / "out"]


def taken(world: World) -> list[Any]:
    """An output that holds somebody else's file."""
    MemoryFileSystem().pipe_file("/bucket/mine/notes.txt", b"mine")
    return [world.run, "memory://bucket/mine", "--overwrite"]


def stopped(world: World) -> list[Any]:
    """An output whose upload was killed."""
    MemoryFileSystem().pipe_file("/bucket/half/.spanjax-upload.json", b"[]")
    return [world.run, "memory://bucket/half"]


OTHER = {"holder": "other", "host": "other", "pid": 7, "started": "2026-01-01T00:00:00+00:00", "valid_seconds": 120}


def in_bucket(world: World, name: str) -> list[Any]:
    """A training with its work directory in memory, and copies in a folder that is removed at the end of the process."""
    cache = _running.enter_context(tempfile.TemporaryDirectory())
    words = [word for word in world.train() if not word.startswith("--workdir")]
    return [*words, f"--workdir=memory://bucket/{name}", f"--data.cache={cache}"]


def meanwhile(act: Callable[[int], bool]) -> None:
    """Calls `act` with 0, 1, ... on a thread, every 20 ms, until it returns True or the process ends."""

    def repeat() -> None:
        number = 0
        while not act(number):
            number += 1
            time.sleep(0.02)

    threading.Thread(target=repeat, daemon=True).start()


def held(world: World) -> list[Any]:
    """A work directory whose run is at work: it renews its lease for a minute."""
    place, until = Place.parse("memory://bucket/held/run.lock"), time.monotonic() + 60

    def renew(number: int) -> bool:
        content = {**OTHER, "fencing": 1, "renewals": number}
        open_store(place).write(place, json.dumps(content).encode())
        return time.monotonic() > until

    renew(0)
    meanwhile(renew)
    return in_bucket(world, "held")


def taken_over(world: World) -> list[Any]:
    """A run that another one takes over before its first save, as if it had slept for minutes."""
    run = Place.parse("memory://bucket/over")
    store = open_store(run)

    def take(_: int) -> bool:
        if store.head(run / "commits/HEAD") is None:
            return False
        store.write(run / "run.lock", json.dumps({**OTHER, "fencing": 2, "renewals": 1}).encode())
        store.write(run / "commits/HEAD", Head(2).to_json("other", 1))
        return True

    meanwhile(take)
    return in_bucket(world, "over")


STORAGE_CASES = (
    train("a work directory in a bucket whose run is at work",
          ("memory://bucket/held is in use by another run", "host other, process 7", "use another --workdir"), held),
    train("a run in a bucket that another one has taken over",
          ("memory://bucket/over was taken over by another run", "host other, process 7", "which of the two"), taken_over),
    train("rows at an address with nothing", ("memory://bucket/none", "expected rows", "found nothing", "prepare rows"),
          lambda world: world.train(rows="memory://bucket/none")),
    train("rows of a store that is not known", ("hdfs://host/rows", "gs:// and s3://", "copy the files here"),
          lambda world: world.train(rows="hdfs://host/rows")),
    train("rows that were cut in a bucket", ("rows-", "bytes, expected", "upload it again"), cut_rows),
    train("weights at an address with nothing", ("memory://bucket/none: no such file or folder", "check the address"),
          lambda world: world.train("--init-from=memory://bucket/none")),
    train("a negative limit of the cache", ("data.cache_gb is -1", "0 or more"),
          lambda world: world.train("--data.cache-gb=-1")),
    train("a cache that is a file", ("cannot be copied to", "--data.cache"),
          lambda world: world.train(f"--data.cache={world.write('file', '')}", rows=memory(world.rows, "rows"))),
    to_torch("an address without a bucket", ("s3:///x", "expected s3://BUCKET/NAME"),
             lambda world: ["s3:///x", world.here / "out"]),
    to_torch("an address with ..", ("gs://bucket/../x", "without . or .."),
             lambda world: ["gs://bucket/../x", world.here / "out"]),
    to_torch("a bucket that does not exist, in S3", ("no bucket 'nowhere'", "AWS_ENDPOINT_URL", "create it"),
             lambda world: ["s3://nowhere/run", world.here / "out"], variables=S3),
    to_torch("a bucket that does not exist, in Google's store", ("no bucket 'nowhere'", "create it"),
             lambda world: ["gs://nowhere/run", world.here / "out"], variables=GS),
    to_torch("no right to read", ("access is denied", "rights to list, read, write and delete"),
             lambda world: ["s3://bucket/run", world.here / "out"], variables=DENIED),
    to_torch("no right to write", ("access is denied", "rights to list, read, write and delete"),
             lambda world: [world.run, "gs://bucket/out"], variables=GS_DENIED),
    to_torch("no credentials", ("no credentials", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
             lambda world: ["s3://bucket/run", world.here / "out"], variables=NOBODY),
    to_torch("a web page at the endpoint", ("Welcome", "expected an answer of Google", "STORAGE_EMULATOR_HOST"),
             lambda world: ["gs://bucket/run", world.here / "out"], variables=PAGE),
    to_torch("a whole bucket as the output", ("memory://bucket", "a whole bucket", "name of a file or folder"),
             lambda world: [world.run, "memory://bucket"]),
    to_torch("a folder of somebody else in a bucket", ("memory://bucket/mine", "'notes.txt'", "name another"), taken),
    to_torch("a folder in a bucket whose upload was stopped", ("memory://bucket/half", "was stopped", "--overwrite"), stopped),
    to_torch("a step that was never committed", ("no checkpoint of step 10 is committed", "those kept are 20"), uncommitted),
    Case("report", "a run at an address with nothing", ("memory://bucket/none", "check the address"),
         lambda world: ["memory://bucket/none"]),
    Case("prepare stats", "rows at an address with nothing", ("memory://bucket/none", "found nothing"),
         lambda world: ["memory://bucket/none"]),
)  # fmt: skip
