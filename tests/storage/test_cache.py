"""Copies of objects on this machine: fetched once, whole, by one process, and removed when room is needed."""

import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import pytest

from spanjax.storage import cache as caching
from spanjax.storage.cache import Cache, listed
from spanjax.storage.checksums import file_checksum
from spanjax.storage.objects import Place, StorageError, Store, open_store
from tests.running import ROOT
from tests.storage.servers import Fault, Faults

SIZE = 100_000


def fill(address: str, name: str, files: int = 3) -> Place:
    """Writes some objects of SIZE bytes into a folder and returns its place."""
    place = Place.parse(address) / name
    for number in range(files):
        open_store(place).write(place / "sub" / str(number), bytes([number]) * SIZE)
    return place


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the objects that are fetched from now on."""
    names, whole = list[str](), Store.download

    def download(store: Store, place: Place, *rest: object, **more: object) -> str:
        names.append(place.name)
        return whole(store, place, *rest, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Store, "download", download)
    return names


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases the copies that this process holds, as its end does."""
    for handle in caching._held.values():
        os.close(handle)
    caching._held.clear()


def test_objects_are_fetched_once(memory: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, cache, fetched = fill(memory, "rows"), Cache(tmp_path / "cache"), counted(monkeypatch)
    folder = cache.fetch(place, listed(place))
    assert folder.name == "rows" and (folder / "sub" / "2").read_bytes() == b"\2" * SIZE
    assert cache.fetch(place, listed(place)) == folder and sorted(fetched) == ["0", "1", "2"]
    open_store(place).write(place / "sub" / "1", b"new")
    other = cache.fetch(place, listed(place))
    assert other != folder and (other / "sub" / "1").read_bytes() == b"new", "another state is another copy"
    assert (folder / "sub" / "1").read_bytes() == b"\1" * SIZE


def test_complete_files_stay_after_a_failure(
    memory: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, cache, whole = fill(memory, "rows", 6), Cache(tmp_path / "cache"), Store.download
    monkeypatch.setattr(caching, "FILES", 1)

    def failing(store: Store, place: Place, *rest: object, **more: object) -> str:
        if place.name == "4":
            raise KeyboardInterrupt
        return whole(store, place, *rest, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Store, "download", failing)
    with pytest.raises(KeyboardInterrupt):
        cache.fetch(place, listed(place))
    monkeypatch.setattr(Store, "download", whole)
    fetched = counted(monkeypatch)
    cache.fetch(place, listed(place))
    assert fetched[0] == "4" and {*fetched} <= {"4", "5"}, "the thread may have taken the next one before it ended"


def test_an_object_that_changes_while_it_is_fetched(memory: str, tmp_path: pathlib.Path) -> None:
    place = fill(memory, "rows")
    sources = listed(place)
    open_store(place).write(place / "sub" / "1", b"x" * SIZE)
    with pytest.raises(StorageError, match="sub/1: it was replaced while it was read"):
        Cache(tmp_path / "cache").fetch(place, sources)


def test_threads_wait_for_the_one_that_fetches(
    memory: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, cache, fetched = fill(memory, "rows"), Cache(tmp_path / "cache"), counted(monkeypatch)
    sources, folders = listed(place), set[pathlib.Path]()
    threads = [threading.Thread(target=lambda: folders.add(cache.fetch(place, sources))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 1 and sorted(fetched) == ["0", "1", "2"]


def test_the_least_recently_used_goes_first(
    memory: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache", int(6.5 * SIZE))
    first, second, third = (fill(memory, name) for name in ("first", "second", "third"))
    one, two = cache.fetch(first, listed(first)), cache.fetch(second, listed(second))
    time.sleep(0.01)
    cache.fetch(first, listed(first))
    forget(monkeypatch)
    three = cache.fetch(third, listed(third))
    assert one.is_dir() and three.is_dir() and not two.exists()


def test_a_copy_in_use_stays(memory: str, tmp_path: pathlib.Path) -> None:
    cache = Cache(tmp_path / "cache", int(6.5 * SIZE), ("--data.cache", "--data.cache-gb"))
    first, second, third = (fill(memory, name) for name in ("first", "second", "third"))
    kept = [cache.fetch(place, listed(place)) for place in (first, second)]
    with pytest.raises(StorageError, match=r"--data.cache-gb allows .* copies in use take .* raise the limit"):
        cache.fetch(third, listed(third))
    assert all((folder / "sub" / "0").is_file() for folder in kept)


def test_a_copy_in_use_by_another_process_stays(
    memory: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache", int(4 * SIZE))
    first, second = fill(memory, "first"), fill(memory, "second")
    folder = cache.fetch(first, listed(first))
    used = folder.parent / "used"
    program = "import fcntl, sys; f = open(sys.argv[1], 'rb'); fcntl.flock(f, fcntl.LOCK_SH); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(used)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        forget(monkeypatch)
        with pytest.raises(StorageError, match="copies in use"):
            cache.fetch(second, listed(second))
        assert folder.is_dir()
        holder.communicate("\n", timeout=20)
    cache.fetch(second, listed(second))
    assert not folder.exists()


class Usage(NamedTuple):
    """Free bytes of a disk."""

    free: int


def test_a_full_disk_is_noticed_before_the_first_byte(
    memory: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, fetched = fill(memory, "rows"), counted(monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(caching.SPARE + SIZE))
    with pytest.raises(StorageError, match=r"0.000 GB of 0.000 GB are to be copied to .*free some space"):
        Cache(tmp_path / "cache").fetch(place, listed(place))
    assert not fetched


def test_a_cache_that_cannot_be_written(memory: str, tmp_path: pathlib.Path) -> None:
    place = fill(memory, "rows")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be copied to .*give another folder by --data.cache"):
        Cache(tmp_path / "file", flags=("--data.cache", "--data.cache-gb")).fetch(place, listed(place))


PROGRAM = """
import pathlib, sys
from spanjax.storage.cache import Cache, listed
from spanjax.storage.objects import Place
place = Place.parse(sys.argv[1])
folder = Cache(pathlib.Path(sys.argv[2])).fetch(place, listed(place))
print(folder)
"""


@pytest.mark.slow
def test_processes_share_copies_and_survive_a_kill(served: str, faults: Faults, tmp_path: pathlib.Path) -> None:
    place = fill(served, "rows", 12)
    faults.rate, faults.delay, faults.kinds = 0.3, 0.3, (Fault.DELAY, Fault.UNAVAILABLE, Fault.HALF)
    command = [sys.executable, "-c", PROGRAM, str(place), str(tmp_path / "cache")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as killed:
        # killed while it fetches: some objects are complete
        until = time.monotonic() + 60
        while not list((tmp_path / "cache").glob("*/rows/sub/[0-9]*")) and time.monotonic() < until:
            time.sleep(0.01)
        killed.kill()
    before = {path: path.stat().st_ino for path in (tmp_path / "cache").glob("*/rows/sub/[0-9]*")}
    assert before
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = {process.communicate(timeout=120)[0] for process in running}
    assert len(folders) == 1 and all(process.returncode == 0 for process in running)
    (folder,) = (pathlib.Path(name.strip()) for name in folders)
    assert sorted(int(path.name) for path in (folder / "sub").iterdir()) == list(range(12)), "no leftovers"
    assert all(path.stat().st_ino == number for path, number in before.items()), "complete files were not fetched again"
    for number in range(12):
        assert (folder / "sub" / str(number)).read_bytes() == bytes([number]) * SIZE


def test_checksums_identify_a_copy(memory: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, cache = fill(memory, "rows"), Cache(tmp_path / "cache")
    (tmp_path / "0").write_bytes(b"\0" * SIZE)
    known = {"sub/0": file_checksum(tmp_path / "0", "sha256")}
    sources = [each._replace(version="") for each in listed(place, known) if each.name == "sub/0"]
    folder, fetched = cache.fetch(place, sources), counted(monkeypatch)
    open_store(place).write(place / "sub" / "0", b"\0" * SIZE)
    assert cache.fetch(place, sources) == folder and not fetched, "the same content, uploaded again"


def test_of_a_copy_that_changed_only_new_objects_are_fetched(
    memory: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, cache = fill(memory, "run"), Cache(tmp_path / "cache", int(9 * SIZE))
    old, fetched = cache.fetch(place, listed(place)), counted(monkeypatch)
    open_store(place).write(place / "metrics.jsonl", b"1")
    new = cache.fetch(place, listed(place))
    assert fetched == ["metrics.jsonl"] and new != old and (new / "sub/2").read_bytes() == b"\2" * SIZE
    assert (new / "sub/0").stat().st_ino == (old / "sub/0").stat().st_ino, "the disk holds it once"
    open_store(place).write(place / "sub/1", b"x" * SIZE)  # as large as before
    again = cache.fetch(place, listed(place))
    assert fetched == ["metrics.jsonl", "1"] and (again / "sub/1").read_bytes() == b"x" * SIZE
    assert (old / "sub/1").read_bytes() == b"\1" * SIZE
    # a damaged list, a copy that lost a file, and one without links cost a download and no more
    shutil.rmtree(again.parent)
    (new.parent / "sources.json").write_text("{")
    (old / "sub/0").unlink()
    forget(monkeypatch)
    fetched.clear()
    third = cache.fetch(place, listed(place))
    assert sorted(fetched) == ["0", "1", "metrics.jsonl"] and (third / "sub/0").read_bytes() == b"\0" * SIZE
