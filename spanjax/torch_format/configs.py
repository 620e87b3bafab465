"""config.json of BERT, RoBERTa, ALBERT and ELECTRA <-> EncoderConfig; without a config.json, sizes inferred from the weights."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from spanjax.data.vocab.base import Specials
from spanjax.nn.config import EncoderConfig
from spanjax.torch_format.families import FAMILIES, Family, family_of, pretraining_class
from spanjax.torch_format.modern_config import our_modern_config, their_modern_config
from spanjax.torch_format.sizes import (
    ACTIVATIONS,
    our_sizes,
    raise_listed,
    size_problems,
    their_sizes,
    unknown_settings,
)
from spanjax.torch_format.xlnet_config import our_xlnet_config, their_xlnet_config

_THEIR_ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_python": "gelu", "relu": "relu"},
    **{"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"},
}
_OTHERS = {
    "type_vocab_size": ("types", 2),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "initializer_range": ("initializer_std", 0.02),
}
# Settings of theirs that change the computation -> the only values that this package computes.
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": (None, "absolute"),
    "inner_group_num": (None, 1),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "tie_word_embeddings": (None, True),
    "pruned_heads": (None, {}),
}


def their_config(
    encoder: EncoderConfig,
    specials: Specials | None,
    parts: set[str],
    dtype: str,
    task: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Builds config.json of a model with these parts of the canonical tree; `task` is the result of `their_task`, if fine-tuned.

    ValueError if transformers has no class for the encoder, or would number its positions differently.
    """
    family = family_of(encoder, parts)
    unknown = unknown_settings(encoder, family)
    if family.model_type in ("modernbert", "xlnet") and unknown:
        raise ValueError("\n".join(f"  - {problem}" for problem in unknown))
    if family.model_type == "modernbert":
        return their_modern_config(encoder, specials, parts, dtype, (task or {}).get("architectures", [None])[0])
    if family.model_type == "xlnet":
        return their_xlnet_config(encoder, specials, parts, dtype, task or {})
    if problems := _their_problems(encoder, specials, parts, family):
        raise ValueError("\n".join(f"  - {problem}" for problem in problems))
    found: dict[str, Any] = {
        "architectures": [pretraining_class(family, parts)],
        "model_type": family.model_type,
        **their_sizes(encoder),
        **{theirs: getattr(encoder, ours) for theirs, (ours, _) in _OTHERS.items()},
        "hidden_act": ACTIVATIONS[encoder.activation],
        "tie_word_embeddings": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    # transformers counts the unused first rows of RoBERTa's position table, `encoder.positions` does not
    found["max_position_embeddings"] += encoder.position_offset
    if family.model_type == "electra":
        found |= {"embedding_size": encoder.embedding_width}
    if family.model_type == "albert":
        found |= {
            "embedding_size": encoder.embedding_size,
            "num_hidden_groups": encoder.own_layers,
            "inner_group_num": 1,
            "classifier_dropout_prob": encoder.dropout,
        }
    if specials:
        names = {"pad_token_id": specials.pad, "bos_token_id": specials.cls, "eos_token_id": specials.sep}
        found |= names if family.model_type != "bert" else {"pad_token_id": specials.pad}
    return found | dict(task or {})


def _their_problems(encoder: EncoderConfig, specials: Specials | None, parts: set[str], family: Family) -> list[str]:
    """Settings that transformers' class computes differently, as text."""
    problems = unknown_settings(encoder, family)
    if family.model_type == "albert" and not encoder.embedding_size:
        problems.append(
            "encoder.embedding_size is 0: transformers' ALBERT always widens its embeddings, train with a size"
        )
    if told := gelu_problem(encoder, parts, family):
        problems.append(f"{told}: train with gelu to write such a folder, or use these weights with spanjax")
    if family.model_type == "roberta" and specials and encoder.position_offset != specials.pad + 1:
        problems.append(
            f"encoder.position_offset is {encoder.position_offset}: RoBERTa in transformers counts positions from the id of "
            f"padding plus one, here {specials.pad + 1}"
        )
    if family.model_type == "electra" and encoder.embedding_size == encoder.hidden_size:
        problems.append(
            f"encoder.embedding_size is {encoder.embedding_size}, as wide as the layers: ELECTRA in transformers has no product"
            " there, train with 0"
        )
    return problems


def gelu_problem(encoder: EncoderConfig, parts: Collection[str], family: Family) -> str:
    """Message if the masked token head computes something else in transformers: always gelu for RoBERTa and ELECTRA, here the
    encoder's activation. Empty if both agree, or `parts` has no such head.
    """
    if "mlm" not in parts or family.model_type not in ("roberta", "electra") or encoder.activation == "gelu":
        return ""
    own = f"encoder.activation is {encoder.activation!r} (hidden_act {ACTIVATIONS[encoder.activation]!r})"
    return f"{own}, the masked token head of {family.class_prefix}ForMaskedLM computes gelu"


def our_config(config: Mapping[str, Any], name: str) -> tuple[EncoderConfig, Family]:
    """Returns encoder and family of a config.json, with model_type or as the original BERT wrote it (11 fields, no model_type).

    ValueError lists all settings that are missing or that this package computes differently.
    """
    kind = config.get("model_type") or ("albert" if "num_hidden_groups" in config else "bert")
    if kind not in FAMILIES:
        raise ValueError(f"{name}: model_type is {kind!r}: expected one of {', '.join(FAMILIES)}")
    if kind == "modernbert":
        return our_modern_config(config, name), FAMILIES[kind]
    if kind == "xlnet":
        return our_xlnet_config(config, name), FAMILIES[kind]
    problems = size_problems(config)
    problems += [
        f"{theirs} is {config[theirs]!r}: expected a number"
        for theirs in (*_OTHERS, "embedding_size", "num_hidden_groups", "pad_token_id")
        if config.get(theirs) is not None and not isinstance(config[theirs], int | float)
    ]
    activation = config.get("hidden_act", "gelu")
    if activation not in _THEIR_ACTIVATIONS:
        problems.append(f"hidden_act is {activation!r}: expected one of {', '.join(_THEIR_ACTIVATIONS)}")
    for theirs, values in _FIXED.items():
        if config.get(theirs) not in values:
            problems.append(f"{theirs} is {config[theirs]!r}: only {values[-1]!r} is computed here")
    raise_listed(name, problems)
    sizes = our_sizes(config)
    others: dict[str, Any] = {ours: config.get(theirs, default) for theirs, (ours, default) in _OTHERS.items()}
    more: dict[str, Any] = {"activation": _THEIR_ACTIVATIONS[activation]}
    if kind == "roberta":
        pad = config.get("pad_token_id")  # 0 is a valid id, so a missing one (1 by default) is told apart by None
        more["position_offset"] = 1 + (1 if pad is None else pad)
        sizes["positions"] -= more["position_offset"]
    if kind == "albert":
        more |= {
            "embedding_size": config.get("embedding_size", 128),
            "num_layer_groups": config.get("num_hidden_groups", 1),
        }
    if kind == "electra":
        # transformers' ELECTRA has no projection at equal widths; ALBERT above always has one
        width = config.get("embedding_size", 128)
        more["embedding_size"] = 0 if width == sizes["hidden_size"] else width
    encoder = EncoderConfig(**sizes, **others, **more)
    raise_listed(name, encoder.problems())
    return encoder, FAMILIES[kind]


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
