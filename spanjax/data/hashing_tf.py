"""`hashing` in a TensorFlow graph: the same names, the same bits. Imported only by `masking_tf`."""

from typing import Any

import tensorflow as tf

from spanjax.data.hashing import FIRST, GAMMA, SECOND, UNIT, Purpose

Tensor = Any


def uint64(value: int) -> Tensor:
    """A scalar constant."""
    return tf.constant(value, dtype=tf.uint64)


def mix(z: Tensor) -> Tensor:
    """`hashing.mix`."""
    z = tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, uint64(30))) * uint64(FIRST)
    z = tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, uint64(27))) * uint64(SECOND)
    return tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, uint64(31)))


def fold(key: Tensor, value: Tensor) -> Tensor:
    """`hashing.fold`."""
    return mix(tf.cast(key, tf.uint64) + (tf.cast(value, tf.uint64) + uint64(1)) * uint64(GAMMA))


def uniform(bits: Tensor) -> Tensor:
    """`hashing.uniform`; 53 bits fit an int64, from which the cast is exact."""
    return tf.cast(tf.cast(tf.bitwise.right_shift(bits, uint64(11)), tf.int64), tf.float64) * UNIT


def row_keys(seed: int, purpose: Purpose, epoch_B: Tensor, index_B: Tensor) -> Tensor:
    """`hashing.row_keys`."""
    return fold(fold(fold(uint64(seed), uint64(int(purpose))), epoch_B), index_B)
