"""Writing packed rows: shards that are made on their own, by any process in any order, and the manifest that joins them.

A shard is `NAME.bin` (records of fixed size) and, while rows are being written, `NAME.npz` with its figures, in a folder
next to them. Names are rows-NNNNN or rows-GGGGG-NNNNN (see `portions`). A shard exists whole or not at all. `finish_rows`
joins the figures in the order of the numbers in the names; the result depends on the shards' content alone.

Legend: L positions, V ids, N rows.
"""

import dataclasses
import hashlib
import io
import json
import pathlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spanjax import __version__
from spanjax.data.shards.packing import MAX_LENGTH, MIN_LENGTH, MOST_BLOCKS, MOST_LAYERS, SENTENCE_START, Block
from spanjax.data.vocab.base import SETTINGS_FILE
from spanjax.data.vocab.loading import MODEL_FILES, Vocabulary, save_vocabulary
from spanjax.json_files import parse_json, read_json
from spanjax.storage.local import is_file_name, write_whole

FORMAT = 2  # of the manifest
MANIFEST, VOCABULARY = "manifest.json", "vocabulary"
UNIGRAM, LENGTHS, BLOCKS, DOCUMENTS = "unigram.npy", "lengths.npy", "blocks.npy", "documents.npy"
SKIPPED_BLOCKS = "skipped_blocks.jsonl"
WORD_START, BLOCK = np.uint8(0x80), np.uint8(0x7F)


class Shard(NamedTuple):
    """A file of rows."""

    name: str
    rows: int
    sha256: str  # of the file


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Description of a folder of rows; `manifest.json` on disk."""

    format: int
    fingerprint: (
        str  # of the rows' bytes, their shape and the vocabulary: equal when and only when the rows are the same
    )
    length: int
    rows: int
    shards: tuple[Shard, ...]
    vocabulary_fingerprint: str
    vocabulary_size: int
    max_blocks: int
    source: str
    code_version: str
    documents: int
    sentences: int
    text_tokens: int  # without [CLS], [SEP] and padding
    words: int
    unknown_tokens: int
    blocks: int
    fill: float  # used positions, specials included, of all positions
    skipped: dict[str, int]
    unigram_entropy: float  # nats, of these text tokens' own distribution
    text_tokens_by_blocks: tuple[int, ...]  # [m]: most text tokens of any row with m blocks
    tags: tuple[str, ...]  # names of the tag layers, in the order of the flags
    settings: dict[str, Any]  # of prepare: cleaning, holding out, removing duplicates

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> "Manifest":
        """Parses manifest.json; ValueError where the format is another or a field is missing."""
        try:
            fields = parse_json(text, dict)
        except ValueError:
            raise ValueError(f"{name} is not a manifest of rows; prepare the rows again") from None
        if (found := fields.get("format")) != FORMAT:
            raise ValueError(
                f"{name} has format {found}, this spanjax {__version__} reads {FORMAT}; prepare the rows again"
            )
        expected = {field.name for field in dataclasses.fields(cls)}
        if set(fields) != expected:
            raise ValueError(f"{name}: wrong fields {sorted(set(fields) ^ expected)}; prepare the rows again")
        if problems := _manifest_problems(fields):
            raise ValueError(f"{name}: {'; '.join(problems)}; prepare the rows again")
        fields["shards"] = tuple(Shard(*shard) for shard in fields["shards"])
        fields["text_tokens_by_blocks"] = tuple(fields["text_tokens_by_blocks"])
        fields["tags"] = tuple(fields["tags"])
        return cls(**fields)


def _manifest_problems(fields: Mapping[str, Any]) -> list[str]:
    """Problems with the types of a manifest's fields, and with the names in it, as text."""
    kinds = {"int": int, "float": (int, float), "str": str, "dict": dict, "tuple": list}
    found = []
    for field in dataclasses.fields(Manifest):
        kind = str(getattr(field.type, "__name__", field.type)).partition("[")[0]
        value = fields[field.name]
        if not isinstance(value, kinds[kind]) or isinstance(value, bool):
            found.append(f"{field.name} is {value!r:.60}, expected {kind}")
        elif kind == "int" and value < 0:
            found.append(f"{field.name} is {value}, expected 0 or more")
    for shard in fields["shards"] if isinstance(fields["shards"], list) else ():
        if not isinstance(shard, list) or [type(each) for each in shard] != [str, int, str]:
            found.append(f"a shard is {shard!r:.60}, expected [NAME, ROWS, SHA256]")
        elif not is_file_name(shard[0]):
            found.append(f"a shard is called {shard[0]!r:.60}, expected a file name without a path")
        elif shard[1] < 1:
            found.append(f"{shard[0]} has {shard[1]} rows, expected 1 or more")
    return found


def record(length: int, vocabulary_size: int) -> np.dtype:
    """The record of a row of `length` positions: tokens, marks (block number, word start), flags (see `packing`)."""
    token = "<u2" if vocabulary_size <= 2**16 else "<u4"
    return np.dtype([("tokens", token, (length,)), ("marks", "u1", (length,)), ("flags", "u1", (length,))])


class SkippedBlock(NamedTuple):
    """A block that became no part of a row because it repeats an n-gram; a line of `skipped_blocks.jsonl`."""

    where: str
    """Place of its document in the input."""
    tokens: int
    """Tokens of the block."""
    ngram: str
    times: int
    """Occurrences of the n-gram, one directly behind the other."""


@dataclasses.dataclass(frozen=True)
class ShardSource:
    """Counts of the documents of a shard, for the totals."""

    documents: int
    sentences: int
    characters: int = 0
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tagged: Mapping[str, int] = dataclasses.field(default_factory=dict)  # spans by tag layer
    skipped_blocks: Sequence[SkippedBlock] = ()  # the first ones


def records(rows: Sequence[Sequence[Block]], vocabulary: Vocabulary, length: int) -> np.ndarray:
    """Rows of 1 ... 127 blocks as records [N]; with [CLS] and [SEP] the blocks of a row fill at most `length` positions.

    ValueError for blocks that do not fit.
    """
    if not MIN_LENGTH <= length <= MAX_LENGTH:
        raise ValueError(f"length is {length}: expected {MIN_LENGTH} to {MAX_LENGTH:,} positions a row")
    specials = vocabulary.specials
    found = np.zeros(len(rows), record(length, vocabulary.size))
    found["tokens"] = specials.pad
    for blocks, row in zip(rows, found, strict=True):
        sizes = [len(block) for block in blocks]
        if sum(sizes) + 2 * len(sizes) > length or not 1 <= len(blocks) <= MOST_BLOCKS or not all(sizes):
            raise ValueError(
                f"blocks of {sizes} tokens: expected 1 to {MOST_BLOCKS} that fill at most {length} positions"
            )
        tokens_L, marks_L, flags_L = row["tokens"], row["marks"], row["flags"]
        place = 0
        for number, block in enumerate(blocks, start=1):
            end = place + len(block) + 2
            tokens_L[place], tokens_L[end - 1] = specials.cls, specials.sep
            tokens_L[place + 1 : end - 1] = block.ids
            flags_L[place + 1 : end - 1] = block.flags
            starts = vocabulary.word_starts[block.ids]
            starts[0] = (
                True  # the rest of a word that was cut begins a word here, and so does a sentence that has no mark
            )
            starts |= (block.flags & SENTENCE_START).astype(bool)
            marks_L[place:end] = number
            marks_L[place + 1 : end - 1] |= np.where(starts, WORD_START, np.uint8(0))
            place = end
    return found


def written_files(folder: pathlib.Path) -> set[str]:
    """Names of the files of rows in `folder`, by its manifest; without a manifest of rows empty, or OSError or ValueError."""
    manifest = read_json(folder / MANIFEST)
    if not {"fingerprint", "vocabulary_fingerprint", "shards"} <= {*manifest}:
        return set()
    shards = {shard[0] for shard in manifest["shards"] if is_file_name(shard[0])}
    vocabulary = {f"{VOCABULARY}/{name}" for name in (SETTINGS_FILE, *MODEL_FILES.values())}
    return {MANIFEST, UNIGRAM, LENGTHS, BLOCKS, DOCUMENTS, SKIPPED_BLOCKS, *shards, *vocabulary}


def has_shard(figures: pathlib.Path, name: str) -> bool:
    """True if `write_shard` has written this one."""
    return (figures / f"{name}.npz").is_file()


def write_shard(
    folder: pathlib.Path,
    figures: pathlib.Path,
    name: str,
    rows: Sequence[Sequence[Block]],
    vocabulary: Vocabulary,
    length: int,
    source: ShardSource,
) -> None:
    """Writes a shard (no `.bin` where there are no rows), from any process; the figures come last."""
    content, about = shard_files(rows, vocabulary, length, source)
    if content:
        write_whole(folder / f"{name}.bin", content)
    write_whole(figures / f"{name}.npz", about)


def shard_files(
    rows: Sequence[Sequence[Block]], vocabulary: Vocabulary, length: int, source: ShardSource
) -> tuple[bytes, bytes]:
    """The two files of a shard: records and figures."""
    found = records(rows, vocabulary, length)
    blocks = [block for row in rows for block in row]
    content = found.tobytes()
    text = np.concatenate([block.ids for block in blocks]) if blocks else np.zeros(0, np.int32)
    by_blocks = [0] * (MOST_BLOCKS + 1)
    for row in rows:
        by_blocks[len(row)] = max(by_blocks[len(row)], sum(map(len, row)))
    about = {
        **dataclasses.asdict(source),
        "words": int(np.count_nonzero(found["marks"] & WORD_START)),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    figures = io.BytesIO()
    np.savez_compressed(
        figures,
        unigram=np.bincount(text, minlength=vocabulary.size).astype(np.int64),
        # MAX_LENGTH fits into uint16, MOST_BLOCKS into uint8
        lengths=np.array([sum(map(len, row)) + 2 * len(row) for row in rows], np.uint16),
        blocks=np.array([len(row) for row in rows], np.uint8),
        documents=np.array([block.document for block in blocks], np.uint32),
        by_blocks=np.array(by_blocks, np.int64),
        about=np.frombuffer(json.dumps(about).encode(), np.uint8),
    )
    return content, figures.getvalue()


def _in_order(path: pathlib.Path) -> tuple[int, ...]:
    return tuple(int(number) for number in path.stem.split("-")[1:])


@dataclasses.dataclass
class _Totals:
    unigram_V: np.ndarray
    by_blocks: np.ndarray
    lengths: list[np.ndarray] = dataclasses.field(default_factory=list)
    blocks: list[np.ndarray] = dataclasses.field(default_factory=list)
    documents: list[np.ndarray] = dataclasses.field(default_factory=list)
    shards: list[Shard] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    skipped: Counter[str] = dataclasses.field(default_factory=Counter)
    tagged: Counter[str] = dataclasses.field(default_factory=Counter)
    skipped_blocks: list[SkippedBlock] = dataclasses.field(default_factory=list)

    def add(self, path: pathlib.Path) -> None:
        """Joins the figures of one shard."""
        with np.load(path, allow_pickle=False) as figures:
            about = parse_json(figures["about"].tobytes(), dict)
            self.unigram_V += figures["unigram"]
            self.by_blocks = np.maximum(self.by_blocks, figures["by_blocks"])
            self.lengths.append(figures["lengths"])
            self.blocks.append(figures["blocks"])
            self.documents.append(figures["documents"] + np.uint32(self.counts["documents"]))
        if rows := len(self.lengths[-1]):
            self.shards.append(Shard(f"{path.stem}.bin", rows, about["sha256"]))
        self.skipped.update(about["skipped"])
        self.tagged.update(about["tagged"])
        # absent in work begun by older versions
        self.skipped_blocks += [SkippedBlock(*each) for each in about.get("skipped_blocks", ())]
        self.counts.update({name: about[name] for name in ("documents", "sentences", "words")})


def finish_rows(
    folder: pathlib.Path,
    figures: pathlib.Path,
    vocabulary: Vocabulary,
    length: int,
    *,
    max_blocks: int,
    source: str,
    tags: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    skipped: Mapping[str, int] | None = None,
) -> Manifest:
    """Joins the shards in `folder`, whose figures lie in `figures`: writes the manifest, the vocabulary and the totals.

    `tags` names the tag layers, `settings` the processing of the text, `skipped` adds to the counts of skipped input.
    ValueError where there are no rows.
    """
    if len(tags) > MOST_LAYERS:
        raise ValueError(f"tags are {tuple(tags)}: expected at most {MOST_LAYERS} layers")
    totals = _Totals(np.zeros(vocabulary.size, np.int64), np.zeros(MOST_BLOCKS + 1, np.int64))
    for path in sorted(figures.glob("rows-*.npz"), key=_in_order):
        totals.add(path)
    manifest = _manifest(totals, vocabulary, length, Counter(skipped or {}), max_blocks, source, tuple(tags), settings)
    if not manifest.rows:
        raise ValueError(f"{folder}: there is no text in the documents; give more of them")
    counted_V = totals.unigram_V.copy()
    counted_V[list(vocabulary.specials)] = 0
    np.save(folder / UNIGRAM, counted_V)
    for name, arrays in ((LENGTHS, totals.lengths), (BLOCKS, totals.blocks), (DOCUMENTS, totals.documents)):
        np.save(folder / name, np.concatenate(arrays))
    save_vocabulary(vocabulary, folder / VOCABULARY)
    if totals.skipped_blocks:
        lines = [json.dumps(each._asdict(), ensure_ascii=False) + "\n" for each in totals.skipped_blocks]
        write_whole(folder / SKIPPED_BLOCKS, "".join(lines).encode())
    # last: a folder without a manifest counts as unfinished
    write_whole(folder / MANIFEST, (json.dumps(dataclasses.asdict(manifest), indent=1) + "\n").encode())
    return manifest


def _manifest(
    totals: _Totals,
    vocabulary: Vocabulary,
    length: int,
    skipped: Counter[str],
    max_blocks: int,
    source: str,
    tags: tuple[str, ...],
    settings: Mapping[str, Any] | None,
) -> Manifest:
    rows = sum(shard.rows for shard in totals.shards)
    used = int(sum(int(lengths.sum(dtype=np.int64)) for lengths in totals.lengths))
    # without the names of the shards: equal rows have equal fingerprints
    identity = [FORMAT, length, vocabulary.fingerprint, list(tags), [list(shard[1:]) for shard in totals.shards]]
    most = int(np.max(np.flatnonzero(totals.by_blocks), initial=0))
    return Manifest(
        format=FORMAT,
        fingerprint=hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
        length=length,
        rows=rows,
        shards=tuple(totals.shards),
        vocabulary_fingerprint=vocabulary.fingerprint,
        vocabulary_size=vocabulary.size,
        max_blocks=max_blocks,
        source=source,
        code_version=__version__,
        documents=totals.counts["documents"],
        sentences=totals.counts["sentences"],
        text_tokens=int(totals.unigram_V.sum()),
        words=totals.counts["words"],
        unknown_tokens=int(totals.unigram_V[vocabulary.specials.unk]),
        blocks=int(sum(int(blocks.sum(dtype=np.int64)) for blocks in totals.blocks)),
        fill=used / max(1, rows * length),
        skipped=dict(sorted((totals.skipped + skipped).items())),
        unigram_entropy=entropy(totals.unigram_V),
        text_tokens_by_blocks=tuple(int(tokens) for tokens in totals.by_blocks[: most + 1]),
        tags=tags,
        settings={**(settings or {}), **({"tagged_spans": dict(totals.tagged)} if totals.tagged else {})},
    )


def entropy(counts_V: np.ndarray) -> float:
    """Entropy in nats of the distribution of these counts; 0 without any."""
    total = int(counts_V.sum())
    share = counts_V[counts_V > 0] / max(total, 1)
    return float(-(share * np.log(share)).sum()) if total else 0.0


def write_rows(
    folder: pathlib.Path,
    rows: Iterable[Sequence[Block]],
    vocabulary: Vocabulary,
    length: int,
    tags: Sequence[str] = (),
    shard_rows: int = 10_000,
) -> Manifest:
    """Writes given rows into an empty folder, `shard_rows` a shard, for tests and benchmarks."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = list(rows)
    with tempfile.TemporaryDirectory() as figures:
        for number, first in enumerate(range(0, len(waiting), shard_rows)):
            some = waiting[first : first + shard_rows]
            documents = 1 + max(block.document for row in some for block in row)
            source = ShardSource(documents, documents)
            write_shard(folder, pathlib.Path(figures), f"rows-{number:05d}", some, vocabulary, length, source)
        most = max((len(row) for row in waiting), default=1)
        return finish_rows(
            folder, pathlib.Path(figures), vocabulary, length, max_blocks=most, source="rows at hand", tags=tags
        )
