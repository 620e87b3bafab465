"""Dropout masks next to independent draws: rate, pairs at every power of two along every axis, rows, steps, sites, rectangles."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.nn.dropout import DropoutKey, column_draws, dropout, hash32, line_draws, step_key, threshold

RATE = 0.1
SIGMAS = 5


def dropped(
    rows: int,
    shape: tuple[int, ...],
    step: int = 0,
    site: int = 0,
    first: int = 0,
    strides: tuple[int, ...] = (),
    rate: float = RATE,
) -> np.ndarray:
    """Draws of mean 0 and variance 1, [rows, *shape], float32."""
    key = DropoutKey(step_key(11, jnp.int32(step)), first + jnp.arange(rows))
    kept = dropout(jnp.ones((rows, *shape), jnp.bfloat16), rate, key, site, strides=strides)
    return standard(np.asarray(kept) == 0, rate)


def standard(drops: np.ndarray, rate: float = RATE) -> np.ndarray:
    return (drops.astype(np.float32) - np.float32(rate)) / np.float32(np.sqrt(rate * (1 - rate)))


def score(products: np.ndarray) -> float:
    """Standard deviations between the mean of products of independent draws and zero."""
    return float(products.mean(dtype=np.float64) * np.sqrt(products.size))


def shifted(draws: np.ndarray, axis: int, distance: int) -> np.ndarray:
    """Products of draws so far apart along an axis."""
    size = draws.shape[axis]
    return draws.take(range(distance, size), axis) * draws.take(range(size - distance), axis)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.1, 0.15, 0.5])
def test_rate(rate: float) -> None:
    """Of 100 million draws."""
    scores = [score(dropped(16, (512, 768), step=step, rate=rate)) for step in range(16)]
    assert abs(sum(scores)) / np.sqrt(len(scores)) < SIGMAS
    assert np.abs(scores).max() < SIGMAS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "strides"),
    [((512, 768), ()), ((8, 256, 256), (1 << 16, 1)), ((4096,), ())],
    ids=["hidden", "scores", "rows"],
)
def test_no_correlation_at_any_power_of_two(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Along every axis, in 50 million draws or, of single vectors, half a million; axis 0 are the rows of the batch."""
    sums = dict[tuple[int, int], list[float]]()
    for step in range(8):
        draws = dropped(16, shape, step=step, strides=strides)
        for axis, size in enumerate(draws.shape):
            for distance in (1 << power for power in range((size - 1).bit_length())):
                sums.setdefault((axis, distance), []).append(score(shifted(draws, axis, distance)))
    found = {place: sum(each) / np.sqrt(len(each)) for place, each in sums.items()}
    assert max(map(abs, found.values())) < SIGMAS, found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step", "site", "first"])
def test_no_correlation_of_steps_sites_and_rows(name: Literal["step", "site", "first"]) -> None:
    """Neighbours and all powers of two from each other."""
    base, found = dropped(8, (256, 768)), {}
    for power in range(16):
        if name != "first" or 1 << power >= 8:  # the rows of one batch have the test above
            other = {"step": 0, "site": 0, "first": 0} | {name: 1 << power}
            draws = dropped(8, (256, 768), step=other["step"], site=other["site"], first=other["first"])
            found[1 << power] = score(base * draws)
    assert max(map(abs, found.values())) < SIGMAS, found


def excess(drops: np.ndarray) -> float:
    """Mean square of the correlations of all pairs of lines, less that of independent draws, 1: the mean product over the corners
    of rectangles, (i, k), (i, l), (j, k), (j, l)."""
    draws = standard(drops)
    size = len(draws)
    squares = (draws @ draws.T / np.sqrt(draws.shape[1])) ** 2
    return float((squares.sum(dtype=np.float64) - np.trace(squares)) / (size * (size - 1)) - 1)


def rectangles(drops_of: Callable[[int], np.ndarray], masks: int = 12) -> float:
    """The same of several masks, in standard deviations of truly random masks."""
    generator = np.random.default_rng(5)
    size = drops_of(0).shape
    truth = [excess(generator.random(size, np.float32) < RATE) for _ in range(2 * masks)]
    return float(np.mean([excess(drops_of(number)) for number in range(masks)]) / np.std(truth) * np.sqrt(masks))


def weaker(step: int) -> np.ndarray:
    """A mask whose lines and columns meet in a sum, a xor-shift and a multiplication: one hash a line, no factor of its own."""
    line = hash32(np.arange(1024, dtype=np.uint32) ^ np.uint32(step * 0x9E3779B9 & 0xFFFFFFFF))
    mixed = line[:, None] ^ column_draws(np.arange(1024, dtype=np.uint32))[None]
    return mixed * np.uint32(0x21F0AAAD) < np.uint32(threshold(RATE))


@pytest.mark.slow
def test_rectangles_are_those_of_independent_draws() -> None:
    """Lines and columns of a mask share hashes, so these products are where a cheap draw would show; a weaker one does."""
    assert abs(rectangles(lambda step: dropped(1, (1024, 1024), step=step)[0] > 0)) < SIGMAS
    assert abs(rectangles(lambda step: dropped(1, (1024, 1024), step=step)[0].T > 0)) < SIGMAS
    assert rectangles(weaker) > 2 * SIGMAS


@pytest.mark.slow
def test_pairs_of_columns_are_independent_in_the_long_run() -> None:
    """The constants of columns are those of every line, row, site and step: no two columns may agree or differ more often."""
    total = np.zeros((768, 768))
    lines = 0
    for step in range(12):
        draws = dropped(8, (512, 768), step=step).reshape(-1, 768)
        total += draws.T @ draws
        lines += len(draws)
    scores = (total / np.sqrt(lines))[np.triu_indices(768, 1)]
    # of 294,528 scores the largest of independent ones is 4.6 on average
    assert np.abs(scores).max() < 6.5
    assert abs((scores**2).mean() - 1) < SIGMAS * np.sqrt(2 / scores.size)


def test_lines_of_one_key_have_their_own_draws() -> None:
    """Of 65,536 lines no two share offset and factor."""
    offset, factor = jax.jit(line_draws)(jnp.uint32(77), jnp.arange(1 << 16, dtype=jnp.uint32))
    both = np.asarray(offset).astype(np.uint64) << np.uint64(32) | np.asarray(factor)
    assert len(np.unique(both)) == 1 << 16
    assert (np.asarray(factor) % 2 == 1).all()
