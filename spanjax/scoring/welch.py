"""Welch's t-test (1947): do two groups of runs, of any two deviations, differ in their mean?"""

import dataclasses
import math
from collections.abc import Sequence

from spanjax.scoring.checks import counted, raise_problems

_TERMS, _CLOSE, _TINY = 10_000, 1e-15, 1e-300


@dataclasses.dataclass(frozen=True)
class Welch:
    """The difference of two means, Student's t of it with Welch-Satterthwaite degrees of freedom, and the two-sided p-value.

    t, degrees and p are NaN where neither group varies: the deviation is unknown then.
    """

    difference: float
    """Mean of the first group minus that of the second."""
    t: float
    degrees: float
    p: float


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function (Lentz's method); it converges fast for x < (a+1)/(a+b+2)."""
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0))
    found = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away(1.0 + term * d)
            c = _away(1.0 + term / c)
            found *= c * d
        if abs(c * d - 1.0) < _CLOSE:
            return found
    return found


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), 0 <= x <= 1, a and b > 0."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(log_front)
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def student_p(t: float, degrees: float) -> float:
    """P(|T| >= |t|) of Student's distribution with so many degrees of freedom, any positive number."""
    return incomplete_beta(degrees / (degrees + t * t), degrees / 2.0, 0.5)


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the square of its standard error."""
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def welch(first: Sequence[float], second: Sequence[float]) -> Welch:
    """The test between two groups of at least two finite values each."""
    problems = []
    for which, values in (("first", first), ("second", second)):
        if len(values) < 2:
            problems.append(f"{len(values)} values in the {which} group: expected at least 2")
        infinite = [value for value in values if not math.isfinite(value)]
        problems += counted(infinite, f"values of the {which} group are not finite", "expected numbers")
    raise_problems("Welch's test", problems)
    (mean_1, square_1), (mean_2, square_2) = _moments(first), _moments(second)
    difference, square = mean_1 - mean_2, square_1 + square_2
    if square == 0.0:
        return Welch(difference, math.nan, math.nan, math.nan)
    t = difference / math.sqrt(square)
    share_1, share_2 = square_1 / square, square_2 / square
    degrees = 1.0 / (share_1**2 / (len(first) - 1) + share_2**2 / (len(second) - 1))
    return Welch(difference, t, degrees, student_p(t, degrees))
