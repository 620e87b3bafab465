"""DeBERTa-v2 and -v3 (model type deberta-v2): settings of config.json that BERT lacks, and further heads in published files."""

from collections.abc import Collection, Mapping
from typing import Any

from spanjax.nn.config import EncoderConfig

SETTINGS = ("disentangled_attention", "max_distance", "distance_buckets", "distance_norm", "shared_projections")
"""Settings of the encoder that describe disentangled attention."""
DEFAULTS: Mapping[str, Any] = {
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "relative_attention": False,
    "position_biased_input": True,
    "max_relative_positions": -1,
    "position_buckets": -1,
    "norm_rel_ebd": "none",
    "share_att_key": False,
    "conv_kernel_size": 0,
    "pooler_hidden_act": "gelu",
    "legacy": True,
}
"""Values of settings that a config.json lacks."""
_FIXED: Mapping[str, Any] = {"relative_attention": True, "position_biased_input": False, "conv_kernel_size": 0}
_REASONS = {"conv_kernel_size": ", not the convolution after the first layer (DeBERTa-v2 xlarge and xxlarge)"}
_NORMS = ("none", "layer_norm")
_TERMS = {frozenset({"c2p"}): "c2p", frozenset({"p2c"}): "p2c", frozenset({"c2p", "p2c"}): "both"}
POOLERS = {"gelu": "pre_classifier", "tanh": "pooler"}
"""Activation of the layer before the classifier of sequences there -> our part with that layer."""

_LATER_HEAD, _SKIPPED = "lm_predictions.lm_head.", ("lm_predictions.", "mask_predictions.")
_POSITIONS = "deberta.embeddings.position_embeddings.weight"


def _terms(config: Mapping[str, Any]) -> frozenset[str]:
    """Names in pos_att_type: a list, or text with bars; none in anything else."""
    listed = config.get("pos_att_type")
    listed = listed.lower().split("|") if isinstance(listed, str) else listed if isinstance(listed, list) else ()
    return frozenset(str(each).strip() for each in listed)


def problems(config: Mapping[str, Any]) -> list[str]:
    """Returns the settings of a config.json, completed by `DEFAULTS`, that this package computes differently, as text."""
    fixed, (width, heads) = dict(_FIXED), (config.get(name) for name in ("hidden_size", "num_attention_heads"))
    # missing or wrong sizes have messages already, and say nothing about these two
    if isinstance(width, int) and isinstance(heads, int) and heads > 0:
        fixed |= {"pooler_hidden_size": width, "attention_head_size": width // heads}
    found = [
        f"{name} is {config[name]!r}: only {value!r} is computed here{_REASONS.get(name, '')}"
        for name, value in fixed.items()
        if config.get(name, value) != value
    ]
    if _terms(config) not in _TERMS:
        found.append(
            f"pos_att_type is {config.get('pos_att_type')!r}: expected c2p, p2c or both of them, 'p2c|c2p' in DeBERTa-v3"
        )
    found += [
        f"{name} is {config[name]!r}: expected one of {', '.join(known)}"
        for name, known in (("norm_rel_ebd", _NORMS), ("pooler_hidden_act", tuple(POOLERS)))
        if config[name] not in known
    ]
    return found + [
        f"{name} is {config[name]!r}: expected a whole number"
        for name in ("max_relative_positions", "position_buckets")
        if isinstance(config[name], bool) or not isinstance(config[name], int)
    ]


def settings_from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings of the encoder besides those of BERT, of a config.json without `problems`."""
    # a distance of its own, so that longer rows do not change what the buckets mean
    farthest, width = config["max_relative_positions"], config.get("embedding_size") or config["hidden_size"]
    return {
        "disentangled_attention": _TERMS[_terms(config)],
        "max_distance": farthest if farthest > 0 else config["max_position_embeddings"],
        "distance_buckets": max(0, config["position_buckets"]),
        "distance_norm": config["norm_rel_ebd"] == "layer_norm",
        "shared_projections": bool(config["share_att_key"]),
        "embedding_size": 0 if width == config["hidden_size"] else width,
    }


def config_to_hf(encoder: EncoderConfig, parts: Collection[str]) -> dict[str, Any]:
    """Returns the entries of config.json of such an encoder besides those of BERT; `parts` are those of the canonical tree."""
    terms = {ours: theirs for theirs, ours in _TERMS.items()}[encoder.disentangled_attention]
    return {
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": sorted(terms, reverse=True),
        "max_relative_positions": encoder.max_distance,
        "position_buckets": encoder.distance_buckets or -1,
        "norm_rel_ebd": "layer_norm" if encoder.distance_norm else "none",
        "share_att_key": encoder.shared_projections,
        "embedding_size": encoder.embedding_width,
        "pooler_dropout": 0.0,
        "pooler_hidden_act": "tanh" if "pooler" in parts else "gelu",
        "pooler_hidden_size": encoder.hidden_size,
        # the masked token head under BERT's names, which all versions of transformers read
        "legacy": True,
    }


def with_one_token_head(tensors: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the tensors with the masked token head that the config.json names under BERT's names, without further heads and an
    unused table of positions that published files hold; and notes on the skipped ones."""
    found = dict(tensors)
    if config.get("legacy", True) is False:
        for name in [name for name in found if name.startswith(_LATER_HEAD)]:
            own = name.removeprefix(_LATER_HEAD)
            found[f"cls.predictions.{own if own == 'bias' else f'transform.{own}'}"] = found.pop(name)
    skipped = [name for name in found if name.startswith(_SKIPPED) or name == _POSITIONS]
    for name in skipped:
        del found[name]
    heads = sorted({name.split(".")[0] for name in skipped if name != _POSITIONS})
    notes = []
    if heads:
        notes.append(
            f"{', '.join(f'{head}.*' for head in heads)} skipped: transformers does not use them unless config.json says"
            ' "legacy": false, and then lm_predictions.* as the masked token head'
        )
    if _POSITIONS in skipped:
        notes.append(f"{_POSITIONS} skipped: position_biased_input is False")
    return found, notes
