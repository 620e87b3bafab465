"""Differences of two groups of runs that are paired, by their seed: mean and 95 % interval by Student's t."""

import dataclasses
import math
from collections.abc import Sequence

from spanjax.scoring.checks import counted, raise_problems

LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Paired:
    """Mean of first - second over pairs, and its confidence interval; both ends are NaN for one pair."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        """ "lower" or "higher" if the interval lies on one side of zero, "no difference" if it holds zero, "" without one."""
        if math.isnan(self.low):
            return ""
        return "lower" if self.high < 0 else "higher" if self.low > 0 else "no difference"


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compares two groups of as many finite values; first[i] and second[i] are of one pair."""
    problems = []
    if len(first) != len(second) or not first:
        problems.append(f"{len(first)} and {len(second)} values: expected as many in both groups, at least one")
    infinite = [value for value in (*first, *second) if not math.isfinite(value)]
    raise_problems("The paired difference", problems + counted(infinite, "values are not finite", "expected numbers"))
    differences = [one - other for one, other in zip(first, second, strict=True)]
    count = len(differences)
    mean = math.fsum(differences) / count
    if count == 1:
        return Paired(mean, math.nan, math.nan, 1)
    from scipy.special import stdtrit  # takes a while to import

    variance = math.fsum((value - mean) ** 2 for value in differences) / (count - 1)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * math.sqrt(variance / count)
    return Paired(mean, mean - half, mean + half, count)
