"""`masking` and `slots` once more as TensorFlow graph functions on batches, equal to the NumPy ones bit for bit.

Function by function the same names and the same arithmetic; the docstrings are there. Only `feed` imports it, lazily.

Shapes: as in `masking` and `slots`.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from spanjax.data.batch import Batch, FeedSpec
from spanjax.data.hashing import Purpose
from spanjax.data.hashing_tf import fold, row_keys, uniform
from spanjax.data.masking import ROUNDS_AT_ONCE, Boundaries, GeometricSpans, MaskingPolicy, Replacement, SpecialIds
from spanjax.data.rows import RowBatch

Tensor = Any


class Text(NamedTuple):
    """`masking.Text` as tensors."""

    first_W: Tensor
    pieces_W: Tensor
    first_M: Tensor
    tokens_M: Tensor
    first_word_M: Tensor
    words_M: Tensor
    row_M: Tensor
    number_M: Tensor


class Masked(NamedTuple):
    """`slots.Masked` as tensors, the masked tokens laid out in the slots of their rows."""

    position_BK: Tensor
    first_BK: Tensor
    last_BK: Tensor
    used_BK: Tensor


def true_places(flags: Tensor) -> Tensor:
    """`np.flatnonzero`."""
    return tf.cast(tf.where(tf.reshape(flags, [-1]))[:, 0], tf.int32)


def differences(first: Tensor, end: Tensor) -> Tensor:
    """`np.diff(first, append=end)`."""
    return tf.concat([first[1:], tf.reshape(end, [1])], axis=0) - first


def find_words(rows: RowBatch, specials: SpecialIds) -> Text:
    """`masking.find_words`."""
    segments_BL = rows.segments_BL
    text_BL = (segments_BL > 0) & (rows.tokens_BL != specials.cls) & (rows.tokens_BL != specials.sep)
    joined_BL = text_BL[:, 1:] & text_BL[:, :-1] & (segments_BL[:, 1:] == segments_BL[:, :-1])
    apart_BL, any_B1 = tf.logical_not(joined_BL), tf.ones_like(text_BL[:, :1])
    begins_BL = text_BL & tf.concat([any_B1, apart_BL], axis=1)
    first_W = true_places(begins_BL | (text_BL & rows.word_starts_BL))
    first_M, end_M = true_places(begins_BL), true_places(text_BL & tf.concat([apart_BL, any_B1], axis=1)) + 1
    first_word_M = tf.searchsorted(first_W, first_M)
    words_M = differences(first_word_M, tf.size(first_W))
    last_word_M = first_word_M + words_M - 1
    pieces_W = tf.tensor_scatter_nd_update(
        differences(first_W, tf.constant(0)), last_word_M[:, None], end_M - tf.gather(first_W, last_word_M)
    )
    row_M = first_M // tf.shape(segments_BL)[1]
    number_M = tf.range(tf.size(row_M)) - tf.searchsorted(row_M, row_M)
    return Text(first_W, pieces_W, first_M, end_M - first_M, first_word_M, words_M, row_M, number_M)


@functools.singledispatch
def token_mask(policy: MaskingPolicy, rows: RowBatch, specials: SpecialIds, key_B: Tensor) -> Tensor:
    """`MaskingPolicy.token_mask`; every policy registers its twin here."""
    del rows, specials, key_B
    raise ValueError(
        f"masking policy {type(policy).__name__} has no TensorFlow twin: use the feed of kind 'numpy', or register one "
        "with spanjax.data.masking_tf.token_mask.register"
    )


@token_mask.register
def _(policy: GeometricSpans, rows: RowBatch, specials: SpecialIds, key_B: Tensor) -> Tensor:
    text = find_words(rows, specials)
    masked_W = draw_spans(policy, text, fold(tf.gather(key_B, text.row_M), text.number_M))
    return leading_pieces(text.first_W, masked_W, tf.shape(rows.tokens_BL))


def draw_spans(policy: GeometricSpans, text: Text, key_M: Tensor) -> Tensor:
    """`masking.draw_spans`; an inner loop runs the rounds that were drawn at once."""
    left_M = tf.cast(tf.math.ceil(policy.rate * tf.cast(text.tokens_M, tf.float64)), tf.int32)
    limit_M = 16 + 4 * left_M

    def several_rounds(round_: Tensor, block_A: Tensor, left_A: Tensor, free_W: Tensor) -> tuple[Tensor, ...]:
        round_R = round_ + tf.range(ROUNDS_AT_ONCE)
        words_RA, anchor_RA = proposals(policy, text, key_M, block_A, round_R)
        words_RA *= tf.cast(round_R[:, None] < tf.gather(limit_M, block_A), tf.int32)
        whole_RA = tf.gather(text.pieces_W, anchor_RA)

        def one_round(place: Tensor, left_A: Tensor, free_W: Tensor) -> tuple[Tensor, ...]:
            left_A, free_W = mask_spans(policy, free_W, whole_RA[place], words_RA[place], anchor_RA[place], left_A)
            return place + 1, left_A, free_W

        _, left_A, free_W = tf.while_loop(
            lambda place, left_A, free_W: (place < ROUNDS_AT_ONCE) & tf.reduce_any(left_A > 0),
            one_round,
            (tf.constant(0), left_A, free_W),
        )
        going_A = true_places((left_A > 0) & (round_ + ROUNDS_AT_ONCE < tf.gather(limit_M, block_A)))
        return round_ + ROUNDS_AT_ONCE, tf.gather(block_A, going_A), tf.gather(left_A, going_A), free_W

    block_A = true_places(left_M > 0)
    free_W = tf.concat([text.pieces_W, tf.zeros([policy.max_words], tf.int32)], axis=0)
    start = (tf.constant(0), block_A, tf.gather(left_M, block_A), free_W)
    end = tf.while_loop(lambda round_, block_A, *_: tf.size(block_A) > 0, several_rounds, start)
    return text.pieces_W - end[3][: -policy.max_words]


def proposals(
    policy: GeometricSpans, text: Text, key_M: Tensor, block_A: Tensor, round_R: Tensor
) -> tuple[Tensor, Tensor]:
    """`masking.proposals`."""
    key_A, first_A = tf.gather(key_M, block_A), tf.gather(text.first_word_M, block_A)
    words_A, round_R1 = tf.gather(text.words_M, block_A), round_R[:, None]
    steps = tf.constant(policy.length_steps())
    words_RA = 1 + searched(steps, uniform(fold(key_A, 2 * round_R1)))
    u_RA = uniform(fold(key_A, 2 * round_R1 + 1))
    if policy.starts == "words":
        anchor_RA = first_A + floored(u_RA * tf.cast(words_A, tf.float64))
    else:
        tokens_A = tf.gather(text.tokens_M, block_A)
        place_RA = tf.gather(text.first_M, block_A) + floored(u_RA * tf.cast(tokens_A, tf.float64))
        anchor_RA = searched(text.first_W, place_RA) - 1
    return tf.minimum(words_RA, first_A + words_A - anchor_RA), anchor_RA


def searched(steps: Tensor, values: Tensor) -> Tensor:
    """`np.searchsorted(steps, values, side="right")` for values of any rank."""
    return tf.reshape(tf.searchsorted(steps, tf.reshape(values, [-1]), side="right"), tf.shape(values))


def floored(values: Tensor) -> Tensor:
    """`np.floor(values).astype(int)` for values from 0 on."""
    return tf.cast(tf.floor(values), tf.int32)


def mask_spans(
    policy: GeometricSpans, free_W: Tensor, whole_A: Tensor, words_A: Tensor, anchor_A: Tensor, left_A: Tensor
) -> tuple[Tensor, Tensor]:
    """`masking.mask_spans`; returns `free_W` as well."""
    more_S = tf.range(policy.max_words)
    word_AS = anchor_A[:, None] + more_S
    free_AS = tf.gather(free_W, word_AS)
    tried_AS = (more_S < words_A[:, None]) & (free_AS[:, :1] == whole_A[:, None])
    cost_AS = free_AS * tf.cast(tried_AS, tf.int32)
    over_AS = tf.cumsum(cost_AS, axis=1) - left_A[:, None]
    if policy.cut == "words":
        taken_AS = cost_AS * tf.cast(over_AS <= 0, tf.int32)
    else:
        taken_AS = tf.maximum(tf.minimum(cost_AS - over_AS, cost_AS), 0)
    free_W = tf.tensor_scatter_nd_sub(free_W, word_AS[..., None], taken_AS)
    return left_A - tf.reduce_sum(taken_AS, axis=1), free_W


def leading_pieces(first_W: Tensor, masked_W: Tensor, shape: Tensor) -> Tensor:
    """`masking.leading_pieces`."""
    word_X = true_places(masked_W > 0)
    first_X = tf.gather(first_W, word_X)
    first_X += first_X // shape[1]  # rows of L + 1, so that a word's end is in its row
    place = tf.concat([first_X, first_X + tf.gather(masked_W, word_X)], axis=0)
    change = tf.concat([tf.ones_like(first_X), -tf.ones_like(first_X)], axis=0)
    edges = tf.reshape(tf.scatter_nd(place[:, None], change, [shape[0] * (shape[1] + 1)]), [shape[0], shape[1] + 1])
    return tf.cumsum(edges, axis=1)[:, :-1] > 0


def find_spans(mask_BL: Tensor, segments_BL: Tensor, slots: int) -> Masked:
    """`slots.find_spans`, with the bound on masked tokens a row."""
    count_B = tf.reduce_sum(tf.cast(mask_BL, tf.int32), axis=1)
    fits = tf.debugging.assert_less_equal(count_B, slots, "a row has more masked tokens than slots")
    index_X2 = tf.where(mask_BL)
    row_X, position_X = tf.cast(index_X2[:, 0], tf.int32), tf.cast(index_X2[:, 1], tf.int32)
    segment_X = tf.gather_nd(segments_BL, index_X2)
    joined_X = (position_X[1:] - position_X[:-1] == 1) & (segment_X[1:] == segment_X[:-1]) & (row_X[1:] == row_X[:-1])
    begins_X = tf.concat([tf.ones_like(position_X[:1], tf.bool), tf.logical_not(joined_X)], axis=0)
    span_X = tf.cumsum(tf.cast(begins_X, tf.int32)) - 1
    first = true_places(begins_X)
    last = first + differences(first, tf.size(row_X)) - 1
    with tf.control_dependencies([fits]):
        used_BK = tf.range(slots) < count_B[:, None]
    item_BK = (tf.cumsum(count_B, exclusive=True)[:, None] + tf.range(slots)) * tf.cast(used_BK, tf.int32)

    def placed(values_X: Tensor) -> Tensor:
        padded_X = tf.concat([values_X, [0]], axis=0)
        return tf.gather(padded_X, item_BK) * tf.cast(used_BK, tf.int32)

    return Masked(
        position_BK=placed(position_X),
        first_BK=placed(tf.gather(tf.gather(position_X, first), span_X)),
        last_BK=placed(tf.gather(tf.gather(position_X, last), span_X)),
        used_BK=used_BK,
    )


def replaced_tokens(
    tokens_BL: Tensor,
    masked: Masked,
    replacement: Replacement,
    mask_id: int,
    cumulative_V: np.ndarray,
    keys: tuple[Tensor, Tensor],
) -> Tensor:
    """`slots.replaced_tokens`."""
    kind_B, random_B = keys
    place_BK = masked.first_BK if replacement.unit == "span" else masked.position_BK
    kind_BK = uniform(fold(kind_B[:, None], place_BK))
    original_BK = tf.gather(tokens_BL, masked.position_BK, batch_dims=1)
    seen_BK = tf.where(kind_BK < replacement.mask, tf.constant(mask_id), original_BK)
    random_BK = (kind_BK >= replacement.mask) & (kind_BK < replacement.mask + replacement.random)
    drawn = tf.where(random_BK & masked.used_BK)
    hashed = fold(tf.gather(random_B, drawn[:, 0]), tf.gather_nd(masked.position_BK, drawn))
    point = tf.cast(tf.floor(uniform(hashed) * float(cumulative_V[-1])), tf.int64)
    seen_BK = tf.tensor_scatter_nd_update(seen_BK, drawn, searched(tf.constant(cumulative_V), point))
    change_BK = (seen_BK - original_BK) * tf.cast(masked.used_BK, tf.int32)
    row_BK = tf.broadcast_to(tf.range(tf.shape(tokens_BL)[0])[:, None], tf.shape(change_BK))
    return tf.tensor_scatter_nd_add(tokens_BL, tf.stack([row_BK, masked.position_BK], axis=-1), change_BK)


def slot_arrays(tokens_BL: Tensor, masked: Masked, boundaries: Boundaries, specials: SpecialIds) -> dict[str, Tensor]:
    """`slots.slot_arrays`."""
    used_BK = tf.cast(masked.used_BK, tf.int32)
    left_BK, right_BK = (masked.first_BK - 1) * used_BK, (masked.last_BK + 1) * used_BK
    offset_BK = masked.position_BK - masked.first_BK
    bounded_BK = masked.used_BK & (offset_BK < boundaries.max_offset)
    if not boundaries.specials:
        for side_BK in (left_BK, right_BK):
            token_BK = tf.gather(tokens_BL, side_BK, batch_dims=1)
            bounded_BK &= (token_BK != specials.cls) & (token_BK != specials.sep)
    bound_BK = tf.cast(bounded_BK, tf.int32)
    return {
        "slot_position_BK": masked.position_BK,
        "slot_target_BK": tf.gather(tokens_BL, masked.position_BK, batch_dims=1) * used_BK,
        "slot_weight_BK": tf.cast(used_BK, tf.float32),
        "slot_left_BK": left_BK * bound_BK,
        "slot_right_BK": right_BK * bound_BK,
        "slot_offset_BK": offset_BK * bound_BK,
        "slot_boundary_weight_BK": tf.cast(bound_BK, tf.float32),
    }


def restarted_positions(segments_BL: Tensor) -> Tensor:
    """`slots.restarted_positions`: the first position of a segment is the sum of the steps from one first to the
    next."""
    shape = tf.shape(segments_BL)
    changed_BL = segments_BL[:, 1:] != segments_BL[:, :-1]
    index_X2 = tf.where(tf.concat([tf.zeros_like(changed_BL[:, :1]), changed_BL], axis=1))
    row_X, position_X = index_X2[:, 0], tf.cast(index_X2[:, 1], tf.int32)
    same_row = tf.cast(row_X[1:] == row_X[:-1], tf.int32)
    before_X = tf.concat([tf.zeros_like(position_X[:1]), position_X[:-1] * same_row], axis=0)
    first_BL = tf.cumsum(tf.scatter_nd(index_X2, position_X - before_X, tf.cast(shape, tf.int64)), axis=1)
    return (tf.range(shape[1]) - first_BL) * tf.cast(segments_BL > 0, tf.int32)


def build_batch(
    rows: RowBatch,
    keys: tuple[Tensor, Tensor, Tensor],
    spec: FeedSpec,
    specials: SpecialIds,
    unigram_V: np.ndarray,
    slots: int,
) -> Batch:
    """`batch.build_batch`; `keys` are epoch, row index and place in the global batch of every row [B]."""
    epoch_B, index_B, row_B = keys
    mask_key, kind_key, random_key = (
        row_keys(spec.seed, purpose, epoch_B, index_B) for purpose in (Purpose.MASK, Purpose.REPLACE, Purpose.UNIGRAM)
    )
    mask_BL = token_mask(spec.masking, rows, specials, mask_key)
    masked = find_spans(mask_BL, rows.segments_BL, slots)
    replaced_BL = replaced_tokens(
        rows.tokens_BL,
        masked,
        spec.masking.replacement,
        specials.mask,
        np.cumsum(unigram_V, dtype=np.int64),
        (kind_key, random_key),
    )
    return Batch(
        tokens_BL=replaced_BL,
        segments_BL=rows.segments_BL,
        positions_BL=restarted_positions(rows.segments_BL),
        types_BL=tf.zeros_like(rows.tokens_BL),
        row_B=tf.cast(row_B, tf.int32),
        **slot_arrays(rows.tokens_BL, masked, spec.boundaries, specials),
    )
