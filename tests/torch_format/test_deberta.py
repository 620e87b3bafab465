"""DeBERTa's settings and heads: each kind of attention beside transformers, published files, and what is refused."""

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from spanjax.convert import main as convert
from spanjax.nn.config import EncoderConfig
from spanjax.nn.encoder import Encoder
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, module_params
from spanjax.torch_format.configs import config_from_hf, config_to_hf
from spanjax.torch_format.tables import params_from_hf
from spanjax.training.state import abstract_module
from tests.torch_format.references import reference, saved, tensors

PUBLISHED = {
    **{"model_type": "deberta-v2", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    **{"intermediate_size": 3072, "max_position_embeddings": 512, "vocab_size": 128_100, "hidden_act": "gelu"},
    **{"relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p", "position_buckets": 256},
    **{"max_relative_positions": -1, "norm_rel_ebd": "layer_norm", "share_att_key": True, "type_vocab_size": 0},
    **{"layer_norm_eps": 1e-7, "pooler_hidden_act": "gelu", "pooler_hidden_size": 768, "pad_token_id": 0},
}
"""config.json of DeBERTa-v3 base."""


@pytest.mark.parametrize("terms", ["c2p", "p2c", "p2c|c2p"])
@pytest.mark.parametrize("shared", [True, False])
def test_states_are_those_of_transformers(terms: str, shared: bool) -> None:
    """Longer than the farthest distance, so that every bucket is used; on padding nothing is compared."""
    import torch

    theirs = reference("deberta-v2", pos_att_type=terms, share_att_key=shared, max_relative_positions=14)
    encoder, family = config_from_hf(theirs.config.to_dict(), "config.json")
    model = Model(encoder, params_from_hf(tensors(theirs), encoder, family).params, None, pathlib.Path())
    structure, abstract = abstract_module(model.objective(), encoder)
    module: Any = jax.tree.map(jnp.asarray, module_params(model, abstract))
    made: Encoder = nnx.merge(structure, module).encoder
    tokens = np.random.default_rng(0).integers(5, encoder.vocab_size, (3, 40)).astype(np.int32)
    used = np.arange(40) < np.array([[40], [31], [2]])
    with torch.no_grad():
        states = theirs(
            input_ids=torch.from_numpy(tokens).long(),
            attention_mask=torch.from_numpy(used).long(),
            output_hidden_states=True,
        ).hidden_states
    zeros = np.zeros_like(tokens)
    with jax.default_matmul_precision("highest"):
        found = np.asarray(made.every_state(*map(jnp.asarray, (tokens, used.astype(np.int32), zeros, zeros))))
    for ours, expected in zip(found, states, strict=True):
        np.testing.assert_allclose(ours[used], expected.numpy()[used], atol=1e-5, rtol=1e-5)


def test_the_published_settings_are_read_and_written_back() -> None:
    encoder, family = config_from_hf(PUBLISHED, "config.json")
    assert family.class_prefix == "DebertaV2"
    assert (encoder.disentangled_attention, encoder.max_distance, encoder.distance_buckets) == ("both", 512, 256)
    assert encoder.distance_norm and encoder.shared_projections and (encoder.types, encoder.embedding_size) == (0, 0)
    written = config_to_hf(encoder, None, {"mlm"}, "float32")
    assert written["architectures"] == ["DebertaV2ForMaskedLM"]
    same = {**PUBLISHED, "max_relative_positions": 512, "pos_att_type": ["p2c", "c2p"]}
    assert {name: written[name] for name in same if name != "pad_token_id"}.items() <= same.items()
    assert config_from_hf(written, "config.json") == (encoder, family)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"conv_kernel_size": 3},
            r"conv_kernel_size is 3: only 0 is computed here, not the convolution after the first",
        ),
        ({"position_biased_input": True}, "position_biased_input is True: only False is computed here"),
        ({"relative_attention": False}, "relative_attention is False: only True is computed here"),
        ({"pos_att_type": "p2p|c2p"}, r"pos_att_type is 'p2p\|c2p': expected c2p, p2c or both"),
        ({"pos_att_type": None}, "pos_att_type is None: expected c2p, p2c or both"),
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd is 'batch_norm': expected one of none, layer_norm"),
        ({"pooler_hidden_act": "relu"}, "pooler_hidden_act is 'relu': expected one of gelu, tanh"),
        ({"attention_head_size": 32}, "attention_head_size is 32: only 64 is computed here"),
        ({"position_buckets": "256"}, "position_buckets is '256': expected a whole number"),
        ({"norm_rel_ebd": 3}, "norm_rel_ebd is 3: expected one of none, layer_norm"),
        ({"pos_att_type": 3}, "pos_att_type is 3: expected c2p, p2c or both"),
        ({"pooler_hidden_act": ["gelu"]}, r"pooler_hidden_act is \['gelu'\]: expected one of gelu, tanh"),
    ],
    ids=str,
)
def test_settings_that_are_not_computed_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config_from_hf(PUBLISHED | changes, "config.json")


def test_further_heads_of_published_files_are_skipped_with_a_note(tmp_path: pathlib.Path) -> None:
    """As deberta-v3-base has them, next to an encoder alone, without `legacy` in its config.json."""
    theirs = saved("deberta-v2_encoder", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({n: v for n, v in config.items() if n != "legacy"}))
    own = {f"deberta.{name}": array for name, array in tensors(theirs).items()}
    names = ["lm_predictions.lm_head.dense.weight", "lm_predictions.lm_head.bias", "mask_predictions.classifier.weight"]
    further = {name: np.ones((2, 2), np.float32) for name in (*names, "deberta.embeddings.position_embeddings.weight")}
    save_file(own | further, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load_model(tmp_path)
    assert model.parts == {"encoder"}
    told = "\n".join(model.notes)
    assert (
        "lm_predictions.*, mask_predictions.* skipped: transformers does not use them unless config.json says" in told
    )
    assert "deberta.embeddings.position_embeddings.weight skipped: position_biased_input is False" in told


def test_the_later_token_head_is_read_where_the_config_names_it(tmp_path: pathlib.Path, capsys: Any) -> None:
    """`legacy` false: the same head under other names; what is written has BERT's names and computes the same."""
    theirs = saved("deberta-v2", tmp_path / "theirs", legacy=False)
    assert convert(["from-torch", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert convert(["verify", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--tolerance", "5e-5"]) == 0
    assert convert(["to-torch", str(tmp_path / "ours"), str(tmp_path / "back"), "--verify"]) == 0
    told = capsys.readouterr().out
    assert told.count("mlm logits") == 2 and "mlm logits      not compared" not in told and "ABOVE" not in told
    before, after = tensors(theirs), load_file(tmp_path / "back" / "model.safetensors")
    np.testing.assert_array_equal(
        after["cls.predictions.transform.dense.weight"], before["lm_predictions.lm_head.dense.weight"]
    )
    np.testing.assert_array_equal(after["cls.predictions.bias"], before["lm_predictions.lm_head.bias"])


def test_a_pooler_with_tanh_is_read_and_written(tmp_path: pathlib.Path, capsys: Any) -> None:
    """The pooler of tasks by default; DeBERTa's own has gelu."""
    saved("deberta-v2_sequence", tmp_path / "theirs", pooler_hidden_act="tanh")
    model = load_model(tmp_path / "theirs")
    assert {"pooler", "classifier"} <= model.parts and "pre_classifier" not in model.parts
    assert convert(["from-torch", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert convert(["to-torch", str(tmp_path / "ours"), str(tmp_path / "back"), "--verify"]) == 0
    assert "sequence logits" in capsys.readouterr().out
    assert json.loads((tmp_path / "back" / "config.json").read_text())["pooler_hidden_act"] == "tanh"


def test_an_encoder_that_no_class_computes_is_refused() -> None:
    deberta: dict[str, Any] = {"vocab_size": 10, "disentangled_attention": "both", "max_distance": 8}
    listed: tuple[tuple[dict[str, Any], str], ...] = (
        ({"norm_first": True}, "encoder.norm_first is True: transformers' DebertaV2 computes False alone"),
        ({"num_layer_groups": 1}, "encoder.num_layer_groups is 1: transformers' DebertaV2 computes 0 alone"),
        ({"embedding_size": 768}, "encoder.embedding_size is 768, as wide as the layers: DebertaV2 in transformers"),
    )
    for changes, words in listed:
        with pytest.raises(ValueError, match=words):
            config_to_hf(EncoderConfig(**(deberta | changes)), None, {"mlm"}, "float32")
