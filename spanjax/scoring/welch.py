"""Welch's t-test (1947): do two groups of runs, of any two deviations, differ in their mean?"""

import dataclasses
import math
from collections.abc import Sequence

from spanjax.scoring.checks import counted, raise_problems


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


def student_p(t: float, degrees: float) -> float:
    """P(|T| >= |t|) of Student's distribution with so many degrees of freedom, any positive number."""
    from scipy.special import stdtr

    return 2.0 * float(stdtr(degrees, -abs(t)))


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
