"""config.json of XLNet <-> EncoderConfig."""

from collections.abc import Mapping
from typing import Any

from spanjax.data.vocab.base import Specials
from spanjax.nn.config import EncoderConfig
from spanjax.torch_format.families import XLNET, pretraining_class
from spanjax.torch_format.sizes import ACTIVATIONS, raise_listed

_SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_layer": "layers",
    "n_head": "heads",
    "d_inner": "intermediate_size",
}
_FIXED: Mapping[str, Any] = {
    "attn_type": "bi",
    "bi_data": False,
    "clamp_len": -1,
    "same_length": False,
    "untie_r": True,
    "tie_word_embeddings": True,
}
_SUMMARY: Mapping[str, Any] = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "tanh"}
"""Sequence summary of a fine-tuned sequence classifier: the pooler of the first token."""
_OTHERS = {"layer_norm_eps": ("norm_epsilon", 1e-12), "initializer_range": ("initializer_std", 0.02)}


def their_xlnet_config(
    encoder: EncoderConfig, specials: Specials | None, parts: set[str], dtype: str, task: Mapping[str, Any]
) -> dict[str, Any]:
    """Builds config.json of a model with these parts; `task` is the result of `their_task`, if fine-tuned."""
    found: dict[str, Any] = {
        "architectures": [pretraining_class(XLNET, parts)],
        "model_type": "xlnet",
        **{theirs: getattr(encoder, ours) for theirs, ours in _SIZES.items()},
        **{theirs: getattr(encoder, ours) for theirs, (ours, _) in _OTHERS.items()},
        **_FIXED,
        **_SUMMARY,
        "d_head": encoder.hidden_size // encoder.heads,
        "ff_activation": ACTIVATIONS[encoder.activation],
        "dropout": encoder.dropout,
        "mem_len": None,
        "reuse_len": None,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    if specials:
        found |= {"pad_token_id": specials.pad, "bos_token_id": specials.cls, "eos_token_id": specials.sep}
    return found | dict(task)


def our_xlnet_config(config: Mapping[str, Any], name: str) -> EncoderConfig:
    """Returns the encoder of an XLNet. ValueError lists settings that are missing or not supported here."""
    problems = [f"{each} is missing: expected a number" for each in _SIZES if not isinstance(config.get(each), int)]
    fixed = dict(_FIXED)
    # only this class reads the summary settings, and transformers' default ('last') is not supported, so one is required
    if any(str(each).endswith("ForSequenceClassification") for each in config.get("architectures") or ()):
        fixed |= _SUMMARY
        problems += [] if "summary_type" in config else ["summary_type is 'last': only 'first' is computed here"]
    problems += [
        f"{each} is {config[each]!r}: only {value!r} is computed here"
        for each, value in fixed.items()
        if config.get(each, value) != value
    ]
    ours = {theirs: own for own, theirs in ACTIVATIONS.items()}
    activation = config.get("ff_activation", "gelu")
    if activation not in ours:
        problems.append(f"ff_activation is {activation!r}: expected one of {', '.join(ours)}")
    numbers = (*_OTHERS, "dropout")
    problems += [
        f"{each} is {config[each]!r}: expected a number"
        for each in numbers
        if config.get(each) is not None and not isinstance(config[each], int | float)
    ]
    raise_listed(name, problems)
    rate = float(config.get("dropout", 0.1))
    settings: dict[str, Any] = {own: config[theirs] for theirs, own in _SIZES.items()}
    settings |= {own: config.get(theirs, default) for theirs, (own, default) in _OTHERS.items()}
    settings |= {"activation": ours[activation], "dropout": rate, "attention_dropout": rate}
    encoder = EncoderConfig(**settings, relative_attention=True)
    raise_listed(name, encoder.problems())
    return encoder
