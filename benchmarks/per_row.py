"""The peers of the batched masking: the same sampler, row by row, in NumPy and in a tf.data map.

Both give the same masks as spanjax, so that only the way of computing them differs.
"""

import math
from typing import Any

import numpy as np

from spanjax.data.hashing import fold, uniform
from spanjax.data.masking import GeometricSpans


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


def tf_data_map(policy: GeometricSpans, text: Any, specials: Any, key_B: np.ndarray, rate_B: np.ndarray) -> Any:
    """A tf.data dataset that masks one row an element: the graph function of spanjax on batches of one."""
    import tensorflow as tf

    from spanjax.data import masking_tf
    from spanjax.data.words import TextRows

    arrays = (text.tokens_BL, text.segments_BL, text.word_starts_BL, key_B, rate_B)

    def one_row(tokens_L: Any, segments_L: Any, starts_L: Any, key: Any, rate: Any) -> Any:
        rows = TextRows(tokens_L[None], segments_L[None], starts_L[None], None)
        return tf.size(masking_tf.masked_places(policy, rows, specials, key[None], rate[None]))

    plain = tf.autograph.experimental.do_not_convert(one_row)
    return tf.data.Dataset.from_tensor_slices(arrays).map(plain, num_parallel_calls=tf.data.AUTOTUNE)
