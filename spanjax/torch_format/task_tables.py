"""Heads of fine-tuned models: our parameter <-> their name <-> transform, for each family and kind; and the kind of a model.

Names are those of transformers' BertForSequenceClassification, ...ForTokenClassification and ...ForQuestionAnswering, and of
RoBERTa and ALBERT alike. The classifier of sequences of RoBERTa and XLNet is two layers: the first is our pooler. That of ELECTRA
computes gelu between its two layers: its first is our pre_classifier. That of DistilBERT computes relu: its first is `RELU`.
DeBERTa's first layer is a pooler or a pre_classifier, by the activation that its config.json names. XLNet's answers are those of
...ForQuestionAnsweringSimple. Every class of ModernBERT has the layers of the masked token head before its scores, under the
same names: our `PREDICTION_HEAD`.
"""

from collections.abc import Collection, Mapping
from typing import Any

from spanjax.run_format import stored_task
from spanjax.sharding import named_leaves
from spanjax.tasks.base import HfHead
from spanjax.torch_format.families import DEBERTA, FAMILIES, LIKE_ROBERTA, MODERNBERT, Entry, Family, dense

CLASSES: Mapping[HfHead, str] = {
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
    "question": "ForQuestionAnswering",
}
"""Suffixes of transformers' class names; `class_name` knows the exceptions."""
_OWN_ENDS: Mapping[tuple[str, HfHead], str] = {("xlnet", "question"): "ForQuestionAnsweringSimple"}
PIPELINES: Mapping[HfHead, str] = {
    "sequence": "text-classification",
    "token": "token-classification",
    "question": "question-answering",
}
"""Names of transformers' pipelines for such models."""
OUTPUTS: Mapping[HfHead, str] = {"sequence": "classifier", "token": "classifier", "question": "qa"}
"""The part of our tree that gives the scores."""
OTHER_CLASSIFIERS = ("ForMultipleChoice",)  # with parameters of the same names and another meaning

RELU = "pre_classifier_relu"
"""The part of our tree that DistilBERT has instead of a pooler."""
PREDICTION_HEAD = "prediction_head"
"""The part of our tree before ModernBERT's scores."""
_BEFORE: Mapping[str, str] = {"electra": "pre_classifier", "distilbert": RELU}

_HEADS: Mapping[HfHead, tuple[Entry, ...]] = {
    "sequence": tuple(dense("classifier", "classifier")),
    "token": tuple(dense("classifier", "classifier")),
    "question": tuple(dense("qa", "qa_outputs")),
}
_XLNET_SEQUENCE = (*dense("pooler/dense", "sequence_summary.summary"), *dense("classifier", "logits_proj"))
_OUT = tuple(dense("classifier", "classifier.out_proj"))
_ROBERTA_SEQUENCE = (*dense("pooler/dense", "classifier.dense"), *_OUT)
_ELECTRA_SEQUENCE = (*dense("pre_classifier", "classifier.dense"), *_OUT)
_MODERN = (
    Entry(f"{PREDICTION_HEAD}/dense/kernel", "head.dense.weight", "transposed"),
    Entry(f"{PREDICTION_HEAD}/norm/scale", "head.norm.weight", "same"),
)
HEADS: Mapping[str, Mapping[HfHead, tuple[Entry, ...]]] = {
    "bert": _HEADS,
    **dict.fromkeys(LIKE_ROBERTA, {**_HEADS, "sequence": _ROBERTA_SEQUENCE}),
    "distilbert": {**_HEADS, "sequence": (*dense(RELU, "pre_classifier"), *_HEADS["sequence"])},
    "albert": _HEADS,
    "electra": {**_HEADS, "sequence": _ELECTRA_SEQUENCE},
    "modernbert": {kind: (*_MODERN, *dense(part, "classifier")) for kind, part in OUTPUTS.items()},
    "xlnet": {**_HEADS, "sequence": _XLNET_SEQUENCE},
    "deberta-v2": {**_HEADS, "sequence": (*dense("pre_classifier", "pooler.dense"), *_HEADS["sequence"])},
}
_DEBERTA_POOLER = (*dense("pooler/dense", "pooler.dense"), *_HEADS["sequence"])  # with tanh as its activation


_NAMED = {entry.ours.split("/")[0] for family in FAMILIES.values() for entry in family.entries}
_NAMED |= {*OUTPUTS.values(), *_BEFORE.values(), PREDICTION_HEAD, "span_network"}
"""Parts of our tree that some family has, or that `task_to_hf` refuses with a reason."""


def needed(family: Family, kind: HfHead, parts: Collection[str] = ()) -> tuple[str, ...]:
    """Returns the parts of our tree that compute the scores of such a class; the last one outputs them. `parts` are those of a
    model, which decide where a family has two layers to choose from."""
    if family is MODERNBERT:
        return (PREDICTION_HEAD, OUTPUTS[kind])
    gelu = family is DEBERTA and "pooler" not in parts
    before = "pre_classifier" if gelu else _BEFORE.get(family.model_type, "pooler")
    return (*([before] if kind == "sequence" else []), OUTPUTS[kind])


def with_heads(family: Family, kind: HfHead | None, parts: Collection[str] = ()) -> Family:
    """Returns the family's table with the heads of a fine-tuned model, which replace pretraining entries of the same parameter
    and pretraining heads with a parameter of that name.

    `parts` as in `needed`. ValueError for a class that computes its scores differently.
    """
    if kind is None:
        return family
    heads = HEADS[family.model_type].get(kind)
    if heads is None:
        raise ValueError(f"{class_name(family, kind)} computes its scores by layers that no head here has")
    if family is DEBERTA and kind == "sequence" and "pooler" in parts:
        heads = _DEBERTA_POOLER
    own, theirs = {entry.ours for entry in heads}, {entry.theirs for entry in heads}
    # ModernBERT's prediction head has the names of the masked token head, which would be left with a bias alone
    lost = {_part(entry) for entry in family.entries if entry.theirs in theirs} - {_part(entry) for entry in heads}
    kept = (entry for entry in family.entries if entry.ours not in own and _part(entry) not in lost)
    return family._replace(entries=(*kept, *heads))


def _part(entry: Entry) -> str:
    return entry.ours.split("/")[0]


def without_left_over(
    tensors: Mapping[str, Any], family: Family, kind: HfHead | None
) -> tuple[Mapping[str, Any], list[str]]:
    """Returns the tensors without those that such a model has under other names, and notes on the skipped ones.

    Older files of RoBERTa hold an unused pooler next to the sequence classifier.
    """
    known = {entry.theirs for entry in with_heads(family, kind).entries}
    unused = sorted({entry.theirs for entry in family.entries if entry.theirs not in known} & tensors.keys())
    if kind is None or not unused:
        return tensors, []
    kept = {name: tensor for name, tensor in tensors.items() if name not in unused}
    return kept, [f"{', '.join(unused)} skipped: {class_name(family, kind)} does not use them"]


def without_own_parts(
    params: Mapping[str, Any], family: Family, task: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the canonical tree of a model of `task` (as `run.describe` describes it), which no class of transformers computes,
    without the parts that the family lacks, and notes on the skipped ones."""
    known = {entry.ours for entry in family.entries}
    own = [name for name, part in params.items() if not named_leaves({name: part}).keys() <= known]
    kept = {name: part for name, part in params.items() if name not in own}
    kind = task.get("class", "its task")
    note = f"{', '.join(own)} skipped: transformers has no class for {kind}; what lies below is written"
    return kept, [note] if own else []


def without_unknown(params: Mapping[str, Any], kept: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Returns a canonical tree without the parts of a user's own objective, which no family here has, and a note on them.

    `kept` are parts that the caller writes itself.
    """
    own = [name for name in params if name not in {*_NAMED, *kept}]
    note = f"{', '.join(own)} skipped: transformers has no class with such a head; what lies below is written"
    return {name: part for name, part in params.items() if name not in own}, [note] if own else []


def head_of(parts: Collection[str], task: Mapping[str, Any] | None) -> HfHead | None:
    """Returns the head of transformers' classes in a canonical tree with these parts; None without one.

    `task`, in the form of `run.describe`, decides: its class says what its head computes. One that is unknown here has none.
    """
    try:
        head = stored_task(task).hf_head if task else None
    except (ValueError, TypeError):
        return None
    return head if head and OUTPUTS[head] in parts else None


def head_from_hf(config: Mapping[str, Any], names: Collection[str], family: Family) -> HfHead | None:
    """Returns the kind of a file of weights: from `architectures` in its config.json, else from its names.

    ValueError for a class whose scores are computed differently here, XLNet's beam search for answers, and for weights of
    ModernBERT's classes without the name of theirs.
    """
    listed = config.get("architectures")
    classes = [str(each) for each in listed] if isinstance(listed, list) else []
    for kind, end in CLASSES.items():
        own = _OWN_ENDS.get((family.model_type, kind), end)
        if any(name.endswith(own) for name in classes):
            return kind
        if other := next((name for name in classes if name.endswith(end)), ""):
            raise ValueError(
                f"{other} computes its scores by layers that no head here has, {class_name(family, kind)} does not"
            )
    if any(name.endswith(OTHER_CLASSIFIERS) for name in classes):
        return None
    # the three classes of ModernBERT have the same names, and a guess would read answers as two tags
    if family is MODERNBERT and "classifier.weight" in names:
        own = ", ".join(class_name(family, each) for each in CLASSES)
        raise ValueError(
            f"config.json: architectures is {listed!r}: expected one of {own}, whose parameters have the same names; name the"
            " class that the weights were trained with"
        )
    if "qa_outputs.weight" in names:
        return "question"
    if {"classifier.out_proj.weight", "pre_classifier.weight"} & {*names}:
        return "sequence"
    if "classifier.weight" in names:
        return "sequence" if any(name.startswith((f"{family.prefix}pooler", "pooler.")) for name in names) else "token"
    return None


def class_name(family: Family, kind: HfHead) -> str:
    """transformers' class for the family and kind: BertForSequenceClassification."""
    return family.class_prefix + _OWN_ENDS.get((family.model_type, kind), CLASSES[kind])
