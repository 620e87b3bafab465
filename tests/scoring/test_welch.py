"""Welch's test against its definition: closed forms of Student's distribution, integration, and scipy where it is."""

import math

import numpy as np
import pytest

from spanjax.scoring.welch import student_p, welch


def test_one_and_two_degrees_have_closed_forms() -> None:
    for t in (0.1, 0.7, 1.0, 3.0, 40.0):
        assert student_p(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-12)
        assert student_p(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-10)


def test_p_is_the_area_under_the_density() -> None:
    t, degrees = 1.3, 4.7
    x = np.linspace(-t, t, 200_001)
    front = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    area = np.trapezoid(front * (1 + x * x / degrees) ** (-(degrees + 1) / 2), x)
    assert student_p(t, degrees) == pytest.approx(1 - area, abs=1e-9)


def test_by_hand() -> None:
    found = welch([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])  # variances 1 and 4: t = -2 / sqrt(5/3), degrees (5/3)^2 / (17/18)
    assert found.difference == -2.0
    assert found.t == pytest.approx(-2 / math.sqrt(5 / 3))
    assert found.degrees == pytest.approx(50 / 17)
    assert found.p == pytest.approx(0.2208808405, abs=1e-9)  # scipy 1.17.1, ttest_ind(equal_var=False)


def test_as_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(7)
    for _ in range(200):
        first = random.normal(80, random.uniform(0.01, 5), random.integers(2, 20)).tolist()
        second = random.normal(81, random.uniform(0.01, 5), random.integers(2, 20)).tolist()
        expected = stats.ttest_ind(first, second, equal_var=False)
        found = welch(first, second)
        assert (found.t, found.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)
        assert found.degrees == pytest.approx(expected.df)


def test_without_deviation_nothing_is_known() -> None:
    found = welch([1.0, 1.0], [2.0, 2.0, 2.0])
    assert found.difference == -1.0
    assert math.isnan(found.t) and math.isnan(found.p)


def test_wrong_input_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="1 values in the first group") as error:
        welch([1.0], [math.nan, 2.0])
    assert "1 values of the second group are not finite: nan" in str(error.value)
