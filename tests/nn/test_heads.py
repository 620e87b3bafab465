"""The pair head (BERT's pooler and classifier) by value, names and sizes, and in lower precision; the loss of decoded scores."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.encoders import BASE, LARGE
from spanjax.nn.config import EncoderConfig
from spanjax.nn.heads import PairHead, PredictionHead, TokenHead, cross_entropy, decode, decoded_loss, row_mean
from spanjax.sharding import named_leaves
from tests.made import tiny_encoder

SMALL = tiny_encoder(layers=1, positions=512, initializer_std=0.3)


def sizes(encoder: EncoderConfig) -> dict[str, tuple[int, ...]]:
    head = nnx.eval_shape(lambda: PairHead(encoder, nnx.Rngs(0)))
    return {name: leaf.shape for name, leaf in named_leaves(nnx.to_pure_dict(nnx.split(head)[1])).items()}


@pytest.mark.parametrize(("encoder", "size"), [(BASE, 768), (LARGE, 1024)])
def test_names_and_sizes_are_those_of_bert(encoder: EncoderConfig, size: int) -> None:
    found = sizes(dataclasses.replace(encoder, vocab_size=28_996))
    assert found == {
        "pooler/dense/kernel": (size, size), "pooler/dense/bias": (size,),
        "seq_relationship/kernel": (size, 2), "seq_relationship/bias": (2,),
    }  # fmt: skip
    pooler = sum(int(np.prod(shape)) for name, shape in found.items() if name.startswith("pooler"))
    assert pooler == {768: 108_310_272 - 107_719_680, 1024: 333_579_264 - 332_529_664}[size]


def test_scores_equal_the_formula() -> None:
    head = PairHead(SMALL, nnx.Rngs(1))
    head.pooler.dense.bias[...] = jnp.linspace(-1, 1, 16)  # pyright: ignore
    head.seq_relationship.bias[...] = jnp.asarray([0.25, -0.5])  # pyright: ignore
    hidden = jax.random.normal(jax.random.key(0), (3, 2, 16))
    weights = named_leaves(nnx.to_pure_dict(nnx.split(head)[1]))
    get = {name: np.asarray(leaf, np.float64) for name, leaf in weights.items()}
    pooled = np.tanh(np.asarray(hidden) @ get["pooler/dense/kernel"] + get["pooler/dense/bias"])
    expected = pooled @ get["seq_relationship/kernel"] + get["seq_relationship/bias"]
    np.testing.assert_allclose(head(hidden), expected, atol=1e-5)


def test_scores_are_float32_when_the_weights_are_bfloat16() -> None:
    structure, state = nnx.split(PairHead(SMALL, nnx.Rngs(1)))
    head = nnx.merge(structure, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), state))
    assert head(jnp.ones((1, 1, 16), jnp.bfloat16)).dtype == jnp.float32


def test_the_prediction_head_has_the_layers_of_the_masked_token_head() -> None:
    """The same names but for the bias of the vocabulary, the same initial values, the same vectors; rows or positions."""
    for encoder in (SMALL, dataclasses.replace(SMALL, biases=False)):
        head, other = PredictionHead(encoder, nnx.Rngs(1)), TokenHead(encoder, nnx.Rngs(1))
        own, others = (named_leaves(nnx.to_pure_dict(nnx.split(each)[1])) for each in (head, other))
        assert {*own} | {"bias"} == {*others} and ("dense/bias" in own) == encoder.biases
        hidden_BLD = jax.random.normal(jax.random.key(0), (3, 2, 16))
        np.testing.assert_array_equal(head(hidden_BLD), other(hidden_BLD))
        np.testing.assert_allclose(head(hidden_BLD[:, 0]), head(hidden_BLD)[:, 0], atol=1e-6)
    narrow = dataclasses.replace(SMALL, embedding_size=8)
    assert PredictionHead(narrow, nnx.Rngs(1))(hidden_BLD).shape == (3, 2, 16)


def test_the_mean_of_a_row_leaves_out_padding() -> None:
    hidden_BLD = jax.random.normal(jax.random.key(0), (3, 5, 4)).at[1, 3:].set(jnp.nan)
    real_BL = jnp.arange(5)[None] < jnp.array([[5], [3], [0]])
    expected = [np.asarray(hidden_BLD[0]).mean(axis=0), np.asarray(hidden_BLD[1, :3]).mean(axis=0), np.zeros(4)]
    np.testing.assert_allclose(row_mean(hidden_BLD, real_BL), expected, atol=1e-6)
    # 300 times 1.01 summed in bfloat16 would stop at 256
    many = row_mean(jnp.full((1, 300, 1), 1.01, jnp.bfloat16), jnp.ones((1, 300), bool))
    assert many.dtype == jnp.bfloat16 and float(many[0, 0]) == pytest.approx(1.01, rel=0.01)


def test_decoded_loss_is_that_of_the_scores() -> None:
    """Value, what is right, and the gradients that are written out, with a target that comes twice."""
    keys = jax.random.split(jax.random.key(3), 3)
    vectors_TSE, table_VE = jax.random.normal(keys[0], (2, 5, 8)), jax.random.normal(keys[1], (11, 8))
    bias_TV = jax.random.normal(keys[2], (2, 11)).at[:, -2:].set(-1e9)
    target_TS, weight_TS = jnp.array([[3, 0, 3, 8, 1], [2, 2, 2, 5, 7]]), jnp.arange(10.0).reshape(2, 5)

    def derived(vectors_TSE: jax.Array, table_VE: jax.Array, bias_TV: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits_TSV = decode(vectors_TSE, table_VE) + bias_TV[:, None]
        loss_TS = cross_entropy(logits_TSV, target_TS)
        return jnp.sum(loss_TS * weight_TS), jnp.argmax(logits_TSV, axis=-1) == target_TS

    def written(vectors_TSE: jax.Array, table_VE: jax.Array, bias_TV: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss_TS, right_TS = decoded_loss(vectors_TSE, table_VE, bias_TV, target_TS)
        return jnp.sum(loss_TS * weight_TS), right_TS

    arguments = (vectors_TSE, table_VE, bias_TV)
    (one, hits), found = jax.value_and_grad(written, argnums=(0, 1, 2), has_aux=True)(*arguments)
    (other, expected_hits), expected = jax.value_and_grad(derived, argnums=(0, 1, 2), has_aux=True)(*arguments)
    assert float(one) == pytest.approx(float(other), rel=1e-6)
    np.testing.assert_array_equal(hits, expected_hits)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
