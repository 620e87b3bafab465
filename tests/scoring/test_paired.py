"""Paired differences, against scipy's own test and by hand."""

import math

import numpy as np
import pytest
import scipy.stats

from spanjax.scoring.paired import Paired, paired

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("pairs", [2, 3, 10])
def test_the_interval_is_that_of_scipy(pairs: int) -> None:
    generator = np.random.default_rng(pairs)
    first, second = generator.normal(size=(2, pairs)).tolist()
    found = paired(first, second)
    expected = scipy.stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert found.mean == pytest.approx(np.mean(first) - np.mean(second)) and found.pairs == pairs


def test_three_seeds_by_hand() -> None:
    """Differences -1, -2, -3: deviation 1, t of two degrees 4.3027, half 4.3027 / sqrt(3)."""
    found = paired([1.0, 1.0, 1.0], [2.0, 3.0, 4.0])
    assert found.mean == -2 and found.high - found.mean == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert found.verdict == "no difference"


@pytest.mark.parametrize(
    ("first", "verdict"),
    [([1.0, 1.1, 1.2], "lower"), ([3.0, 3.1, 3.2], "higher"), ([2.1, 2.0, 2.3], "no difference"), ([1.0], "")],
)
def test_the_verdict_follows_from_the_interval(first: list[float], verdict: str) -> None:
    assert paired(first, [2.0, 2.1, 2.2][: len(first)]).verdict == verdict


def test_one_pair_has_no_interval_and_equal_differences_have_a_narrow_one() -> None:
    assert math.isnan(paired([1.0], [2.0]).low) and paired([1.0], [2.0]).mean == -1
    assert paired([1.0, 2.0], [2.0, 3.0]) == Paired(-1.0, -1.0, -1.0, 2)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 1 values"):
        paired([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="not finite: nan"):
        paired([math.nan], [1.0])
