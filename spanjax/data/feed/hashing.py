"""Random numbers without a stream: a 64-bit hash of a key and a counter (the finaliser of SplitMix64, Steele et al.
2014).

A draw depends on what it is for (seed, purpose, epoch, row, counter) and not on earlier draws, so any
host can draw any row's numbers in any order. `kernels` has `fold` and `uniform` of single numbers; both give the same bits.
"""

import enum

import numpy as np
import numpy.typing as npt

GAMMA = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
UNIT = 2.0**-53

Unsigned = npt.NDArray[np.uint64]


class Purpose(enum.IntEnum):
    """Purpose of a draw; draws for different purposes are independent. Never renumber: masks and order would change."""

    ORDER = 1
    MASK = 2
    REPLACE = 3
    UNIGRAM = 4
    PAIR = 5
    MIXTURE = 6
    SEGMENT = 7


def mix(bits: npt.ArrayLike) -> Unsigned:
    """A bijection of 64-bit integers in which every input bit reaches every output bit."""
    return _mixed(np.array(bits, dtype=np.uint64, ndmin=1)).reshape(np.shape(bits))


def _mixed(z: Unsigned) -> Unsigned:
    """`mix` in place, of an array of at least one dimension (in which numpy multiplies modulo 2^64 without a warning)."""
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(FIRST)
    np.right_shift(z, np.uint64(27), out=shifted)
    z ^= shifted
    z *= np.uint64(SECOND)
    np.right_shift(z, np.uint64(31), out=shifted)
    z ^= shifted
    return z


def fold(key: npt.ArrayLike, value: npt.ArrayLike) -> Unsigned:
    """The key of one item of `key`: output number `value` of a SplitMix64 generator whose state is `key`. Broadcasts.

    The first output of SplitMix64 with seed 0 is fold(0, 0) = 0xE220A8397B1DCDAF.
    """
    step = np.array(value, ndmin=1).astype(np.uint64)
    step += np.uint64(1)
    step *= np.uint64(GAMMA)
    mixed = _mixed(np.asarray(key).astype(np.uint64) + step)
    return mixed if np.ndim(key) or np.ndim(value) else mixed.reshape(())


def uniform(bits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The top 53 bits as a number in [0, 1): uniform(2**63) = 0.5."""
    return np.multiply(np.asarray(bits, dtype=np.uint64) >> np.uint64(11), UNIT, dtype=np.float64)


def row_keys(seed: int, purpose: Purpose, epoch_B: npt.ArrayLike, index_B: npt.ArrayLike) -> Unsigned:
    """The key of every row's draws for one purpose: a function of (seed, purpose, epoch, row index) alone."""
    return fold(fold(fold(seed, int(purpose)), epoch_B), index_B)
