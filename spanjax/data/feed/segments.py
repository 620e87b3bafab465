"""Parts of pairing: the blocks of fetched rows with their sentences, and new rows assembled from pieces of them.

NumPy, all blocks of a batch at once. A place is row * L + position.
Shapes: B rows, L positions; M blocks, S sentence bounds and R pieces of the whole batch, X items of ragged lists, 2 segments.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spanjax.data.feed.hashing import Unsigned, fold, uniform
from spanjax.data.feed.rows import RowBatch
from spanjax.data.shards.packing import MOST_LAYERS, SENTENCE_START, layer_tags, tag_flags


class Examples(NamedTuple):
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


class Pieces(NamedTuple):
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
    sources: Sequence[RowBatch], shape: tuple[int, int], pieces: Pieces, begins_R: np.ndarray, pad: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The first five fields of `Examples`, [B, L] = `shape`. `sources` are numbered on: the places of the second follow.

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
