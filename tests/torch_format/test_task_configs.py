"""config.json of fine-tuned models: labels and settings in both directions, and what does not fit."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from spanjax.tasks.base import HfHead
from spanjax.torch_format.task_configs import described_task_from_hf, task_to_hf
from tests.made import tiny_encoder

ENCODER = tiny_encoder(vocab_size=20, hidden_size=8, layers=1, intermediate_size=8, positions=32)


def params(outputs: int = 3, head: str = "classifier", width: int = 8, pooler: bool = True) -> dict[str, Any]:
    dense = {"dense": {"kernel": np.zeros((8, 8)), "bias": np.zeros(8)}}
    return {
        "encoder": {},
        head: {"kernel": np.zeros((width, outputs)), "bias": np.zeros(outputs)},
        **({"pooler": dense} if pooler else {}),
    }


def test_labels_of_classes() -> None:
    task = {"class": "Glue", "labels": ["a", "b", "c"], "train": ["somewhere"], "task": "own"}
    config = task_to_hf(task, "sequence", params(), ENCODER)
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "a", "1": "b", "2": "c"} and config["label2id"] == {"a": 0, "b": 1, "c": 2}
    assert config["problem_type"] == "single_label_classification"
    back = described_task_from_hf(config, "sequence", params(), ENCODER)
    assert back == {"class": "Glue", "labels": ["a", "b", "c"], "task": "own"}
    renamed = config | {"id2label": {"0": "x", "1": "y", "2": "z"}}
    assert described_task_from_hf(renamed, "sequence", params(), ENCODER)["labels"] == ["x", "y", "z"]
    other = config | {"task_specific_params": {"spanjax": {"class": "Ner"}}}
    assert described_task_from_hf(other, "sequence", params(), ENCODER)["class"] == "Glue", "settings of another kind"


def test_a_number() -> None:
    config = task_to_hf({"class": "Glue", "labels": [], "task": "STS-B"}, "sequence", params(1), ENCODER)
    assert config["problem_type"] == "regression" and config["id2label"] == {"0": "LABEL_0"}
    assert described_task_from_hf(config, "sequence", params(1), ENCODER) == {
        "class": "Glue",
        "labels": [],
        "task": "STS-B",
    }
    foreign = described_task_from_hf({"id2label": {"0": "LABEL_0"}}, "sequence", params(1), ENCODER)
    assert foreign == {"class": "Glue", "length": 32, "labels": [], "numbers": True}


def test_tags_and_answers() -> None:
    config = task_to_hf({"class": "Ner", "labels": ["O", "B-A"]}, "token", params(2, pooler=False), ENCODER)
    assert config["architectures"] == ["BertForTokenClassification"] and "problem_type" not in config
    ends = {"id2label": {"0": "O", "1": "S-A"}}
    assert described_task_from_hf(ends, "token", params(2), ENCODER) == {
        "scheme": "bioes",
        "class": "Ner",
        "length": 32,
        "labels": ["O", "S-A"],
    }
    config = task_to_hf({"class": "Questions"}, "question", params(2, "qa", pooler=False), ENCODER)
    assert config["architectures"] == ["BertForQuestionAnswering"] and "id2label" not in config
    assert described_task_from_hf({}, "question", params(2, "qa"), ENCODER) == {"class": "Questions", "length": 32}
    assert described_task_from_hf({}, "token", params(2), ENCODER)["labels"] == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize(
    ("kind", "config", "given", "message"),
    [
        ("sequence", {}, params(pooler=False), "BertForSequenceClassification, but the weights have no pooler"),
        ("question", {}, params(), "have no qa: copy them again"),
        ("question", {}, params(3, "qa"), r"qa/kernel is \(8, 3\), expected \(8, 2\)"),
        ("sequence", {}, params(width=7), r"classifier/kernel is \(7, 3\), expected \(8, 3\)"),
        ("sequence", {"id2label": {"0": "a", "1": "b"}}, params(), "id2label has the numbers 0, 1, the classifier 3"),
        ("sequence", {"problem_type": "multi_label_classification"}, params(), "expected one label or one number"),
        ("sequence", {"problem_type": "regression"}, params(), "'regression' with 3 outputs"),
    ],
)
def test_what_does_not_fit_is_refused(
    kind: HfHead, config: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        described_task_from_hf(config, kind, given, ENCODER)


def test_what_transformers_cannot_compute_is_refused() -> None:
    """All problems at once; a span network is one problem, whatever it leads to."""
    with pytest.raises(ValueError, match="--objective.pooler dense") as error:
        task_to_hf({"labels": ["a"]}, "sequence", params(pooler=False), ENCODER)
    assert "the task has 1 labels, the classifier 3 outputs" in str(error.value)
    distil = dataclasses.replace(ENCODER, types=0)
    with pytest.raises(ValueError, match="pooler is dense: DistilBert.* a layer with relu; .*--objective.pooler relu"):
        task_to_hf({}, "sequence", params(), distil)
    with pytest.raises(ValueError, match="the classifier reads 16 numbers"):
        task_to_hf({}, "sequence", params(width=16), ENCODER)
    with pytest.raises(ValueError, match="span_network") as error:
        task_to_hf({}, "sequence", params(width=16, pooler=False) | {"span_network": {}}, ENCODER)
    assert str(error.value).count("\n") == 0
