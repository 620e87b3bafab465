"""Rows on disk in which the id of every token says where it comes from."""

import pathlib

import numpy as np

from spanjax.data.feed.pairing import Pairing, UnmaskedRows
from spanjax.data.feed.rows import Rows, open_rows
from spanjax.data.shards.packing import SENTENCE_START, Block, tag_flags
from spanjax.data.shards.shards import write_rows
from spanjax.data.vocab.loading import WordPieceVocabulary

FIRST_ID, CLS, SEP = 5, 2, 3
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = WordPieceVocabulary([*PIECES, *(("##" if i % 3 == 1 else "") + f"p{i}" for i in range(6_000))])


def block(sentences: list[int], document: int, first: int, flags: np.ndarray | None = None) -> Block:
    """A block of sentences of these sizes, its ids counted on from `first`: an id says where its token comes from."""
    marks = np.zeros(sum(sentences), np.uint8) if flags is None else flags.astype(np.uint8)
    marks[np.cumsum([0, *sentences[:-1]])] |= SENTENCE_START
    return Block(np.arange(first, first + sum(sentences), dtype=np.int32), marks, document)


def made_rows(folder: pathlib.Path, blocks: list[list[Block]], length: int, shard_rows: int = 100) -> Rows:
    """Documents are numbered anew in each shard."""
    write_rows(
        folder / "rows", blocks, VOCABULARY, length, tags=("entities", "noun_phrases", "verbs"), shard_rows=shard_rows
    )
    return open_rows(folder / "rows")


def random_rows(folder: pathlib.Path, seed: int, rows: int, length: int, documents: int) -> Rows:
    """Rows full of blocks of any size, sentences, words and tags, every token with an id of its own."""
    random = np.random.default_rng(seed)
    found, first = [], FIRST_ID
    for _ in range(rows):
        row, room = [], length
        while room >= 3 and (not row or random.random() < 0.8):
            size = int(random.integers(1, min(room - 2, int(random.choice([3, 12, length]))) + 1))
            cuts = np.flatnonzero(random.random(size - 1) < random.choice([0.0, 0.15, 0.5])) + 1
            sentences = np.diff(np.concatenate([[0], cuts, [size]])).tolist()
            flags = sum(tag_flags(random.integers(0, 3, size), layer) for layer in range(3))
            row.append(block(sentences, int(random.integers(documents)), first, np.asarray(flags)))
            if random.random() < 0.3:  # it goes on with a sentence that began in the block before
                row[-1].flags[0] ^= SENTENCE_START
            first, room = first + size, room - size - 2
        found.append(row)
    return made_rows(folder, found, length, shard_rows=7)


def pairs_of(rows: Rows) -> int:
    return len(rows.manifest.text_tokens_by_blocks) - 1


def paired(pairing: Pairing, rows: Rows, index: np.ndarray, epoch: int = 0, seed: int = 3) -> UnmaskedRows:
    return pairing.examples(rows, index, np.full(len(index), epoch), seed, pairs_of(rows))
