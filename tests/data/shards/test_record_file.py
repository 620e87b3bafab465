"""Records read by index: right, whatever the limits of open files, and an error, never a signal, where the file changes."""

import os
import pathlib
import resource
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from spanjax.data.shards.record_file import DamagedRowsError, RecordFile, load_array, open_array, read_records
from tests.running import ROOT

RECORD = np.dtype([("a", "<u2", (3,)), ("b", "u1", (2,))])
FOLDER_IN_USE = "write into no folder of rows that is in use"


def made(path: pathlib.Path, count: int, seed: int = 0) -> np.ndarray:
    records = np.random.default_rng(seed).integers(0, 256, count * RECORD.itemsize).astype(np.uint8).view(RECORD)
    path.write_bytes(records.tobytes())
    return records


def test_records_of_any_places_come_in_the_order_asked(tmp_path: pathlib.Path) -> None:
    stored = [made(tmp_path / str(number), 50, number) for number in range(3)]
    files = [RecordFile(tmp_path / str(number), RECORD, 50) for number in range(3)]
    draw = np.random.default_rng(9)
    for file_B, place_B in (
        (draw.integers(0, 3, 200), draw.integers(0, 50, 200)),
        (np.repeat([0, 1, 2], 50), np.tile(np.arange(50), 3)),
        (np.array([1, 1, 0, 0, 0]), np.array([48, 49, 0, 1, 0])),
        (np.zeros(0, np.int64), np.zeros(0, np.int64)),
    ):
        expected = [stored[file][place] for file, place in zip(file_B, place_B, strict=True)]
        assert read_records(files, file_B, place_B).tobytes() == b"".join(each.tobytes() for each in expected)
    assert (
        files[1].read(7, 9).tobytes() == stored[1][7:9].tobytes() and files[2].read().tobytes() == stored[2].tobytes()
    )


def in_a_process(code: str, path: pathlib.Path) -> str:
    """Output of the code in a Python of its own, whose limits it may change; the path is its argument."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_more_files_than_may_be_open(tmp_path: pathlib.Path) -> None:
    """A third of them stays open; the others are opened for every read, and noticed when they change, too."""
    for number in range(60):
        made(tmp_path / f"{number:02d}", 4, number)
    code = """
import pathlib, resource, sys
import numpy as np
from spanjax.data.shards.record_file import DamagedRowsError, RecordFile, read_records
from tests.data.shards.test_record_file import RECORD, made
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
paths = sorted(pathlib.Path(sys.argv[1]).iterdir())
files = [RecordFile(path, RECORD, 4) for path in paths]
assert 0 < sum(file.handle is not None for file in files) < 30
file_B, place_B = np.repeat(np.arange(60), 4), np.tile(np.arange(4), 60)
assert read_records(files, file_B, place_B).tobytes() == b"".join(path.read_bytes() for path in paths)
paths[-1].write_bytes(bytes(4 * RECORD.itemsize - 1))
try:
    read_records(files, file_B, place_B)
except DamagedRowsError as error:
    assert paths[-1].name in str(error)
    print("noticed")
"""
    assert in_a_process(code, tmp_path) == "noticed\n"


def test_the_limit_of_open_files_is_raised_where_it_may_be(tmp_path: pathlib.Path) -> None:
    """In a process of its own: that of the tests has more files open than the limit allows."""
    made(tmp_path / "a", 4)
    code = """
import resource, sys
from spanjax.data.shards.record_file import RecordFile
from tests.data.shards.test_record_file import RECORD
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
assert RecordFile(sys.argv[1], RECORD, 4).handle is not None
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 500
print("raised")
"""
    assert in_a_process(code, tmp_path / "a") == "raised\n"


def test_descriptors_are_given_back(tmp_path: pathlib.Path) -> None:
    made(tmp_path / "a", 4)
    before = len(os.listdir("/dev/fd"))
    files = [RecordFile(tmp_path / "a", RECORD, 4) for _ in range(20)]
    assert len(os.listdir("/dev/fd")) == before + 20
    del files
    assert len(os.listdir("/dev/fd")) == before


def shorter(path: pathlib.Path) -> None:
    os.truncate(path, 100)


def other_bytes(path: pathlib.Path) -> None:
    with open(path, "r+b") as file:
        file.write(bytes(64))


def longer(path: pathlib.Path) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


@pytest.mark.parametrize("change", [shorter, other_bytes, longer])
def test_a_change_in_place_is_noticed_at_the_next_read(change: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records.bin"
    made(path, 50)
    file = RecordFile(path, RECORD, 50)
    os.utime(path)
    with pytest.raises(DamagedRowsError, match=f"records.bin has changed .* {FOLDER_IN_USE}"):
        file.read(0, 1)
    file = RecordFile(path, RECORD, 50)
    file.read()
    change(path)
    for read in (
        lambda: file.read(49, 50),
        lambda: read_records([file], np.zeros(1, int), np.zeros(1, int)),
        file.sha256,
    ):
        with pytest.raises(DamagedRowsError, match=f"records.bin has changed .* {FOLDER_IN_USE}"):
            read()


def test_a_removed_or_replaced_file_is_read_on(tmp_path: pathlib.Path) -> None:
    stored = made(tmp_path / "a", 50)
    file = RecordFile(tmp_path / "a", RECORD, 50)
    made(tmp_path / "b", 50, 1)
    (tmp_path / "b").rename(tmp_path / "a")
    assert file.read().tobytes() == stored.tobytes()
    (tmp_path / "a").unlink()
    assert file.read().tobytes() == stored.tobytes()


def test_truncation_while_it_is_read_is_an_error(tmp_path: pathlib.Path) -> None:
    """At 20 random moments of a reader that reads random records all the time."""
    draw = np.random.default_rng(0)
    for trial in range(20):
        path = tmp_path / f"{trial}.bin"
        stored = made(path, 5_000, trial)
        file = RecordFile(path, RECORD, 5_000)
        timer = threading.Timer(draw.uniform(0, 0.05), os.truncate, (path, int(draw.integers(0, stored.nbytes))))
        timer.start()
        with pytest.raises(DamagedRowsError, match=rf"/{trial}\.bin has changed while it was in use \([0-9,]+ bytes"):
            while True:
                place_B = draw.integers(0, 5_000, 64)
                assert (read_records([file], np.zeros_like(place_B), place_B) == stored[place_B]).all()
        timer.join()


def test_a_header_that_promises_more_than_there_is(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.arange(10))
    assert load_array(path, 10).tolist() == list(range(10)) and len(open_array(path)) == 10
    whole = path.read_bytes()
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (10**12,)})
    with pytest.raises(DamagedRowsError, match=r"lengths.npy is damaged .* 8,000,000,000,\d+"):
        load_array(path)
    with pytest.raises(DamagedRowsError, match="1,000,000,000,000 numbers, expected 10"):
        load_array(path, 10)
    for content in (b"", b"\x93NUMPY", whole[:-1], b"x" * 200):
        path.write_bytes(content)
        with pytest.raises(DamagedRowsError, match="lengths.npy is damaged"):
            load_array(path)
