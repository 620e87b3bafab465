"""A loaded model behind the page: the fields of its form, and the answers to its records."""

import json
from collections.abc import Mapping
from typing import Any

from spanjax.inference.fill_mask import Filler, noted, span_json
from spanjax.inference.task_model import open_model
from spanjax.pretrained.load import load_model
from spanjax.tasks.base import ANY_TASK

TOP = 5  # candidates per token
FILL = "fill"
PAIR = {"sentence1": "She sold her boat.", "sentence2": "The boat has a new owner."}
FORMS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    FILL: {"text": ("Text", "The old sailor sold his wooden boat to a young painter from the village.")},
    "ner": {"text": ("Text", "Ida Lovelace wrote to Charles Babbage from London.")},
    "coref": {"text": ("Text", "Ida wrote to Charles about the engine. She said that he should finish it.")},
    "relation": {"text": ("Sentence with both entities marked", "<e1>Ida</e1> was born in <e2>London</e2>.")},
    "qa": {
        "question": ("Question", "Who bought the boat?"),
        "context": ("Passage", "The old sailor sold his wooden boat to a young painter from the village."),
    },
    "classify": {
        "sentence1": ("Sentence", PAIR["sentence1"]),
        "sentence2": ("Second sentence", PAIR["sentence2"]),
    },
    ANY_TASK: {"record": ("Record, as JSON", json.dumps(PAIR))},
}
"""`Task.predict_command`, or fill -> name of every field with its label and an example."""


class Playground:
    """A pretrained or fine-tuned model for the page. ValueError as in `load_model`, or if it has no head to show."""

    def __init__(self, path: str):
        self._name = path
        self._model = model = noted(load_model(path))
        self._filler = Filler(model) if model.task is None else None
        self._task = None if model.task is None else open_model(model, batch_size=1)

    @property
    def settings(self) -> dict[str, Any]:
        """Values that the page needs: kind of the model, texts about it, fields of the form, names of classes."""
        model, encoder = self._model, self._model.encoder
        about = [f"{model.family.model_type}, {encoder.layers} layers of {encoder.hidden_size}"]
        about += [f"step {model.step:,}"] if model.step else []
        kind, labels, fields = FILL, list[str](), dict(FORMS[FILL])
        if self._task:
            task = self._task.task
            kind = task.predict_command if task.predict_command in FORMS else ANY_TASK
            labels = list(task.label_names)
            about += [type(task).__name__, *(f"{name} {value:.4g}" for name, value in model.scores.items())]
            fields = dict(FORMS[kind])
            # a task of single sentences refuses a pair
            if kind == "classify" and task.example(PAIR, 0)[1]:
                del fields["sentence2"]
        form = [{"name": name, "label": label, "example": example} for name, (label, example) in fields.items()]
        return {"kind": kind, "name": self._name, "about": ", ".join(about), "labels": labels, "fields": form}

    def answer(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a record: spans of every head for `text` with characters `hide`, or the prediction of the task.

        ValueError describes a record that cannot be used.
        """
        if self._filler:
            text, hide = record.get("text"), record.get("hide", [])
            if not isinstance(text, str):
                raise ValueError("the record has no `text`: expected a text, and `hide`, a list of [start, end)")
            if not isinstance(hide, list) or not all(
                isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span) for span in hide
            ):
                raise ValueError("`hide` is no list of [start, end): expected whole numbers, in characters of `text`")
            top = min(TOP, self._filler.vocabulary.size)
            return {"spans": [span_json(span) for span in self._filler.spans(text, top, [(a, b) for a, b in hide])]}
        assert self._task
        (answer,) = self._task.answers([record])
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer
