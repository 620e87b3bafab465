"""config.json of every family in `families` <-> EncoderConfig."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from spanjax.bounds import raise_problems
from spanjax.data.vocab.base import Specials
from spanjax.nn.config import EncoderConfig, Execution, Regularization
from spanjax.torch_format import deberta
from spanjax.torch_format.families import DEBERTA, FAMILIES, LIKE_ROBERTA, Family, family_of, pretraining_class

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "positions",
}
"""Names of sizes in config.json -> ours; XLNet has names of its own, and no most positions."""
_XLNET_SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_layer": "layers",
    "n_head": "heads",
    "d_inner": "intermediate_size",
}
_DISTIL_SIZES = {
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "n_layers": "layers",
    "n_heads": "heads",
    "hidden_dim": "intermediate_size",
    "max_position_embeddings": "positions",
}
_DISTIL_OTHERS = {
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.1),
    "initializer_range": ("initializer_std", 0.02),
}
_DISTIL_EPSILON = 1e-12  # config.json does not name it
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
"""Ours -> the name that transformers has for it."""
_THEIR_ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_python": "gelu", "relu": "relu"},
    **{"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"},
}
REMOTE_CODE = "modeling_spanbert.py"
"""Module of this folder that is copied next to the weights of a SpanBERT, for users of transformers who trust remote code."""
_IN_REMOTE_CODE = {"bert": "Bert", "modernbert": "ModernBert"}
"""Families of which REMOTE_CODE has a class, as they are spelt in its name: SpanBertForPreTraining, ..."""
_XLNET_OTHERS = {"layer_norm_eps": ("norm_epsilon", 1e-12), "initializer_range": ("initializer_std", 0.02)}
_OTHERS = {
    "type_vocab_size": ("types", 2),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    **_XLNET_OTHERS,
}
# Settings of theirs that change the computation -> the only value that this package computes.
_FIXED: Mapping[str, Any] = {
    "position_embedding_type": "absolute",
    "inner_group_num": 1,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "pruned_heads": {},
}
_MODERN_FIXED: Mapping[str, Any] = {
    **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False),
    "decoder_bias": True,
    **dict.fromkeys(("hidden_activation", "classifier_activation"), "gelu"),
}
_XLNET_FIXED: Mapping[str, Any] = {
    "attn_type": "bi",
    "bi_data": False,
    "clamp_len": -1,
    "same_length": False,
    "untie_r": True,
    "tie_word_embeddings": True,
}
_SUMMARY: Mapping[str, Any] = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "tanh"}
"""Sequence summary of XLNet's fine-tuned sequence classifier: the pooler of the first token."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_EVERY = "global_attn_every_n_layers"  # transformers 4 reads it instead of layer_types
_THEIR_EVERY, _THEIR_WINDOW = 3, 128
_BASES = {_FULL: ("global_rope_theta", 160_000.0), _SLIDING: ("local_rope_theta", 10_000.0)}
"""Kind of layer -> the name of its rotary base in transformers 4, and the base without one."""
_LOCAL = ("local_window", "global_every", "local_rope_theta")
# Settings of the architecture that every family supports at any value, or that do not change the computation.
_NOT_COMPUTED = {field.name for group in (Regularization, Execution) for field in dataclasses.fields(group)}
_ANY = frozenset({*_NOT_COMPUTED, *_SIZES.values(), "types", "activation", "norm_epsilon", "initializer_std"})
_OWN: Mapping[str, frozenset[str]] = {
    "bert": frozenset(),
    **dict.fromkeys(LIKE_ROBERTA, frozenset({"position_offset"})),
    "distilbert": frozenset(),
    "albert": frozenset({"embedding_size", "num_layer_groups"}),
    "electra": frozenset({"embedding_size"}),
    # groups and embedding_size: `_modern_problems` refuses them together with half of the recipe
    "modernbert": frozenset(
        {"norm_first", "rope_theta", "gated_mlp", "biases", "num_layer_groups", "embedding_size", *_LOCAL}
    ),
    "xlnet": frozenset({"relative_attention"}),
    "deberta-v2": frozenset({"embedding_size", *deberta.SETTINGS}),
}
"""Settings besides `_ANY` that a family's class supports; all others must be BERT's."""


def _theirs(encoder: EncoderConfig, names: Mapping[str, str]) -> dict[str, Any]:
    """Settings of the encoder under their names."""
    return {theirs: getattr(encoder, ours) for theirs, ours in names.items()}


def _ours(config: Mapping[str, Any], sizes: Mapping[str, str], others: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Settings of a config.json under our names: `sizes`, which it has, and `others`, which have a default."""
    found = {ours: config[theirs] for theirs, ours in sizes.items()}
    return found | {ours: config.get(theirs, default) for theirs, (ours, default) in others.items()}


def _missing(config: Mapping[str, Any], sizes: Iterable[str]) -> list[str]:
    """Sizes that are missing or no whole numbers, as text."""
    return [f"{theirs} is missing: expected a number" for theirs in sizes if not isinstance(config.get(theirs), int)]


def _no_numbers(config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Settings that are not numbers, as text."""
    values = {theirs: config[theirs] for theirs in names if config.get(theirs) is not None}
    return [
        f"{name} is {value!r}: expected a number"
        for name, value in values.items()
        if not isinstance(value, int | float)
    ]


def _not_computed(config: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[str]:
    """Settings with another value than the only one that this package computes, as text."""
    return [
        f"{theirs} is {config[theirs]!r}: only {value!r} is computed here"
        for theirs, value in fixed.items()
        if config.get(theirs, value) != value
    ]


def _unknown_settings(encoder: EncoderConfig, family: Family) -> list[str]:
    """Settings of the encoder that are not BERT's and that the family's class does not compute, as text."""
    return [
        f"encoder.{field.name} is {getattr(encoder, field.name)!r}: transformers' {family.class_prefix} computes"
        f" {field.default!r} alone"
        for field in dataclasses.fields(encoder)
        if field.name not in _ANY | _OWN[family.model_type] and getattr(encoder, field.name) != field.default
    ]


def config_to_hf(
    encoder: EncoderConfig,
    specials: Specials | None,
    parts: set[str],
    dtype: str,
    task: Mapping[str, Any] | None = None,
    model_type: str = "",
) -> dict[str, Any]:
    """Builds config.json of a model with these parts of the canonical tree; `task` is the result of `task_to_hf`, if fine-tuned,
    `model_type` as in `family_of`.

    ValueError if transformers has no class for the encoder, or would number its positions differently.
    """
    family, task = family_of(encoder, parts, model_type), dict(task or {})
    problems = _unknown_settings(encoder, family)
    if family.model_type == "modernbert":
        problems += _modern_problems(encoder, parts)
    elif family.model_type != "xlnet":
        problems += _problems_for_hf(encoder, specials, parts, family)
    # one error with everything that transformers' class of the family lacks or computes differently
    raise_problems(problems, "")
    found = {"architectures": [pretraining_class(family, parts)], "model_type": family.model_type}
    if family.model_type == "modernbert":
        found |= _modern_config_to_hf(encoder, specials)
        found |= {"classifier_dropout": encoder.dropout} if task else {}
    elif family.model_type == "xlnet":
        found |= _xlnet_config_to_hf(encoder)
    elif family.model_type == "distilbert":
        found |= _distil_config_to_hf(encoder)
    else:
        found |= _bert_config_to_hf(encoder, family)
        found |= deberta.config_to_hf(encoder, parts) if family is DEBERTA else {}
    found |= {"tie_word_embeddings": True, "dtype": dtype, "torch_dtype": dtype}
    if specials and family.model_type != "modernbert":
        names = {"pad_token_id": specials.pad, "bos_token_id": specials.cls, "eos_token_id": specials.sep}
        found |= names if family.model_type != "bert" else {"pad_token_id": specials.pad}
    return found | task


def remote_config(params: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Entries of config.json that lead to the class in REMOTE_CODE, with the settings of its heads; {} for a model without the
    masked token head, the span boundary head, or the names of BERT or ModernBERT."""
    if family.model_type not in _IN_REMOTE_CODE or not {"mlm", "sbo"} <= params.keys():
        return {}
    offsets, width = params["sbo"]["position"]["embedding"].shape
    parts = {name: name in params for name in ("pooler", "pair")}
    settings = {"max_offset": int(offsets), "position_size": int(width), **parts}
    name = f"{REMOTE_CODE.removesuffix('.py')}.Span{_IN_REMOTE_CODE[family.model_type]}ForPreTraining"
    return {"auto_map": {"AutoModelForPreTraining": name}, "spanbert": settings}


def _bert_config_to_hf(encoder: EncoderConfig, family: Family) -> dict[str, Any]:
    others = {theirs: ours for theirs, (ours, _) in _OTHERS.items()}
    found = {**_theirs(encoder, _SIZES | others), "hidden_act": _ACTIVATIONS[encoder.activation]}
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
    return found


def _problems_for_hf(encoder: EncoderConfig, specials: Specials | None, parts: set[str], family: Family) -> list[str]:
    """Settings that transformers' class of BERT's kind computes differently, as text."""
    problems = []
    if family.model_type == "albert" and not encoder.embedding_size:
        problems.append(
            "encoder.embedding_size is 0: transformers' ALBERT always widens its embeddings, train with a size"
        )
    if activation_problem := gelu_problem(encoder, parts, family):
        problems.append(
            f"{activation_problem}: train with gelu to write such a folder, or use these weights with spanjax"
        )
    if family.model_type == "distilbert" and encoder.norm_epsilon != _DISTIL_EPSILON:
        problems.append(
            f"encoder.norm_epsilon is {encoder.norm_epsilon:g}: an encoder without token types is DistilBERT in transformers,"
            f" which computes {_DISTIL_EPSILON:g} alone"
        )
    # the id of padding is a setting of their class, which computes positions from it
    if family.model_type in LIKE_ROBERTA and specials and encoder.position_offset != specials.pad + 1:
        problems.append(
            f"encoder.position_offset is {encoder.position_offset}: RoBERTa in transformers counts positions from the id of "
            f"padding plus one, here {specials.pad + 1}"
        )
    if family.model_type in ("electra", "deberta-v2") and encoder.embedding_size == encoder.hidden_size:
        problems.append(
            f"encoder.embedding_size is {encoder.embedding_size}, as wide as the layers: {family.class_prefix} in transformers"
            " has no product there, train with 0"
        )
    return problems


def _modern_problems(encoder: EncoderConfig, parts: set[str]) -> list[str]:
    """Settings of which transformers' ModernBERT has only the whole recipe, and heads that it lacks, as text."""
    # half of the recipe has no class in transformers, and a near one would compute something else in silence
    layers = {"norm_first": True, "gated_mlp": True, "biases": False, "activation": "gelu"}
    expected = {**layers, "types": 0, "num_layer_groups": 0, "embedding_size": 0}
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
    return problems


def _modern_config_to_hf(encoder: EncoderConfig, specials: Specials | None) -> dict[str, Any]:
    roles = {"pad": "pad", "bos": "cls", "eos": "sep", "cls": "cls", "sep": "sep"}
    every = encoder.global_every or 1
    bases = {_FULL: encoder.rope_theta, _SLIDING: encoder.local_rope_theta or encoder.rope_theta}
    # a width that no layer reads is not written: transformers has a default, and it computes nothing
    window = {"local_attention": 2 * encoder.local_window} if encoder.local_window else {}
    return {
        **_theirs(encoder, _SIZES),
        **_MODERN_FIXED,
        "norm_eps": encoder.norm_epsilon,
        "initializer_range": encoder.initializer_std,
        "attention_dropout": encoder.attention_dropout,
        "embedding_dropout": encoder.dropout,
        "mlp_dropout": encoder.dropout,
        # transformers 5 reads layer_types and rope_parameters; 4.48 reads _EVERY and the two *_rope_theta
        "layer_types": _layer_types(encoder.layers, every),
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        _EVERY: every,
        **{older: bases[kind] for kind, (older, _) in _BASES.items()},
        **window,
        **{f"{theirs}_token_id": getattr(specials, ours) if specials else None for theirs, ours in roles.items()},
    }


def _distil_config_to_hf(encoder: EncoderConfig) -> dict[str, Any]:
    others = {theirs: ours for theirs, (ours, _) in _DISTIL_OTHERS.items()}
    return {
        **_theirs(encoder, _DISTIL_SIZES | others),
        "activation": _ACTIVATIONS[encoder.activation],
        "sinusoidal_pos_embds": False,
        "qa_dropout": encoder.dropout,
        "seq_classif_dropout": encoder.dropout,
    }


def _xlnet_config_to_hf(encoder: EncoderConfig) -> dict[str, Any]:
    others = {theirs: ours for theirs, (ours, _) in _XLNET_OTHERS.items()}
    return {
        **_theirs(encoder, _XLNET_SIZES | others),
        **_XLNET_FIXED,
        **_SUMMARY,
        "d_head": encoder.hidden_size // encoder.heads,
        "ff_activation": _ACTIVATIONS[encoder.activation],
        "dropout": encoder.dropout,
        "mem_len": None,
        "reuse_len": None,
    }


def gelu_problem(encoder: EncoderConfig, parts: Collection[str], family: Family) -> str:
    """Message if the masked token head computes something else in transformers: always gelu for RoBERTa and ELECTRA, here the
    encoder's activation. Empty if both agree, or `parts` has no such head.
    """
    if "mlm" not in parts or family.model_type not in (*LIKE_ROBERTA, "electra") or encoder.activation == "gelu":
        return ""
    own = f"encoder.activation is {encoder.activation!r} (hidden_act {_ACTIVATIONS[encoder.activation]!r})"
    return f"{own}, the masked token head of {family.class_prefix}ForMaskedLM computes gelu"


def config_from_hf(config: Mapping[str, Any], name: str) -> tuple[EncoderConfig, Family]:
    """Returns encoder and family of a config.json, with model_type or as the original BERT wrote it (11 fields, no model_type).

    ValueError lists all settings that are missing or that this package computes differently.
    """
    kind = config.get("model_type") or ("albert" if "num_hidden_groups" in config else "bert")
    if kind not in FAMILIES:
        raise ValueError(f"{name}: model_type is {kind!r}: expected one of {', '.join(FAMILIES)}")
    if kind == "modernbert":
        settings = _modern_settings_from_hf(config, name)
    elif kind == "xlnet":
        settings = _xlnet_settings_from_hf(config, name)
    elif kind == "distilbert":
        settings = _distil_settings_from_hf(config, name)
    else:
        settings = _bert_settings_from_hf(config, name, kind)
    encoder = EncoderConfig(**settings)
    raise_problems(encoder.problems(), f"{name}:")
    return encoder, FAMILIES[kind]


def _bert_settings_from_hf(config: Mapping[str, Any], name: str, kind: str) -> dict[str, Any]:
    if kind == DEBERTA.model_type:
        config = {**deberta.DEFAULTS, **config}
    problems = _missing(config, _SIZES)
    problems += _no_numbers(config, (*_OTHERS, "embedding_size", "num_hidden_groups", "pad_token_id"))
    activation = _activation(config, "hidden_act", problems)
    problems += _not_computed({theirs: value for theirs, value in config.items() if value is not None}, _FIXED)
    problems += deberta.problems(config) if kind == DEBERTA.model_type else []
    raise_problems(problems, f"{name}:")
    settings: dict[str, Any] = _ours(config, _SIZES, _OTHERS) | {"activation": activation}
    if kind in LIKE_ROBERTA:
        pad = config.get("pad_token_id")  # 0 is a valid id, so a missing one (1 by default) is told apart by None
        settings["position_offset"] = 1 + (1 if pad is None else pad)
        settings["positions"] -= settings["position_offset"]
    if kind == "albert":
        settings |= {
            "embedding_size": config.get("embedding_size", 128),
            "num_layer_groups": config.get("num_hidden_groups", 1),
        }
    if kind == "electra":
        # transformers' ELECTRA has no projection at equal widths; ALBERT above always has one
        width = config.get("embedding_size", 128)
        settings["embedding_size"] = 0 if width == settings["hidden_size"] else width
    if kind == DEBERTA.model_type:
        settings |= deberta.settings_from_hf(config)
    return settings


def _activation(config: Mapping[str, Any], name: str, problems: list[str]) -> str:
    """Returns our name of the activation, and appends a problem if it has none."""
    activation = config.get(name, "gelu")
    if activation not in _THEIR_ACTIVATIONS:
        problems.append(f"{name} is {activation!r}: expected one of {', '.join(_THEIR_ACTIVATIONS)}")
    return _THEIR_ACTIVATIONS.get(activation, "gelu")


def _distil_settings_from_hf(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    problems = _missing(config, _DISTIL_SIZES) + _no_numbers(config, _DISTIL_OTHERS)
    problems += _not_computed({theirs: value for theirs, value in config.items() if value is not None}, _FIXED)
    activation = _activation(config, "activation", problems)
    raise_problems(problems, f"{name}:")
    found = _ours(config, _DISTIL_SIZES, _DISTIL_OTHERS)
    return found | {"activation": activation, "types": 0, "norm_epsilon": _DISTIL_EPSILON}


def _modern_settings_from_hf(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    problems = _missing(config, _SIZES) + _not_computed(config, _MODERN_FIXED)
    every, window = 1, config.get("local_attention", _THEIR_WINDOW)
    if not problems:
        every, problems = _global_every(config)
    if every > 1 and not (isinstance(window, int) and window >= 2):
        problems.append(
            f"local_attention is {window!r}: expected the width of the window of local layers, 2 or more; {_THEIR_WINDOW} in"
            " ModernBERT"
        )
    bases = {kind: _rotary_base(config, kind, problems) for kind in ((_FULL, _SLIDING) if every > 1 else (_FULL,))}
    raise_problems(problems, f"{name}:")
    # transformers halves the width, so that an odd one counts as the even one below
    local = (window // 2, every, bases[_SLIDING]) if every > 1 else (0, 0, 0.0)
    others = {"norm_eps": ("norm_epsilon", 1e-5), "initializer_range": ("initializer_std", 0.02)}
    rates = {"mlp_dropout": "dropout", "attention_dropout": "attention_dropout"}
    return {
        **_ours(config, _SIZES, others),
        **{ours: float(config.get(theirs, 0.0)) for theirs, ours in rates.items()},
        **{"types": 0, "norm_first": True, "rope_theta": bases[_FULL], "gated_mlp": True, "biases": False},
        **dict(zip(_LOCAL, local, strict=True)),
    }


def _layer_types(layers: int, every: int) -> list[str]:
    return [_SLIDING if number % every else _FULL for number in range(layers)]


def _global_every(config: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Returns the distance between global layers, 1 where all are global, and problems with the kinds of the layers."""
    every, kinds, layers = config.get(_EVERY, _THEIR_EVERY), config.get("layer_types"), config["num_hidden_layers"]
    if kinds is None:
        if isinstance(every, int) and every > 0:
            return every, []
        return 1, [f"{_EVERY} is {every!r}: expected the distance between global layers, {_THEIR_EVERY} in ModernBERT"]
    # of a list with one global layer every distance beyond its end is true; transformers 5 writes no _EVERY that would tell
    distances = [every] if isinstance(every, int) and every > 0 else []
    distances += [number for number, kind in enumerate(kinds) if number and kind == _FULL][:1] or [max(1, layers)]
    for distance in distances:
        if list(kinds) == _layer_types(layers, distance):
            return distance, []
    listed = ", ".join(map(str, kinds[:8])) + ", ..." * (len(kinds) > 8)
    return 1, [
        f"layer_types is {listed}: expected {layers} kinds, {_FULL} for the first layer and every n-th after it, {_SLIDING} for"
        " all others; another order is not computed here"
    ]


def _rotary_base(config: Mapping[str, Any], kind: str, problems: list[str]) -> float:
    """Returns the rotary base of layers of this kind, and appends problems: transformers 5 writes rope_parameters, 4.48 one
    setting a kind, whose missing value is the global base."""
    rope, (older, default) = (config.get("rope_parameters") or {}).get(kind) or {}, _BASES[kind]
    base = rope.get("rope_theta", config.get(older, default))
    if base is None and kind == _SLIDING:
        return _rotary_base(config, _FULL, problems)
    if rope.get("rope_type", "default") != "default":
        problems.append(f"rope_type of {kind} is {rope['rope_type']!r}: only 'default' is computed here")
    if isinstance(base, bool) or not isinstance(base, int | float) or base <= 0:
        problems.append(f"{older} is {base!r}: expected the rotary base of {kind}, {default:,.0f} in ModernBERT")
        return default
    return float(base)


def _xlnet_settings_from_hf(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    problems, fixed = _missing(config, _XLNET_SIZES), dict(_XLNET_FIXED)
    # only this class reads the summary settings, and transformers' default ('last') is not supported, so one is required
    if any(str(each).endswith("ForSequenceClassification") for each in config.get("architectures") or ()):
        fixed |= _SUMMARY
        problems += [] if "summary_type" in config else ["summary_type is 'last': only 'first' is computed here"]
    problems += _not_computed(config, fixed)
    ours = {theirs: own for own, theirs in _ACTIVATIONS.items()}
    activation = config.get("ff_activation", "gelu")
    if activation not in ours:
        problems.append(f"ff_activation is {activation!r}: expected one of {', '.join(ours)}")
    raise_problems(problems + _no_numbers(config, (*_XLNET_OTHERS, "dropout")), f"{name}:")
    rate = float(config.get("dropout", 0.1))
    others = {"activation": ours[activation], "dropout": rate, "attention_dropout": rate, "relative_attention": True}
    return _ours(config, _XLNET_SIZES, _XLNET_OTHERS) | others
