"""Paths here and behind scheme://, with fsspec's filesystem in memory."""

import collections
import gzip
import io
import pathlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow
import pytest
from pyarrow import parquet

from spanjax.data.sources.corpus import open_sources
from spanjax.data.sources.documents import SourceSettings
from spanjax.data.sources.paths import File, find, open_bytes, open_decompressed


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's filesystem in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def read(*patterns: str) -> list[tuple[str, str]]:
    source = pickle.loads(pickle.dumps(open_sources(patterns, SourceSettings())))
    return [(document.text, document.where) for document in source.documents(collections.Counter())]


def test_globs_sizes_and_content_behind_a_scheme(memory: Any) -> None:
    memory.pipe("/x/b.txt", b"two\n\nthree\n")
    memory.pipe("/x/a.jsonl.gz", gzip.compress(b'{"text": "one"}\n'))
    memory.pipe("/x/deep/c.txt", b"four")
    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["five"]}), table)
    memory.pipe("/x/d.parquet", table.getvalue())
    found, problems = find(["memory://x/*"])
    names = ("a.jsonl.gz", "b.txt", "d.parquet")
    assert not problems and [file.path for file in found] == [f"memory:///x/{name}" for name in names]
    assert [file.size for file in found] == [memory.size(f"/x/{file.name}") for file in found]
    assert [text for text, _ in read("memory://x/*.*", "memory://x/**/*.txt")] == [
        "one",
        "two",
        "three",
        "five",
        "four",
    ]
    assert read("memory://x/b.txt")[1] == ("three", f"{found[1].path}:3")


def test_a_file_that_is_written_again_has_another_stamp(memory: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    memory.pipe("/a.txt", b"one")
    before = find([str(path), "memory://a.txt"])[0]
    assert before == find([str(path), "memory://a.txt"])[0] and all(file.stamp for file in before)
    path.write_text("two")
    memory.pipe("/a.txt", b"two")
    assert all(new.stamp != old.stamp for old, new in zip(before, find([file.path for file in before])[0], strict=True))


def test_what_is_not_there_behind_a_scheme_is_told(memory: Any) -> None:
    memory.pipe("/x/empty.txt", b"")
    memory.pipe("/x/a.txt", b"a")
    problems = find(["memory://x", "memory://x/none*", "memory://none", "memory://x/empty.txt", "memory://x/a.txt"])[1]
    assert [
        wanted in problem
        for wanted, problem in zip(
            ("memory://x: a folder, expected files; write memory://x/*", "none*: no such", "none: no such", "is empty"),
            problems,
            strict=True,
        )
    ] == [True] * 4


def test_a_package_or_scheme_that_is_missing_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as if it were not installed
    with pytest.raises(ValueError) as caught:
        open_sources(["gs://bucket/a.txt", "gs://bucket/*.gz", "nosuch://x", "zip://a.txt::/b.zip"], SourceSettings())
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and "gs:// paths need a package: pip install gcsfs" in lines[0]
    assert "nosuch://x: no filesystem is known" in lines[1] and "unpack the file" in lines[2]


def test_an_error_of_a_filesystem_names_the_path(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("Forbidden: no credentials")

    monkeypatch.setattr(type(memory), "info", refuse)
    with pytest.raises(ValueError, match=r"memory://a\.txt: PermissionError: Forbidden.*check the path"):
        open_sources(["memory://a.txt"], SourceSettings())


def test_files_are_closed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(pyarrow.compress(b"a\n" * 10_000, codec="zstd", asbytes=True))  # pyright: ignore
    with open_decompressed(str(path)) as file:
        assert file.readline() == b"a\n"
    assert file.closed
    with open_bytes(str(path)) as raw:
        assert raw.seek(1) == 1


def test_plain_names() -> None:
    assert File("gs://b/x/a.txt").name == "a.txt" == File("a.txt").name
