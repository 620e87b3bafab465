"""Shards: whole or not there, joined in the order of their names whatever order they were written in."""

import pathlib

import numpy as np
import pytest

from spanjax.data.feed.rows import open_rows
from spanjax.data.shards.packing import Block
from spanjax.data.shards.shards import (
    ShardSource,
    finish_rows,
    has_shard,
    records,
    write_rows,
    write_shard,
    write_whole,
)
from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.loading import WordPieceVocabulary

VOCABULARY = WordPieceVocabulary([*SPECIAL_PIECES, *(f"w{n}" for n in range(40))])
LENGTH = 16


def block(ids: list[int], document: int = 0) -> Block:
    return Block(np.array(ids, np.int32), np.zeros(len(ids), np.uint8), document)


def written(folder: pathlib.Path, names: list[str]) -> pathlib.Path:
    """A shard of one row for every name, whose token is its place among the sorted names."""
    for part in ("rows", "figures"):
        (folder / part).mkdir(parents=True)
    order = sorted(names, key=lambda name: [int(number) for number in name.split("-")[1:]])
    for name in names:
        source = ShardSource(2, 3, 9, {"duplicate documents": 1}, {"entities": 4})
        rows = [[block([5 + order.index(name)], document=1)]]
        write_shard(folder / "rows", folder / "figures", name, rows, VOCABULARY, LENGTH, source)
    return folder


def test_shards_are_joined_in_the_order_of_their_numbers(tmp_path: pathlib.Path) -> None:
    names = ["rows-00001-00000", "rows-00000-00001", "rows-00000-00000", "rows-100000-00000", "rows-99999-00000"]
    folder = written(tmp_path, names)
    write_shard(folder / "rows", folder / "figures", "rows-00003-00000", [], VOCABULARY, LENGTH, ShardSource(1, 0))
    found = finish_rows(
        folder / "rows", folder / "figures", VOCABULARY, LENGTH, max_blocks=1, source="s", tags=("entities",),
        settings={"holdout": 0.5}, skipped={"lines not JSON": 2},
    )  # fmt: skip
    rows = open_rows(folder / "rows")
    assert rows.fetch(np.arange(5)).tokens_BL[:, 1].tolist() == [5, 6, 7, 8, 9]
    assert [shard.name for shard in found.shards][-2:] == ["rows-99999-00000.bin", "rows-100000-00000.bin"]
    assert (found.documents, found.sentences) == (11, 15)
    assert rows.block_documents(np.arange(5), np.ones(5, np.int64)).tolist() == [1, 3, 5, 8, 10]
    assert found.skipped == {"duplicate documents": 5, "lines not JSON": 2}
    assert found.settings == {"holdout": 0.5, "tagged_spans": {"entities": 20}} and found == rows.manifest


def test_finishing_again_gives_the_same(tmp_path: pathlib.Path) -> None:
    folder = written(tmp_path, ["rows-00000-00000", "rows-00000-00001"])
    one, two = (
        finish_rows(folder / "rows", folder / "figures", VOCABULARY, LENGTH, max_blocks=1, source="s") for _ in "12"
    )
    assert one == two


def test_a_shard_is_there_when_its_figures_are(tmp_path: pathlib.Path) -> None:
    folder = written(tmp_path, ["rows-00000-00000"])
    assert has_shard(folder / "figures", "rows-00000-00000") and not has_shard(folder / "figures", "rows-00000-00001")
    (folder / "figures" / "rows-00000-00000.npz").unlink()
    assert not has_shard(folder / "figures", "rows-00000-00000")


def test_a_file_that_fails_leaves_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "file", b"old")

    def full(_: int) -> None:
        raise OSError("full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="full"):
        write_whole(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_bytes() == b"old"


def test_rows_that_do_not_fit_are_refused() -> None:
    for sizes in ([], [15], [7, 6], [3, 0]):
        with pytest.raises(ValueError, match="fill at most 16"):
            records([[block([6] * size) for size in sizes]], VOCABULARY, LENGTH)
    with pytest.raises(ValueError, match="length is 4"):
        records([], VOCABULARY, 4)


def test_too_many_layers_and_no_rows_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="at most 3 layers"):
        write_rows(tmp_path / "1", [[block([6])]], VOCABULARY, LENGTH, tags=tuple("abcd"))
    with pytest.raises(ValueError, match="no text"):
        write_rows(tmp_path / "2", [], VOCABULARY, LENGTH)
