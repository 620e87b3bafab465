"""Calibration of confidences: how far they are from the share of right predictions, and the line that mends them (Platt, 1999).

The line maps the log-odds of a confidence to those of being right. A temperature alone (Guo et al., 2017) is a line through
zero, which cannot mend confidences that are too low at one end and too high at the other: docs/results.md.

Shapes: N predictions.
"""

from collections.abc import Mapping, Sequence

import numpy as np

BINS = 15  # of Guo et al.
SLOPE, OFFSET = "calibration_slope", "calibration_offset"
_LEAST = 1e-6  # of a confidence and of its complement in log-odds
_ROUNDS = 50  # of Newton's method, which needs about ten
_RIDGE = 1e-6  # keeps the line finite where confidences separate right from wrong
Line = tuple[float, ...]
"""(slope, offset); () changes nothing."""


def calibration_error(confidence_N: Sequence[float] | np.ndarray, right_N: Sequence[bool] | np.ndarray) -> float:
    """The expected calibration error in percent: in BINS bins of equal width the difference between mean confidence and share
    of right predictions, weighted by the size of the bin. 0 without predictions."""
    confidence, right = np.asarray(confidence_N, float), np.asarray(right_N, float)
    if not len(confidence):
        return 0.0
    bin_N = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    apart = np.bincount(bin_N, confidence - right, BINS)
    return float(100 * np.abs(apart).sum() / len(confidence))


def calibrated(confidence_N: Sequence[float] | np.ndarray, line: Line) -> np.ndarray:
    """The confidences behind the line, float64 [N]."""
    confidence = np.asarray(confidence_N, np.float64)
    if not line:
        return confidence
    slope, offset = line
    return 1 / (1 + np.exp(-(slope * _log_odds(confidence) + offset)))


def fitted_line(confidence_N: Sequence[float] | np.ndarray, right_N: Sequence[bool] | np.ndarray) -> Line:
    """The line that makes what is right, and what is wrong, most probable; () where all predictions are right, or all wrong."""
    right = np.asarray(right_N, float)
    if not len(right) or right.all() or not right.any():
        return ()
    input_N2 = np.stack([_log_odds(np.asarray(confidence_N, float)), np.ones(len(right))], axis=1)
    line = np.array([1.0, 0.0])
    for _ in range(_ROUNDS):
        share_N = 1 / (1 + np.exp(-np.clip(input_N2 @ line, -30, 30)))
        gradient = input_N2.T @ (share_N - right) / len(right) + _RIDGE * line
        curvature = (input_N2 * (share_N * (1 - share_N))[:, None]).T @ input_N2 / len(right) + _RIDGE * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        # a full step can overshoot where the first line is far off
        line = line - step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
        if np.abs(step).max() < 1e-10:
            break
    return float(line[0]), float(line[1])


def _log_odds(confidence_N: np.ndarray) -> np.ndarray:
    clipped_N = np.clip(confidence_N, _LEAST, 1 - _LEAST)
    return np.log(clipped_N / (1 - clipped_N))


def calibration_scores(
    confidence_N: Sequence[float] | np.ndarray, right_N: Sequence[bool] | np.ndarray, line: Line
) -> dict[str, float]:
    """The errors with the `line` (`calibration_error`) and without it (`uncalibrated_error`), in percent, and slope and offset of
    the line that fits these predictions best, where there is one."""
    fitted = dict(zip((SLOPE, OFFSET), fitted_line(confidence_N, right_N), strict=False))
    return {
        "calibration_error": calibration_error(calibrated(confidence_N, line), right_N),
        "uncalibrated_error": calibration_error(confidence_N, right_N),
        **fitted,
    }


def inferred_line(scores: Mapping[str, float], line: Line) -> dict[str, Line]:
    """The setting `calibration_line` of a task from the scores of its dev examples, where it is not set."""
    return {} if line or SLOPE not in scores else {"calibration_line": (scores[SLOPE], scores[OFFSET])}


def line_problems(line: Line) -> list[str]:
    """Returns the problem of the setting, if any."""
    if len(line) in (0, 2):
        return []
    return [f"objective.calibration_line is {line}: expected slope and offset, or nothing"]
