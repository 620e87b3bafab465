"""config.json of ModernBERT <-> EncoderConfig: the modern recipe with all of its settings, every layer seeing the whole row."""

from collections.abc import Mapping
from typing import Any

from spanjax.data.vocab.base import Specials
from spanjax.nn.config import EncoderConfig
from spanjax.torch_format.families import MODERNBERT, pretraining_class
from spanjax.torch_format.sizes import our_sizes, raise_listed, size_problems, their_sizes

_FIXED = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
}
_ACTIVATIONS = {"hidden_activation": "gelu", "classifier_activation": "gelu"}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_EVERY = "global_attn_every_n_layers"  # transformers 4 reads it instead of layer_types
_THEIR_EVERY = 3


def their_modern_config(
    encoder: EncoderConfig, specials: Specials | None, parts: set[str], dtype: str, kind: str | None
) -> dict[str, Any]:
    """Builds config.json of a model with these parts.

    ValueError if only a part of the recipe is set, which transformers has no class for, or if the model was fine-tuned: its
    classes read other heads than ours.
    """
    expected = {
        "norm_first": True,
        "gated_mlp": True,
        "biases": False,
        "types": 0,
        "num_layer_groups": 0,
        "embedding_size": 0,
    }
    expected |= {"activation": "gelu"}
    problems = [
        f"encoder.{name} is {getattr(encoder, name)!r}: transformers computes this recipe (ModernBERT) with {value!r} alone"
        for name, value in expected.items()
        if getattr(encoder, name) != value
    ]
    if not encoder.rope_theta:
        problems.append(
            "encoder.rope_theta is 0: transformers computes this recipe (ModernBERT) with rotary positions alone"
        )
    if "rtd" in parts:
        problems.append("the head that detects replaced tokens: transformers has none for ModernBERT")
    if kind:
        problems.append(f"the head of a fine-tuned model ({kind}): ModernBERT's has a dense layer and a LayerNorm more")
    if problems:
        raise ValueError("\n".join(f"  - {problem}" for problem in problems))
    found: dict[str, Any] = {
        "architectures": [pretraining_class(MODERNBERT, parts)],
        "model_type": "modernbert",
        **their_sizes(encoder),
        **_FIXED,
        **_ACTIVATIONS,
        "norm_eps": encoder.norm_epsilon,
        "initializer_range": encoder.initializer_std,
        "attention_dropout": encoder.attention_dropout,
        "embedding_dropout": encoder.dropout,
        "mlp_dropout": encoder.dropout,
        # transformers 5 reads layer_types and rope_parameters; 4.48 reads _EVERY and the two *_rope_theta
        "layer_types": [_FULL] * encoder.layers,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": encoder.rope_theta} for kind in (_FULL, _SLIDING)
        },
        _EVERY: 1,
        "global_rope_theta": encoder.rope_theta,
        "local_rope_theta": encoder.rope_theta,
        "tie_word_embeddings": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    roles = {"pad": "pad", "bos": "cls", "eos": "sep", "cls": "cls", "sep": "sep"}
    return found | {
        f"{theirs}_token_id": getattr(specials, ours) if specials else None for theirs, ours in roles.items()
    }


def our_modern_config(config: Mapping[str, Any], name: str) -> EncoderConfig:
    """Returns the encoder of a ModernBERT. ValueError lists settings not supported here, such as sliding-window attention."""
    problems = size_problems(config)
    problems += [
        f"{theirs} is {config[theirs]!r}: only {value!r} is computed here"
        for theirs, value in {**_FIXED, **_ACTIVATIONS}.items()
        if config.get(theirs, value) != value
    ]
    if _windows(config):
        problems.append(
            f"layer_types (or {_EVERY}) has layers of sliding attention: only layers that see the whole row are computed here"
        )
    # transformers 5 writes rope_parameters, 4.48 global_rope_theta; without either ModernBERT's default holds
    rope = (config.get("rope_parameters") or {}).get(_FULL) or {}
    base = rope.get("rope_theta", config.get("global_rope_theta", 160_000.0))
    if rope.get("rope_type", "default") != "default":
        problems.append(f"rope_type is {rope['rope_type']!r}: only 'default' is computed here")
    raise_listed(name, problems)
    encoder = EncoderConfig(
        **our_sizes(config),
        types=0,
        norm_first=True,
        rope_theta=float(base),
        gated_mlp=True,
        biases=False,
        norm_epsilon=config.get("norm_eps", 1e-5),
        initializer_std=config.get("initializer_range", 0.02),
        dropout=float(config.get("mlp_dropout", 0.0)),
        attention_dropout=float(config.get("attention_dropout", 0.0)),
    )
    raise_listed(name, encoder.problems())
    return encoder


def _windows(config: Mapping[str, Any]) -> bool:
    """True if some layers have sliding-window attention."""
    kinds = config.get("layer_types")
    if kinds is not None:
        return any(kind != _FULL for kind in kinds)
    return config.get(_EVERY, _THEIR_EVERY) != 1
