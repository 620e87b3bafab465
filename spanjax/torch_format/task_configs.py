"""Task entries of config.json for a fine-tuned model: class, labels, regression, and our settings, which transformers ignores."""

from collections.abc import Mapping
from typing import Any

from spanjax.bounds import raise_problems
from spanjax.nn.config import EncoderConfig
from spanjax.tasks.base import HfHead
from spanjax.tasks.included import task_from_hf
from spanjax.torch_format.families import MODERNBERT, Family, family_of
from spanjax.torch_format.task_tables import OUTPUTS, PREDICTION_HEAD, RELU, class_name, head_of, needed

OWN = "spanjax"  # the key of our settings in task_specific_params
PLACES = ("train", "dev", "vocabulary")  # settings that are paths, which mean nothing on another machine
_POOLERS = {"pooler": "dense", "pre_classifier": "gelu", RELU: "relu", PREDICTION_HEAD: "prediction_head"}
"""Parts between the encoder and a classifier -> the value of objective.pooler that makes them."""
_LAYERS = {
    "pooler": "BERT's pooler",
    "pre_classifier": "a layer with gelu",
    RELU: "a layer with relu",
    PREDICTION_HEAD: "a dense layer and a LayerNorm",
}
POOLING, POOLINGS = "classifier_pooling", ("cls", "mean")
"""Setting of ModernBERT's config.json for the vector of a row, and its values; the first one is the default."""
REGRESSION, MULTI_LABEL = "regression", "multi_label_classification"


def task_to_hf(
    task: Mapping[str, Any], kind: HfHead, params: Mapping[str, Any], encoder: EncoderConfig, model_type: str = ""
) -> dict[str, Any]:
    """Returns the settings of config.json that make transformers load its class for this task, with all settings of the task
    under `task_specific_params` (markers of relations among them). `model_type` is that of `family_of`.

    ValueError lists why transformers has no class that computes the same.
    """
    family, hidden_size, problems = family_of(encoder, params, model_type), encoder.hidden_size, []
    name = class_name(family, kind)
    if "span_network" in params:
        problems.append(
            "the weights have a span_network (span fine-tuning), for which transformers has no class: fine-tune without spans "
            "to write such a folder, or use these weights with spanjax"
        )
    else:
        problems += _pooler_problems(family, kind, params, str(task.get("pooling", POOLINGS[0])))
    head = params[OUTPUTS[kind]]["kernel"]
    if head.shape[0] != hidden_size and not problems:
        problems.append(
            f"the classifier reads {head.shape[0]} numbers, that of {name} the {hidden_size} of one position"
        )
    labels, outputs = [str(each) for each in task.get("labels") or ()], head.shape[1]
    one_number = kind == "sequence" and outputs == 1
    if kind != "question" and not one_number and labels and len(labels) != outputs:
        problems.append(f"the task has {len(labels)} labels, the classifier {outputs} outputs: expected as many")
    raise_problems(problems, "")
    found: dict[str, Any] = {"architectures": [name]}
    if kind != "question":
        # transformers takes the number of outputs from id2label, so a regression needs one label too
        labels = labels if labels and not one_number else default_labels(outputs)
        found["id2label"] = {str(number): label for number, label in enumerate(labels)}
        found["label2id"] = {label: number for number, label in enumerate(labels)}
    if kind == "sequence":
        found["problem_type"] = REGRESSION if one_number else "single_label_classification"
        found |= {POOLING: task.get("pooling", POOLINGS[0])} if family is MODERNBERT else {}
    settings = {setting: value for setting, value in task.items() if setting not in PLACES}
    return {**found, "task_specific_params": {OWN: settings}} if settings else found


def _pooler_problems(family: Family, kind: HfHead, params: Mapping[str, Any], pooling: str) -> list[str]:
    """Layers before the classifier, and the vector that they read, of which the class of transformers has others, as text."""
    *before, _ = wanted = needed(family, kind, params)
    name, found = class_name(family, kind), []
    # a pooler left over from pretraining computes nothing in classes without one; a prediction head always computes
    if not {*wanted} <= {*params} or (PREDICTION_HEAD in params and PREDICTION_HEAD not in before):
        own = next((setting for part, setting in _POOLERS.items() if part in params), "none")
        layer, setting = (f"through {_LAYERS[before[0]]}", _POOLERS[before[0]]) if before else ("directly", "none")
        what = "[CLS]" if kind == "sequence" else "every position"
        found.append(
            f"objective.pooler is {own}: {name} reads {what} {layer}; fine-tune with --objective.pooler {setting} to write such a"
            " folder"
        )
    if kind == "sequence" and pooling != POOLINGS[0] and family is not MODERNBERT:
        found.append(
            f"objective.pooling is {pooling}: {name} reads [CLS] alone; fine-tune with --objective.pooling {POOLINGS[0]} to write"
            " such a folder"
        )
    return found


def described_task_from_hf(
    config: Mapping[str, Any], kind: HfHead, params: Mapping[str, Any], encoder: EncoderConfig
) -> dict[str, Any]:
    """Returns the task of a config.json and its weights, in the form of `run.describe`: the settings that `task_to_hf` wrote,
    else the task that reads such a head with its labels, for rows as long as the encoder can read.

    ValueError if weights are missing or have other sizes, the labels do not match them, or the task is multi-label.
    """
    outputs = _outputs(kind, params, encoder)
    # Another program may have fine-tuned the model since and kept task_specific_params: ours count only for the same kind.
    stored = config.get("task_specific_params")
    own = stored.get(OWN) if isinstance(stored, Mapping) else None
    found = dict(own) if isinstance(own, Mapping) and head_of(params, own) == kind else {}
    names = [] if kind == "question" else _labels(config, kind, outputs)
    pooling = _pooling(config) if kind == "sequence" and family_of(encoder, params) is MODERNBERT else POOLINGS[0]
    # as with the labels, the setting that transformers reads decides
    read = {"pooling": pooling} if pooling != found.get("pooling", POOLINGS[0]) else {}
    if found:
        return {**found, **read, **({"labels": names} if names else {})}
    task, settings = task_from_hf(kind, {*params}, names)
    return {"class": task.__name__, "length": encoder.positions, **settings, **read}


def _pooling(config: Mapping[str, Any]) -> str:
    """Returns the vector of a row that ModernBERT's classifier reads. ValueError if it is unknown."""
    pooling = config.get(POOLING, POOLINGS[0])
    if pooling not in POOLINGS:
        raise ValueError(f"config.json: {POOLING} is {pooling!r}: expected {' or '.join(POOLINGS)}")
    return pooling


def _labels(config: Mapping[str, Any], kind: HfHead, outputs: int) -> list[str]:
    """Returns the names of the classes of a config.json; none for one number. ValueError as in `described_task_from_hf`."""
    problem_type, listed = config.get("problem_type"), config.get("id2label")
    if problem_type == MULTI_LABEL or (problem_type == REGRESSION and outputs != 1):
        raise ValueError(
            f"config.json: problem_type is {problem_type!r} with {outputs} outputs: expected one label or one number for a row; "
            "take problem_type out to use the weights so"
        )
    labels = {str(number): str(label) for number, label in listed.items()} if isinstance(listed, Mapping) else {}
    if labels and labels.keys() != {str(number) for number in range(outputs)}:
        raise ValueError(
            f"config.json: id2label has the numbers {', '.join(labels)}, the classifier {outputs} outputs: expected 0 to "
            f"{outputs - 1}"
        )
    names = [labels[str(number)] for number in range(outputs)] if labels else default_labels(outputs)
    return [] if kind == "sequence" and outputs == 1 else names


def _outputs(kind: HfHead, params: Mapping[str, Any], encoder: EncoderConfig) -> int:
    """Returns the number of scores of the head. ValueError if parts of it are missing or have other sizes than its class."""
    family, hidden_size = family_of(encoder, params), encoder.hidden_size
    name = class_name(family, kind)
    if missing := [part for part in needed(family, kind, params) if part not in params]:
        raise ValueError(
            f"config.json or the names say {name}, but the weights have no {', '.join(missing)}: copy them again"
        )
    head = params[OUTPUTS[kind]]
    # Start and end are fixed: a question head of another width must fail the check of shapes, not define it.
    outputs = 2 if kind == "question" else head["kernel"].shape[-1]
    expected = {"kernel": (hidden_size, outputs), "bias": (outputs,)}
    wrong = [
        f"{OUTPUTS[kind]}/{leaf} is {head[leaf].shape}, expected {shape}"
        for leaf, shape in expected.items()
        if head[leaf].shape != shape
    ]
    between = {f"{part}/dense": params.get(part, {}).get("dense") for part in ("pooler", PREDICTION_HEAD)}
    between |= {part: params.get(part) for part in ("pre_classifier", RELU)}
    wrong += [
        f"{part}/kernel is {layer['kernel'].shape}, expected two times {hidden_size}"
        for part, layer in between.items()
        if layer and layer["kernel"].shape != (hidden_size, hidden_size)
    ]
    if wrong:
        raise ValueError(f"these are not the weights of a {name}: {'; '.join(wrong)}")
    return outputs


def default_labels(outputs: int) -> list[str]:
    """The names that transformers gives to classes without any: LABEL_0, LABEL_1, ..."""
    return [f"LABEL_{number}" for number in range(outputs)]
