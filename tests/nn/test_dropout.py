"""Hash dropout: right rate, no correlation between sites, steps and rows, independent of how rows are split."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.nn import dropout as module
from spanjax.nn.dropout import SITES, DropoutKey, dropout, gumbel, hash32, random_bits, row_keys, step_key
from spanjax.objectives import electra, xlnet
from spanjax.tasks.base import HEAD_SITE
from spanjax.tasks.sentences import FIRST_SITE
from spanjax.tasks.span_tuning import SPAN_SITE


def mask(
    rate: float, step: int, site: int, rows: list[int], shape: tuple[int, ...] = (64, 128), seed: int = 3
) -> np.ndarray:
    key = DropoutKey(step_key(seed, jnp.int32(step)), jnp.asarray(rows, jnp.int32))
    return np.asarray(dropout(jnp.ones((len(rows), *shape)), rate, key, site) > 0)


def test_parts_of_a_network_share_no_dropout_site() -> None:
    ranges = sorted(SITES.values(), key=lambda sites: sites.start)
    assert all(ranges) and all(one.stop <= other.start for one, other in itertools.pairwise(ranges))


def test_dropout_sites_are_those_of_older_runs() -> None:
    """Masks are hashes of these numbers."""
    starts = {"encoder": 0, "generator": 1 << 16, "draws": 1 << 17, "head": 1 << 20}
    starts |= {"first token": (1 << 20) + 8, "spans": (1 << 20) + 16}
    assert {name: sites.start for name, sites in SITES.items()} == starts
    assert (electra.GENERATOR_SITE, electra.SAMPLES, xlnet.ORDERS) == (1 << 16, 1 << 17, 1 << 17)
    assert (HEAD_SITE, FIRST_SITE, SPAN_SITE) == (1 << 20, (1 << 20) + 8, (1 << 20) + 16)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_rate_and_scale(rate: float) -> None:
    kept = mask(rate, 0, 0, list(range(16)))
    deviation = np.sqrt(rate * (1 - rate) / kept.size)
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    key = DropoutKey(step_key(0, jnp.int32(0)), jnp.arange(4))
    values = np.asarray(dropout(jnp.full((4, 8), 2.0), rate, key, 0))
    assert set(np.round(np.unique(values), 5)) <= {0.0, np.round(np.float32(2.0 / (1 - rate)), 5)}


@pytest.mark.parametrize("other", [{"step": 1}, {"site": 1}, {"rows": [8, 9, 10, 11]}, {"seed": 4}])
def test_masks_of_different_places_are_uncorrelated(other: dict) -> None:
    base = {"rate": 0.5, "step": 0, "site": 0, "rows": [0, 1, 2, 3]}
    first, second = mask(**base), mask(**{**base, **other})
    correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(first.size)


def test_rows_of_one_batch_are_uncorrelated() -> None:
    kept = mask(0.5, 0, 0, list(range(8))).reshape(8, -1)
    correlations = np.corrcoef(kept) - np.eye(8)
    assert np.abs(correlations).max() < 5 / np.sqrt(kept.shape[1])


def test_mask_of_a_row_depends_on_its_number_only() -> None:
    together = mask(0.1, 7, 2, [0, 1, 2, 3])
    np.testing.assert_array_equal(together[2:], mask(0.1, 7, 2, [2, 3]))
    np.testing.assert_array_equal(together[[3, 0]], mask(0.1, 7, 2, [3, 0]))


def mixed(x: int) -> int:
    """hash32 of one number."""
    x ^= x >> 16
    x = x * 0x21F0AAAD & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x735A2D97 & 0xFFFFFFFF
    return x ^ x >> 15


def test_masks_and_draws_are_a_plain_loop() -> None:
    """Masks by the formula of the module's docstring; draws of samples and orders are a hash of every element, as in 0.1."""
    seed_key = mixed(7 ^ mixed(5 + 0x9E3779B9 & 0xFFFFFFFF))
    site_key = mixed(seed_key ^ mixed(3 + 0x85EBCA6B & 0xFFFFFFFF))
    rows, (heads, lines, columns), rate, stride = [4, 900], (2, 3, 5), 0.4, 1 << 16
    key = DropoutKey(step_key(7, jnp.int32(5)), jnp.asarray(rows))
    found = np.asarray(dropout(jnp.ones((2, heads, lines, columns)), rate, key, 3, strides=(stride, 1)))
    bits = np.asarray(random_bits(key, 3, (2, lines, columns)))
    for row, head, line, column in np.ndindex(found.shape):
        own = mixed(rows[row] * 0xC2B2AE35 + site_key & 0xFFFFFFFF)
        number = head * stride + line
        factor = mixed(number + mixed(own + 0x9E3779B9 & 0xFFFFFFFF) & 0xFFFFFFFF) | 1
        draw = mixed(number ^ own) + factor * mixed(column ^ 0x5BD1E995) & 0xFFFFFFFF
        assert (found[row, head, line, column] > 0) == (draw >= round(rate * 2**32))
        assert bits[row, line, column] == mixed(line * columns + column ^ own)


@pytest.mark.parametrize("again", [False, True])
def test_parts_of_rows_have_their_part_of_the_mask(again: bool) -> None:
    key = DropoutKey(step_key(2, jnp.int32(9)), jnp.asarray([3, 8]), again)
    x = jnp.ones((2, 40, 50))
    whole = np.asarray(dropout(x, 0.3, key, 6))
    line, column = jnp.asarray([4, 17]), jnp.asarray([9, 21])
    part = jax.jit(lambda x: dropout(x, 0.3, key, 6, line, column))(jnp.ones((2, 10, 20)))
    np.testing.assert_array_equal(part[0], whole[0, 4:14, 9:29])
    np.testing.assert_array_equal(part[1], whole[1, 17:27, 21:41])
    np.testing.assert_array_equal(dropout(jnp.ones((2, 70, 60)), 0.3, key, 6)[:, :40, :50], whole)


def test_a_kernel_needs_one_key_a_row() -> None:
    key = DropoutKey(step_key(2, jnp.int32(9)), jnp.asarray([3, 8, 3]))
    keys = np.asarray(row_keys(key, jnp.uint32(4)))
    assert keys.shape == (3,) and keys[0] == keys[2] != keys[1]


def test_without_key_or_rate_nothing_happens() -> None:
    x = jnp.ones((2, 3))
    assert dropout(x, 0.5, None, 0) is x
    assert dropout(x, 0.0, DropoutKey(jnp.uint32(0), jnp.arange(2)), 0) is x


def test_hash_bits_are_balanced() -> None:
    bits = np.asarray(hash32(jnp.arange(1 << 16, dtype=jnp.uint32)))
    ones = np.unpackbits(bits.view(np.uint8).reshape(-1, 4), axis=1).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(len(bits))
    flipped = np.asarray(hash32(jnp.arange(1 << 16, dtype=jnp.uint32) ^ jnp.uint32(1)))
    changed = np.unpackbits((bits ^ flipped).view(np.uint8)).mean()
    assert abs(changed - 0.5) < 0.01


@pytest.mark.parametrize("again", [False, True])
def test_gradient_uses_the_same_mask(again: bool) -> None:
    key = DropoutKey(step_key(1, jnp.int32(5)), jnp.arange(3), again)
    x = jnp.ones((3, 50))
    out, pull = jax.vjp(lambda v: dropout(v, 0.3, key, 1), x)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(pull(jnp.ones_like(x))[0]))
    kept = [each for each in jax.tree.leaves(pull) if each.size == x.size]
    assert bool(kept) is not again, "a mask that is computed again is not kept"
    np.testing.assert_array_equal(out, dropout(x, 0.3, dataclasses.replace(key, again=not again), 1))


def test_noise_is_finite_for_all_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest draw does not lift a piece that only pads the vocabulary above one of it."""
    bits_BV = jnp.asarray([[0, 0xFFFFFFFF], [0xFFFFFFFF, 0]], jnp.uint32)
    monkeypatch.setattr(module, "random_bits", lambda *_: bits_BV)
    noise_BV = np.asarray(gumbel(DropoutKey(jnp.uint32(0), jnp.arange(2)), 0, (2, 2)))
    assert np.isfinite(noise_BV).all() and -2.9 < noise_BV.min() < noise_BV.max() < 16.7
    assert (noise_BV + np.array([0.0, -1e9], np.float32)).argmax(axis=-1).tolist() == [0, 0]
