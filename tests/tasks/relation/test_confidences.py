"""Confidences of relations against a plain loop; the curve of the dev examples is inferred and used."""

import dataclasses

import numpy as np
import pytest

from spanjax.scoring.calibration import calibration_error
from spanjax.tasks.relation import Relation
from spanjax.tasks.relation.files import Mentions
from tests.made import tiny_encoder

pytestmark = pytest.mark.unit
LABELS = ("no_relation", "per:lives", "org:in")
TASK = Relation(labels=LABELS)


def example(label: str) -> Mentions:
    return Mentions("x", ("Anna", "lives", "in", "Bonn"), ((0, 1), (3, 4)), ("PERSON", "CITY"), label)


def test_the_confidence_of_a_relation_is_its_probability_behind_the_curve() -> None:
    rng = np.random.default_rng(0)
    outputs = [{"logits_BC": rng.normal(0, 3, 3).astype(np.float32)} for _ in range(400)]
    predictions = TASK.predictions([example("per:lives")] * len(outputs), [], outputs)
    expected = []
    for output, label in zip(outputs, predictions, strict=True):
        share_C = np.exp(output["logits_BC"].astype(np.float64))
        expected.append(share_C[LABELS.index(label)] / share_C.sum())
        found = TASK.prediction_json(example("per:lives"), label, [output])
        assert found["prediction"] == label and found["confidence"] == pytest.approx(expected[-1], abs=1e-6)
        assert found["confidence"] == found["probabilities"][label]

    # right half as often as the model believes, also among those for no relation and labels that it does not know
    gold = [
        example(label if rng.random() < chance / 2 else "org:founded")
        for label, chance in zip(predictions, expected, strict=True)
    ]
    scores = TASK.calibration(gold, [], predictions, outputs)
    right = [one.label == label for one, label in zip(gold, predictions, strict=True)]
    assert (
        scores["uncalibrated_error"] == pytest.approx(calibration_error(expected, right)) and len({*predictions}) == 3
    )
    curved = dataclasses.replace(TASK, **TASK.inferred_settings(scores))
    assert curved.calibration_curve == tuple(scores[f"calibration_{part}"] for part in "abc")
    assert curved.calibration(gold, [], predictions, outputs)["calibration_error"] < scores["uncalibrated_error"] / 4
    found = curved.prediction_json(gold[0], predictions[0], outputs[:1])
    assert found["confidence"] < 0.7 * found["probabilities"][predictions[0]]
    assert curved.inferred_settings(scores) == {} == TASK.inferred_settings({})


def test_a_curve_that_cannot_be() -> None:
    task = dataclasses.replace(TASK, calibration_curve=(1.0, -1.0, 0.0))
    assert any("objective.calibration_curve is (1.0, -1.0, 0.0)" in one for one in task.problems(tiny_encoder()))
