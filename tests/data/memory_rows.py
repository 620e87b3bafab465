"""Rows made in memory with the interface of `spanjax.data.feed.rows.Rows`, and short rows written by hand."""

import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from spanjax.data.feed.batch import Batch, FeedSpec, RowFacts, RowKeys, build_batch
from spanjax.data.feed.masking import TextRows
from spanjax.data.feed.pairing import UnmaskedRows, no_pairs
from spanjax.data.feed.rows import RowBatch, slots_needed
from spanjax.data.shards.packing import SENTENCE_START, layer_tags, tag_flags
from spanjax.data.vocab.base import Specials
from spanjax.data.vocab.loading import WordPieceVocabulary

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST_TEXT_ID = 5


def laid_out(blocks: Sequence[Sequence[int]], length: int) -> RowBatch:
    """One row; a block is the number of pieces of each word: [[2, 1], [1]] is [CLS] un ##able to [SEP] [CLS] go
    [SEP]."""
    tokens, segments, starts = [], [], []
    for number, words in enumerate(blocks, start=1):
        marks = [place == 0 for size in words for place in range(size)]
        tokens += [SPECIALS.cls, *(FIRST_TEXT_ID + len(tokens) + i for i in range(len(marks))), SPECIALS.sep]
        segments += [number] * (len(marks) + 2)
        starts += [False, *marks, False]
    empty = length - len(tokens)
    return RowBatch(
        tokens_BL=np.array([tokens + [SPECIALS.pad] * empty], np.int32),
        segments_BL=np.array([segments + [0] * empty], np.int32),
        word_starts_BL=np.array([starts + [False] * empty], bool),
        flags_BL=np.zeros((1, length), np.uint8),
    )


class MemoryRows:
    """Random rows: `blocks` blocks of random sizes in each, continuation pieces with probability `continued`.

    A quarter of the words begin a span of the tag layer "entities", of one to four words; every block is a document. There is
    no [UNK] in the rows, but a count of it, for draws.
    """

    checks = ()

    def __init__(
        self,
        count: int,
        length: int,
        *,
        blocks: int = 1,
        continued: float = 0.18,
        vocabulary_size: int = 200,
        full: bool = False,
        seed: int = 0,
    ):
        random = np.random.default_rng(seed)
        rows, most = [], [0] * (blocks + 1)
        for _ in range(count):
            block_count = blocks if full else int(random.integers(1, blocks + 1))
            used = length if full else int(random.integers(4 * block_count, length + 1))
            cuts = np.sort(random.choice(np.arange(1, used // 3), block_count - 1, replace=False)) * 3
            sizes = np.diff([0, *cuts, used]) - 2
            row = laid_out([[1] * int(size) for size in sizes], length)
            rows.append(row)
            most[block_count] = max(most[block_count], int(sizes.sum()))
        self._rows = RowBatch(*(np.concatenate(arrays) for arrays in zip(*rows, strict=True)))
        text = self._rows.tokens_BL >= FIRST_TEXT_ID
        ids = random.integers(FIRST_TEXT_ID, vocabulary_size, text.shape, dtype=np.int32)
        self._rows.tokens_BL[text] = ids[text]
        self._rows.word_starts_BL[:] &= random.random(text.shape) >= continued
        self._rows.flags_BL[:] = self._random_flags(random)
        self.length = length
        pieces = [f"piece{number}" for number in range(FIRST_TEXT_ID, vocabulary_size)]
        self.vocabulary = WordPieceVocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])
        self.unigram_V = np.bincount(self._rows.tokens_BL[text], minlength=vocabulary_size).astype(np.int64)
        self.unknown_count = 900
        self.lengths_N = (self._rows.segments_BL > 0).sum(axis=1).astype(np.uint16)
        self.manifest: Any = types.SimpleNamespace(text_tokens_by_blocks=tuple(most), tags=("entities",))

    def _random_flags(self, random: np.random.Generator) -> np.ndarray:
        tokens_BL, starts_BL = self._rows.tokens_BL, self._rows.word_starts_BL.copy()
        starts_BL[:, 1:] |= (tokens_BL[:, :-1] == SPECIALS.cls) & (tokens_BL[:, 1:] >= FIRST_TEXT_ID)
        flags_BL = np.where(starts_BL & (random.random(starts_BL.shape) < 0.1), SENTENCE_START, np.uint8(0))
        for row, (tokens, starts) in enumerate(zip(tokens_BL, starts_BL, strict=True)):
            left = 0
            for place, token in enumerate(tokens):
                begins = False
                if starts[place]:
                    left -= 1
                    begins = left <= 0 and random.random() < 0.25
                    left = int(random.integers(1, 5)) if begins else left
                if token < FIRST_TEXT_ID:
                    left = 0
                elif left > 0:
                    flags_BL[row, place] |= tag_flags(np.array(1 if begins else 2), 0)
        return flags_BL

    def block_documents(self, row_M: np.ndarray, block_M: np.ndarray) -> np.ndarray:
        return row_M * 128 + block_M

    def __len__(self) -> int:
        return len(self.lengths_N)

    def fetch(self, index_B: np.ndarray) -> RowBatch:
        return RowBatch(*(array[index_B] for array in self._rows))


def text_of(rows: UnmaskedRows | RowBatch) -> TextRows:
    """What masking reads of rows, with the tags of the first layer."""
    return TextRows(rows.tokens_BL, rows.segments_BL, rows.word_starts_BL, layer_tags(rows.flags_BL, 0))


def examples_of(rows: RowBatch, pairs: int = 1) -> UnmaskedRows:
    """Every block of these rows as a sequence of its own."""
    return UnmaskedRows(*rows, np.zeros_like(rows.tokens_BL), *no_pairs(len(rows.tokens_BL), pairs))


def keys_of(count: int, rate: float, epoch: int = 0) -> RowKeys:
    """Rows 0 ... count-1 of one epoch, all with this rate."""
    index_B = np.arange(count)
    return RowKeys(np.full_like(index_B, epoch), index_B, index_B, np.full(count, rate))


def batch_of(rows: RowBatch, spec: FeedSpec, unigram_V: np.ndarray) -> Batch:
    """These rows as rows 0, 1, ... of epoch 0, masked at the policy's rate, with as many slots as that may need."""
    count, length = rows.tokens_BL.shape
    most = types.SimpleNamespace(text_tokens_by_blocks=[length] * (1 + int(rows.segments_BL.max())))
    facts = RowFacts(SPECIALS, np.cumsum(unigram_V), slots_needed(most, spec.masking.rate), 1, spec.masking.tags)  # pyright: ignore[reportArgumentType]
    return build_batch(examples_of(rows), keys_of(count, spec.masking.rate), spec, facts)
