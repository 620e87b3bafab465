"""Checksums of shards: compared once, remembered, and what is damaged is named, whatever the feed."""

import json
import os
import pathlib
import threading
from typing import Any

import numpy as np
import pytest

from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.feeds import open_feed
from spanjax.data.feed.mixture import MixedRows
from spanjax.data.feed.rows import Rows, open_rows
from spanjax.data.shards import record_file
from spanjax.data.shards.record_file import DamagedRowsError, RecordFile, ShardCheck, cache_file, whole_rows
from tests.data.feed.test_rows import LENGTH, some_rows, write

WHOLE = None  # seconds: without limit
KINDS = pytest.mark.parametrize("kind", ["numpy", "tf"])


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Every folder is remembered, here."""
    monkeypatch.setattr(record_file, "SMALL", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "spanjax" / "rows"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the shards whose content was read for a checksum."""
    names, sha256 = [], RecordFile.sha256

    def noted(self: RecordFile) -> str:
        names.append(self.path.name)
        return sha256(self)

    monkeypatch.setattr(RecordFile, "sha256", noted)
    return names


def folder_of(tmp_path: pathlib.Path, name: str = "rows") -> pathlib.Path:
    write(tmp_path / name, some_rows(), shard_rows=15)
    return tmp_path / name


def flip(path: pathlib.Path, place: int, bit: int = 1) -> None:
    """One bit of a shard, in place."""
    with open(path, "r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ bit]))


def compare(rows: Rows) -> ShardCheck:
    (check,) = rows.checks
    check.raise_damage(WHOLE)
    return check


def test_a_flipped_bit_is_named(tmp_path: pathlib.Path, cache: pathlib.Path) -> None:
    folder = folder_of(tmp_path)
    assert compare(open_rows(folder)).missing == 0
    flip(folder / "rows-00002.bin", 2)
    with pytest.raises(
        DamagedRowsError, match=r"rows-00002.bin is damaged \(its sha256 is .* in the manifest\): prepare or copy"
    ):
        compare(open_rows(folder))


def test_what_was_right_is_remembered_until_it_changes(
    tmp_path: pathlib.Path, cache: pathlib.Path, hashed: list[str]
) -> None:
    folder = folder_of(tmp_path)
    names = [f"rows-{number:05d}.bin" for number in range(4)]
    compare(open_rows(folder))
    assert hashed == names and [path.suffix for path in sorted(cache.iterdir())] == [".json", ".lock"]
    compare(open_rows(folder))
    assert hashed == names
    shard = folder / names[1]
    before = shard.stat()
    flip(shard, 0)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))  # only ctime tells
    with pytest.raises(DamagedRowsError, match=names[1]):
        compare(open_rows(folder))
    assert hashed[4:] == [names[1]]
    flip(shard, 0)
    compare(open_rows(folder))
    assert hashed[5:] == [names[1]]
    (folder / "copy").write_bytes(shard.read_bytes())
    (folder / "copy").rename(shard)
    compare(open_rows(folder))
    assert hashed[6:] == [names[1]]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"rows-00000.bin": 3, "rows-00001.bin": []}', "[" * 100_000, "\0"])
def test_a_damaged_memory_is_not_believed(
    content: str, tmp_path: pathlib.Path, cache: pathlib.Path, hashed: list[str]
) -> None:
    folder = folder_of(tmp_path)
    compare(open_rows(folder))
    path = cache_file(folder)
    assert path is not None and set(json.loads(path.read_text())) == {f"rows-{number:05d}.bin" for number in range(4)}
    path.write_text(content)
    compare(open_rows(folder))
    assert len(hashed) == 8


def test_the_checksum_of_another_manifest_is_not_remembered(tmp_path: pathlib.Path, cache: pathlib.Path) -> None:
    folder = folder_of(tmp_path)
    compare(open_rows(folder))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][3][2] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedRowsError, match="rows-00003.bin is damaged"):
        compare(open_rows(folder))


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: pathlib.Path, cache: pathlib.Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path)
    cache.parents[1].write_text("a file is in the way")
    for _ in range(2):
        assert compare(open_rows(folder)).missing == 0
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    assert cache_file(folder) is None and compare(open_rows(folder)).missing == 0
    assert len(hashed) == 12 and not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_one_process_of_a_host_compares(tmp_path: pathlib.Path, cache: pathlib.Path, hashed: list[str]) -> None:
    """The second waits at the lock file, and takes what the first has found."""
    folder = folder_of(tmp_path)
    begun, gate, compared = threading.Event(), threading.Event(), ShardCheck._compare

    def slow(self: ShardCheck, *each: Any) -> None:
        begun.set()
        assert gate.wait(10)
        compared(self, *each)

    first, second = (open_rows(folder).checks[0] for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardCheck, "_compare", slow)
        patch.setattr(record_file, "_ONE_AT_A_TIME", threading.Semaphore(2))  # as in two processes
        first.start()
        assert begun.wait(10)
        second.start()
        second.raise_damage(0.2)
        assert (first.missing, second.missing) == (4, 4)
        gate.set()
        for check in (first, second):
            check.raise_damage(WHOLE)
    assert (first.missing, second.missing) == (0, 0) and len(hashed) == 4


def test_small_folders_are_not_remembered(
    tmp_path: pathlib.Path, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compare(open_rows(folder_of(tmp_path)))
    assert not cache.exists()


def test_a_failure_that_names_no_file_waits_for_the_checksums(tmp_path: pathlib.Path) -> None:
    folder = folder_of(tmp_path)
    with pytest.raises(IndexError), whole_rows(open_rows(folder).checks):
        raise IndexError("of masking")
    flip(folder / "rows-00003.bin", 0)
    with pytest.raises(DamagedRowsError, match="rows-00003.bin"), whole_rows(open_rows(folder).checks):
        raise IndexError("of masking")


@KINDS
@pytest.mark.parametrize("mixed", [False, True], ids=["one_folder", "mixture"])
def test_feeds_end_with_the_name_of_a_damaged_shard(kind: Any, mixed: bool, tmp_path: pathlib.Path) -> None:
    folders = [folder_of(tmp_path, "a"), folder_of(tmp_path, "b")] if mixed else [folder_of(tmp_path)]
    flip(folders[-1] / "rows-00001.bin", 2)
    rows = [open_rows(folder) for folder in folders]
    feed = open_feed(kind, MixedRows(rows) if mixed else rows[0], FeedSpec(0, 8))
    with pytest.raises(
        ValueError, match=r"(?s)rows-00001.bin is damaged.*saves nothing more.*the same command continues"
    ) as error:
        for _ in range(100_000):
            next(feed)
    assert type(error.value) is ValueError


@KINDS
@pytest.mark.parametrize("pairs", [False, True], ids=["single", "pairs"])
@pytest.mark.parametrize("content", ["shorter", "zeros", "flipped"])
def test_feeds_end_when_a_shard_changes(kind: Any, pairs: bool, content: str, tmp_path: pathlib.Path) -> None:
    from spanjax.data.feed.pairing import NextSentence, Single

    folder = folder_of(tmp_path)
    feed = open_feed(kind, open_rows(folder), FeedSpec(0, 8, pairing=NextSentence() if pairs else Single()))
    next(feed)
    shard = folder / ("documents.npy" if pairs and content == "shorter" else "rows-00000.bin")
    if content == "shorter":
        os.truncate(shard, 200)
    elif content == "zeros":
        with open(shard, "r+b") as file:
            file.write(bytes(shard.stat().st_size))
    else:
        flip(shard, 3)
    with pytest.raises(ValueError, match=rf"(?s){shard.name} has changed while it was in use.*saves nothing more"):
        for _ in range(1000):
            next(feed)


@pytest.mark.parametrize("content", ["zeros", "ones", "random"])
def test_rows_that_are_none_are_refused_as_they_are_read(content: str, tmp_path: pathlib.Path) -> None:
    """At once, before any checksum; rows that are whole are read."""
    folder = folder_of(tmp_path)
    shard, size = folder / "rows-00002.bin", (folder / "rows-00002.bin").stat().st_size
    random = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8).tobytes()
    shard.write_bytes({"zeros": bytes(size), "ones": b"\xff" * size, "random": random}[content])
    rows = open_rows(folder)
    rows.fetch(np.arange(30))
    for row in range(30, 45):
        with pytest.raises(
            DamagedRowsError, match=rf"rows-00002.bin is damaged \(row {row - 30} in it is no row\): prepare or copy"
        ):
            rows.fetch(np.array([0, row]))


def test_every_mark_that_cannot_be_is_noticed(tmp_path: pathlib.Path) -> None:
    """Block numbers that fall, jump, come back after padding, are too many, or leave a row of another length."""
    folder = folder_of(tmp_path)
    rows, stored = open_rows(folder), (folder / "rows-00000.bin").read_bytes()
    size, lengths = len(stored) // 15, rows.lengths_N
    marks = 2 * LENGTH
    row = int(np.argmax(lengths[:15] < LENGTH - 2))
    used, first = int(lengths[row]), int(row * size + marks)
    assert used < LENGTH - 2
    for place, value in ((0, 0), (0, 2), (used, 1), (LENGTH - 1, 1), (used - 1, 0), (used - 1, 127), (1, 0)):
        changed = bytearray(stored)
        changed[first + place] = value
        (folder / "rows-00000.bin").write_bytes(bytes(changed))
        with pytest.raises(DamagedRowsError, match=f"row {row} in it"):
            open_rows(folder).fetch(np.arange(15))
