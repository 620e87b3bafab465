"""Rows on disk: what is written is read, and what is damaged, unfinished or foreign is refused."""

import dataclasses
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax.data.feed.rows import Rows, open_rows, slots_needed
from spanjax.data.shards.packing import SENTENCE_START, Block, layer_tags, tag_flags
from spanjax.data.shards.shards import Manifest, write_rows
from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.loading import WordPieceVocabulary

pytestmark = pytest.mark.unit

VOCABULARY = WordPieceVocabulary([*SPECIAL_PIECES, *(f"w{n}" for n in range(40)), *(f"##{n}" for n in range(40))])
LENGTH = 16


def some_rows(count: int = 50, seed: int = 0) -> list[list[Block]]:
    """Rows of random tokens and flags; block after block, each second one begins a document."""
    draw = np.random.default_rng(seed)
    rows, blocks = [], 0
    for _ in range(count):
        row = []
        for size in [[14], [5, 7], [3, 3, 4], [1], [2, 1]][draw.integers(5)]:
            ids = draw.integers(5, VOCABULARY.size, size).astype(np.int32)
            row.append(Block(ids, draw.integers(0, 128, size).astype(np.uint8), blocks // 2))
            blocks += 1
        rows.append(row)
    return rows


def write(folder: pathlib.Path, rows: list[list[Block]], shard_rows: int = 10_000) -> Rows:
    write_rows(folder, rows, VOCABULARY, LENGTH, shard_rows=shard_rows)
    return open_rows(folder)


def one_document_a_shard(rows: list[list[Block]]) -> list[list[Block]]:
    return [[dataclasses.replace(block, document=0) for block in row] for row in rows]


def test_rows_come_back_as_they_were_written(tmp_path: pathlib.Path) -> None:
    rows = some_rows()
    read = write(tmp_path / "rows", rows, shard_rows=7)
    assert len(read.manifest.shards) == 8 and len(read) == 50
    index_B = np.array([3, 49, 0, 3, 7, 6])
    batch = read.fetch(index_B)
    for place, number in enumerate(index_B):
        tokens, segments, starts, flags = [], [], [], []
        for block_number, block in enumerate(rows[number], start=1):
            tokens += [2, *block.ids, 3]
            segments += [block_number] * (len(block) + 2)
            words = VOCABULARY.word_starts[block.ids] | (block.flags & SENTENCE_START > 0)
            starts += [False, True, *words[1:], False]
            flags += [0, *block.flags, 0]
        rest = LENGTH - len(tokens)
        assert batch.tokens_BL[place].tolist() == tokens + [0] * rest
        assert batch.segments_BL[place].tolist() == segments + [0] * rest
        assert batch.word_starts_BL[place].tolist() == starts + [False] * rest
        assert batch.flags_BL[place].tolist() == flags + [0] * rest
        assert read.lengths_N[number] == len(tokens)
    assert batch.tokens_BL.dtype == batch.segments_BL.dtype == np.int32 and batch.word_starts_BL.dtype == bool
    assert batch.flags_BL.dtype == np.uint8
    assert read.fetch(np.zeros(0, np.int64)).tokens_BL.shape == (0, LENGTH)
    with pytest.raises(IndexError):
        read.fetch(np.array([50]))


def test_many_shards_are_read_as_few_are(tmp_path: pathlib.Path) -> None:
    few, many = write(tmp_path / "1", some_rows()), write(tmp_path / "2", some_rows(), shard_rows=2)
    index_B = np.random.default_rng(0).permutation(50)
    for left, right in zip(few.fetch(index_B), many.fetch(index_B), strict=True):
        np.testing.assert_array_equal(left, right)


def test_documents_of_blocks_are_numbered_through_all_shards(tmp_path: pathlib.Path) -> None:
    rows = some_rows()
    row_M = np.repeat(np.arange(50), [len(row) for row in rows])
    block_M = np.concatenate([np.arange(1, len(row) + 1) for row in rows])
    one = write(tmp_path / "1", rows).block_documents(row_M, block_M)
    assert one.tolist() == [block.document for row in rows for block in row] and one.dtype == np.int64
    two = write(tmp_path / "2", one_document_a_shard(rows), shard_rows=7).block_documents(row_M, block_M)
    assert two.tolist() == (row_M // 7).tolist()


def test_tags_of_three_layers_share_the_flags() -> None:
    tags_3N = np.random.default_rng(0).integers(0, 3, (3, 100)).astype(np.uint8)
    flags_N = np.ones(100, np.uint8)
    for layer, tags_N in enumerate(tags_3N):
        flags_N |= tag_flags(tags_N, layer)
    for layer, tags_N in enumerate(tags_3N):
        np.testing.assert_array_equal(layer_tags(flags_N, layer), tags_N)
    assert (flags_N & 1).all() and flags_N.dtype == np.uint8


def test_large_vocabularies_use_four_bytes_a_token(tmp_path: pathlib.Path) -> None:
    large = WordPieceVocabulary([*SPECIAL_PIECES, *(f"w{n}" for n in range(70_000))])
    block = Block(np.array([70_004, 65_536], np.int32), np.zeros(2, np.uint8), 0)
    write_rows(tmp_path / "rows", [[block]], large, LENGTH)
    assert open_rows(tmp_path / "rows").fetch(np.array([0])).tokens_BL[0, 1:3].tolist() == [70_004, 65_536]


def test_manifest_totals(tmp_path: pathlib.Path) -> None:
    rows = some_rows()
    read = write(tmp_path / "rows", rows, shard_rows=7)
    text = np.concatenate([block.ids for row in rows for block in row])
    manifest = read.manifest
    assert (manifest.rows, manifest.blocks, manifest.text_tokens) == (50, sum(map(len, rows)), len(text))
    np.testing.assert_array_equal(read.unigram_V, np.bincount(text, minlength=VOCABULARY.size))
    share = read.unigram_V[read.unigram_V > 0] / len(text)
    assert manifest.unigram_entropy == pytest.approx(-(share * np.log(share)).sum())
    assert manifest.fill == pytest.approx(read.lengths_N.sum() / (50 * LENGTH))
    assert manifest.text_tokens_by_blocks == (0, 14, 12, 10)
    assert manifest.words == read.fetch(np.arange(50)).word_starts_BL.sum()


def test_fingerprint_follows_rows_tags_and_documents(tmp_path: pathlib.Path) -> None:
    found = [
        write(tmp_path / "1", some_rows()),
        write(tmp_path / "2", some_rows()),
        write(tmp_path / "3", some_rows(50, 1)),
    ]
    assert found[0].manifest.fingerprint == found[1].manifest.fingerprint != found[2].manifest.fingerprint
    write_rows(tmp_path / "4", some_rows(), VOCABULARY, LENGTH, tags=("entities",))
    assert open_rows(tmp_path / "4").manifest.fingerprint != found[0].manifest.fingerprint


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
        pairs = dataclasses.replace(manifest, text_tokens_by_blocks=(0,) * (blocks // 2) + (100,))
        assert blocks % 2 or worst <= slots_needed(pairs, rate, parts=2)
    with pytest.raises(ValueError, match="rate"):
        slots_needed(manifest, 0.0)


def test_damage_is_refused(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "rows"
    write(folder, some_rows(), shard_rows=15)
    shards = sorted(folder.glob("rows-*.bin"))
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    (folder / "documents.npy").unlink()
    expected = r"(?s)rows-00000.bin is missing.*rows-00001.bin has 959 bytes, expected 960.*documents.npy is missing"
    with pytest.raises(ValueError, match=expected):
        open_rows(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 1}))
    with pytest.raises(ValueError, match="format 1, .* reads 2"):
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


def test_manifest_survives_json() -> None:
    fields: dict[str, Any] = {field.name: 0 for field in dataclasses.fields(Manifest)}
    fields |= dict.fromkeys(("fingerprint", "vocabulary_fingerprint", "source", "code_version"), "f")
    fields |= {"format": 2, "shards": [["a", 1, "f"]], "text_tokens_by_blocks": [0, 4], "tags": ["entities"]}
    text = json.dumps({**fields, "skipped": {}, "settings": {}})
    manifest = Manifest.from_json(text, "m")
    assert json.loads(json.dumps(dataclasses.asdict(manifest))) == json.loads(text)
    with pytest.raises(ValueError, match="wrong fields"):
        Manifest.from_json(json.dumps({"format": 2}), "m")
