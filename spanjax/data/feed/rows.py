"""Packed rows on disk, read by index. `shards` writes them.

A row is a record of fixed size: tokens uint16[L] (uint32 from 65,537 ids on), then marks uint8[L]: the number of the
block in the low seven bits (0 is padding), word start in the high bit; then flags uint8[L] (see `packing`).
Legend: N rows, B rows of a batch, L positions, V ids, M blocks.
"""

import fractions
import functools
import math
import pathlib
from typing import NamedTuple

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.data.shards.record_file import (
    DamagedRowsError,
    RecordFile,
    ShardCheck,
    load_array,
    open_array,
    read_records,
)
from spanjax.data.shards.shards import (
    BLOCK,
    BLOCKS,
    DOCUMENTS,
    LENGTHS,
    MANIFEST,
    UNIGRAM,
    VOCABULARY,
    WORD_START,
    Manifest,
    record,
)
from spanjax.data.vocab.loading import Vocabulary, load_vocabulary


class RowBatch(NamedTuple):
    """Rows as they are stored, before pairing and masking."""

    tokens_BL: np.ndarray  # int32 ids, with [CLS] ... [SEP] around every block, pad elsewhere
    segments_BL: np.ndarray  # int32, 0 padding, 1, 2, ... the block of this row
    word_starts_BL: np.ndarray  # bool, True at the first piece of every word (False on specials and padding)
    flags_BL: np.ndarray  # uint8, where sentences begin, and tags: see `packing`


class Rows:
    """Rows of one folder, read by index; made by `open_rows`."""

    def __init__(self, folder: pathlib.Path, manifest: Manifest, vocabulary: Vocabulary):
        self.folder, self.manifest, self.vocabulary = folder, manifest, vocabulary
        self.length = manifest.length
        self.unigram_V: np.ndarray = load_array(folder / UNIGRAM, manifest.vocabulary_size)
        self.unknown_count: int = manifest.unknown_tokens  # unigram_V holds 0 for [UNK], as for every special token
        self.lengths_N: np.ndarray = load_array(folder / LENGTHS, manifest.rows)
        self._require(UNIGRAM, self.unigram_V.min() >= 0 and self.unigram_V.sum() <= manifest.text_tokens)
        used = int(self.lengths_N.sum(dtype=np.int64)) / max(1, manifest.rows * self.length)
        self._require(LENGTHS, used == manifest.fill and self.lengths_N.min(initial=1) > 0)
        dtype = record(manifest.length, manifest.vocabulary_size)
        self._files = [RecordFile(folder / shard.name, dtype, shard.rows) for shard in manifest.shards]
        self._first = np.cumsum([0, *(shard.rows for shard in manifest.shards)])
        self._most_tokens = np.array(manifest.text_tokens_by_blocks, np.int64)
        self.checks = (ShardCheck(folder, manifest.shards, self._files),)
        """Compare the checksums of all shards, once they are started."""

    def __len__(self) -> int:
        return self.manifest.rows

    def _require(self, name: str, fits: bool | np.bool) -> None:
        if not fits:
            raise DamagedRowsError(
                f"{self.folder / name} is damaged (its numbers do not fit {MANIFEST}): prepare or copy the rows again"
            )

    def fetch(self, index_B: np.ndarray) -> RowBatch:
        """Rows of any indices 0 ... N-1, in any order, with repetitions; IndexError outside.

        DamagedRowsError names a shard that has changed since the rows were opened or does not hold rows.
        """
        index_B = checked_index(index_B, len(self))
        shard_B = np.searchsorted(self._first, index_B, side="right") - 1
        record_B = read_records(self._files, shard_B, index_B - self._first[shard_B])
        marks_BL, tokens_BL = record_B["marks"], record_B["tokens"].astype(np.int32)
        block_BL = marks_BL & BLOCK
        wrong_B = self._wrong(block_BL, self.lengths_N[index_B])
        wrong_B |= record_B["tokens"].max(axis=1, initial=0).astype(np.int64) >= self.manifest.vocabulary_size
        if wrong_B.any():
            row = int(np.argmax(wrong_B))
            raise DamagedRowsError(
                f"{self._files[shard_B[row]].path} is damaged (row {index_B[row] - self._first[shard_B[row]]:,} in it is no"
                " row): prepare or copy the rows again"
            )
        return RowBatch(tokens_BL, block_BL.astype(np.int32), marks_BL >= WORD_START, record_B["flags"].copy())

    def _wrong(self, block_BL: np.ndarray, length_B: np.ndarray) -> np.ndarray:
        """Rows whose block numbers are not 1 1 ... 2 2 ... 0 0 of the length in lengths.npy, or that need too many slots [B].

        Masking relies on these; only the checksum reveals other damage in a row.
        """
        most_M, number_B = self._most_tokens, block_BL.max(axis=1, initial=0)
        before_BL, after_BL = block_BL[:, :-1], block_BL[:, 1:]
        step_BL = after_BL - before_BL  # uint8: a number that falls makes a large step
        ends_BL = after_BL == 0
        wrong_B = ((step_BL > 1) & ~ends_BL | (before_BL == 0) & ~ends_BL).any(axis=1)
        wrong_B |= (block_BL[:, 0] != 1) | (np.count_nonzero(block_BL, axis=1) != length_B)
        text_B = length_B.astype(np.int64) - 2 * number_B.astype(np.int64)
        return wrong_B | (number_B >= len(most_M)) | (text_B > most_M[np.minimum(number_B, len(most_M) - 1)])

    @functools.cached_property
    def blocks_N(self) -> np.ndarray:
        """Blocks of every row. DamagedRowsError where the file does not fit the manifest."""
        found = load_array(self.folder / BLOCKS, len(self))
        whole = found.min() >= 1 and found.sum(dtype=np.int64) == self.manifest.blocks
        self._require(BLOCKS, whole and found.max() < len(self._most_tokens))
        return found

    @functools.cached_property
    def _first_block_N(self) -> np.ndarray:
        return np.cumsum(self.blocks_N, dtype=np.int64) - self.blocks_N

    @functools.cached_property
    def _documents(self) -> RecordFile:
        return open_array(self.folder / DOCUMENTS, self.manifest.blocks)

    def block_documents(self, row_M: np.ndarray, block_M: np.ndarray) -> np.ndarray:
        """Number of the document that block `block_M` (1, 2, ...) of row `row_M` is from: int64 [M]."""
        place_M = self._first_block_N[row_M] + block_M - 1
        return self._checked_documents(read_records([self._documents], np.zeros_like(place_M), place_M))

    def documents_of_blocks(self, first: int, end: int) -> np.ndarray:
        """Numbers of the documents of blocks `first` to `end` (exclusive), counted through all rows: int64 [end - first]."""
        return self._checked_documents(self._documents.read(first, end))

    def _checked_documents(self, number_M: np.ndarray) -> np.ndarray:
        self._require(DOCUMENTS, number_M.max(initial=0) < self.manifest.documents)
        return number_M.astype(np.int64)


def checked_index(index_B: np.ndarray, rows: int) -> np.ndarray:
    """Returns indices of rows as int64; IndexError where one is not 0 ... rows - 1."""
    index_B = np.asarray(index_B, np.int64)
    if index_B.size and (index_B.min() < 0 or index_B.max() >= rows):
        raise IndexError(f"rows {index_B.min()} ... {index_B.max()} asked of {rows}")
    return index_B


def _size_problems(folder: pathlib.Path, manifest: Manifest) -> list[str]:
    size = record(manifest.length, manifest.vocabulary_size).itemsize
    problems = []
    for shard in manifest.shards:
        path, expected = folder / shard.name, shard.rows * size
        if not path.is_file():
            problems.append(f"{shard.name} is missing")
        elif path.stat().st_size != expected:
            problems.append(f"{shard.name} has {path.stat().st_size:,} bytes, expected {expected:,}")
    problems += [
        f"{name} is missing" for name in (UNIGRAM, LENGTHS, BLOCKS, DOCUMENTS) if not (folder / name).is_file()
    ]
    return problems


def open_rows(folder: str | pathlib.Path, vocabulary: Vocabulary | None = None) -> Rows:
    """Opens rows written by `prepare`, with the vocabulary stored next to them.

    ValueError for a folder that is missing, unfinished or damaged, of another format or another vocabulary.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; `python -m spanjax.prepare` writes one")
    if not (folder / MANIFEST).is_file():
        inside = "; the rows are in its train and validation folders" if (folder / "train" / MANIFEST).is_file() else ""
        raise ValueError(
            f"{folder}: not a finished folder of rows (no {MANIFEST}){inside or '; run spanjax.prepare again'}"
        )
    manifest = Manifest.from_json((folder / MANIFEST).read_bytes(), str(folder / MANIFEST))
    raise_problems(_size_problems(folder, manifest), f"{folder} is damaged; prepare or copy it again:")
    try:
        stored = load_vocabulary(folder / VOCABULARY)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{folder}: its vocabulary cannot be read ({error}); prepare or copy the rows again"
        ) from error
    # the stored vocabulary too: its files may have been exchanged after the rows were written
    for other, what in (
        (stored, f"the vocabulary stored in {folder / VOCABULARY}"),
        (vocabulary, "the vocabulary in use"),
    ):
        if other is not None and other.fingerprint != manifest.vocabulary_fingerprint:
            raise ValueError(
                f"{folder} was prepared with the vocabulary {manifest.vocabulary_fingerprint[:16]} "
                f"({manifest.vocabulary_size:,} ids), {what} is {other.fingerprint[:16]} ({other.size:,} ids); "
                "prepare the rows again or use that vocabulary"
            )
    return Rows(folder, manifest, vocabulary or stored)


def slots_needed(manifest: Manifest, rate: float, parts: int = 1) -> int:
    """K, a multiple of 8: the most tokens any row masks when a part of n text tokens masks at most ceil(rate * n).

    A block is masked in `parts` parts (the two segments of a pair). For m parts of N tokens in all, the sum of ceil(n p/q) is
    at most floor(N p/q + m (q-1)/q), and equal for m = 1.
    The larger result for the decimal `rate` and for its float counts, since 0.55 * 100 rounds up to 56 in floating point.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate}: expected more than 0 and at most 1")
    most = 1
    for exact in (fractions.Fraction(str(rate)), fractions.Fraction(float(rate))):
        rest = 1 - fractions.Fraction(1, exact.denominator)
        for blocks, tokens in enumerate(manifest.text_tokens_by_blocks):
            if tokens:
                most = max(most, min(tokens, math.floor(exact * tokens + parts * blocks * rest)))
    return -(-most // 8) * 8
