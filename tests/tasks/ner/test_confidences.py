"""Confidences of the tagger's entities against a plain loop; the curve of the dev examples is inferred and used."""

import dataclasses

import numpy as np
import pytest

from spanjax.scoring.calibration import calibration_error
from spanjax.scoring.entities import spans
from spanjax.tasks.ner import Ner, by_example
from spanjax.tasks.ner.files import Tagged
from tests.tasks.small_vocabulary import small_wordpiece

pytestmark = pytest.mark.unit
TASK = Ner(labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), length=8)
WORDS = ("abc", "Anna", "ab-c", "a", "\u200b", "b")  # several windows, and a word without pieces


def test_confidences_are_products_over_words(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, rng = small_wordpiece(), np.random.default_rng(0)
    examples = [Tagged(WORDS, None), Tagged(WORDS[:3], None), Tagged(("a",), None)]
    rows = list(TASK.rows(examples, vocabulary))
    assert len(rows) > 3
    outputs = [
        {"logits_BLC": rng.normal(0, 3, (len(row.tokens_T), 5)), "word_BL": row.fields["word_BL"]} for row in rows
    ]
    predictions = TASK.predictions(examples, rows, outputs)
    grouped = by_example(len(examples), rows, outputs)
    of_word = {
        (row.example, int(word) - 1): output["logits_BLC"][place]
        for row, output in zip(rows, outputs, strict=True)
        for place, word in enumerate(row.fields["word_BL"])
        if word
    }
    total = []
    for number, (example, tags) in enumerate(zip(examples, predictions, strict=True)):
        found = TASK.prediction_json(example, tags, grouped[number])["prediction"]
        for entity, (kind, first, last) in zip(found, spans(tags), strict=True):
            expected = 1.0
            for word in range(first, last):
                share = np.exp(of_word[number, word])
                expected *= share[TASK.labels.index(tags[word])] / share.sum()
            assert entity["type"] == kind and entity["confidence"] == pytest.approx(expected, abs=1e-6)
            total.append(expected)
    assert len(total) > 3
    flat = dataclasses.replace(TASK, calibration_curve=(0.0, 0.0, 1.0))
    assert {
        each["confidence"] for each in flat.prediction_json(examples[0], predictions[0], grouped[0])["prediction"]
    } == {round(1 / (1 + np.exp(-1)), 6)}

    nothing = [Tagged(each.words, ("O",) * len(each.words)) for each in examples[1:]]
    gold = [Tagged(examples[0].words, predictions[0]), *nothing]
    assert TASK.inferred_settings(TASK.calibration(gold, rows, predictions, outputs)) == {}, "too few for a curve"
    monkeypatch.setattr("spanjax.scoring.calibration.FEWEST", len(total))
    scores = TASK.calibration(gold, rows, predictions, outputs)
    right = [number == 0 for number, tags in enumerate(predictions) for _ in spans(tags)]
    assert scores["uncalibrated_error"] == pytest.approx(calibration_error(total, right))
    inferred = TASK.inferred_settings(scores)
    assert inferred == {"calibration_curve": tuple(scores[f"calibration_{part}"] for part in "abc")}
    assert dataclasses.replace(TASK, **inferred).inferred_settings(scores) == {} == TASK.inferred_settings({})
    assert TASK.calibration(gold[2:], [], [("O",)], []) == {"calibration_error": 0.0, "uncalibrated_error": 0.0}
