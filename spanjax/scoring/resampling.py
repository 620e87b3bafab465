"""Intervals of scores by the bootstrap (Efron, 1979), and differences of two systems tested by paired permutation.

A unit is what was predicted on its own: a question, a sentence, a document. The bootstrap draws as many units as there are,
with replacement; the permutation test (Noreen, 1989) exchanges the predictions of a unit between both systems with a chance of
one half. Both compute the whole score of every sample: no score is taken for a mean over units that is none.

Shapes: N units, S sums, R samples.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from spanjax.scoring.checks import raise_problems
from spanjax.scoring.paired import LEVEL

AT_A_TIME = 100  # samples; bounds the memory of a hundred thousand units to 80 MB
NEAR = 1e-9  # differences that are equal but for rounding, in percent
Figures = Mapping[str, np.ndarray]
"""Score -> its value in each of R samples, in percent."""


class Units(abc.ABC):
    """The predictions of a system by unit."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """Number of units."""

    @abc.abstractmethod
    def sampled(self, index_RN: np.ndarray) -> Figures:
        """Scores of the samples that hold these units."""

    @abc.abstractmethod
    def exchanged(self, other: "Units", taken_RN: np.ndarray) -> tuple[Figures, Figures]:
        """Scores of this system and of `other`, of the same kind, after an exchange of the taken units."""

    @property
    def scores(self) -> dict[str, float]:
        """Scores of all units, each once."""
        return {name: float(value_R[0]) for name, value_R in self.sampled(np.arange(self.count)[None]).items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Summed(Units):
    """Units whose scores are functions of sums over them: counts, or values to be averaged."""

    sums_NS: np.ndarray
    """float64."""
    figures: Callable[[np.ndarray], Figures]
    """Scores of sums, [R, S]."""

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.sums_NS)

    def sampled(self, index_RN: np.ndarray) -> Figures:
        """Implements `Units.sampled`."""
        times_RN = np.stack([np.bincount(index_N, minlength=self.count) for index_N in index_RN])
        return self.figures(times_RN.astype(np.float64) @ self.sums_NS)

    def exchanged(self, other: Units, taken_RN: np.ndarray) -> tuple[Figures, Figures]:
        """Implements `Units.exchanged`."""
        assert isinstance(other, Summed)
        moved_RS = taken_RN.astype(np.float64) @ (other.sums_NS - self.sums_NS)
        own_S, other_S = self.sums_NS.sum(axis=0), other.sums_NS.sum(axis=0)
        return self.figures(own_S + moved_RS), self.figures(other_S - moved_RS)


@dataclasses.dataclass(frozen=True, eq=False)
class Ranked(Units):
    """Units with a gold and a predicted number, scored by correlations, which are no functions of sums."""

    gold_N: np.ndarray
    predicted_N: np.ndarray

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.gold_N)

    def sampled(self, index_RN: np.ndarray) -> Figures:
        """Implements `Units.sampled`."""
        return _correlations((self.gold_N[index_N], self.predicted_N[index_N]) for index_N in index_RN)

    def exchanged(self, other: Units, taken_RN: np.ndarray) -> tuple[Figures, Figures]:
        """Implements `Units.exchanged`."""
        assert isinstance(other, Ranked)
        mine_N, others_N = self.predicted_N, other.predicted_N
        return (
            _correlations((self.gold_N, np.where(taken_N, others_N, mine_N)) for taken_N in taken_RN),
            _correlations((self.gold_N, np.where(taken_N, mine_N, others_N)) for taken_N in taken_RN),
        )


def _correlations(pairs: Iterator[tuple[np.ndarray, np.ndarray]]) -> Figures:
    from scipy.stats import rankdata  # takes a while to import

    found: list[tuple[float, float]] = []
    for gold_N, predicted_N in pairs:
        if np.ptp(gold_N) == 0 or np.ptp(predicted_N) == 0:  # a sample can have one value alone
            found.append((np.nan, np.nan))
            continue
        ranks = rankdata(gold_N), rankdata(predicted_N)
        found.append((100 * float(np.corrcoef(gold_N, predicted_N)[0, 1]), 100 * float(np.corrcoef(*ranks)[0, 1])))
    table_R2 = np.array(found)
    return {"pearson": table_R2[:, 0], "spearman": table_R2[:, 1]}


@dataclasses.dataclass(frozen=True)
class Interval:
    """95 % interval of a score, by percentiles of the samples; NaN where it is undefined in all."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Difference:
    """First minus second system; its bootstrap interval over the same units, and the p-value of the permutation test."""

    difference: float
    low: float
    high: float
    p: float


def _parts(samples: int) -> Iterator[int]:
    for first in range(0, samples, AT_A_TIME):
        yield min(AT_A_TIME, samples - first)


def _joined(parts: list[Figures]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _interval(value_R: np.ndarray) -> Interval:
    known_R = value_R[np.isfinite(value_R)]
    if not len(known_R):
        return Interval(np.nan, np.nan)
    low, high = np.percentile(known_R, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Interval(float(low), float(high))


def intervals(units: Units, samples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Returns the bootstrap interval of every score. ValueError without units."""
    raise_problems("intervals", [] if units.count else ["there is no unit: expected one at least"])
    rng = np.random.default_rng(seed)
    found = [units.sampled(rng.integers(units.count, size=(part, units.count))) for part in _parts(samples)]
    return {name: _interval(value_R) for name, value_R in _joined(found).items()}


def differences(
    first: Units, second: Units, samples: int = 1000, permutations: int = 10_000, seed: int = 0
) -> dict[str, Difference]:
    """Compares two systems on the same units, in the same order.

    The p-value is two-sided, and counts the observed exchange as one of the permutations, so it is never 0.
    """
    counts = first.count, second.count
    problem = f"{counts[0]} and {counts[1]} units: expected the same ones, one at least"
    raise_problems("the comparison", [problem] if counts[0] != counts[1] or not counts[0] else [])
    rng, size = np.random.default_rng(seed), first.count
    resampled: list[Figures] = []
    for part in _parts(samples):
        index_RN = rng.integers(size, size=(part, size))
        one, other = first.sampled(index_RN), second.sampled(index_RN)
        resampled.append({name: one[name] - other[name] for name in one})
    exchanged: list[Figures] = []
    for part in _parts(permutations):
        one, other = first.exchanged(second, rng.random((part, size)) < 0.5)
        exchanged.append({name: one[name] - other[name] for name in one})
    observed = {name: first.scores[name] - second.scores[name] for name in first.scores}
    spread, null = _joined(resampled), _joined(exchanged)
    found = {}
    for name, value in observed.items():
        interval = _interval(spread[name])
        # a permutation with an undefined score is no evidence against equality
        as_far = ~(np.abs(null[name]) < abs(value) - NEAR)
        p = (1 + int(as_far.sum())) / (1 + permutations)
        found[name] = Difference(value, interval.low, interval.high, p)
    return found
