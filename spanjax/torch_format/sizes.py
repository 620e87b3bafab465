"""Sizes and activations that every config.json names alike <-> fields of EncoderConfig."""

from collections.abc import Mapping
from typing import Any

from spanjax.nn.config import EncoderConfig

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
    """Sizes that are missing or no numbers, in words."""
    return [f"{theirs} is missing: expected a number" for theirs in _NAMES if not isinstance(config.get(theirs), int)]


def raise_listed(name: str, problems: list[str]) -> None:
    """One ValueError of all problems of the file `name`, where there are any."""
    if problems:
        raise ValueError(f"{name}:\n" + "\n".join(f"  - {problem}" for problem in problems))
