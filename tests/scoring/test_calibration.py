"""Calibration error against a plain loop over bins, and the temperature against a search over a fine grid."""

import math

import numpy as np
import pytest

from spanjax.scoring.calibration import BINS, calibration_error, calibration_scores, fitted_temperature

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


@pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
def test_the_temperature_of_made_predictions_is_found(true: float) -> None:
    """What is right follows sigmoid(score / true): the fit finds `true`, and removes the error."""
    rng = np.random.default_rng(1)
    score = rng.normal(0.5, 3, 20_000)
    right = rng.random(20_000) < 1 / (1 + np.exp(-score / true))

    def confidences(temperature: float) -> np.ndarray:
        return 1 / (1 + np.exp(-score / temperature))

    found = fitted_temperature(confidences, right)
    assert found is not None and found == pytest.approx(true, rel=0.05)

    def loss(temperature: float) -> float:
        return float(np.logaddexp(0, np.where(right, -score, score) / temperature).mean())

    grid = np.exp(np.linspace(-1.5, 1.5, 2001))
    assert loss(found) <= min(map(loss, grid)) + 1e-9
    scores = calibration_scores(confidences, right, found)
    assert scores["temperature"] == found and scores["calibration_error"] < 1.5
    if not math.isclose(true, 1.0):
        assert scores["uncalibrated_error"] > 4


def test_no_temperature_without_both_kinds() -> None:
    def confidences(temperature: float) -> np.ndarray:
        return np.full(3, 0.5)

    for right in ([True] * 3, [False] * 3):
        assert fitted_temperature(confidences, right) is None
        assert "temperature" not in calibration_scores(confidences, right, 1.0)
    assert calibration_scores(lambda _: np.zeros(0), [], 1.0) == {"calibration_error": 0.0, "uncalibrated_error": 0.0}
