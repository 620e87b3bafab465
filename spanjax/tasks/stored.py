"""Restores tasks from checkpoints: JSON back to the task with all settings that training inferred."""

import dataclasses
import importlib
import typing
from collections.abc import Mapping
from typing import Any

from spanjax.tasks.base import Task

MODULES: Mapping[str, str] = {
    "Glue": "glue",
    "Questions": "squad",
    "Relation": "relation",
    "Ner": "ner",
    "Coref": "coref",
}
"""Class of a task -> its module here."""


def is_task(described: Any) -> bool:
    """True if a described objective is that of a task."""
    return isinstance(described, dict) and str(described.get("class")) in MODULES


def described_task(meta: Mapping[str, Any], source: object) -> Mapping[str, Any] | None:
    """The described task in the meta of checkpoint `source`; None in that of pretraining.

    A checkpoint has its `kind`. Those of 0.1 do not: there tasks count `examples`, and pretraining has a manifest of `rows`.
    ValueError where a checkpoint has none of these, and its objective is not known here.
    """
    model, run = meta.get("model"), meta.get("run")
    if isinstance(model, Mapping) and isinstance(model.get("task"), Mapping):
        return model["task"]
    objective = run.get("objective") if isinstance(run, Mapping) else None
    if not isinstance(objective, Mapping):
        return None
    kind = meta.get("kind") or ("task" if "examples" in meta else "pretraining" if "rows" in meta else "")
    if kind == "task" or (not kind and is_task(objective)):
        return objective
    if kind == "pretraining" or "masking" in objective:
        return None
    raise ValueError(
        f"{source}: its meta does not say whether {objective.get('class', 'its objective')} is a task or pretrains: expected the"
        " kind 'task' or 'pretraining'; take the version of spanjax that wrote it"
    )


def stored_task(described: Mapping[str, Any], **settings: Any) -> Task:
    """The task that `run.describe` described, with `settings` replaced. ValueError where this version does not know all of it."""
    name = described.get("class", "")
    if name not in MODULES:
        raise ValueError(f"{name or 'nothing'} is no task that is known here: expected one of {', '.join(MODULES)}")
    kind = getattr(importlib.import_module(f"spanjax.tasks.{MODULES[name]}"), name)
    task = _restored(kind, described)
    if unknown := sorted(settings.keys() - {field.name for field in dataclasses.fields(kind)}):
        given = ", ".join(f"{each} ({settings[each]})" for each in unknown)
        raise ValueError(
            f"a model of {name} has no setting {given}: leave it out, or take a model of the task that has it"
        )
    return dataclasses.replace(task, **settings)


def decided(described: Mapping[str, Any] | None, scores: Mapping[str, float]) -> dict[str, Any]:
    """Returns `Task.inferred_settings` of a described task; {} for other objectives or without scores.

    ValueError as in `stored_task`.
    """
    return stored_task(described).inferred_settings(scores) if described and scores and is_task(described) else {}


def _restored(kind: Any, described: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    unknown = sorted(described.keys() - hints.keys() - {"class"})
    if unknown:
        raise ValueError(
            f"{kind.__name__} has no setting {', '.join(unknown)} here: take the version of spanjax that wrote it"
        )
    return kind(**{name: _value(value, hints[name]) for name, value in described.items() if name != "class"})


def _value(value: Any, hint: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(item, None) for item in value)
    if isinstance(value, dict):
        kinds = [each for each in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(each)]
        kind = next((each for each in kinds if getattr(each, "__name__", "") == value.get("class")), None)
        if kind is None:
            raise ValueError(
                f"a setting of class {value.get('class')!r} is not known here: take a newer version of spanjax"
            )
        return _restored(kind, value)
    return value
