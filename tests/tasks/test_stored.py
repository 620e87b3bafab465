"""Tasks as checkpoints describe them: which checkpoint is one of a task is said, not guessed."""

from typing import Any

import pytest

from spanjax.tasks.stored import described_task

OWN_OBJECTIVE, OWN_TASK = {"class": "Own", "terms": []}, {"class": "Own", "train": ["a"], "dev": []}


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"kind": "pretraining", "run": {"objective": OWN_OBJECTIVE}}, None),
        ({"kind": "task", "run": {"objective": OWN_TASK}}, OWN_TASK),
        # checkpoints of 0.1 say no kind
        ({"rows": {}, "run": {"objective": OWN_OBJECTIVE}}, None),
        ({"examples": {}, "run": {"objective": OWN_TASK}}, OWN_TASK),
        ({"run": {"objective": {"class": "Glue"}}}, {"class": "Glue"}),
        ({"run": {"objective": {"class": "MaskedPrediction", "masking": {}}}}, None),
        # weights alone
        ({"model": {"task": {"class": "Glue"}}, "rows": {}}, {"class": "Glue"}),
        ({"model": {"task": None}}, None),
        ({}, None),
    ],
)
def test_an_objective_without_masking_is_no_task(meta: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert described_task(meta, "runs/a") == expected


def test_what_says_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="runs/a: its meta does not say whether Own is a task or pretrains"):
        described_task({"run": {"objective": OWN_OBJECTIVE}}, "runs/a")
