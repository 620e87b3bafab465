"""`masking`, `slots` and `batch.build_batch` in a TensorFlow graph on batches, equal to the NumPy ones bit for bit.

Function by function the same names and the same arithmetic; the docstrings are there. Only `feed` imports it, lazily.

Shapes: as in `masking` and `slots`.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from spanjax.data.batch import Batch, FeedSpec, RowFacts, RowKeys
from spanjax.data.hashing import Purpose
from spanjax.data.hashing_tf import fold, row_keys, uniform
from spanjax.data.masking import MaskingPolicy, SpanPolicy, TaggedSpans
from spanjax.data.pairing import Examples
from spanjax.data.replacement import Boundaries, Replacement
from spanjax.data.sampling_tf import (
    Tagged,
    Text,
    differences,
    draw_spans,
    find_tagged,
    find_words,
    floored,
    leading_places,
    placed,
    searched,
    true_places,
)
from spanjax.data.words import SpecialIds, TextRows

Tensor = Any


class Masked(NamedTuple):
    """`slots.Masked` as tensors, the masked tokens laid out in the slots of their rows."""

    position_BK: Tensor
    first_BK: Tensor
    last_BK: Tensor
    used_BK: Tensor


@functools.singledispatch
def masked_places(policy: MaskingPolicy, rows: TextRows, specials: SpecialIds, key_B: Tensor, rate_B: Tensor) -> Tensor:
    """`MaskingPolicy.masked_places`; every policy registers its twin here."""
    del rows, specials, key_B, rate_B
    raise ValueError(
        f"masking policy {type(policy).__name__} has no TensorFlow twin: use the feed of kind 'numpy', or register one "
        "with spanjax.data.masking_tf.masked_places.register"
    )


@masked_places.register
def _(policy: SpanPolicy, rows: TextRows, specials: SpecialIds, key_B: Tensor, rate_B: Tensor) -> Tensor:
    text = find_words(rows, specials, policy.every_token)
    tagged = None if rows.tags_BL is None else find_tagged(rows.tags_BL, text)
    key_M = fold(tf.gather(key_B, text.row_M), text.number_M)
    budget_M = tf.math.ceil(tf.gather(rate_B, text.row_M) * tf.cast(text.tokens_M, tf.float64))

    def propose(block_P: Tensor, round_P: Tensor) -> tuple[Tensor, Tensor]:
        return proposals(policy, text, tagged, block_P, fold(tf.gather(key_M, block_P), round_P))

    masked_W = draw_spans(
        text,
        tf.cast(budget_M, tf.int32),
        propose,
        mean_words=policy.mean_words,
        most_words=policy.most_words,
        whole_words=policy.cut == "words",
    )
    return leading_places(text.first_W, masked_W)


@functools.singledispatch
def proposals(
    policy: SpanPolicy, text: Text, tagged: Tagged | None, block_P: Tensor, key_P: Tensor
) -> tuple[Tensor, Tensor]:
    """`SpanPolicy.proposals`; a policy that proposes otherwise registers its twin here."""
    del tagged
    first_P, words_P = tf.gather(text.first_word_M, block_P), tf.gather(text.words_M, block_P)
    u_P = uniform(fold(key_P, 1))
    if policy.starts == "words":
        anchor_P = first_P + floored(u_P * tf.cast(words_P, tf.float64))
    else:
        tokens_P = tf.gather(text.tokens_M, block_P)
        place_P = tf.gather(text.first_M, block_P) + floored(u_P * tf.cast(tokens_P, tf.float64))
        anchor_P = searched(text.first_W, place_P) - 1
    if len(policy.length_distribution()) == 1:
        return anchor_P, tf.ones_like(anchor_P)
    drawn_P = 1 + searched(tf.constant(policy.length_steps()), uniform(fold(key_P, 0)))
    return anchor_P, tf.minimum(drawn_P, first_P + words_P - anchor_P)


@proposals.register
def _(policy: TaggedSpans, text: Text, tagged: Tagged, block_P: Tensor, key_P: Tensor) -> tuple[Tensor, Tensor]:
    anchor_P, words_P = proposals.dispatch(SpanPolicy)(policy, text, None, block_P, key_P)
    tags_P = tf.gather(tagged.tags_M, block_P)
    chosen = true_places((uniform(fold(key_P, 2)) < policy.share) & (tags_P > 0))
    u = uniform(fold(tf.gather(key_P, chosen), 3)) * tf.cast(tf.gather(tags_P, chosen), tf.float64)
    tag = tf.gather(tagged.first_tag_M, tf.gather(block_P, chosen)) + floored(u)
    anchor_P = tf.tensor_scatter_nd_update(anchor_P, chosen[:, None], tf.gather(tagged.first_word_T, tag))
    longest = tf.minimum(tf.gather(tagged.words_T, tag), policy.longest)
    return anchor_P, tf.tensor_scatter_nd_update(words_P, chosen[:, None], longest)


def find_spans(place_X: Tensor, segments_BL: Tensor, slots: int) -> Masked:
    """`slots.find_spans`, with the bound on masked tokens a row."""
    rows, length = segments_BL.shape
    row_X = place_X // length
    position_X = place_X - row_X * length
    count_B = tf.math.unsorted_segment_sum(tf.ones_like(row_X), row_X, rows)
    fits = tf.debugging.assert_less_equal(count_B, slots, "a row has more masked tokens than slots")
    segment_X = tf.gather(tf.reshape(segments_BL, [-1]), place_X)
    joined_X = (place_X[1:] - place_X[:-1] == 1) & (segment_X[1:] == segment_X[:-1]) & (row_X[1:] == row_X[:-1])
    begins_X = tf.concat([tf.ones_like(position_X[:1], tf.bool), tf.logical_not(joined_X)], axis=0)
    first = true_places(begins_X)
    size = differences(first, tf.size(row_X))
    span_X = tf.cumsum(tf.cast(begins_X, tf.int32)) - 1
    first_X = tf.gather(tf.gather(position_X, first), span_X)
    with tf.control_dependencies([fits]):
        slot_X = tf.range(tf.size(row_X)) + tf.gather(
            tf.range(rows) * slots - tf.cumsum(count_B, exclusive=True), row_X
        )

    def slots_of(values_X: Tensor) -> Tensor:
        return tf.reshape(placed(values_X, slot_X, rows * slots), [rows, slots])

    return Masked(
        position_BK=slots_of(position_X),
        first_BK=slots_of(first_X),
        last_BK=slots_of(first_X + tf.gather(size - 1, span_X)),
        used_BK=tf.range(slots) < count_B[:, None],
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
    rows, length = tokens_BL.shape
    place_BK = masked.first_BK if replacement.unit == "span" else masked.position_BK
    kind_BK = uniform(fold(kind_B[:, None], place_BK))
    original_BK = tokens_at(tokens_BL, masked.position_BK)
    seen_BK = tf.where(kind_BK < replacement.mask, tf.constant(mask_id), original_BK)
    random_BK = (kind_BK >= replacement.mask) & (kind_BK < replacement.mask + replacement.random)
    drawn = true_places(random_BK & masked.used_BK)
    position = tf.gather(tf.reshape(masked.position_BK, [-1]), drawn)
    hashed = fold(tf.gather(random_B, drawn // seen_BK.shape[1]), position)
    point = tf.cast(tf.floor(uniform(hashed) * float(cumulative_V[-1])), tf.int64)
    random = searched(tf.constant(cumulative_V), point)
    change_BK = tf.where(random_BK, 0, seen_BK - original_BK) * tf.cast(masked.used_BK, tf.int32)
    change = tf.reshape(change_BK, [-1]) + placed(
        random - tf.gather(tf.reshape(original_BK, [-1]), drawn), drawn, tf.size(seen_BK)
    )
    return tokens_BL + tf.reshape(
        placed(change, flat_places(masked.position_BK, length), rows * length), [rows, length]
    )


def flat_places(position_BK: Tensor, length: int) -> Tensor:
    """row * L + position, in a line."""
    return tf.reshape(tf.range(position_BK.shape[0])[:, None] * length + position_BK, [-1])


def tokens_at(tokens_BL: Tensor, position_BK: Tensor) -> Tensor:
    """tokens_BL[b, position_BK[b, k]] as [B, K]."""
    places = flat_places(position_BK, tokens_BL.shape[1])
    return tf.reshape(tf.gather(tf.reshape(tokens_BL, [-1]), places), position_BK.shape)


def slot_arrays(tokens_BL: Tensor, masked: Masked, boundaries: Boundaries, specials: SpecialIds) -> dict[str, Tensor]:
    """`slots.slot_arrays`."""
    used_BK = tf.cast(masked.used_BK, tf.int32)
    left_BK, right_BK = (masked.first_BK - 1) * used_BK, (masked.last_BK + 1) * used_BK
    offset_BK = masked.position_BK - masked.first_BK
    bounded_BK = masked.used_BK & (offset_BK < boundaries.max_offset)
    if not boundaries.specials:
        for side_BK in (left_BK, right_BK):
            token_BK = tokens_at(tokens_BL, side_BK)
            bounded_BK &= (token_BK != specials.cls) & (token_BK != specials.sep)
    bound_BK = tf.cast(bounded_BK, tf.int32)
    return {
        "slot_position_BK": masked.position_BK,
        "slot_target_BK": tokens_at(tokens_BL, masked.position_BK) * used_BK,
        "slot_weight_BK": tf.cast(used_BK, tf.float32),
        "slot_left_BK": left_BK * bound_BK,
        "slot_right_BK": right_BK * bound_BK,
        "slot_offset_BK": offset_BK * bound_BK,
        "slot_boundary_weight_BK": tf.cast(bound_BK, tf.float32),
    }


def build_batch(rows: Examples, positions_BL: Tensor, keys: RowKeys, spec: FeedSpec, facts: RowFacts) -> Batch:
    """`batch.build_batch`, with the positions from outside: they need no draw, and NumPy is faster at them."""
    mask_key, kind_key, random_key = (
        row_keys(spec.seed, purpose, keys.epoch_B, keys.index_B)
        for purpose in (Purpose.MASK, Purpose.REPLACE, Purpose.UNIGRAM)
    )
    tags_BL = None
    if facts.layer is not None:
        shift, two_bits = tf.constant(1 + 2 * facts.layer, tf.uint8), tf.constant(3, tf.uint8)
        tags_BL = tf.bitwise.bitwise_and(tf.bitwise.right_shift(rows.flags_BL, shift), two_bits)
    text = TextRows(rows.tokens_BL, rows.segments_BL, rows.word_starts_BL, tags_BL)
    place_X = masked_places(spec.masking, text, facts.specials, mask_key, keys.rate_B)
    masked = find_spans(place_X, rows.segments_BL, facts.slots)
    replaced_BL = replaced_tokens(
        rows.tokens_BL,
        masked,
        spec.masking.replacement,
        facts.specials.mask,
        np.cumsum(facts.unigram_V, dtype=np.int64),
        (kind_key, random_key),
    )
    return Batch(
        tokens_BL=replaced_BL,
        segments_BL=rows.segments_BL,
        positions_BL=positions_BL,
        types_BL=rows.types_BL,
        row_B=tf.cast(keys.row_B, tf.int32),
        **slot_arrays(rows.tokens_BL, masked, spec.boundaries, facts.specials),
        pair_position_BP=rows.pair_position_BP,
        pair_label_BP=rows.pair_label_BP,
        pair_weight_BP=rows.pair_weight_BP,
    )
