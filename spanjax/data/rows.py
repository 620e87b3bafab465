"""Packed rows on disk: read by index through memory maps. `shards` writes them.

A row is a record of fixed size: tokens uint16[L] (uint32 from 65,537 ids on), then marks uint8[L]: the number of the
block in the low seven bits (0 is padding), word start in the high bit; then flags uint8[L] (see `block`).
Legend: N rows, B rows of a batch, L positions, V ids, M blocks.
"""

import functools
import pathlib
from typing import NamedTuple

import numpy as np

from spanjax.data.manifest import Manifest, slots_needed
from spanjax.data.shards import (
    BLOCK,
    BLOCKS,
    DOCUMENTS,
    LENGTHS,
    MANIFEST,
    UNIGRAM,
    VOCABULARY,
    WORD_START,
    record,
)
from spanjax.data.vocab import Vocabulary, load_vocabulary

__all__ = ["Manifest", "RowBatch", "Rows", "open_rows", "slots_needed"]

_FEW_SHARDS = 8


class RowBatch(NamedTuple):
    """Rows as they are stored, before pairing and masking."""

    tokens_BL: np.ndarray  # int32 ids, with [CLS] ... [SEP] around every block, pad elsewhere
    segments_BL: np.ndarray  # int32, 0 padding, 1, 2, ... the block of this row
    word_starts_BL: np.ndarray  # bool, True at the first piece of every word (False on specials and padding)
    flags_BL: np.ndarray  # uint8, where sentences begin, and tags: see `block`


def load_array(path: pathlib.Path, size: int | None = None, mapped: bool = False) -> np.ndarray:
    """An array of numbers of a folder of rows, of `size` elements; Python objects, which NumPy would unpickle, are refused.

    ValueError where the file is damaged or holds something else.
    """
    try:
        found = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind not in "iu":
            raise ValueError("not a line of whole numbers")
        if size is not None and len(found) != size:
            raise ValueError(f"{len(found):,} numbers, expected {size:,}")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}): prepare or copy the rows again") from None
    return found


class Rows:
    """Rows of one folder, read by index; made by `open_rows`."""

    def __init__(self, folder: pathlib.Path, manifest: Manifest, vocabulary: Vocabulary):
        self.folder, self.manifest, self.vocabulary = folder, manifest, vocabulary
        self.length = manifest.length
        self.unigram_V: np.ndarray = load_array(folder / UNIGRAM, manifest.vocabulary_size)
        self.unknown_count: int = manifest.unknown_tokens  # unigram_V holds 0 for [UNK], as for every special token
        self.lengths_N: np.ndarray = load_array(folder / LENGTHS, manifest.rows)
        dtype = record(manifest.length, manifest.vocabulary_size)
        self._shards = [np.memmap(folder / shard.name, dtype=dtype, mode="r") for shard in manifest.shards]
        self._first = np.cumsum([0, *(shard.rows for shard in manifest.shards)])

    def __len__(self) -> int:
        return self.manifest.rows

    def fetch(self, index_B: np.ndarray) -> RowBatch:
        """Rows of any indices 0 ... N-1, in any order, with repetitions; IndexError outside."""
        index_B = np.asarray(index_B, np.int64)
        if index_B.size and (index_B.min() < 0 or index_B.max() >= len(self)):
            raise IndexError(f"rows {index_B.min()} ... {index_B.max()} asked of {len(self)}")
        record_B = self._records(index_B)
        marks_BL = record_B["marks"]
        return RowBatch(
            record_B["tokens"].astype(np.int32),
            (marks_BL & BLOCK).astype(np.int32),
            marks_BL >= WORD_START,
            record_B["flags"].copy(),
        )

    def _records(self, index_B: np.ndarray) -> np.ndarray:
        shard_B = np.searchsorted(self._first, index_B, side="right") - 1
        place_B = index_B - self._first[shard_B]
        record_B = np.empty(len(index_B), record(self.length, self.manifest.vocabulary_size))
        shards = np.unique(shard_B)
        if len(shards) <= _FEW_SHARDS:
            for shard in shards:
                here_B = shard_B == shard
                record_B[here_B] = self._shards[shard][place_B[here_B]]
        else:
            for row, (shard, place) in enumerate(zip(shard_B.tolist(), place_B.tolist(), strict=True)):
                record_B[row] = self._shards[shard][place]
        return record_B

    @functools.cached_property
    def _documents(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        blocks_N = load_array(self.folder / BLOCKS, len(self))
        first_N = np.cumsum(blocks_N, dtype=np.int64) - blocks_N
        return blocks_N, first_N, load_array(self.folder / DOCUMENTS, self.manifest.blocks, mapped=True)

    def block_documents(self, row_M: np.ndarray, block_M: np.ndarray) -> np.ndarray:
        """Number of the document that block `block_M` (1, 2, ...) of row `row_M` is from: int64 [M]."""
        _, first_N, documents = self._documents
        return np.asarray(documents[first_N[row_M] + block_M - 1], np.int64)


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
    """Opens rows written by `prepare`, with the vocabulary stored beside them.

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
    if problems := _size_problems(folder, manifest):
        raise ValueError(
            f"{folder} is damaged; prepare or copy it again:\n" + "\n".join(f"  - {each}" for each in problems)
        )
    try:
        stored = load_vocabulary(folder / VOCABULARY)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{folder}: its vocabulary cannot be read ({error}); prepare or copy the rows again"
        ) from error
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
