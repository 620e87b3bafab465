"""Portions: consecutive documents of one group of a source, the unit of work of prepare.

Where a portion begins and ends follows from the input alone, and everything after it (cleaning, tokens, rows, a shard) is
done to a portion on its own, so that any number of processes on any machines in any order write the same files: cleaned,
split, tokenized, tagged, packed and written. Its rows depend on its documents, the settings and the vocabulary alone.

Legend: T tokens of a document, W words.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spanjax.data.shards.packing import SENTENCE_START, Block, block_bounds, pack_rows
from spanjax.data.shards.repetition import repetition
from spanjax.data.shards.shards import ShardSource, SkippedBlock, has_shard, write_shard
from spanjax.data.sources.annotate import Annotator, Layers, open_annotator, span_flags
from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.documents import Document, content_key, held_out
from spanjax.data.sources.sentences import spans_of_texts
from spanjax.data.vocab.loading import Vocabulary

FEWEST, USUAL, MOST = 1_000_000, 4_000_000, 64_000_000  # characters of a portion
DUPLICATES, REPETITIVE = "duplicate documents", "blocks that repeat an n-gram"


class Portion(NamedTuple):
    """Documents in their order, cut before duplicates are skipped."""

    group: int
    number: int  # 0, 1, ... in the group
    documents: list[Document]
    repeated: frozenset[int] = frozenset()  # places of documents that occurred before

    @property
    def name(self) -> str:
        """Name of its shards; names sort as the groups and portions do."""
        return portion_name(self.group, self.number)


def portion_name(group: int, number: int) -> str:
    """The name of the shards of a portion, without suffix."""
    return f"rows-{group:05d}-{number:05d}"


def portion_characters(sizes: Sequence[int | None]) -> int:
    """Characters of a portion: 4 million, more from 2 GB on (about 512 portions until 32 GB), less below 12 MB.

    A function of the bytes of all groups of the input (None: not known), so that all runners cut alike. Rows of 512
    positions of the wiki text of 39 MB are filled to 96.75 % with portions of 1 million characters, 97.01 % with 4 and
    97.11 % with 40.
    """
    known = [size for size in sizes if size is not None]
    total = sum(known)
    least = max(FEWEST, total // 3) if len(known) == len(sizes) else USUAL
    return min(max(total // 512, min(USUAL, least)), MOST)


def cut(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Cuts documents, in order, into lists of `size` characters and a little more; the last has half of it or more.

    The function yields a list when the next one has half its size, so that a small rest joins the last: rows of small portions
    are less full. The cuts of a list do not depend on anything after the half of the next.
    """
    waiting: list[Document] = []
    gathered: list[Document] = []
    characters = 0
    for document in documents:
        gathered.append(document)
        characters += len(document.text)
        if waiting and characters >= size // 2:
            yield waiting
            waiting = []
        if not waiting and characters >= size:
            waiting, gathered, characters = gathered, [], 0
    if waiting or gathered:
        yield waiting + gathered


class Occurred:
    """The documents that have occurred so far, by their content: about 110 MB a million documents."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def repeated(self, documents: Sequence[Document]) -> frozenset[int]:
        """Places of the documents whose content has occurred before, in an earlier call or an earlier place."""
        places = set()
        for place, document in enumerate(documents):
            key = content_key(document.text)
            if key in self._keys:
                places.add(place)
            self._keys.add(key)
        return frozenset(places)


TRAIN, VALIDATION = "train", "validation"
NOTED = 100  # blocks of a shard that are described, not only counted
_CHUNK_CHARACTERS = 250_000  # tokenized at a time, so that memory stays small


@dataclasses.dataclass(frozen=True)
class RowSettings:
    """Settings of the processing of a portion, the same in every process; small, since all of them receive it."""

    length: int
    most_blocks: int
    cleaning: Cleaning
    splits: tuple[str, ...]  # of a portion: train, validation, or both
    holdout: float = 0.0  # share of documents for validation, where both
    tags: tuple[str, ...] = ()
    annotator: str = ""
    max_repeats: int = 0  # of an n-gram in a row, from which on a block is skipped; 0 keeps all


class Folders(NamedTuple):
    """Folders of shards and, while they are being written, of their figures: a subfolder for every split."""

    rows: pathlib.Path
    figures: pathlib.Path

    def has(self, splits: Sequence[str], name: str) -> bool:
        """True if the shards `name` of all these splits are written."""
        return all(has_shard(self.figures / split, name) for split in splits)


class Written(NamedTuple):
    """Totals of a portion whose shards are written."""

    name: str
    documents: int
    tokens: int
    characters: int
    rows: int


class _Split:
    """The blocks of one split of a portion, and their figures."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.documents = self.sentences = self.characters = self.tokens = 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.skipped_blocks: list[SkippedBlock] = []


class PortionRows:
    """Writes the shards of portions; one in every process, which keeps the vocabulary and the annotator."""

    def __init__(self, settings: RowSettings, vocabulary: Vocabulary, folders: Folders):
        self._settings, self._vocabulary, self._folders = settings, vocabulary, folders
        self._annotator: Annotator | None = None
        if settings.tags:
            self._annotator = open_annotator(settings.annotator, settings.tags)

    def write(self, portion: Portion) -> Written:
        """Writes one shard for every split."""
        settings = self._settings
        splits = {name: _Split() for name in settings.splits}
        for chunk in _chunks(portion):
            by_split: dict[str, list[Document]] = {name: [] for name in settings.splits}
            for document, repeated in chunk:
                name = self._split(document)
                # content decides the split, so a repeated document counts in that of its first occurrence
                if repeated:
                    splits[name].counts[DUPLICATES] += 1
                else:
                    by_split[name].append(document)
            for name, documents in by_split.items():
                self._add(documents, splits[name])
        written = 0
        for name, split in splits.items():
            rows = pack_rows(split.blocks, settings.length, settings.most_blocks)
            tagged = {tag: split.counts.pop(tag, 0) for tag in settings.tags}
            source = ShardSource(
                split.documents, split.sentences, split.characters, dict(split.counts), tagged, split.skipped_blocks
            )
            folder, figures = self._folders.rows / name, self._folders.figures / name
            write_shard(folder, figures, portion.name, rows, self._vocabulary, settings.length, source)
            written += len(rows)
        every = splits.values()
        return Written(
            portion.name,
            sum(split.documents for split in every),
            sum(split.tokens for split in every),
            sum(split.characters for split in every),
            written,
        )

    def _split(self, document: Document) -> str:
        names = self._settings.splits
        return names[0] if len(names) == 1 or not held_out(document.text, self._settings.holdout) else VALIDATION

    def _add(self, documents: Sequence[Document], split: _Split) -> None:
        """Appends the blocks of documents to those of a split."""
        cleaning = self._settings.cleaning
        if self._annotator:
            cleaned = [cleaning.with_spans(document.text, document.spans) for document in documents]
        else:
            cleaned = [(cleaning(document.text), {}) for document in documents]
        texts = [text for text, _ in cleaned]
        found = spans_of_texts(texts)
        parts = [text[start:end] for text, spans in zip(texts, found, strict=True) for start, end in spans]
        layers: Sequence[Layers] = [spans for _, spans in cleaned]
        if self._annotator:
            layers = self._annotator(texts, found, layers)
            encoded = iter(self._vocabulary.encode_with_starts(parts))
        else:
            encoded = ((ids, None) for ids in self._vocabulary.encode(parts))
        for document, text, spans, tagged in zip(documents, texts, found, layers, strict=True):
            some = [(ids, starts, first) for (first, _), (ids, starts) in zip(spans, encoded, strict=False) if len(ids)]
            self._add_document(document.where, text, some, tagged, split)
            split.documents += 1
            split.characters += len(text)

    def _add_document(
        self, where: str, text: str, encoded: Sequence[tuple[Any, Any, int]], layers: Layers, split: _Split
    ) -> None:
        """Appends the blocks of one document: its sentences as (ids, starts in the sentence, start of the sentence)."""
        if not encoded:
            return
        sizes = [len(ids) for ids, _, _ in encoded]
        ids_T = np.concatenate([ids for ids, _, _ in encoded])
        sentences = np.cumsum([0, *sizes[:-1]])
        words_T = self._vocabulary.word_starts[ids_T]
        words_T[sentences] = True
        bounds = block_bounds(sizes, words_T, self._settings.length - 2)
        flags_T = np.zeros(len(ids_T), np.uint8)
        flags_T[sentences] = SENTENCE_START
        flags_T[[first for first, _ in bounds]] = SENTENCE_START
        if self._annotator:
            word_tokens_W = np.flatnonzero(words_T)
            characters_T = np.concatenate([starts + first for _, starts, first in encoded])
            part_T = np.cumsum(flags_T)
            tags = self._settings.tags
            word_characters_W = characters_T[word_tokens_W]
            flags_T |= span_flags(layers, tags, text, word_characters_W, word_tokens_W, part_T, split.counts)
        number = split.documents
        # a block and not its document: one broken table does not cost the article around it
        kept = [(first, end) for first, end in bounds if not self._skips(where, ids_T[first:end], split)]
        split.blocks += [Block(ids_T[first:end], flags_T[first:end], number) for first, end in kept]
        split.sentences += len(sizes)
        split.tokens += len(ids_T)

    def _skips(self, where: str, ids_T: np.ndarray, split: _Split) -> bool:
        """True for a block that repeats an n-gram too often; counts it, and notes the first ones for the report."""
        most = self._settings.max_repeats
        found = repetition(ids_T, most) if most else None
        if found is None:
            return False
        split.counts[REPETITIVE] += 1
        if len(split.skipped_blocks) < NOTED:
            text = self._vocabulary.decode(ids_T[found.start : found.start + found.size])
            split.skipped_blocks.append(SkippedBlock(where, len(ids_T), text, found.times))
        return True


def _chunks(portion: Portion) -> Iterator[list[tuple[Document, bool]]]:
    """The documents of a portion, some at a time, each with True if it occurred before."""
    chunk: list[tuple[Document, bool]] = []
    size = 0
    for place, document in enumerate(portion.documents):
        chunk.append((document, place in portion.repeated))
        size += len(document.text)
        if size >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
