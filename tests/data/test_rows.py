"""Rows on disk: what is written is read, and what is damaged, unfinished or foreign is refused."""

import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest

from spanjax.data.rows import Manifest, Rows, RowsWriter, open_rows, slots_needed
from spanjax.data.vocab import SPECIAL_PIECES, WordPieceVocabulary

VOCABULARY = WordPieceVocabulary([*SPECIAL_PIECES, *(f"w{n}" for n in range(40)), *(f"##{n}" for n in range(40))])
LENGTH = 16


def some_rows(count: int = 50, seed: int = 0) -> list[list[np.ndarray]]:
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        sizes = [[14], [5, 7], [3, 3, 4], [1], [2, 1]][draw.integers(5)]
        rows.append([draw.integers(5, VOCABULARY.size, size).astype(np.int32) for size in sizes])
    return rows


def write(folder: pathlib.Path, rows: list[list[np.ndarray]], **settings: int) -> Rows:
    with RowsWriter(folder, VOCABULARY, LENGTH, **settings) as writer:  # pyright: ignore[reportArgumentType]
        for row in rows:
            writer.add(row)
    return open_rows(folder)


def test_rows_come_back_as_they_were_added(tmp_path: pathlib.Path) -> None:
    rows = some_rows()
    read = write(tmp_path / "rows", rows, shard_bytes=7 * 48)
    assert len(read.manifest.shards) == 8 and len(read) == 50
    index_B = np.array([3, 49, 0, 3, 7, 6])
    batch = read.fetch(index_B)
    for place, number in enumerate(index_B):
        tokens, segments, starts = [], [], []
        for block_number, block in enumerate(rows[number], start=1):
            tokens += [2, *block, 3]
            segments += [block_number] * (len(block) + 2)
            starts += [False, True, *VOCABULARY.word_starts[block[1:]], False]
        rest = LENGTH - len(tokens)
        assert batch.tokens_BL[place].tolist() == tokens + [0] * rest
        assert batch.segments_BL[place].tolist() == segments + [0] * rest
        assert batch.word_starts_BL[place].tolist() == starts + [False] * rest
        assert read.lengths_N[number] == len(tokens)
    assert batch.tokens_BL.dtype == batch.segments_BL.dtype == np.int32 and batch.word_starts_BL.dtype == bool
    assert read.fetch(np.zeros(0, np.int64)).tokens_BL.shape == (0, LENGTH)
    with pytest.raises(IndexError):
        read.fetch(np.array([50]))


def test_large_vocabularies_use_four_bytes_a_token(tmp_path: pathlib.Path) -> None:
    large = WordPieceVocabulary([*SPECIAL_PIECES, *(f"w{n}" for n in range(70_000))])
    with RowsWriter(tmp_path / "rows", large, LENGTH) as writer:
        writer.add([np.array([70_004, 65_536], np.int32)])
    assert open_rows(tmp_path / "rows").fetch(np.array([0])).tokens_BL[0, 1:3].tolist() == [70_004, 65_536]


def test_manifest_totals(tmp_path: pathlib.Path) -> None:
    rows = some_rows()
    read = write(tmp_path / "rows", rows)
    text = np.concatenate([block for row in rows for block in row])
    manifest = read.manifest
    assert (manifest.rows, manifest.blocks, manifest.text_tokens) == (50, sum(map(len, rows)), len(text))
    np.testing.assert_array_equal(read.unigram_V, np.bincount(text, minlength=VOCABULARY.size))
    share = read.unigram_V[read.unigram_V > 0] / len(text)
    assert manifest.unigram_entropy == pytest.approx(-(share * np.log(share)).sum())
    assert manifest.fill == pytest.approx(read.lengths_N.sum() / (50 * LENGTH))
    assert manifest.text_tokens_by_blocks == (0, 14, 12, 10)
    assert manifest.words == read.fetch(np.arange(50)).word_starts_BL.sum()


def test_fingerprint_follows_the_rows_not_the_shards(tmp_path: pathlib.Path) -> None:
    one, two = write(tmp_path / "1", some_rows()), write(tmp_path / "2", some_rows(), shard_bytes=100)
    other = write(tmp_path / "3", some_rows(seed=1))
    assert one.manifest.fingerprint == two.manifest.fingerprint != other.manifest.fingerprint


@pytest.mark.parametrize("rate", [0.15, 0.1, 0.2, 0.55, 0.7, 1.0, 1 / 3])
def test_slots_are_enough_and_tight(rate: float, tmp_path: pathlib.Path) -> None:
    manifest = write(tmp_path / "rows", some_rows()).manifest
    for tokens in (1, 20, 100, 510, 511):
        single = dataclasses.replace(manifest, text_tokens_by_blocks=(0, tokens))
        assert slots_needed(single, rate) == 8 * math.ceil(math.ceil(rate * tokens) / 8)
    draw = np.random.default_rng(0)
    for blocks in (2, 3, 16):
        many = dataclasses.replace(manifest, text_tokens_by_blocks=(0,) * blocks + (100,))
        cuts_NB = np.sort(draw.integers(1, 100, (3000, blocks - 1)), axis=1)
        sizes_NB = np.diff(cuts_NB, prepend=0, append=100, axis=1)
        worst = int(np.ceil(rate * sizes_NB).sum(axis=1).max())
        assert worst <= slots_needed(many, rate) <= min(104, math.ceil(rate * 100) + blocks + 8)
    with pytest.raises(ValueError, match="rate"):
        slots_needed(manifest, 0.0)


def test_damage_is_refused(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "rows"
    write(folder, some_rows(), shard_bytes=1000)
    shards = sorted(folder.glob("rows-*.bin"))
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"(?s)rows-00000.bin is missing.*rows-00001.bin has 959 bytes, expected 960"):
        open_rows(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        open_rows(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match="not a finished"):
        open_rows(folder)
    with pytest.raises(ValueError, match="no such folder"):
        open_rows(tmp_path / "absent")


def test_another_vocabulary_is_refused_with_both_fingerprints(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "rows", some_rows())
    other = WordPieceVocabulary(VOCABULARY.pieces[:-1])
    with pytest.raises(ValueError, match=f"(?s){VOCABULARY.fingerprint[:16]}.*{other.fingerprint[:16]}"):
        open_rows(tmp_path / "rows", other)
    assert open_rows(tmp_path / "rows", VOCABULARY).vocabulary is VOCABULARY


def test_a_failed_writer_leaves_nothing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError), RowsWriter(tmp_path / "rows", VOCABULARY, LENGTH) as writer:
        writer.add([np.array([6], np.int32)])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_existing_rows_are_replaced_only_when_asked(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "rows", some_rows())
    with pytest.raises(ValueError, match="exists already"):
        write(tmp_path / "rows", some_rows(3))
    assert len(write(tmp_path / "rows", some_rows(3), overwrite=True)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_rows_that_do_not_fit_are_refused(tmp_path: pathlib.Path) -> None:
    for blocks in ([], [15], [7, 6], [3, 0]):
        with (
            pytest.raises(ValueError, match="fill at most 16"),
            RowsWriter(tmp_path / "rows", VOCABULARY, LENGTH) as writer,
        ):
            writer.add([np.full(size, 6, np.int32) for size in blocks])


def test_manifest_survives_json() -> None:
    fields = {field.name: 0 for field in dataclasses.fields(Manifest)}
    text = json.dumps({**fields, "format": 1, "shards": [["a", 1]], "text_tokens_by_blocks": [0, 4]})
    manifest = Manifest.from_json(text, "m")
    assert json.loads(json.dumps(dataclasses.asdict(manifest))) == json.loads(text)
    with pytest.raises(ValueError, match="wrong fields"):
        Manifest.from_json(json.dumps({"format": 1}), "m")
