"""Calibration of confidences: how far they are from the share of right predictions, and the curve that mends them: beta
calibration (Kull et al., 2017), sigmoid(a log p - b log(1 - p) + c).

A temperature (Guo et al., 2017) and the line of Platt (1999) have a = b. They cannot mend confidences that are right at the
upper end and too low at the other, as products over words are: docs/results.md.

Shapes: N predictions, P parameters that are fitted.
"""

from collections.abc import Mapping, Sequence

import numpy as np

BINS = 15  # of Guo et al.
PARTS = tuple(f"calibration_{part}" for part in "abc")
"""Names of the curve's parameters among the scores."""
FEWEST = 100
"""Predictions from which a curve is fitted: three parameters of fewer would follow their chance."""
IDENTITY = (1.0, 1.0, 0.0)
_LEAST = 1e-6  # of a confidence and of its complement in a logarithm
_ROUNDS = 100  # of Newton's method, which needs about ten
_RIDGE = 1e-6  # keeps the curve finite where confidences separate right from wrong
Curve = tuple[float, ...]
"""(a, b, c) with a and b of at least 0, so that no confidence overtakes a higher one; () changes nothing."""


def calibration_error(confidence_N: Sequence[float] | np.ndarray, right_N: Sequence[bool] | np.ndarray) -> float:
    """The expected calibration error in percent: in BINS bins of equal width the difference between mean confidence and share
    of right predictions, weighted by the size of the bin. 0 without predictions."""
    confidence, right = np.asarray(confidence_N, float), np.asarray(right_N, float)
    if not len(confidence):
        return 0.0
    bin_N = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    apart = np.bincount(bin_N, confidence - right, BINS)
    return float(100 * np.abs(apart).sum() / len(confidence))


def calibrated(confidence_N: Sequence[float] | np.ndarray, curve: Curve) -> np.ndarray:
    """The confidences behind the curve, float64 [N]."""
    confidence = np.asarray(confidence_N, np.float64)
    return _share(_logarithms(confidence) @ np.array(curve)) if curve else confidence


def beta_curve(confidence_N: Sequence[float] | np.ndarray, right_N: Sequence[bool] | np.ndarray) -> Curve:
    """The curve that makes what is right, and what is wrong, most probable; () where all predictions are right, or all wrong."""
    right = np.asarray(right_N, float)
    if not len(right) or right.all() or not right.any():
        return ()
    input_N3 = _logarithms(np.asarray(confidence_N, np.float64))
    free = [0, 1, 2]
    # as published: a parameter whose best value is negative is 0, and the others are found without it
    while True:
        curve = np.zeros(3)
        curve[free] = _most_probable(input_N3[:, free], right, np.array(IDENTITY)[free])
        negative = [place for place in free if place < 2 and curve[place] < 0]
        if not negative:
            return tuple(curve.tolist())
        free.remove(min(negative, key=lambda place: curve[place]))


def _most_probable(input_NP: np.ndarray, right_N: np.ndarray, start_P: np.ndarray) -> np.ndarray:
    """The parameters of a logistic regression by Newton's method."""

    def loss(found_P: np.ndarray) -> float:
        signed_N = np.where(right_N > 0, -1, 1) * (input_NP @ found_P)
        return float(np.logaddexp(0, signed_N).mean() + _RIDGE / 2 * found_P @ found_P)

    found_P = start_P.astype(np.float64)
    for _ in range(_ROUNDS):
        share_N = _share(input_NP @ found_P)
        gradient_P = input_NP.T @ (share_N - right_N) / len(right_N) + _RIDGE * found_P
        weighted_NP = input_NP * (share_N * (1 - share_N))[:, None]
        step_P = np.linalg.solve(weighted_NP.T @ input_NP / len(right_N) + _RIDGE * np.eye(len(found_P)), gradient_P)
        # where shares are near 0 or 1 a whole step leads too far
        size, before = 1.0, loss(found_P)
        while size > 1e-12 and loss(found_P - size * step_P) > before:
            size /= 2
        found_P = found_P - size * step_P
        if np.abs(size * step_P).max() < 1e-10:
            break
    return found_P


def _logarithms(confidence_N: np.ndarray) -> np.ndarray:
    """float64 [N, 3]: log p, -log(1 - p), 1."""
    clipped_N = np.clip(confidence_N, _LEAST, 1 - _LEAST)
    return np.stack([np.log(clipped_N), -np.log1p(-clipped_N), np.ones(len(clipped_N))], axis=1)


def _share(odds_N: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(odds_N, -500, 500)))


def calibration_scores(
    confidence_N: Sequence[float] | np.ndarray, right_N: Sequence[bool] | np.ndarray, curve: Curve
) -> dict[str, float]:
    """The errors with the `curve` (`calibration_error`) and without it (`uncalibrated_error`), in percent, and the parameters of
    the curve that fits these predictions best, where there is one and they are enough."""
    best = beta_curve(confidence_N, right_N) if len(confidence_N) >= FEWEST else ()
    return {
        "calibration_error": calibration_error(calibrated(confidence_N, curve), right_N),
        "uncalibrated_error": calibration_error(confidence_N, right_N),
        **dict(zip(PARTS, best, strict=False)),
    }


def inferred_curve(scores: Mapping[str, float], curve: Curve) -> dict[str, Curve]:
    """The setting `calibration_curve` of a task from the scores of its dev examples, where it is not set."""
    return {} if curve or PARTS[0] not in scores else {"calibration_curve": tuple(scores[part] for part in PARTS)}


def curve_problems(curve: Curve) -> list[str]:
    """Returns the problem of the setting, if any."""
    if not curve or (len(curve) == 3 and min(curve[:2]) >= 0):
        return []
    return [f"objective.calibration_curve is {curve}: expected a and b of at least 0, and c; or nothing"]
