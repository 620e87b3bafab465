"""Passes over a source of several groups: what is read, what is left out, and what is not read again."""

import collections
import dataclasses
import gzip
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spanjax.data.feed.rows import open_rows
from spanjax.data.shards.local_runner import write_portions
from spanjax.data.shards.passes import Pass, finish_pass, folders, unread_bytes, unwritten, written
from spanjax.data.shards.portions import RowSettings
from spanjax.data.shards.shards import Manifest
from spanjax.data.shards.staging import Unfinished, unfinished_folder
from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.corpus import open_sources
from spanjax.data.sources.documents import Document, SourceSettings
from spanjax.data.sources.paths import CountedFile
from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.loading import WordPieceVocabulary

VOCABULARY = WordPieceVocabulary([*SPECIAL_PIECES, *(f"w{n}" for n in range(200))])
SETTINGS = RowSettings(16, 4, Cleaning(), ("train",))


@dataclasses.dataclass
class Words:
    """A group of documents of one word each; counts how often it is read."""

    words: list[int]
    name: str = "words"
    description: str = "words"
    bytes: int | None = None
    reads: int = 0

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        self.reads += 1
        for place, word in enumerate(self.words):
            skipped["odd lines"] += place == 1
            yield Document(f"w{word}", "")


@dataclasses.dataclass
class Groups:
    """A source of such groups."""

    parts: list[Words]
    description: str = "groups"

    def groups(self) -> list[Words]:
        return self.parts

    def identity(self) -> list[Any]:
        return [part.words for part in self.parts]

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        for part in self.parts:
            yield from part.documents(skipped)


def source(*sizes: int) -> Groups:
    numbers = iter(range(200))
    return Groups([Words([next(numbers) for _ in range(size)]) for size in sizes])


def write(one: Pass, work: Unfinished, most: int = 1000) -> list[str]:
    """Writes at most so many portions; returns their names."""
    portions = unwritten(work, one)
    names = []
    for portion, _ in zip(portions, range(most), strict=False):
        names += [each.name for each in write_portions([portion], one.settings, VOCABULARY, _places(work, one), 1)]
    return names


def _places(work: Unfinished, one: Pass) -> Any:
    return folders(work, one.settings.splits)


def texts(folder: pathlib.Path) -> list[int]:
    """The words of all rows, in the order of the documents."""
    rows = open_rows(folder / "train")
    tokens = rows.fetch(np.arange(len(rows))).tokens_BL
    found = [token - 5 for token in tokens[tokens > 4].tolist()]
    row_M = np.repeat(np.arange(len(rows)), np.load(folder / "train" / "blocks.npy"))
    block_M = np.concatenate([np.arange(1, n + 1) for n in np.load(folder / "train" / "blocks.npy")])
    return [found[place] for place in np.argsort(rows.block_documents(row_M, block_M))]


def whole(one: Pass, out: pathlib.Path) -> Manifest:
    with unfinished_folder(out, {}) as work:
        write(one, work)
        return finish_pass(work, one, VOCABULARY, {"a": 1})["train"]


def test_groups_and_portions_make_shards_in_order(tmp_path: pathlib.Path) -> None:
    manifest = whole(Pass(source(7, 0, 3), SETTINGS, 6), tmp_path / "out")
    names = [shard.name for shard in manifest.shards]
    assert names == [f"rows-{number}.bin" for number in ("00000-00000", "00000-00001", "00002-00000")]
    assert texts(tmp_path / "out") == list(range(10)) and manifest.skipped == {"odd lines": 2}
    assert manifest.documents == 10 and manifest.settings == {"a": 1} and manifest.source == "groups"


@pytest.mark.parametrize("most", [1, 3, 5, 6, 10, 99])
def test_only_the_first_documents_are_taken(tmp_path: pathlib.Path, most: int) -> None:
    found = source(5, 3, 2)
    assert whole(Pass(found, SETTINGS, 4, most=most), tmp_path / "out").documents == min(most, 10)
    assert texts(tmp_path / "out") == list(range(min(most, 10)))
    assert [group.reads for group in found.parts] == [1, int(most > 5), int(most > 8)]


def test_duplicates_of_other_groups_are_left_out(tmp_path: pathlib.Path) -> None:
    found = Groups([Words([1, 2, 1]), Words([2, 3]), Words([4, 1, 3])])
    manifest = whole(Pass(found, SETTINGS, 4, deduplicate=True), tmp_path / "out")
    assert texts(tmp_path / "out") == [1, 2, 3, 4]
    assert manifest.skipped["duplicate documents"] == 4


@pytest.mark.parametrize("deduplicate", [False, True])
def test_what_is_written_is_not_written_again(tmp_path: pathlib.Path, deduplicate: bool) -> None:
    found = source(7, 6, 3)
    one = Pass(found, SETTINGS, 6, deduplicate)
    expected = whole(one, tmp_path / "whole")
    for group in found.parts:
        group.reads = 0
    with unfinished_folder(tmp_path / "out", {}) as work:
        assert write(one, work, 3) == ["rows-00000-00000", "rows-00000-00001", "rows-00001-00000"]
        assert written(work, one) == 3 and [group.reads for group in found.parts] == [1, 1, 0]
        for path in work.folder.glob("figures/train/rows-00001-00000.npz"):
            path.unlink()  # as if it had died between the rows and the figures
        assert write(one, work)[0] == "rows-00001-00000"
        assert [group.reads for group in found.parts] == [1 + deduplicate, 2, 1]
        assert finish_pass(work, one, VOCABULARY, {"a": 1})["train"] == expected


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_bytes_that_a_pass_will_read_are_those_it_reads(
    suffix: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spanjax.data.sources.corpus._GROUP_BYTES", 10)  # a group for every file
    for name in "ab":
        content = "\n\n".join(f"w{number}" for number in range(30)).encode()
        (tmp_path / f"{name}.txt{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    files = sorted(tmp_path.glob("*.txt*"))
    one = Pass(open_sources([str(tmp_path / "*.txt*")], SourceSettings()), SETTINGS, 1000)
    with unfinished_folder(tmp_path / "out", {}) as work:
        assert unread_bytes(work, one) == sum(file.stat().st_size for file in files)
        before = CountedFile.read_bytes
        write(one, work)
        assert CountedFile.read_bytes - before == sum(file.stat().st_size for file in files)
        assert unread_bytes(work, one) == 0
        for path in work.folder.glob("figures/train/rows-00001-*.npz"):
            path.unlink()
        assert unread_bytes(work, one) == files[1].stat().st_size
        assert unread_bytes(work, dataclasses.replace(one, deduplicate=True)) == sum(
            file.stat().st_size for file in files
        )
        assert unread_bytes(work, dataclasses.replace(one, most=3)) is None
        assert unread_bytes(work, Pass(source(2), SETTINGS, 6, deduplicate=True)) is None, "a source of something else"


def test_a_portion_that_is_nowhere_is_told(tmp_path: pathlib.Path) -> None:
    one = Pass(source(7, 6), SETTINGS, 6)
    with (
        pytest.raises(OSError, match="lacks portions of group 1 of train"),
        unfinished_folder(tmp_path / "out", {}) as work,
    ):
        write(one, work)
        next(work.folder.glob("figures/train/rows-00001-*.npz")).unlink()
        finish_pass(work, one, VOCABULARY, {})


def test_a_pass_without_text_is_told_and_not_kept(tmp_path: pathlib.Path) -> None:
    one = Pass(source(0), SETTINGS, 6)
    with (
        pytest.raises(ValueError, match="the train split holds no text"),
        unfinished_folder(tmp_path / "out", {}) as work,
    ):
        write(one, work)
        work.worthless = False
        finish_pass(work, one, VOCABULARY, {})
    assert list(tmp_path.iterdir()) == []


def test_manifests_are_plain_json(tmp_path: pathlib.Path) -> None:
    whole(Pass(source(3), SETTINGS, 6), tmp_path / "out")
    fields = json.loads((tmp_path / "out" / "train" / "manifest.json").read_text())
    assert fields["shards"][0][:2] == ["rows-00000-00000.bin", 1]
