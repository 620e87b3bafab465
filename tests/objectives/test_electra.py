"""Replaced token detection: what is sampled, what counts as replaced, and which parameters which loss trains."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.data.feed.masking import GeometricSpans
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, gumbel, step_key
from spanjax.objectives.electra import SAMPLES, ReplacedDetection, corrupted
from spanjax.objectives.loss_terms import SpanBoundary
from spanjax.sharding import named_leaves
from tests.made import synthetic_batch, tiny_encoder, with_noise

ENCODER = tiny_encoder(positions=32, initializer_std=0.2)
ELECTRA = ReplacedDetection(generator_size=0.5)
WITH_SBO = dataclasses.replace(ELECTRA, masking=GeometricSpans(), boundary=SpanBoundary())
NARROW = dataclasses.replace(ENCODER, embedding_size=8)


@pytest.fixture(scope="module")
def batch() -> dict[str, jax.Array]:
    return {name: jnp.asarray(value) for name, value in synthetic_batch(3, 32, 16, 50).items()}


def parts(objective: ReplacedDetection = ELECTRA, encoder: EncoderConfig = ENCODER) -> tuple[Any, Any]:
    structure, state = nnx.split(objective.build(encoder, nnx.Rngs(0)))
    return structure, nnx.to_pure_dict(state)


def key(batch: dict, step: int = 3) -> DropoutKey:
    return DropoutKey(step_key(0, jnp.int32(step)), batch["row_B"])


def test_a_sample_that_is_the_original_counts_as_original() -> None:
    batch = {
        "tokens_BL": jnp.asarray([[2, 4, 9, 4, 3, 0]]),
        "slot_position_BK": jnp.asarray([[1, 3, 0]]),
        "slot_target_BK": jnp.asarray([[7, 8, 0]]),
        "slot_weight_BK": jnp.asarray([[1.0, 1.0, 0.0]]),
    }
    tokens, replaced = corrupted(batch, jnp.asarray([[7, 9, 5]]))
    assert tokens.tolist() == [[2, 7, 9, 9, 3, 0]]  # the unused slot changes nothing
    assert replaced.tolist() == [[False, False, False, True, False, False]]


def test_losses_equal_the_formula(batch: dict) -> None:
    structure, params = parts()
    module = nnx.merge(structure, params)
    means = ELECTRA.measure(module, batch, None)
    hidden_BLG = ELECTRA._generated(module, batch, None)
    tokens_BL, replaced_BL = (np.asarray(each) for each in ELECTRA._corrupted(module, hidden_BLG, batch, None))
    masked = {
        (row, int(batch["slot_position_BK"][row, slot])): int(batch["slot_target_BK"][row, slot])
        for row, slot in zip(*np.nonzero(np.asarray(batch["slot_weight_BK"])), strict=True)
    }
    for place, token in np.ndenumerate(np.asarray(batch["tokens_BL"])):
        original = masked.get(place, token)
        assert place in masked or tokens_BL[place] == token
        assert replaced_BL[place] == (tokens_BL[place] != original)
    assert 0 < replaced_BL.sum() <= len(masked)
    inputs = (batch[name] for name in ("segments_BL", "positions_BL", "types_BL"))
    score_BL = np.asarray(module.rtd(module.encoder(jnp.asarray(tokens_BL), *inputs)), np.float64)
    real_BL = np.asarray(batch["segments_BL"]) > 0
    chance_BL = 1 / (1 + np.exp(-score_BL))
    loss_BL = -np.where(replaced_BL, np.log(chance_BL), np.log(1 - chance_BL))
    assert means["rtd/loss"].value() == pytest.approx(loss_BL[real_BL].mean(), abs=1e-5)
    right_BL = (score_BL > 0) == replaced_BL
    assert means["rtd/accuracy"].value() == pytest.approx(right_BL[real_BL].mean(), abs=1e-6)
    said_BL = (score_BL > 0) & real_BL
    hits = (said_BL & replaced_BL).sum()
    assert float(means["rtd/precision"].total) == float(means["rtd/recall"].total) == hits
    assert float(means["rtd/precision"].count) == said_BL.sum()
    assert float(means["rtd/recall"].count) == replaced_BL.sum()
    for name, count in ELECTRA.counts(batch).items():
        assert float(count) == float(means[name].count)
    assert float(means["rtd/loss"].count) == real_BL.sum() and float(means["mlm/loss"].count) == len(masked)


@pytest.mark.parametrize(("objective", "encoder"), [(ELECTRA, ENCODER), (WITH_SBO, NARROW)])
def test_which_loss_trains_what(objective: ReplacedDetection, encoder: EncoderConfig, batch: dict) -> None:
    structure, params = parts(objective, encoder)

    names = list(objective.loss_weights())

    def losses(params: Any) -> jax.Array:
        means = objective.measure(nnx.merge(structure, params), batch, key(batch))
        return jnp.stack([means[name].total for name in names])

    gradients = named_leaves(jax.jit(jax.jacrev(losses))(params))

    def trained(name: str) -> set[str]:
        return {path for path, leaf in gradients.items() if float(jnp.abs(leaf[names.index(name)]).max()) > 0}

    everything = set(named_leaves(params))
    bias = {path for path in everything if path.endswith("/key/bias")}  # softmax does not see it
    shared = {path for path in everything if path.startswith("encoder/embeddings/")} - {
        path for path in everything if path.startswith("encoder/embeddings/widen")
    }
    generator = {path for path in everything if path.startswith("generator/")}
    sbo = {path for path in everything if path.startswith("sbo/")}
    heads = sbo | {path for path in everything if path.startswith("rtd/")}
    assert trained("mlm/loss") - bias == (shared | generator) - bias
    assert trained("rtd/loss") - bias == everything - generator - sbo - bias
    if objective.boundary:
        assert trained("sbo/loss") - bias == (everything - generator - (heads - sbo)) - bias
    assert generator and not generator & shared


def test_samples_follow_the_generators_distribution() -> None:
    scores = jnp.log(jnp.asarray([0.5, 0.3, 0.15, 0.05]))
    rows = DropoutKey(step_key(1, jnp.int32(0)), jnp.arange(400))
    drawn = jnp.argmax(scores[None, None] + gumbel(rows, SAMPLES, (400, 100, 4)), axis=-1)
    share = np.bincount(np.asarray(drawn).ravel(), minlength=4) / 40_000
    np.testing.assert_allclose(share, np.exp(scores), atol=4 * 0.5 / 200)


def test_samples_depend_on_the_row_and_the_step_alone(batch: dict) -> None:
    structure, params = parts()
    module = nnx.merge(structure, params)

    def sampled(rows: dict, drawn: DropoutKey | None) -> np.ndarray:
        hidden = ELECTRA._generated(module, rows, None)
        return np.asarray(ELECTRA._corrupted(module, hidden, rows, drawn)[0])

    whole = sampled(batch, key(batch))
    last = {name: value[2:] for name, value in batch.items()}
    np.testing.assert_array_equal(sampled(last, key(last)), whole[2:])
    assert (sampled(batch, key(batch, step=4)) != whole).any()
    np.testing.assert_array_equal(sampled(batch, None), sampled(batch, None))


def test_padding_and_unused_slots_have_no_influence(batch: dict) -> None:
    structure, params = parts(WITH_SBO)
    module = nnx.merge(structure, params)
    before, after = (WITH_SBO.measure(module, each, None) for each in (batch, with_noise(batch)))
    for name in before:
        assert float(before[name].total) == pytest.approx(float(after[name].total), abs=1e-5)
        assert float(before[name].count) == float(after[name].count)


def test_the_generator_is_as_published() -> None:
    sizes = [
        ((256, 4, 1024, 128), 0.25, (64, 1, 256, 128)),
        ((768, 12, 3072, 0), 1 / 3, (256, 4, 1024, 768)),
        ((1024, 16, 4096, 0), 0.25, (256, 4, 1024, 1024)),
    ]
    names = ("hidden_size", "heads", "intermediate_size", "embedding_size")
    for encoder, share, expected in sizes:
        given = dataclasses.replace(ENCODER, layers=12, **dict(zip(names, encoder, strict=True)))
        made = ReplacedDetection(generator_size=share).generator(given)
        assert tuple(getattr(made, name) for name in names) == expected and made.layers == 12


def test_every_head_fills_slots(batch: dict) -> None:
    structure, params = parts(WITH_SBO)
    best = WITH_SBO.predict(nnx.merge(structure, params), batch)
    assert set(best) == {"mlm", "sbo"}
    assert all(each.shape == batch["slot_target_BK"].shape and int(each.max()) < 50 for each in best.values())


def test_problems_are_all_named() -> None:
    bad = ReplacedDetection(
        generator_size=0.0, generator_depth=2.0, detection_weight=-1.0, boundary=SpanBoundary(max_offset=0)
    )
    assert len(bad.problems(ENCODER)) == 4
    assert ReplacedDetection().problems(ENCODER) == []
    (said,) = ReplacedDetection(generator_size=0.3).problems(dataclasses.replace(ENCODER, heads=8))
    assert "the generator's encoder.hidden_size 5 is not a multiple" in said
    deberta = dataclasses.replace(ENCODER, disentangled_attention="both", max_distance=8)
    (told,) = ReplacedDetection().problems(deberta)
    assert told.startswith("encoder.disentangled_attention is 'both': expected 'none' with ReplacedDetection")
