"""The peers of the batched masking: the same sampler, row by row, in NumPy and in a tf.data map.

Both give the same masks as spanjax, so that only the way of computing them differs.
"""

import math
from typing import Any

import numpy as np

from spanjax.data.feed.hashing import FIRST, GAMMA, SECOND, UNIT, fold, uniform
from spanjax.data.feed.masking import GeometricSpans


def masked_tokens(policy: GeometricSpans, starts: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Masked tokens of one block of n text tokens [n], as a loop over spans; draws come as arrays, 32 rounds at a time."""
    tokens = len(starts)
    first = np.flatnonzero(starts | (np.arange(tokens) == 0))
    end = np.append(first[1:], tokens)
    budget = math.ceil(policy.rate * tokens)
    masked = np.zeros(tokens, bool)
    steps, left = policy.length_steps(), budget
    for round_ in range(16 + 4 * budget):
        if round_ % 32 == 0:
            keys = fold(key, round_ + np.arange(32))
            lengths = 1 + np.searchsorted(steps, uniform(fold(keys, 0)), side="right")
            anchors = np.floor(uniform(fold(keys, 1)) * len(first)).astype(int)
        if left == 0:
            break
        anchor = anchors[round_ % 32]
        if masked[first[anchor]]:
            continue
        for word in range(anchor, min(anchor + lengths[round_ % 32], len(first))):
            if masked[first[word]]:
                continue
            size = end[word] - first[word]
            if size > left:
                break
            masked[first[word] : end[word]] = True
            left -= size
    return masked


def numpy_masks(policy: GeometricSpans, word_starts_BL: np.ndarray, key_B: np.ndarray) -> np.ndarray:
    """Masks of rows of one full block each, [B, L]."""
    mask_BL = np.zeros(word_starts_BL.shape, bool)
    for starts, mask, key in zip(word_starts_BL, mask_BL, key_B, strict=True):
        mask[1:-1] = masked_tokens(policy, starts[1:-1], fold(key, 0))
    return mask_BL


def tf_data_map(policy: GeometricSpans, word_starts_BL: np.ndarray, key_B: np.ndarray) -> Any:
    """A tf.data dataset of masks bool [L], each of a row of one full block: a loop over rounds in the graph."""
    import tensorflow as tf

    def constant(value: int) -> Any:
        return tf.constant(value, tf.uint64)

    def folded(key: Any, value: Any) -> Any:
        z = key + (tf.cast(value, tf.uint64) + constant(1)) * constant(GAMMA)
        z = tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, constant(30))) * constant(FIRST)
        z = tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, constant(27))) * constant(SECOND)
        return tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, constant(31)))

    def drawn(key: Any, value: int) -> Any:
        bits = tf.bitwise.right_shift(folded(key, value), constant(11))
        return tf.cast(tf.cast(bits, tf.int64), tf.float64) * UNIT

    def one_row(starts_L: Any, row_key: Any) -> Any:
        tokens = word_starts_BL.shape[1] - 2
        begins = tf.concat([[True], starts_L[2:-1]], axis=0)
        first_W = tf.cast(tf.where(begins)[:, 0], tf.int32)
        size_W = tf.concat([first_W[1:], [tokens]], axis=0) - first_W
        words, key, budget = tf.size(first_W), folded(row_key, 0), math.ceil(policy.rate * tokens)

        def one_round(number: Any, left: Any, masked_W: Any) -> tuple[Any, Any, Any]:
            own = folded(key, number)
            length = 1 + tf.searchsorted(policy.length_steps(), drawn(own, 0)[None], side="right")[0]
            anchor = tf.cast(tf.floor(drawn(own, 1) * tf.cast(words, tf.float64)), tf.int32)
            word_S = tf.range(anchor, tf.minimum(anchor + length, words))
            new_S = tf.logical_not(tf.gather(masked_W, word_S) | masked_W[anchor])
            cost_S = tf.gather(size_W, word_S) * tf.cast(new_S, tf.int32)
            taken_S = new_S & (tf.cumsum(cost_S) <= left)
            spent = tf.reduce_sum(cost_S * tf.cast(taken_S, tf.int32))
            chosen = tf.boolean_mask(word_S, taken_S)[:, None]
            return (
                number + 1,
                left - spent,
                tf.tensor_scatter_nd_update(masked_W, chosen, tf.ones_like(chosen[:, 0]) > 0),
            )

        masked_W = tf.while_loop(
            lambda number, left, _: (left > 0) & (number < 16 + 4 * budget),
            one_round,
            (0, budget, tf.zeros([words], tf.bool)),
        )[2]
        return tf.concat([[False], tf.repeat(masked_W, size_W), [False]], axis=0)

    plain = tf.autograph.experimental.do_not_convert(one_row)
    rows = tf.data.Dataset.from_tensor_slices((word_starts_BL, key_B))
    return rows.map(plain, num_parallel_calls=tf.data.AUTOTUNE)
