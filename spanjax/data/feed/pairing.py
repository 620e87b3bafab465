"""Turns the blocks of stored rows into training sequences: one segment, pairs of segments, or whole rows.

A pairing is applied when rows are fetched, on the NumPy side that both feeds share, so that every policy works on the same rows
in the same order. Its draws depend on (seed, purpose, epoch, row index), as all draws.

A place is row * L + position.
Shapes: B rows, L positions, P pairs a row (as many as a row has blocks); M blocks, S sentence bounds and R pieces of the whole
batch, X items of ragged lists, F pairs with a foreign segment, 2 segments.
"""

import abc
import dataclasses
import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from spanjax.bounds import Probability
from spanjax.data.feed.hashing import Purpose, Unsigned, fold, row_keys, uniform
from spanjax.data.feed.masking import refuse
from spanjax.data.feed.rows import RowBatch
from spanjax.data.shards.packing import MOST_LAYERS, SENTENCE_START, layer_tags, tag_flags
from spanjax.data.vocab.loading import Vocabulary

SMALLEST = 3  # text tokens of the smallest block that becomes a pair
TRIES = 10  # for a segment of another document


class Draw(enum.IntEnum):
    """Counters of the draws of a block. Never renumber: pairs would change."""

    LABEL = 0
    SHORT = 1
    TARGET = 2
    CUT = 3
    SENTENCE = 4
    REMOVAL = 5  # a key of its own; its counter is the removal
    ROW = 6  # a key of its own; its counter is the try
    BLOCK = 7  # the same


class UnmaskedRows(NamedTuple):
    """Rows as sequences, before masking. A pair is [CLS] A [SEP] B [SEP], one segment number, types 0 and 1."""

    tokens_BL: np.ndarray  # int32
    segments_BL: np.ndarray  # int32, 0 padding, 1, 2, ... attention stays inside
    word_starts_BL: np.ndarray  # bool, False on specials and padding
    flags_BL: np.ndarray  # uint8, see `packing`
    types_BL: np.ndarray  # int32, 0, or 1 on B and its [SEP]
    pair_position_BP: np.ndarray  # int32, where the [CLS] of a pair is; 0 where there is none
    pair_label_BP: np.ndarray  # int32, 1 where B is random or the segments are swapped
    pair_weight_BP: np.ndarray  # float32, 1 for a pair, else 0


class Blocks(NamedTuple):
    """The blocks of a batch of rows, in the order of the rows."""

    row_M: np.ndarray
    number_M: np.ndarray  # 1, 2, ... in each row
    first_M: np.ndarray  # place of the first text token, after [CLS]
    tokens_M: np.ndarray  # text tokens
    bound_S: np.ndarray  # places where sentences begin, and at the end of each block the place of its [SEP]
    first_bound_M: np.ndarray  # index into S
    sentences_M: np.ndarray  # a block has one bound more


class RowParts(NamedTuple):
    """Pieces of which rows are assembled, in the order of the new rows; pieces may be empty. Gaps become padding."""

    place_R: np.ndarray  # where a piece begins in the new rows
    source_R: np.ndarray  # where it begins in the rows it is taken from
    length_R: np.ndarray
    segment_R: np.ndarray  # its segment number
    type_R: np.ndarray  # its token type


def find_blocks(rows: RowBatch) -> Blocks:
    """The blocks of rows as stored, every one with its sentences; the first token of a block begins a sentence."""
    length = rows.tokens_BL.shape[1]
    segments_BL = rows.segments_BL
    begins_BL = segments_BL > 0
    ends_BL = begins_BL.copy()
    changes_BL = segments_BL[:, 1:] != segments_BL[:, :-1]
    begins_BL[:, 1:] &= changes_BL
    ends_BL[:, :-1] &= changes_BL
    first_M, end_M = np.flatnonzero(begins_BL) + 1, np.flatnonzero(ends_BL)
    bounds_BL = (rows.flags_BL & SENTENCE_START).view(bool)
    bounds_BL.ravel()[first_M] = True
    bounds_BL.ravel()[end_M] = True
    bound_S = np.flatnonzero(bounds_BL)
    first_bound_M = np.searchsorted(bound_S, first_M)
    return Blocks(
        row_M=first_M // length,
        number_M=segments_BL.ravel()[first_M].astype(np.int64),
        first_M=first_M,
        tokens_M=end_M - first_M,
        bound_S=bound_S,
        first_bound_M=first_bound_M,
        sentences_M=np.searchsorted(bound_S, end_M) - first_bound_M,
    )


def ragged(count_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Items 0 ... count-1 of every list: counts 2 0 3 give lists 0 0 2 2 2 and items 0 1 0 1 2."""
    list_X = np.repeat(np.arange(len(count_M)), count_M)
    return list_X, np.arange(len(list_X)) - np.repeat(np.cumsum(count_M) - count_M, count_M)


def inner_words(rows: RowBatch, first_M: np.ndarray, tokens_M: np.ndarray, u_M: np.ndarray) -> np.ndarray:
    """Tokens before a word start, other than the first, that u in [0, 1) samples inside every text of at least 2 tokens.

    Any token but the first is taken for a word start where there is no other word: "un ##believ ##able" gives 1 or 2.
    """
    text_X, before_X = ragged(tokens_M - 1)
    starts_X = rows.word_starts_BL.ravel()[first_M[text_X] + 1 + before_X]
    starts_X |= np.bincount(text_X[starts_X], minlength=len(first_M))[text_X] == 0
    count_M = np.bincount(text_X[starts_X], minlength=len(first_M))
    drawn_M = np.cumsum(count_M) - count_M + np.floor(u_M * count_M).astype(np.int64)
    return 1 + before_X[np.flatnonzero(starts_X)[drawn_M]]


def removed_tokens(length_M2: np.ndarray, most_M: np.ndarray, key_M: Unsigned) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of tokens that BERT's truncate_seq_pair takes from the front and from the back of both segments, each [M, 2].

    While a pair has more than `most` tokens, the longer segment (B of two equal ones) loses its first or its last token, by
    removal number 0, 1, ... of the key: lengths 4 1 and most 3 take two tokens of A.
    """
    a_M, b_M = length_M2.T
    pair_X, turn_X = ragged(np.maximum(a_M + b_M - most_M, 0))
    even_X = turn_X - np.abs(a_M - b_M)[pair_X]
    side_X = np.where(even_X < 0, (b_M >= a_M)[pair_X], even_X % 2 == 0).astype(np.int64)
    front_X = uniform(fold(key_M[pair_X], turn_X)) < 0.5
    segment_X = 2 * pair_X + side_X
    front_M2, back_M2 = (
        np.bincount(segment_X[chosen_X], minlength=length_M2.size).reshape(length_M2.shape)
        for chosen_X in (front_X, ~front_X)
    )
    return front_M2, back_M2


def put_together(
    sources: Sequence[RowBatch], shape: tuple[int, int], pieces: RowParts, begins_R: np.ndarray, pad: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The first five fields of `UnmaskedRows`, [B, L] = `shape`. `sources` are numbered on: the places of the second follow.

    `begins_R` marks the pieces that are segments of text: their first token begins a word, and a tag span that lost its
    beginning begins there.
    """
    ends_R = pieces.place_R + pieces.length_R
    runs = np.empty(2 * len(ends_R) + 1, np.int64)  # gap, piece, gap, piece, ..., gap
    runs[1::2] = pieces.length_R
    runs[::2] = np.append(pieces.place_R, shape[0] * shape[1]) - np.append(0, ends_R)

    def spread(values_R: np.ndarray, dtype: type) -> np.ndarray:
        values = np.zeros(len(runs), dtype)
        values[1::2] = values_R
        return np.repeat(values, runs)

    source = spread(pieces.source_R - pieces.place_R, np.int64) + np.arange(shape[0] * shape[1])
    segments, types = spread(pieces.segment_R, np.int32), spread(pieces.type_R, np.int32)
    tokens, starts, flags = (np.concatenate([each[field].ravel() for each in sources])[source] for field in (0, 2, 3))
    empty = segments == 0
    tokens[empty] = pad
    starts[empty] = False
    flags[empty] = 0
    begins = pieces.place_R[begins_R & (pieces.length_R > 0)]
    starts[begins] = True
    for layer in range(MOST_LAYERS):
        lost = layer_tags(flags[begins], layer) == 2  # xor with 3 makes 2 (continues) a 1 (begins)
        flags[begins] ^= tag_flags(np.where(lost, 3, 0), layer)
    return (
        tokens.reshape(shape),
        segments.reshape(shape),
        starts.reshape(shape),
        flags.reshape(shape),
        types.reshape(shape),
    )


class PairedRows(Protocol):
    """Interface of the rows that pairing reads; pairing writes into the arrays that `fetch` returns."""

    @property
    def length(self) -> int: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    def __len__(self) -> int: ...
    def fetch(self, index_B: np.ndarray, /) -> RowBatch: ...
    def block_documents(self, row_M: np.ndarray, block_M: np.ndarray, /) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Pairing(abc.ABC):
    """Turns stored rows into sequences; a new pairing is one more frozen dataclass."""

    parts = 1
    """Most parts of a block that are masked apart; `slots_needed` counts with them."""
    types = 1
    """Number of token types."""
    label = ""
    """Name of the loss that its labels are for, "nsp" or "sop"; empty where there are no pairs."""

    def __post_init__(self) -> None:
        refuse(type(self).__name__, {}, self)

    @abc.abstractmethod
    def examples(
        self, rows: PairedRows, index_B: np.ndarray, epoch_B: np.ndarray, seed: int, pairs: int
    ) -> UnmaskedRows:
        """The sequences of rows `index_B`, with room for `pairs` pairs a row.

        A row's sequences depend on (seed, epoch, index) and the stored rows alone, not on the rest of the batch.
        """


def no_pairs(rows: int, pairs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pair fields of rows without pairs."""
    return np.zeros((rows, pairs), np.int32), np.zeros((rows, pairs), np.int32), np.zeros((rows, pairs), np.float32)


@dataclasses.dataclass(frozen=True)
class Single(Pairing):
    """Every block is a sequence of its own: single-sequence training (SpanBERT, section 3.3)."""

    def examples(
        self, rows: PairedRows, index_B: np.ndarray, epoch_B: np.ndarray, seed: int, pairs: int
    ) -> UnmaskedRows:
        """Implements `Pairing.examples`; nothing is sampled."""
        del epoch_B, seed
        batch = rows.fetch(index_B)
        return UnmaskedRows(*batch, np.zeros_like(batch.tokens_BL), *no_pairs(len(batch.tokens_BL), pairs))


@dataclasses.dataclass(frozen=True)
class FullSentences(Pairing):
    """A row is one sequence, [CLS] text [SEP] text [SEP] ..., with attention across its documents (RoBERTa's FULL-SENTENCES).

    Positions run on through the row, so `encoder.positions` must be at least its length. fairseq cuts the corpus into
    contiguous blocks, where the text after a document's end is the next document of the corpus; here it is a block that the
    packer put into the same row because it fits, with other neighbours from the longest to the shortest and the same in every
    epoch. Rows prepared with --no-pack have one document each (RoBERTa's DOC-SENTENCES). Every text keeps a masking budget of
    its own.
    """

    def examples(
        self, rows: PairedRows, index_B: np.ndarray, epoch_B: np.ndarray, seed: int, pairs: int
    ) -> UnmaskedRows:
        """Implements `Pairing.examples`; nothing is sampled. The inner [CLS] are dropped, the tokens after them move up."""
        del epoch_B, seed
        batch = rows.fetch(index_B)
        blocks = find_blocks(batch)
        later_M = blocks.number_M > 1
        one_M = np.ones_like(blocks.first_M)
        pieces = RowParts(
            place_R=blocks.first_M - (blocks.number_M - 1) - ~later_M,
            source_R=blocks.first_M - ~later_M,
            length_R=blocks.tokens_M + 1 + ~later_M,
            segment_R=one_M,
            type_R=0 * one_M,
        )
        shape, pad = batch.tokens_BL.shape, rows.vocabulary.specials.pad
        whole = put_together([batch], shape, pieces, np.zeros_like(later_M), pad)
        return UnmaskedRows(*whole, *no_pairs(len(batch.tokens_BL), pairs))


class Cut(NamedTuple):
    """Sizes of the segments of a block's pair, and whether B must be foreign."""

    a_M: np.ndarray  # tokens of A, from the block's beginning
    rest_M: np.ndarray  # tokens of the block that follow them and belong to the pair
    target_M: np.ndarray  # tokens that A and a foreign B are to have together
    alone_M: np.ndarray  # one sentence, which needs a foreign B


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoSegments(Pairing):
    """A block of n text tokens becomes [CLS] A [SEP] B [SEP] in its n + 2 positions: A and B have at most n - 1 tokens.

    A is the first 1 ... s-1 of the block's s sentences, uniformly. With one sentence A ends before a uniformly sampled word
    inside it and B is foreign: text of another document, from a uniformly sampled sentence of a uniform block of a uniform row
    on, whole sentences until there are n tokens in all or that block ends (BERT; after 10 draws the document may be the same).
    Then the longer segment loses tokens at its ends until the pair fits, see `removed_tokens`. Blocks of fewer than 3
    tokens stay as they are. A tag span that lost its beginning begins where it now begins.
    """

    short: Probability = 0.0
    """Probability of a shorter pair: the first sentences of the block that reach a length sampled uniformly from 2 ... n-1 stand
    for the block, and this epoch skips the rest (0.1 in BERT and ALBERT, 0 in SpanBERT's own runs)."""

    parts = 2
    types = 2

    @abc.abstractmethod
    def choices(self, u_M: np.ndarray, alone_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pairs with a foreign B, and the swapped ones, by a draw from [0, 1): bool [M] and [M]. Label 1 is either."""

    def examples(
        self, rows: PairedRows, index_B: np.ndarray, epoch_B: np.ndarray, seed: int, pairs: int
    ) -> UnmaskedRows:
        """Implements `Pairing.examples`. Every block keeps its place; positions that a pair leaves free become padding."""
        batch = rows.fetch(index_B)
        blocks = find_blocks(batch)
        key_M = fold(row_keys(seed, Purpose.PAIR, epoch_B, index_B)[blocks.row_M], blocks.number_M)
        pair_M = blocks.tokens_M >= SMALLEST
        cut = self.cut(batch, blocks, pair_M, key_M)
        foreign_M, swapped_M = self.choices(uniform(fold(key_M, Draw.LABEL)), cut.alone_M)
        foreign_M, swapped_M = foreign_M & pair_M, swapped_M & pair_M
        source_M2 = np.stack([blocks.first_M, blocks.first_M + cut.a_M], axis=1)
        length_M2 = np.stack([cut.a_M, cut.rest_M], axis=1)
        sources, place = [batch], np.flatnonzero(foreign_M)
        if len(place):
            other, source_M2[place, 1], length_M2[place, 1] = foreign_segments(
                rows, index_B, blocks, place, (cut.target_M - cut.a_M)[place], key_M[place]
            )
            source_M2[place, 1] += batch.tokens_BL.size  # places of `other` follow, see `put_together`
            sources.append(other)
        source_M2[swapped_M], length_M2[swapped_M] = source_M2[swapped_M, ::-1], length_M2[swapped_M, ::-1]
        most_M = np.where(pair_M, blocks.tokens_M - 1, blocks.tokens_M)
        front_M2, back_M2 = removed_tokens(length_M2, most_M, fold(key_M, Draw.REMOVAL))
        pieces, begins_R = pair_pieces(blocks, pair_M, source_M2 + front_M2, length_M2 - front_M2 - back_M2)
        whole = put_together(sources, batch.tokens_BL.shape, pieces, begins_R, rows.vocabulary.specials.pad)
        fields = no_pairs(len(batch.tokens_BL), pairs)
        values = ((blocks.first_M - 1) % batch.tokens_BL.shape[1], foreign_M | swapped_M, 1)
        for field_BP, value_M in zip(fields, values, strict=True):
            field_BP[blocks.row_M, blocks.number_M - 1] = value_M * pair_M
        return UnmaskedRows(*whole, *fields)

    def cut(self, batch: RowBatch, blocks: Blocks, pair_M: np.ndarray, key_M: Unsigned) -> Cut:
        """Samples the end of A; blocks that are too small for a pair are all A."""
        u_M = uniform(fold(key_M, Draw.CUT))
        target_M = blocks.tokens_M
        if self.short > 0:
            is_short_M = (uniform(fold(key_M, Draw.SHORT)) < self.short) & pair_M
            drawn_M = 2 + np.floor(uniform(fold(key_M, Draw.TARGET)) * (target_M - 2)).astype(np.int64)
            target_M = np.where(is_short_M, drawn_M, target_M)
        last_M = np.searchsorted(blocks.bound_S, blocks.first_M + target_M)
        whole_M = blocks.bound_S[last_M] - blocks.first_M
        sentences_M = last_M - blocks.first_bound_M
        after_M = blocks.first_bound_M + 1 + np.floor(u_M * (sentences_M - 1)).astype(np.int64)
        a_M = np.where(pair_M, blocks.bound_S[after_M] - blocks.first_M, whole_M)
        alone_M = (sentences_M == 1) & pair_M
        no_room = np.flatnonzero(alone_M & (whole_M == blocks.tokens_M))
        a_M[no_room] = inner_words(batch, blocks.first_M[no_room], blocks.tokens_M[no_room], u_M[no_room])
        return Cut(a_M, whole_M - a_M, target_M, alone_M)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextSentence(TwoSegments):
    """Next-sentence prediction (BERT, section 3.1; SpanBERT, section 2): label 1 if B is from another document."""

    random: Probability = 0.5
    """Probability that B is from another document; blocks of one sentence have it always."""

    label = "nsp"

    def choices(self, u_M: np.ndarray, alone_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Implements `TwoSegments.choices`."""
        return (u_M < self.random) | alone_M, np.zeros_like(alone_M)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceOrder(TwoSegments):
    """Sentence-order prediction (ALBERT, section 3.1): label 1 if two consecutive segments are swapped.

    A block of one sentence cannot be swapped; as in ALBERT's code its B is from another document and its label 1.
    """

    swap: Probability = 0.5
    """Probability that the second segment comes first."""

    label = "sop"

    def choices(self, u_M: np.ndarray, alone_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Implements `TwoSegments.choices`."""
        return alone_M, (u_M < self.swap) & ~alone_M


def foreign_segments(
    rows: PairedRows, index_B: np.ndarray, blocks: Blocks, own_F: np.ndarray, target_F: np.ndarray, key_F: Unsigned
) -> tuple[RowBatch, np.ndarray, np.ndarray]:
    """Text of other documents for the blocks `own_F`: rows, and place and length of a segment in them, [F] each.

    Whole sentences of one block until there are at least `target_F` tokens, and at least one.
    """
    document_F = rows.block_documents(index_B[blocks.row_M[own_F]], blocks.number_M[own_F])
    key_row_F, key_block_F = fold(key_F, Draw.ROW), fold(key_F, Draw.BLOCK)
    row_F, number_F, left = np.zeros_like(own_F), np.zeros_like(own_F), np.arange(len(own_F))
    fetched: RowBatch | None = None
    for turn in range(TRIES):  # bounded: a corpus of one document has no other
        row_F[left] = np.floor(uniform(fold(key_row_F[left], turn)) * len(rows))
        found = rows.fetch(row_F[left])
        blocks_F = found.segments_BL.max(axis=1)
        number_F[left] = 1 + np.floor(uniform(fold(key_block_F[left], turn)) * blocks_F)
        if fetched is None:
            fetched = found
        else:
            for into, new in zip(fetched, found, strict=True):
                into[left] = new
        left = left[rows.block_documents(row_F[left], number_F[left]) == document_F[left]]
        if not len(left):
            break
    assert fetched is not None
    theirs = find_blocks(fetched)
    block_F = np.searchsorted(theirs.row_M, np.arange(len(own_F))) + number_F - 1
    sentences_F, first_F = theirs.sentences_M[block_F], theirs.first_bound_M[block_F]
    bound_F = first_F + np.floor(uniform(fold(key_F, Draw.SENTENCE)) * sentences_F).astype(np.int64)
    begin_F = theirs.bound_S[bound_F]
    end_F = np.searchsorted(theirs.bound_S, begin_F + np.maximum(target_F, 1))
    return fetched, begin_F, theirs.bound_S[np.minimum(end_F, first_F + sentences_F)] - begin_F


def pair_pieces(
    blocks: Blocks, pair_M: np.ndarray, source_M2: np.ndarray, length_M2: np.ndarray
) -> tuple[RowParts, np.ndarray]:
    """[CLS] A [SEP] B [SEP] of every block as pieces, and which of them are A or B. Without a pair there is no B [SEP]."""
    one_M, end_M = np.ones_like(blocks.first_M), blocks.first_M + blocks.tokens_M
    source_M5 = np.stack([blocks.first_M - 1, source_M2[:, 0], end_M, source_M2[:, 1], end_M], axis=1)
    length_M5 = np.stack([one_M, length_M2[:, 0], one_M, length_M2[:, 1], pair_M.astype(np.int64)], axis=1)
    place_M5 = np.cumsum(length_M5, axis=1) - length_M5 + (blocks.first_M - 1)[:, None]
    pieces = RowParts(
        place_R=place_M5.ravel(),
        source_R=source_M5.ravel(),
        length_R=length_M5.ravel(),
        segment_R=np.repeat(blocks.number_M, 5),
        type_R=np.tile([0, 0, 0, 1, 1], len(one_M)),
    )
    return pieces, np.tile([False, True, False, True, False], len(one_M))
