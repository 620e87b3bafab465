"""Sizes and activations that every config.json names alike <-> fields of EncoderConfig; settings that a family lacks."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from spanjax.nn.config import EncoderConfig, Execution, Regularization
from spanjax.torch_format.families import Family

_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "positions",
}


ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
"""Ours -> the name that transformers has for it."""


def their_sizes(encoder: EncoderConfig) -> dict[str, int]:
    """The sizes under their names."""
    return {theirs: getattr(encoder, ours) for theirs, ours in _NAMES.items()}


def our_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a config.json without `size_problems`, under our names."""
    return {ours: config[theirs] for theirs, ours in _NAMES.items()}


def size_problems(config: Mapping[str, Any]) -> list[str]:
    """Sizes that are missing or not numbers, as text."""
    return [f"{theirs} is missing: expected a number" for theirs in _NAMES if not isinstance(config.get(theirs), int)]


def raise_listed(name: str, problems: list[str]) -> None:
    """Raises one ValueError with all problems of the file `name`, if any."""
    if problems:
        raise ValueError(f"{name}:\n" + "\n".join(f"  - {problem}" for problem in problems))


# Settings that every family supports at any value, or that do not change the computation of trained weights.
_ANY = frozenset(
    {
        *(field.name for group in (Regularization, Execution) for field in dataclasses.fields(group)),
        "vocab_size",
        "hidden_size",
        "layers",
        "heads",
        "intermediate_size",
        "positions",
        "types",
        "activation",
        "norm_epsilon",
        "initializer_std",
    }
)
_OWN: Mapping[str, frozenset[str]] = {
    "bert": frozenset(),
    "roberta": frozenset({"position_offset"}),
    "albert": frozenset({"embedding_size", "num_layer_groups"}),
    "electra": frozenset({"embedding_size"}),
    # groups and embedding_size: `their_modern_config` refuses them together with half of the recipe
    "modernbert": frozenset({"norm_first", "rope_theta", "gated_mlp", "biases", "num_layer_groups", "embedding_size"}),
    "xlnet": frozenset({"relative_attention"}),
}
"""Settings besides `_ANY` that a family's class supports; all others must be BERT's."""


def unknown_settings(encoder: EncoderConfig, family: Family) -> list[str]:
    """Settings of the encoder that are not BERT's and that the family's class does not compute, as text."""
    return [
        f"encoder.{field.name} is {getattr(encoder, field.name)!r}: transformers' {family.class_prefix} computes"
        f" {field.default!r} alone"
        for field in dataclasses.fields(encoder)
        if field.name not in _ANY | _OWN[family.model_type] and getattr(encoder, field.name) != field.default
    ]
