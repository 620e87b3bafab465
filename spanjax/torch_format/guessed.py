"""config.json of a BERT that came without one: sizes inferred from its weights."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np


def guessed_config(tensors: Mapping[str, np.ndarray], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Infers config.json of a BERT from its weights (canonical names): sizes from shapes, the rest from the settings that a
    training checkpoint records; without any, heads of 64 and BERT's constants."""
    table = tensors.get("bert.embeddings.word_embeddings.weight")
    layers = {int(found[1]) for name in tensors if (found := re.match(r"bert\.encoder\.layer\.(\d+)\.", name))}
    inner = tensors.get("bert.encoder.layer.0.intermediate.dense.weight")
    positions, types = (tensors.get(f"bert.embeddings.{name}_embeddings.weight") for name in ("position", "token_type"))
    if table is None or not layers or inner is None or positions is None or types is None:
        raise ValueError(
            "no config.json, and these are not the weights of a BERT from which its sizes could be read: "
            "put the config.json beside them, or give --config FILE"
        )
    hidden = table.shape[1]
    if not recorded and hidden % 64:
        raise ValueError(f"no config.json, and hidden size {hidden} is no multiple of 64: give --config FILE")
    sizes = {
        "vocab_size": len(table),
        "hidden_size": hidden,
        "num_hidden_layers": max(layers) + 1,
        "intermediate_size": len(inner),
        "max_position_embeddings": len(positions),
        "type_vocab_size": len(types),
    }
    # No shape would reveal a wrong number of heads, so recorded settings count only if their sizes match the weights.
    differing = [name for name, size in sizes.items() if recorded.get(name, size) != size]
    if differing:
        wrong = [f"{name} is {recorded[name]!r:.40}, by the shapes {sizes[name]}" for name in differing]
        raise ValueError(
            f"no config.json, and args.config is not of these weights: {'; '.join(wrong)}: give --config FILE"
        )
    return {**sizes, "num_attention_heads": hidden // 64, "hidden_act": "gelu", **recorded}
