"""Calibration of confidences: how far they are from the share of right predictions, and the temperature that mends it (Guo et
al., 2017).

Shapes: N predictions.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

BINS = 15  # of Guo et al.
LARGEST = 20.0  # temperatures are searched from 1 / LARGEST to LARGEST
_STEPS = 40  # of the golden section: the bracket shrinks to 1e-8 of its size
_LEAST = 1e-12  # probability of a prediction in a logarithm


def calibration_error(confidence_N: Sequence[float] | np.ndarray, right_N: Sequence[bool] | np.ndarray) -> float:
    """The expected calibration error in percent: in BINS bins of equal width the difference between mean confidence and share
    of right predictions, weighted by the size of the bin. 0 without predictions."""
    confidence, right = np.asarray(confidence_N, float), np.asarray(right_N, float)
    if not len(confidence):
        return 0.0
    bin_N = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    apart = np.bincount(bin_N, confidence - right, BINS)
    return float(100 * np.abs(apart).sum() / len(confidence))


def fitted_temperature(
    confidence_of: Callable[[float], np.ndarray], right_N: Sequence[bool] | np.ndarray
) -> float | None:
    """The temperature at which the confidences `confidence_of(temperature)` make what is right, and what is wrong, most
    probable. None where all predictions are right, or all wrong: no temperature is the best then."""
    right = np.asarray(right_N, bool)
    if not len(right) or right.all() or not right.any():
        return None

    def loss(log_temperature: float) -> float:
        confidence = np.clip(confidence_of(math.exp(log_temperature)), _LEAST, 1 - _LEAST)
        return -float(np.log(np.where(right, confidence, 1 - confidence)).sum())

    # the loss need not be convex in the temperature: a grid finds the valley, a golden section its bottom
    grid = np.linspace(-math.log(LARGEST), math.log(LARGEST), 61)
    lowest = int(np.argmin([loss(each) for each in grid]))
    low, high = float(grid[max(lowest - 1, 0)]), float(grid[min(lowest + 1, len(grid) - 1)])
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(_STEPS):
        one, other = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, other) if loss(one) < loss(other) else (one, high)
    return math.exp((low + high) / 2)


def calibration_scores(
    confidence_of: Callable[[float], np.ndarray], right_N: Sequence[bool] | np.ndarray, temperature: float
) -> dict[str, float]:
    """The errors with `temperature` (`calibration_error`) and without one (`uncalibrated_error`), in percent, and the
    `temperature` that fits these predictions best, where there is one."""
    fitted = fitted_temperature(confidence_of, right_N)
    return {
        "calibration_error": calibration_error(confidence_of(temperature), right_N),
        "uncalibrated_error": calibration_error(confidence_of(1.0), right_N),
        **({} if fitted is None else {"temperature": fitted}),
    }
