"""Packed rows on disk: written once, read by index through memory maps.

A row is a record of fixed size: tokens uint16[L] (uint32 from 65,537 ids on), then marks uint8[L]: the number of the
block in the low seven bits (0 is padding), word start in the high bit.
Legend: N rows, B rows of a batch, L positions, V ids.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from spanjax import __version__
from spanjax.data.manifest import FORMAT, Manifest, Shard, slots_needed
from spanjax.data.packing import MAX_LENGTH, MIN_LENGTH, MOST_BLOCKS
from spanjax.data.staging import finished_folder
from spanjax.data.vocab import Vocabulary, load_vocabulary, save_vocabulary

__all__ = ["Manifest", "RowBatch", "Rows", "RowsWriter", "open_rows", "slots_needed"]

_SHARD_BYTES = 64 * 2**20
_MANIFEST, _VOCABULARY, _UNIGRAM, _LENGTHS = "manifest.json", "vocabulary", "unigram.npy", "lengths.npy"
_WORD_START, _BLOCK = np.uint8(0x80), np.uint8(0x7F)


class RowBatch(NamedTuple):
    """Rows as they are stored, before masking."""

    tokens_BL: np.ndarray  # int32 ids, with [CLS] ... [SEP] around every block, pad elsewhere
    segments_BL: np.ndarray  # int32, 0 padding, 1, 2, ... the block of this row
    word_starts_BL: np.ndarray  # bool, True at the first piece of every word (False on specials and padding)


def _record(length: int, vocabulary_size: int) -> np.dtype:
    token = "<u2" if vocabulary_size <= 2**16 else "<u4"
    return np.dtype([("tokens", token, (length,)), ("marks", "u1", (length,))])


def _entropy(counts_V: np.ndarray) -> float:
    total = int(counts_V.sum())
    share = counts_V[counts_V > 0] / max(total, 1)
    return float(-(share * np.log(share)).sum()) if total else 0.0


class RowsWriter:
    """Context manager that writes rows; the folder appears when the block ends well, and not at all otherwise."""

    def __init__(
        self,
        folder: str | pathlib.Path,
        vocabulary: Vocabulary,
        length: int,
        max_blocks: int = 16,
        source: str = "",
        overwrite: bool = False,
        shard_bytes: int = _SHARD_BYTES,
    ):
        """`length` is L, positions a row; `max_blocks` is only recorded; a shard holds at most about `shard_bytes`."""
        if not MIN_LENGTH <= length <= MAX_LENGTH:
            raise ValueError(f"length is {length}: expected {MIN_LENGTH} to {MAX_LENGTH:,} positions a row")
        self.folder, self.vocabulary, self.length = pathlib.Path(folder), vocabulary, length
        self.documents = self.sentences = 0  # for the manifest; the caller counts
        self.skipped: dict[str, int] = {}
        self._settings = {"max_blocks": max_blocks, "source": source}
        self._dtype = _record(length, vocabulary.size)
        self._rows_per_shard = max(1, shard_bytes // self._dtype.itemsize)
        self._staging = finished_folder(self.folder, overwrite)
        self._shards: list[Shard] = []
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._unigram_V = np.zeros(vocabulary.size, np.int64)
        self._uncounted: list[np.ndarray] = []
        self._lengths: list[int] = []
        self._by_blocks = [0] * (MOST_BLOCKS + 1)
        self.text_tokens = self.words = self.blocks = 0

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return len(self._lengths)

    def __enter__(self) -> "RowsWriter":
        self._written = self._staging.__enter__()
        save_vocabulary(self.vocabulary, self._written / _VOCABULARY)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if self._file:
                self._file.close()
            if error is None:
                self._finish()
        except BaseException as failure:
            self._staging.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._staging.__exit__(kind, error, trace)

    def add(self, blocks: Sequence[np.ndarray]) -> None:
        """Writes a row of 1 ... 127 blocks, each the ids of its text; with specials they fill at most L positions."""
        specials = self.vocabulary.specials
        used = sum(len(block) + 2 for block in blocks)
        if used > self.length or not 1 <= len(blocks) <= MOST_BLOCKS or not all(len(block) for block in blocks):
            sizes = [len(block) for block in blocks]
            raise ValueError(
                f"blocks of {sizes} tokens: expected 1 to {MOST_BLOCKS} that fill at most {self.length} positions"
            )
        row = np.zeros((), self._dtype)
        tokens_L, marks_L = row["tokens"], row["marks"]
        tokens_L[used:] = specials.pad
        place = 0
        for number, block in enumerate(blocks, start=1):
            end = place + len(block) + 2
            tokens_L[place], tokens_L[end - 1] = specials.cls, specials.sep
            tokens_L[place + 1 : end - 1] = block
            starts = self.vocabulary.word_starts[block]
            starts[0] = True  # the rest of a word that was cut begins a word here
            marks_L[place:end] = number
            marks_L[place + 1 : end - 1] |= np.where(starts, _WORD_START, np.uint8(0))
            self._uncounted.append(block)
            self.words += int(np.count_nonzero(starts))
            place = end
        self._write(row.tobytes())
        if len(self._uncounted) >= 1024:
            self._count()
        text = used - 2 * len(blocks)
        self._by_blocks[len(blocks)] = max(self._by_blocks[len(blocks)], text)
        self._lengths.append(used)
        self.text_tokens += text
        self.blocks += len(blocks)

    def _count(self) -> None:
        if self._uncounted:
            self._unigram_V += np.bincount(np.concatenate(self._uncounted), minlength=self.vocabulary.size)
            self._uncounted = []

    def _write(self, content: bytes) -> None:
        if self._file is None or self._shards[-1].rows == self._rows_per_shard:
            if self._file:
                self._file.close()
            self._shards.append(Shard(f"rows-{len(self._shards):05d}.bin", 0))
            self._file = open(self._written / self._shards[-1].name, "wb", buffering=2**20)  # noqa: SIM115 closed in __exit__
        self._file.write(content)
        self._digest.update(content)
        self._shards[-1] = self._shards[-1]._replace(rows=self._shards[-1].rows + 1)

    def _finish(self) -> None:
        self._count()
        counted_V = self._unigram_V.copy()
        unknown = int(counted_V[self.vocabulary.specials.unk])
        counted_V[list(self.vocabulary.specials)] = 0
        np.save(self._written / _UNIGRAM, counted_V)
        np.save(self._written / _LENGTHS, np.array(self._lengths, np.uint16))
        identity = [FORMAT, self.length, self.rows, self.vocabulary.fingerprint, self._digest.hexdigest()]
        most = max((m for m, tokens in enumerate(self._by_blocks) if tokens), default=0)
        manifest = Manifest(
            format=FORMAT,
            fingerprint=hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
            length=self.length,
            rows=self.rows,
            shards=tuple(self._shards),
            vocabulary_fingerprint=self.vocabulary.fingerprint,
            vocabulary_size=self.vocabulary.size,
            code_version=__version__,
            documents=self.documents,
            sentences=self.sentences,
            text_tokens=self.text_tokens,
            words=self.words,
            unknown_tokens=unknown,
            blocks=self.blocks,
            fill=sum(self._lengths) / max(1, self.rows * self.length),
            skipped=dict(self.skipped),
            unigram_entropy=_entropy(self._unigram_V),
            text_tokens_by_blocks=tuple(self._by_blocks[: most + 1]),
            **self._settings,
        )
        (self._written / _MANIFEST).write_text(json.dumps(dataclasses.asdict(manifest), indent=1) + "\n", "utf-8")
        self.manifest = manifest


class Rows:
    """Rows of one folder, read by index; made by `open_rows`."""

    def __init__(self, folder: pathlib.Path, manifest: Manifest, vocabulary: Vocabulary):
        self.folder, self.manifest, self.vocabulary = folder, manifest, vocabulary
        self.length = manifest.length
        self.unigram_V: np.ndarray = np.load(folder / _UNIGRAM)
        self.lengths_N: np.ndarray = np.load(folder / _LENGTHS)
        dtype = _record(manifest.length, manifest.vocabulary_size)
        self._shards = [np.memmap(folder / shard.name, dtype=dtype, mode="r") for shard in manifest.shards]
        self._first = np.cumsum([0, *(shard.rows for shard in manifest.shards)])

    def __len__(self) -> int:
        return self.manifest.rows

    def fetch(self, index_B: np.ndarray) -> RowBatch:
        """Rows of any indices 0 ... N-1, in any order, with repetitions; IndexError outside."""
        index_B = np.asarray(index_B, np.int64)
        if index_B.size and (index_B.min() < 0 or index_B.max() >= len(self)):
            raise IndexError(f"rows {index_B.min()} ... {index_B.max()} asked of {len(self)}")
        dtype = _record(self.length, self.manifest.vocabulary_size)
        record_B = np.empty(len(index_B), dtype)
        shard_B = np.searchsorted(self._first, index_B, side="right") - 1
        for shard in np.unique(shard_B):
            here_B = shard_B == shard
            record_B[here_B] = self._shards[shard][index_B[here_B] - self._first[shard]]
        marks_BL = record_B["marks"]
        return RowBatch(
            record_B["tokens"].astype(np.int32), (marks_BL & _BLOCK).astype(np.int32), (marks_BL & _WORD_START) != 0
        )


def _size_problems(folder: pathlib.Path, manifest: Manifest) -> list[str]:
    record = _record(manifest.length, manifest.vocabulary_size).itemsize
    problems = []
    for shard in manifest.shards:
        path, expected = folder / shard.name, shard.rows * record
        if not path.is_file():
            problems.append(f"{shard.name} is missing")
        elif path.stat().st_size != expected:
            problems.append(f"{shard.name} has {path.stat().st_size:,} bytes, expected {expected:,}")
    problems += [f"{name} is missing" for name in (_UNIGRAM, _LENGTHS) if not (folder / name).is_file()]
    return problems


def open_rows(folder: str | pathlib.Path, vocabulary: Vocabulary | None = None) -> Rows:
    """Opens rows written by `RowsWriter`, with the vocabulary stored beside them.

    ValueError for a folder that is missing, unfinished or damaged, of another format or another vocabulary.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; `python -m spanjax.prepare` writes one")
    if not (folder / _MANIFEST).is_file():
        inside = (
            "; the rows are in its train and validation folders" if (folder / "train" / _MANIFEST).is_file() else ""
        )
        raise ValueError(
            f"{folder}: not a finished folder of rows (no {_MANIFEST}){inside or '; run spanjax.prepare again'}"
        )
    manifest = Manifest.from_json((folder / _MANIFEST).read_text("utf-8"), str(folder / _MANIFEST))
    if problems := _size_problems(folder, manifest):
        raise ValueError(
            f"{folder} is damaged; prepare or copy it again:\n" + "\n".join(f"  - {each}" for each in problems)
        )
    stored = load_vocabulary(folder / _VOCABULARY)
    for other, what in (
        (stored, f"the vocabulary stored in {folder / _VOCABULARY}"),
        (vocabulary, "the vocabulary in use"),
    ):
        if other is not None and other.fingerprint != manifest.vocabulary_fingerprint:
            raise ValueError(
                f"{folder} was prepared with the vocabulary {manifest.vocabulary_fingerprint[:16]} "
                f"({manifest.vocabulary_size:,} ids), {what} is {other.fingerprint[:16]} ({other.size:,} ids); "
                "prepare the rows again or use that vocabulary"
            )
    return Rows(folder, manifest, vocabulary or stored)
