"""The counter-based hash: known values, the compiled twin, and no visible structure."""

import numpy as np

from spanjax.data.feed import kernels
from spanjax.data.feed.hashing import Purpose, fold, row_keys, uniform


def splitmix(state: int, count: int) -> list[int]:
    """SplitMix64 in plain Python integers."""
    outputs = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        outputs.append(z ^ (z >> 31))
    return outputs


def test_fold_is_splitmix64() -> None:
    assert int(fold(0, 0)) == 0xE220A8397B1DCDAF
    for state in (0, 1, 2**64 - 1, 0x1234_5678_9ABC_DEF0):
        assert fold(np.uint64(state), np.arange(20)).tolist() == splitmix(state, 20)


def test_uniform_is_the_top_53_bits() -> None:
    assert uniform(2**63) == 0.5
    assert uniform(2**64 - 1) == 1 - 2.0**-53
    assert uniform(2**11 - 1) == 0.0


def test_draws_are_uniform_and_keys_independent() -> None:
    """100,000 draws: mean within 5 standard errors of 1/2; neighbouring keys' bits differ in half of the places."""
    draws = uniform(fold(row_keys(3, Purpose.MASK, 0, np.arange(1000))[:, None], np.arange(100)))
    assert abs(draws.mean() - 0.5) < 5 * np.sqrt(1 / 12 / draws.size)
    bins = np.bincount((draws.ravel() * 64).astype(int), minlength=64)
    assert ((bins - draws.size / 64) ** 2 / (draws.size / 64)).sum() < 63 + 5 * np.sqrt(126)
    keys = row_keys(3, Purpose.MASK, 0, np.arange(4097))
    flipped = np.unpackbits((keys[1:] ^ keys[:-1]).view(np.uint8)).mean()
    assert abs(flipped - 0.5) < 5 * 0.5 / np.sqrt(4096 * 64)


def test_purposes_epochs_and_rows_have_different_keys() -> None:
    keys = [row_keys(s, p, np.arange(3)[:, None], np.arange(50)) for s in (0, 1) for p in Purpose]
    assert np.unique(np.stack(keys)).size == 2 * len(Purpose) * 3 * 50


def test_compiled_gives_the_same_bits() -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**64, 1000, dtype=np.uint64)
    values = random.integers(0, 2**62, 1000)
    folded = [kernels.fold(key, value) for key, value in zip(bits, values, strict=True)]
    assert folded == fold(bits, values).tolist()
    assert [kernels.uniform(key) for key in bits] == uniform(bits).tolist()
