"""Calibration error against a plain loop over bins, and the line against made predictions whose line is known."""

import math

import numpy as np
import pytest

from spanjax.scoring.calibration import (
    BINS,
    OFFSET,
    SLOPE,
    calibrated,
    calibration_error,
    calibration_scores,
    fitted_line,
    inferred_line,
    line_problems,
)

pytestmark = pytest.mark.unit


def test_the_error_is_a_loop_over_bins() -> None:
    rng = np.random.default_rng(0)
    confidence, right = rng.random(500), rng.random(500) < 0.4
    confidence[:4] = 0.0, 1.0, 1 / BINS, 2 / BINS  # the upper edge of a bin belongs to it
    total = 0.0
    for number in range(BINS):
        low, high = number / BINS, (number + 1) / BINS
        inside = [i for i, c in enumerate(confidence) if low < c <= high or (number == 0 and c == 0)]
        if inside:
            gap = abs(np.mean(confidence[inside]) - np.mean(right[inside]))
            total += gap * len(inside) / 500
    assert calibration_error(confidence, right) == pytest.approx(100 * total)
    assert calibration_error([1.0, 1.0, 0.0], [True, True, False]) == 0 == calibration_error([], [])
    assert calibration_error([1.0, 1.0], [False, False]) == 100


@pytest.mark.parametrize(("slope", "offset"), [(0.5, 0.0), (1.0, 0.0), (0.6, 1.5), (2.0, -1.0)])
def test_the_line_of_made_predictions_is_found(slope: float, offset: float) -> None:
    """What is right follows sigmoid(slope * log-odds + offset): the fit finds both, and removes the error."""
    rng = np.random.default_rng(1)
    odds = rng.normal(0.5, 2, 20_000)
    confidence = 1 / (1 + np.exp(-odds))
    right = rng.random(20_000) < 1 / (1 + np.exp(-(slope * odds + offset)))
    found = fitted_line(confidence, right)
    assert found == pytest.approx((slope, offset), abs=0.12)

    def loss(line: tuple[float, ...]) -> float:
        return float(np.logaddexp(0, np.where(right, -1, 1) * (line[0] * odds + line[1])).mean())

    near = [(found[0] + a, found[1] + b) for a in (-1e-3, 0, 1e-3) for b in (-1e-3, 0, 1e-3)]
    assert loss(found) <= min(map(loss, near)) + 1e-9
    scores = calibration_scores(confidence, right, found)
    assert (scores[SLOPE], scores[OFFSET]) == found and scores["calibration_error"] < 1.5
    assert np.allclose(calibrated(confidence, found), 1 / (1 + np.exp(-(found[0] * odds + found[1]))))
    if (slope, offset) != (1.0, 0.0):
        assert scores["uncalibrated_error"] > 4
    assert inferred_line(scores, ()) == {"calibration_line": found} and inferred_line(scores, found) == {}


def test_confidences_that_separate_right_from_wrong_have_a_finite_line() -> None:
    found = fitted_line([0.1, 0.2, 0.8, 0.9], [False, False, True, True])
    assert len(found) == 2 and all(map(math.isfinite, found)) and found[0] > 1
    extreme = calibrated([0.0, 1.0], found)
    assert np.all(np.isfinite(extreme)) and extreme[0] < extreme[1]


def test_no_line_without_both_kinds() -> None:
    for right in ([True] * 3, [False] * 3):
        assert fitted_line([0.5] * 3, right) == ()
        scores = calibration_scores([0.5] * 3, right, ())
        assert SLOPE not in scores and inferred_line(scores, ()) == {}
    assert calibration_scores([], [], ()) == {"calibration_error": 0.0, "uncalibrated_error": 0.0}
    assert calibrated([0.25, 1.0], ()).tolist() == [0.25, 1.0]
    assert line_problems((1.0, 0.0)) == [] == line_problems(())
    assert "expected slope and offset, or nothing" in line_problems((1.0,))[0]
