"""Contents of a training checkpoint of the original SpanBERT code besides the weights.

Such a file is a dictionary: `args` (the settings, with the encoder's as an object `args.config`), `model`,
`optimizer_history` (updates done), `last_optimizer_state` (Adam's moments) and `extra_state` (the position in the data,
meters). Objects come as the stand-ins of `unpickling`: their plain attributes are read, their classes are not.
"""

from collections.abc import Mapping
from typing import Any

from spanjax.torch_format.unpickling import Namespace, Opaque, Tensor, held

ENCODER_SETTINGS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("max_position_embeddings", "type_vocab_size", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    "initializer_range",
)
"""Names that `args.config` shares with config.json; all others are ignored."""
_EPSILONS = {"pair_bert": 1e-12, "hf_bert": 1e-5}
"""Module of the model -> its LayerNorm's epsilon, which is a constant of the code there."""
_OPTIMIZERS = ("last_optimizer_state", "optimizer_state_dict", "optimizer")
_LISTED = 8  # names of classes in a note


def encoder_settings(top: Any) -> dict[str, Any]:
    """Returns the plain settings of `args.config` under the names of config.json; {} if it records no attention heads."""
    args = top.get("args") if isinstance(top, dict) else None
    config = args.attributes.get("config") if isinstance(args, Namespace) else None
    if not isinstance(config, Namespace):
        return {}
    recorded = {name: config.attributes.get(name) for name in ENCODER_SETTINGS}
    settings: dict[str, Any] = {name: value for name, value in recorded.items() if type(value) in (int, float, str)}
    module = config.asked.split(".")[-2:-1] if isinstance(config, Opaque) else []
    if module and module[0] in _EPSILONS:
        settings["layer_norm_eps"] = _EPSILONS[module[0]]
    return settings if type(settings.get("num_attention_heads")) is int else {}


def skipped_notes(top: Any, classes: tuple[str, ...]) -> list[str]:
    """Human-readable notes on skipped contents: the optimizer's state with the update, and objects of unknown classes."""
    if not isinstance(top, dict):
        return []
    notes = []
    tensors = sum(isinstance(thing, Tensor) for thing in held(*(top[key] for key in _OPTIMIZERS if key in top)))
    update = _update(top)
    at = "" if update is None else f" of update {update:,}"
    if tensors:
        notes.append(f"the optimizer's state{at} ({tensors:,} tensors) is skipped: a run starts with fresh moments")
    elif at:
        notes.append(f"a checkpoint{at}, without an optimizer's state")
    if classes:
        more = f" and {len(classes) - _LISTED:,} more" if len(classes) > _LISTED else ""
        notes.append(f"objects skipped, no code of theirs imported or run: {', '.join(classes[:_LISTED])}{more}")
    return notes


def _update(top: Mapping[Any, Any]) -> int | None:
    """Updates done, by the last entry of the optimizers' history; None if it is not recorded."""
    history = top.get("optimizer_history")
    last = history[-1] if isinstance(history, list) and history else None
    update = last.get("num_updates") if isinstance(last, dict) else None
    return update if type(update) is int else None
