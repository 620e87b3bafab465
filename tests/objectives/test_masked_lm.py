"""Masked prediction: the losses are the paper's, by value and by gradient."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.encoders import BASE, LARGE
from spanjax.nn.config import EncoderConfig
from spanjax.nn.heads import cross_entropy
from spanjax.objectives.loss_terms import MaskedTokens, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.training.state import abstract_module, count_parameters
from tests.made import synthetic_batch, tiny_encoder, with_noise

ENCODER = tiny_encoder(positions=32, initializer_std=0.2)
SPANBERT = MaskedPrediction()


@pytest.fixture(scope="module")
def module() -> nnx.Module:
    return SPANBERT.build(ENCODER, nnx.Rngs(0))


@pytest.fixture(scope="module")
def batch() -> dict[str, jax.Array]:
    return {name: jnp.asarray(value) for name, value in synthetic_batch(3, 32, 16, 50).items()}


@pytest.mark.parametrize(("encoder", "expected"), [(BASE, 110_300_480), (LARGE, 336_998_976)])
def test_parameter_counts_are_the_published_ones(encoder: EncoderConfig, expected: int) -> None:
    encoder = dataclasses.replace(encoder, vocab_size=28_996)
    assert count_parameters(abstract_module(SPANBERT, encoder)[1], encoder) == expected


def test_losses_equal_the_formula(module: nnx.Module, batch: dict) -> None:
    means = SPANBERT.measure(module, batch, None)
    hidden = SPANBERT.hidden(module, batch, None)
    table = np.asarray(module.encoder.token_table())  # pyright: ignore
    expected = {"mlm": [], "sbo": []}
    for row in range(3):
        for slot in np.flatnonzero(np.asarray(batch["slot_weight_BK"][row])):
            get = {n: int(batch[f"slot_{n}_BK"][row, slot]) for n in ("position", "target", "left", "right", "offset")}
            vectors = {
                "mlm": module.mlm(hidden[row, get["position"]][None, None]),  # pyright: ignore
                "sbo": module.sbo(  # pyright: ignore
                    hidden[row, get["left"]][None, None],
                    hidden[row, get["right"]][None, None],
                    jnp.asarray([[get["offset"]]]),
                ),
            }
            for name, vector in vectors.items():
                scores = (np.asarray(vector)[0, 0] @ table.T)[:50]
                expected[name].append(np.log(np.exp(scores).sum()) - scores[get["target"]])
    for name, losses in expected.items():
        assert float(means[f"{name}/loss"].count) == len(losses)
        assert means[f"{name}/loss"].value() == pytest.approx(np.mean(losses), abs=1e-5)


def test_boundary_loss_sees_only_its_two_boundary_tokens(module: nnx.Module, batch: dict) -> None:
    hidden = jax.random.normal(jax.random.key(2), (3, 32, 16))
    slot = 1
    only = {**batch, "slot_boundary_weight_BK": jnp.zeros((3, 16)).at[0, slot].set(1.0)}
    term = SPANBERT.terms[1]

    def loss(hidden: jax.Array) -> jax.Array:
        logits = SPANBERT.logits(module, hidden, only)[:, 1]
        return jnp.sum(cross_entropy(logits, only["slot_target_BK"]) * term.target_weights(only))

    gradient = np.abs(np.asarray(jax.grad(loss)(hidden))).max(axis=-1)
    touched = {(int(r), int(p)) for r, p in zip(*np.nonzero(gradient), strict=True)}
    assert touched == {(0, int(only["slot_left_BK"][0, slot])), (0, int(only["slot_right_BK"][0, slot]))}


def test_padding_and_unused_slots_have_no_influence(module: nnx.Module, batch: dict) -> None:
    before, after = (SPANBERT.measure(module, b, None) for b in (batch, with_noise(batch)))
    for name in before:
        assert float(before[name].total) == pytest.approx(float(after[name].total), abs=1e-5)


def test_batch_without_targets_has_a_finite_loss(module: nnx.Module, batch: dict) -> None:
    empty = {**batch, **{n: jnp.zeros((3, 16)) for n in ("slot_weight_BK", "slot_boundary_weight_BK")}}
    means = SPANBERT.measure(module, empty, None)
    assert all(float(mean.total) == 0.0 and float(mean.count) == 0.0 for mean in means.values())


def test_padded_vocabulary_is_never_predicted(module: nnx.Module, batch: dict) -> None:
    logits = SPANBERT.logits(module, SPANBERT.hidden(module, batch, None), batch)
    assert logits.shape[-1] == 128
    assert float(logits[..., 50:].max()) < -1e8
    assert float(jax.nn.softmax(logits, axis=-1)[..., 50:].max()) == 0.0


def test_cross_entropy_gradient_equals_the_derived_one() -> None:
    logits = jax.random.normal(jax.random.key(0), (2, 3, 11))
    target = jnp.asarray([[1, 2, 3], [0, 10, 5]])

    def plain(x: jax.Array) -> jax.Array:
        return jnp.sum(-(jnp.take_along_axis(jax.nn.log_softmax(x), target[..., None], axis=-1) ** 2))

    def ours(x: jax.Array) -> jax.Array:
        return jnp.sum(-(cross_entropy(x, target) ** 2))

    np.testing.assert_allclose(plain(logits), ours(logits), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(plain)(logits), jax.grad(ours)(logits), atol=1e-5)


def test_problems_are_all_named() -> None:
    bad = MaskedPrediction(terms=(MaskedTokens(weight=-1.0), MaskedTokens(), SpanBoundary(max_offset=0)))
    problems = bad.problems(ENCODER)
    assert len(problems) == 3, problems
    assert MaskedPrediction(terms=()).problems(ENCODER)
