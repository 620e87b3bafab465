"""Confidences of the tagger's entities against a plain loop; the temperature of the dev examples is inferred and used."""

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


def test_confidences_are_products_over_words() -> None:
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
    for temperature in (0.0, 2.5):
        task = dataclasses.replace(TASK, temperature=temperature)
        for number, (example, tags) in enumerate(zip(examples, predictions, strict=True)):
            found = task.prediction_json(example, tags, grouped[number])["prediction"]
            for entity, (kind, first, last) in zip(found, spans(tags), strict=True):
                expected = 1.0
                for word in range(first, last):
                    scaled = np.exp(of_word[number, word] / (temperature or 1.0))
                    expected *= scaled[TASK.labels.index(tags[word])] / scaled.sum()
                assert entity["type"] == kind and entity["confidence"] == pytest.approx(expected, abs=1e-6)
                total += [expected] * (not temperature)
    assert len(total) > 3

    gold = [
        Tagged(examples[0].words, predictions[0]),
        *(Tagged(each.words, ("O",) * len(each.words)) for each in examples[1:]),
    ]
    scores = TASK.calibration(gold, rows, predictions, outputs)
    right = [number == 0 for number, tags in enumerate(predictions) for _ in spans(tags)]
    assert scores["uncalibrated_error"] == pytest.approx(calibration_error(total, right))
    assert TASK.inferred_settings(scores) == {"temperature": scores["temperature"]}
    assert dataclasses.replace(TASK, temperature=2.0).inferred_settings(scores) == {} == TASK.inferred_settings({})
    assert TASK.calibration(gold[2:], [], [("O",)], []) == {"calibration_error": 0.0, "uncalibrated_error": 0.0}
