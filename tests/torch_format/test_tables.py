"""Tables in both directions: every name of a random transformers model is consumed and comes back equal; hidden states agree."""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.convert.compare import detection_here
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.loss_terms import MaskedTokens
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, module_params
from spanjax.sharding import map_named, named_leaves
from spanjax.torch_format.configs import config_from_hf, config_to_hf
from spanjax.torch_format.families import BERT, FAMILIES, family_of
from spanjax.torch_format.folder import original_names
from spanjax.torch_format.guessed import guessed_config
from spanjax.torch_format.names import known_names
from spanjax.torch_format.tables import params_from_hf, tensors_to_hf
from spanjax.training.state import abstract_module
from tests.torch_format.references import REASON, reference, saved, tensors

KINDS = pytest.mark.parametrize(
    "kind",
    [
        *("bert", "bert_pairs", "bert_encoder", "roberta", "albert", "albert_pairs"),
        *("electra", "electra_detector", "electra_detector_wide", "xlnet"),
        *("modernbert", "modernbert_local", "modernbert_one"),
        *("deberta-v2", "deberta-v2_own", "deberta-v2_encoder"),
        *("xlm-roberta", "camembert", "distilbert", "distilbert_encoder"),
    ],
)


def loaded(model: Any) -> tuple[Any, EncoderConfig, Any, dict[str, np.ndarray]]:
    theirs = tensors(model)
    encoder, family = config_from_hf(model.config.to_dict(), "config.json")
    return params_from_hf(known_names(theirs, family)[0], encoder, family), encoder, family, theirs


@KINDS
def test_every_name_is_consumed_and_comes_back(kind: str) -> None:
    found, encoder, family, theirs = loaded(reference(kind))
    back = dict(tensors_to_hf(found.params, encoder, family))
    prefix = family.prefix if kind.endswith("_encoder") else ""
    assert {*back} | {*found.repeated} | {*found.buffers} == {prefix + name for name in theirs}
    assert all(np.array_equal(array, theirs[name.removeprefix(prefix)]) for name, array in back.items())
    assert family_of(encoder, found.params, family.model_type) is family
    written = config_to_hf(encoder, None, set(found.params), "float32", model_type=family.model_type)
    again, second = config_from_hf(written, "config.json")
    assert (again, second) == (encoder, family)


@KINDS
def test_hidden_states_and_scores_are_those_of_transformers(kind: str) -> None:
    """float32, every layer and the masked token head within 1e-5; padding is left out of both."""
    import torch

    theirs = reference(kind)
    found, encoder, _, _ = loaded(theirs)
    model = Model(encoder, found.params, None, source=None)  # pyright: ignore[reportArgumentType]
    objective = model.objective()
    structure, abstract = abstract_module(objective, encoder)
    module: Any = nnx.merge(structure, jax.tree.map(jnp.asarray, module_params(model, abstract)))
    tokens = np.random.default_rng(0).integers(5, encoder.vocab_size, (4, 23)).astype(np.int32)
    used = np.arange(23) < np.array([[23], [23], [9], [1]])
    tokens[~used] = max(0, encoder.position_offset - 1)
    positions = np.where(used, np.arange(23, dtype=np.int32), 0)
    zeros = np.zeros_like(tokens)
    with torch.no_grad():
        output = theirs(
            input_ids=torch.from_numpy(tokens).long(),
            attention_mask=torch.from_numpy(used).long(),
            output_hidden_states=True,
        )
    with jax.default_matmul_precision("highest"):
        states = module.encoder.every_state(tokens, used.astype(np.int32), positions, zeros)
        assert states.shape == (encoder.layers + 1, 4, 23, encoder.hidden_size)
        for ours, expected in zip(np.asarray(states), output.hidden_states, strict=True):
            np.testing.assert_allclose(ours[used], expected.numpy()[used], atol=1e-5, rtol=1e-5)
        last = module.encoder(tokens, used.astype(np.int32), positions, zeros)
        np.testing.assert_array_equal(last, states[-1])
        if "mlm" in found.params:
            slots = np.broadcast_to(np.arange(23, dtype=np.int32), tokens.shape)
            logits = np.asarray(objective.logits(module, states[-1], {"slot_position_BK": jnp.asarray(slots)}))[:, 0]
            expected = (output.prediction_logits if "prediction_logits" in output else output.logits).numpy()
            np.testing.assert_allclose(logits[..., : encoder.vocab_size][used], expected[used], atol=3e-5, rtol=1e-5)
        if "rtd" in found.params:
            odds = detection_here(model, states[-1])
            assert odds is not None
            np.testing.assert_allclose(odds[used], output.logits.numpy()[used], atol=3e-5, rtol=1e-5)


def test_old_names_are_brought_to_the_tables() -> None:
    theirs = tensors(reference("bert_pairs"))
    encoder, _ = config_from_hf(reference("bert_pairs").config.to_dict(), "config.json")
    expected = params_from_hf(theirs, encoder, BERT).params
    for rename, said in (
        (original_names, "decoder. taken off"),
        (lambda name: f"module.{name}", "module. taken off"),
    ):
        known, notes = known_names({rename(name): array for name, array in theirs.items()}, BERT)
        assert said in " ".join(notes)
        found = named_leaves(params_from_hf(known, encoder, BERT).params)
        assert all(np.array_equal(found[name], array) for name, array in named_leaves(expected).items())
    assert original_names("bert.embeddings.LayerNorm.weight") == "decoder.bert.embeddings.LayerNorm.gamma"
    with pytest.raises(ValueError, match=r"two tensors are x\.LayerNorm\.weight"):
        known_names({"x.LayerNorm.gamma": 0, "x.LayerNorm.weight": 1}, BERT)


def test_what_does_not_fit_is_listed_on_both_sides() -> None:
    model = reference("bert")
    theirs, (encoder, _) = tensors(model), config_from_hf(model.config.to_dict(), "config.json")
    broken = {name: array for name, array in theirs.items() if "layer.1.attention.self.query" not in name}
    with pytest.raises(ValueError, match=r"missing \(2\): bert\.encoder\.layer\.1.*\n.*not explained \(1\): surprise"):
        params_from_hf({**broken, "surprise": np.zeros(2)}, encoder, BERT)
    untied = {**theirs, "cls.predictions.decoder.weight": theirs["cls.predictions.decoder.weight"] + 1}
    with pytest.raises(ValueError, match="to which it is tied"):
        params_from_hf(untied, encoder, BERT)
    with pytest.raises(ValueError, match="bert has no names for encoder/embeddings/widen/kernel"):
        dict(tensors_to_hf({"encoder": {"embeddings": {"widen": {"kernel": np.zeros((2, 2))}}}}, encoder, BERT))


def test_sizes_are_read_from_weights_that_come_alone() -> None:
    theirs = tensors(reference("bert", hidden_size=64, num_attention_heads=1))
    encoder, _ = config_from_hf(guessed_config(theirs, {}), "shapes")
    assert (encoder.layers, encoder.hidden_size, encoder.heads, encoder.intermediate_size) == (3, 64, 1, 64)
    with pytest.raises(ValueError, match="give --config FILE"):
        guessed_config({"a": np.zeros(2)}, {})


def test_a_config_that_is_computed_otherwise_is_refused() -> None:
    good = reference("bert").config.to_dict()
    for change, message in (
        ({"hidden_act": "silu"}, "hidden_act is 'silu'"),
        ({"position_embedding_type": "relative_key"}, "only 'absolute'"),
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"is_decoder": True}, "is_decoder is True"),
    ):
        with pytest.raises(ValueError, match=message):
            config_from_hf(good | change, "config.json")


def test_layers_and_rotary_bases_of_modernbert_under_both_names() -> None:
    """transformers 4.48 reads how often a layer is global and two bases, transformers 5 lists of them; either is enough here."""
    transformers = pytest.importorskip("transformers", reason=REASON)
    recipe: Any = {"norm_first": True, "gated_mlp": True, "biases": False, "types": 0, "dropout": 0.0, "layers": 4}
    encoder = EncoderConfig(vocab_size=20, rope_theta=20_000.0, **recipe)
    config = config_to_hf(encoder, None, {"mlm"}, "float32")
    older = {name: value for name, value in config.items() if name not in ("layer_types", "rope_parameters")}
    newer = {name: value for name, value in config.items() if "global" not in name and "local" not in name}
    assert len(older) == len(config) - 2 and len(newer) == len(config) - 3
    for each in (config, older, newer):
        assert config_from_hf(each, "config.json")[0] == encoder
        read = transformers.ModernBertConfig(**each)
        assert read.layer_types == ["full_attention"] * 4
        assert {rope["rope_theta"] for rope in read.rope_parameters.values()} == {20_000.0}
    with pytest.raises(
        ValueError, match="global_attn_every_n_layers is None: expected the distance between global layers"
    ):
        config_from_hf(older | {"global_attn_every_n_layers": None}, "config.json")


def test_local_layers_of_modernbert_under_both_names() -> None:
    """The kinds of layers, the window and both rotary bases; of the published files without a setting ModernBERT's own."""
    transformers = pytest.importorskip("transformers", reason=REASON)
    recipe: Any = {"norm_first": True, "gated_mlp": True, "biases": False, "types": 0, "dropout": 0.0, "layers": 7}
    local: Any = {"local_window": 5, "global_every": 3, "local_rope_theta": 1e4}
    encoder = EncoderConfig(vocab_size=20, rope_theta=160_000.0, **recipe, **local)
    config = config_to_hf(encoder, None, {"mlm"}, "float32")
    assert config["local_attention"] == 10
    older = {name: value for name, value in config.items() if name not in ("layer_types", "rope_parameters")}
    newer = {name: value for name, value in config.items() if "global" not in name and name != "local_rope_theta"}
    for each in (config, older, newer, config | {"local_attention": 11}):
        assert config_from_hf(each, "config.json")[0] == encoder
        read = transformers.ModernBertConfig(**each)
        assert read.layer_types == ["full_attention", "sliding_attention", "sliding_attention"] * 2 + ["full_attention"]
        assert read.sliding_window == 5 and config_from_hf(read.to_dict(), "config.json")[0] == encoder
        bases = {kind: rope["rope_theta"] for kind, rope in read.rope_parameters.items()}
        assert bases == {"full_attention": 160_000.0, "sliding_attention": 1e4}
    bare = {name: value for name, value in older.items() if "global" not in name and "local" not in name}
    published = dataclasses.replace(encoder, local_window=64)
    assert config_from_hf(bare, "config.json")[0] == published
    assert config_from_hf(bare | {"local_rope_theta": None}, "config.json")[0].local_rope_theta == 160_000.0
    one = config_to_hf(dataclasses.replace(encoder, layers=2, global_every=5), None, {"mlm"}, "float32")
    assert config_from_hf(one, "config.json")[0].global_every == 5 and len(one["layer_types"]) == 2
    for change, message in (
        ({"local_attention": 1}, "local_attention is 1: expected the width"),
        ({"layer_types": ["sliding_attention"] * 7}, "layer_types is sliding_attention, .*: expected 7 kinds"),
        ({"layer_types": config["layer_types"][:6]}, "expected 7 kinds, full_attention for the first"),
        ({"rope_parameters": None, "local_rope_theta": -1}, "local_rope_theta is -1: expected the rotary base"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
            "sliding_attention is 'yarn': only 'default'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            config_from_hf(config | change, "config.json")


def test_a_product_between_equal_widths_is_alberts() -> None:
    """ELECTRA has none there."""
    transformers = pytest.importorskip("transformers", reason=REASON)
    sizes: Any = {"hidden_size": 8, "embedding_size": 8, "layers": 2, "heads": 2, "intermediate_size": 16}
    encoder = EncoderConfig(vocab_size=20, **sizes, positions=12)
    objective = MaskedPrediction(terms=(MaskedTokens(),))
    params = map_named(lambda _, leaf: np.zeros(leaf.shape, np.float32), abstract_module(objective, encoder)[1])
    family = family_of(encoder, params)
    written = dict(tensors_to_hf(params, encoder, family))
    config = transformers.AlbertConfig(**config_to_hf(encoder, None, set(params), "float32"))
    expected = transformers.AlbertForMaskedLM(config).state_dict().keys()
    assert {*written} == {*expected} - {*family.tied} - {*family.buffers}


@pytest.mark.parametrize("kind", ["roberta", "electra"])
def test_heads_that_compute_gelu_whatever_the_config_says(kind: str, tmp_path: pathlib.Path) -> None:
    """Neither read nor written below another activation; the encoder alone is both."""
    folder = tmp_path / kind
    theirs = saved(kind, folder, hidden_act="relu")
    with pytest.raises(ValueError, match=rf"(?i){kind}ForMaskedLM computes gelu: read the encoder alone"):
        load_model(folder)
    theirs.base_model.save_pretrained(folder)
    model = load_model(folder)
    assert model.encoder.activation == "relu" and model.parts == {"encoder"}
    assert config_to_hf(model.encoder, None, model.parts, "float32")["hidden_act"] == "relu"
    with pytest.raises(ValueError, match="computes gelu: train with gelu"):
        config_to_hf(model.encoder, None, {*model.parts, "mlm"}, "float32")


def test_families_that_transformers_cannot_compute_are_refused() -> None:
    shared = EncoderConfig(vocab_size=10, num_layer_groups=1)
    with pytest.raises(ValueError, match="embedding_size is 0"):
        config_to_hf(shared, None, {"mlm"}, "float32")
    wide = EncoderConfig(vocab_size=10, embedding_size=768)
    with pytest.raises(ValueError, match="embedding_size is 768, as wide as the layers.* train with 0"):
        config_to_hf(wide, None, {"rtd"}, "float32")
    shared = EncoderConfig(vocab_size=10, relative_attention=True, num_layer_groups=1)
    with pytest.raises(ValueError, match="encoder.num_layer_groups is 1: transformers' XLNet computes 0 alone"):
        config_to_hf(shared, None, {"plm"}, "float32")
    from spanjax.data.vocab.base import Specials

    roberta = EncoderConfig(vocab_size=10, position_offset=2)
    with pytest.raises(ValueError, match="id of padding plus one, here 1"):
        config_to_hf(roberta, Specials(0, 1, 2, 3, 4), {"mlm"}, "float32")
    known = {"bert", "roberta", "albert", "electra", "modernbert", "xlnet", "deberta-v2"}
    assert set(FAMILIES) == known | {"xlm-roberta", "camembert", "distilbert"}


def test_a_setting_that_no_family_names_is_refused_and_not_guessed() -> None:
    """One that is added to the encoder later, and that nobody has put beside a family."""
    later = dataclasses.make_dataclass("Later", [("window", int, 0)], bases=(EncoderConfig,), frozen=True)
    modern: Any = {"norm_first": True, "gated_mlp": True, "biases": False, "types": 0, "rope_theta": 1e4}
    for recipe in (
        {},
        {"position_offset": 2},
        {"embedding_size": 8, "num_layer_groups": 1},
        {"relative_attention": True},
        {"disentangled_attention": "both", "max_distance": 8},
        modern,
    ):
        config_to_hf(later(vocab_size=10, **recipe), None, set(), "float32")
        with pytest.raises(ValueError, match="encoder.window is 4: transformers' .* computes 0 alone"):
            config_to_hf(later(vocab_size=10, window=4, **recipe), None, set(), "float32")
