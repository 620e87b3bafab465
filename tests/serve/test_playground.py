"""Answers for the page: every kind of model, by the same code as `spanjax predict`."""

import json
from typing import Any

import numpy as np
import pytest

from spanjax.inference.fill_mask import Filler, span_json
from spanjax.serve.playground import Playground
from spanjax.tasks.glue import Glue
from tests.serve.playgrounds import KINDS, NAME, example, made_model, made_playground


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_record_is_answered(kind: str) -> None:
    playground = made_playground(kind)
    settings, record = playground.settings, example(playground)
    assert settings["kind"] == kind and settings["name"] == NAME and "2 layers of 16" in settings["about"]
    answer = playground.answer(record)
    json.dumps(answer, allow_nan=False)
    if kind == "fill":
        assert (
            answer["spans"][0]["fills"].keys() == {"mlm", "sbo", "both"} and answer["spans"][0]["truth"] == "old sailor"
        )
    elif kind in ("classify", "relation"):
        assert set(answer["probabilities"]) == set(settings["labels"]) and answer["prediction"] in settings["labels"]
    elif kind == "qa":
        assert record["context"][answer["start"] : answer["end"]] == answer["prediction"] == answer["best"][0]["text"]
    elif kind == "ner":
        assert answer["prediction"]
        for entity in answer["prediction"]:
            first, *_, last = (*entity["words"], *entity["words"])
            text = record["text"][entity["start"] : entity["end"]]
            assert text.startswith(first) and text.endswith(last) and f"B-{entity['type']}" in settings["labels"]
    elif kind == "coref":
        mentions = [mention for chain in answer["prediction"] for mention in chain]
        assert mentions and all(record["text"][each["start"] : each["end"]] == each["text"] for each in mentions)
    else:
        assert 0 < answer["prediction"] <= 1


def test_hidden_characters_are_those_of_the_filler() -> None:
    text = "Bonn works at Bonn."
    playground, filler = made_playground("fill"), Filler(made_model(KINDS["fill"]))
    (span,) = playground.answer({"text": text, "hide": [[14, 18]]})["spans"]
    (phrase,) = playground.answer({"text": text, "hide": [[0, 4]]})["spans"]
    assert (span["position"], phrase["position"], span["truth"], phrase["truth"]) == (4, 1, "Bonn", "Bonn")
    (expected,) = filler.spans("Bonn works at [MASK].", 5)
    found = [share for _, share in span["fills"]["both"]["candidates"][0]]
    np.testing.assert_allclose(found, [share for _, share in expected.fills["both"].candidates[0]], rtol=1e-4)
    assert len(found) == 5 and span_json(expected)["fills"]["mlm"]["text"] == span["fills"]["mlm"]["text"]


@pytest.mark.parametrize(
    ("kind", "record", "message"),
    [
        ("fill", {}, "the record has no `text`"),
        ("fill", {"text": 3}, "the record has no `text`"),
        ("fill", {"text": "the cat"}, "has no [MASK]"),
        ("fill", {"text": "the cat", "hide": "cat"}, "`hide` is no list of [start, end)"),
        ("fill", {"text": "the cat", "hide": [[0, True]]}, "`hide` is no list of [start, end)"),
        ("fill", {"text": "the cat", "hide": [[4, 9]]}, "hide has (4, 9): expected characters [start, end)"),
        ("fill", {"text": "the cat", "hide": [[3, 4]]}, "hide has (3, 4)"),
        ("fill", {"text": "the cat", "hide": [[0, 3], [2, 7]]}, "two of them overlap"),
        ("fill", {"text": "[MASK] " * 70}, "the model reads at most 64: shorten it"),
        ("ner", {"sentence": "x"}, "expected `words`, a list of words, or `text`, a sentence"),
        ("qa", {"question": "Who?"}, "context"),
        ("classify", {"sentence2": "the cat"}, "expected `sentence`, or `sentence1` and `sentence2`"),
        ("relation", {"text": "no entities"}, "e1"),
        ("coref", {}, "expected one of"),
        ("task", {"text": "x"}, "one text: expected two"),
    ],
)
def test_a_record_that_cannot_be_used(kind: str, record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        made_playground(kind).answer(record)
    assert message in str(raised.value)


def test_one_sentence_has_one_field(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [field["name"] for field in made_playground("classify").settings["fields"]] == ["sentence1", "sentence2"]
    task = Glue(length=64, labels=("no", "yes"), sentences=1)
    monkeypatch.setattr("spanjax.serve.playground.load_model", lambda path: made_model(task))
    playground = Playground(NAME)
    assert [field["name"] for field in playground.settings["fields"]] == ["sentence1"]
    assert playground.answer({"sentence1": "the cat"})["prediction"] in ("no", "yes")
