"""Checksums of files whose ranges arrive in any order."""

import errno
import os
import pathlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spanjax.storage.arriving import ArrivingFile, DiskError, Part
from spanjax.storage.checksums import file_checksum

pytestmark = pytest.mark.unit


def arrive(file: ArrivingFile, data: bytes, start: int, stop: int) -> None:
    part = Part(file, start)
    for at in range(start, stop, 1000):
        part.write(data[at : min(at + 1000, stop)])
    assert part.size == stop - start
    file.complete(part)


@pytest.mark.parametrize("kind", ["sha256", "md5", "crc32", "crc32c"])
@pytest.mark.parametrize("size", [0, 1, 4096, 65_537])
def test_the_checksum_is_that_of_the_file(kind: str, size: int, tmp_path: pathlib.Path) -> None:
    if kind == "crc32c":
        pytest.importorskip("google_crc32c")
    data, order = random.Random(size).randbytes(size), random.Random(1)
    for number in range(5):
        starts = list(range(0, max(size, 1), 5000))
        order.shuffle(starts)
        path = tmp_path / str(number)
        with open(path, "x+b") as opened:
            file = ArrivingFile(opened.fileno(), kind)
            file.reserve(size)
            for start in starts:
                arrive(file, data, start, min(size, start + 5000))
            found = file.checksum
        assert path.read_bytes() == data and found == file_checksum(path, kind)


def test_ranges_of_several_threads_and_failed_tries(tmp_path: pathlib.Path) -> None:
    data = random.Random(0).randbytes(2_000_000)
    with open(tmp_path / "file", "x+b") as opened:
        file, barrier = ArrivingFile(opened.fileno(), "sha256"), threading.Barrier(8)

        def work(first: int) -> None:
            barrier.wait(10)
            for start in range(first * 10_000, len(data), 80_000):
                Part(file, start).write(b"another content of a try that failed")
                arrive(file, data, start, min(len(data), start + 10_000))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert file.checksum == file_checksum(tmp_path / "file", "sha256")
    assert (tmp_path / "file").read_bytes() == data


def test_a_disk_that_refuses_is_no_fault_of_the_network(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with open(tmp_path / "file", "x+b") as opened:
        file = ArrivingFile(opened.fileno(), "")
        with pytest.raises(DiskError):
            Part(file, 0).write(b"x")
        with pytest.raises(OSError, match="No space left") as caught, file.own_errors():
            Part(file, 0).write(b"x")
        assert caught.value.errno == errno.ENOSPC
