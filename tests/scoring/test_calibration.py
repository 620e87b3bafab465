"""Calibration error against a plain loop over bins, and the curve against made predictions whose curve is known."""

import itertools
import math

import numpy as np
import pytest

from spanjax.scoring.calibration import (
    BINS,
    IDENTITY,
    PARTS,
    beta_curve,
    calibrated,
    calibration_error,
    calibration_scores,
    curve_problems,
    inferred_curve,
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


def odds_of(confidence: np.ndarray, curve: tuple[float, ...]) -> np.ndarray:
    return curve[0] * np.log(confidence) - curve[1] * np.log(1 - confidence) + curve[2]


@pytest.mark.parametrize(
    "curve", [(1.0, 1.0, 0.0), (0.5, 0.5, 0.0), (0.4, 1.5, 1.0), (0.0, 1.2, -0.7), (1.3, 0.0, 2.0)]
)
def test_the_curve_of_made_predictions_is_found(curve: tuple[float, float, float]) -> None:
    """What is right follows the curve: the fit finds it, and removes the error."""
    rng = np.random.default_rng(1)
    confidence = 1 / (1 + np.exp(-rng.normal(0.3, 1.5, 20_000)))
    right = rng.random(20_000) < 1 / (1 + np.exp(-odds_of(confidence, curve)))
    found = beta_curve(confidence, right)
    assert found == pytest.approx(curve, abs=0.2) and min(found[:2]) >= 0

    def loss(one: tuple[float, ...]) -> float:
        return float(np.logaddexp(0, np.where(right, -1, 1) * odds_of(confidence, one)).mean())

    steps = itertools.product((-1e-3, 0, 1e-3), repeat=3)
    near = [tuple(each + step for each, step in zip(found, one, strict=True)) for one in steps]
    assert loss(found) <= min(loss(one) for one in near if min(one[:2]) >= 0) + 1e-7
    scores = calibration_scores(confidence, right, found)
    assert tuple(scores[part] for part in PARTS) == found and scores["calibration_error"] < 1.5
    assert np.allclose(calibrated(confidence, found), 1 / (1 + np.exp(-odds_of(confidence, found))))
    if curve != IDENTITY:
        assert scores["uncalibrated_error"] > 4
    assert inferred_curve(scores, ()) == {"calibration_curve": found} and inferred_curve(scores, found) == {}


def test_no_confidence_overtakes_a_higher_one() -> None:
    """Parameters that would be negative are 0: more confident predictions that are wrong more often get equal values."""
    rng = np.random.default_rng(2)
    confidence = rng.random(500)
    found = beta_curve(confidence, rng.random(500) > confidence)
    assert found[:2] == (0.0, 0.0)
    assert np.all(np.diff(calibrated(np.linspace(0, 1, 50), (0.3, 0.8, -1.0))) >= 0)


def test_extreme_confidences_have_a_finite_curve() -> None:
    for confidence in ([0.1, 0.2, 0.8, 0.9], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]):
        found = beta_curve(confidence, [False, False, True, True])
        assert len(found) == 3 and all(map(math.isfinite, found))
        assert np.all(np.isfinite(calibrated([0.0, 1.0], found)))
    assert calibrated([1.0], beta_curve([1.0] * 4, [False, True, True, True])) == pytest.approx(0.75, abs=1e-3)


def test_no_curve_without_both_kinds() -> None:
    for right in ([True] * 3, [False] * 3):
        assert beta_curve([0.5] * 3, right) == ()
        scores = calibration_scores([0.5] * 3, right, ())
        assert PARTS[0] not in scores and inferred_curve(scores, ()) == {}
    assert calibration_scores([], [], ()) == {"calibration_error": 0.0, "uncalibrated_error": 0.0}
    assert calibrated([0.25, 1.0], ()).tolist() == [0.25, 1.0]
    assert np.allclose(calibrated([0.25, 0.9], IDENTITY), [0.25, 0.9])
    assert curve_problems(IDENTITY) == [] == curve_problems(())
    for bad in ((1.0,), (-1.0, 1.0, 0.0)):
        assert "expected a and b of at least 0, and c; or nothing" in curve_problems(bad)[0]
