"""The loss on pairs of segments: its formula, what it may read, how it goes with the pairing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.encoders import BASE
from spanjax.data.feed.pairing import FullSentences, NextSentence, SentenceOrder, Single
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.sharding import named_leaves
from spanjax.training.state import abstract_module, count_parameters
from tests.made import synthetic_batch, tiny_encoder

ENCODER = tiny_encoder(positions=32, initializer_std=0.2)
BERT = MaskedPrediction(pairing=NextSentence(), terms=(MaskedTokens(), SentencePair(), SpanBoundary()))


@pytest.fixture(scope="module")
def module() -> nnx.Module:
    return BERT.build(ENCODER, nnx.Rngs(0))


@pytest.fixture(scope="module")
def batch() -> dict[str, jax.Array]:
    made = synthetic_batch(3, 32, 16, 50)
    second = (made["segments_BL"] == 1).sum(axis=1)
    made["pair_position_BP"] = np.stack([np.zeros(3, np.int32), second.astype(np.int32)], axis=1)
    made["pair_label_BP"] = np.array([[1, 0], [0, 1], [1, 1]], np.int32)
    made["pair_weight_BP"] = np.array([[1, 1], [0, 1], [1, 0]], np.float32)
    made["types_BL"][:, 5:9] = 1
    return {name: jnp.asarray(value) for name, value in made.items()}


def test_loss_and_accuracy_equal_the_formula(module: nnx.Module, batch: dict) -> None:
    means = BERT.measure(module, batch, None)
    hidden = np.asarray(BERT.hidden(module, batch, None), np.float64)
    head = named_leaves(nnx.to_pure_dict(nnx.split(module.nsp)[1]))  # pyright: ignore
    get = {name: np.asarray(leaf, np.float64) for name, leaf in head.items()}
    losses, right = [], []
    for row, pair in zip(*np.nonzero(np.asarray(batch["pair_weight_BP"])), strict=True):
        cls = hidden[row, int(batch["pair_position_BP"][row, pair])]
        pooled = np.tanh(cls @ get["pooler/dense/kernel"] + get["pooler/dense/bias"])
        scores = pooled @ get["seq_relationship/kernel"] + get["seq_relationship/bias"]
        label = int(batch["pair_label_BP"][row, pair])
        losses.append(np.log(np.exp(scores).sum()) - scores[label])
        right.append(scores[label] > scores[1 - label])
    assert float(means["nsp/loss"].count) == float(means["nsp/accuracy"].count) == len(losses) == 4
    assert means["nsp/loss"].value() == pytest.approx(np.mean(losses), abs=1e-5)
    assert means["nsp/accuracy"].value() == pytest.approx(np.mean(right))
    assert float(BERT.counts(batch)["nsp/loss"]) == 4


def test_loss_sees_only_the_cls_of_its_pairs(module: nnx.Module, batch: dict) -> None:
    hidden = jax.random.normal(jax.random.key(2), (3, 32, 16))

    def loss(hidden: jax.Array) -> jax.Array:
        return SentencePair().measure(module.nsp, hidden, batch)["nsp/loss"].total  # pyright: ignore

    gradient = np.abs(np.asarray(jax.grad(loss)(hidden))).max(axis=-1)
    touched = {(int(r), int(p)) for r, p in zip(*np.nonzero(gradient), strict=True)}
    position = batch["pair_position_BP"]
    assert touched == {(0, 0), (0, int(position[0, 1])), (1, int(position[1, 1])), (2, 0)}


def test_gradient_reaches_the_head_and_the_encoder_but_no_other_head(module: nnx.Module, batch: dict) -> None:
    structure, state = nnx.split(module)

    def loss(state: nnx.State) -> jax.Array:
        return BERT.measure(nnx.merge(structure, state), batch, None)["nsp/loss"].total

    gradients = named_leaves(nnx.to_pure_dict(jax.grad(loss)(state)))
    for name, leaf in gradients.items():
        moved = bool(np.any(np.asarray(leaf)))
        if name.startswith(("mlm", "sbo")):
            assert not moved, name
        elif name.startswith("nsp") or name in ("encoder/embeddings/type/embedding", "encoder/layers/query/kernel"):
            assert moved, name


def test_a_batch_without_pairs_has_neither_loss_nor_gradient(module: nnx.Module, batch: dict) -> None:
    empty = {**batch, "pair_weight_BP": jnp.zeros((3, 2))}

    def loss(hidden: jax.Array) -> jax.Array:
        return SentencePair().measure(module.nsp, hidden, empty)["nsp/loss"].total  # pyright: ignore

    total, gradient = jax.value_and_grad(loss)(jax.random.normal(jax.random.key(2), (3, 32, 16)))
    assert float(total) == 0 and not np.any(np.asarray(gradient))
    assert float(BERT.measure(module, empty, None)["nsp/accuracy"].count) == 0


def test_token_terms_are_what_they_are_without_the_pair_term(module: nnx.Module, batch: dict) -> None:
    """The place of a pair term among the others changes nothing of them."""
    plain = dataclasses.replace(BERT, terms=(MaskedTokens(), SpanBoundary()), pairing=Single())
    before, after = plain.measure(module, batch, None), BERT.measure(module, batch, None)
    assert set(after) - set(before) == {"nsp/loss", "nsp/accuracy"}
    for name, mean in before.items():
        assert float(mean.total) == float(after[name].total)
    assert BERT.logits(module, BERT.hidden(module, batch, None), batch).shape == (3, 2, 16, 128)
    assert set(BERT.predict(module, batch)) == {"mlm", "sbo"}


def test_names_weights_and_counts_of_all_terms() -> None:
    order = MaskedPrediction(
        pairing=SentenceOrder(), terms=(MaskedTokens(), SentencePair("sop", weight=0.5, extra_count=2.0))
    )
    assert order.loss_weights() == {"mlm/loss": 1.0, "sop/loss": 0.5}
    assert order.extra_counts() == {"mlm/loss": 0.0, "sop/loss": 2.0}
    assert order.problems(ENCODER) == []
    module = order.build(ENCODER, nnx.Rngs(0))
    assert hasattr(module, "sop") and not hasattr(module, "nsp")


def test_parameters_and_flops_of_the_pair_head() -> None:
    encoder = dataclasses.replace(BASE, vocab_size=28_996)
    one, two = (MaskedPrediction(terms=terms) for terms in ((MaskedTokens(),), (MaskedTokens(), SentencePair())))
    more = [count_parameters(abstract_module(objective, encoder)[1], encoder) for objective in (one, two)]
    assert more[1] - more[0] == (768 * 768 + 768) + (2 * 768 + 2)
    flops = [objective.flops_per_row(encoder, 512, 80) for objective in (one, two)]
    assert flops[1] - flops[0] == 3 * 2 * (768 * 768 + 2 * 768)


def test_pairing_goes_into_the_feed_spec() -> None:
    assert BERT.feed_spec(seed=0, batch_size=4, order="uniform").pairing == NextSentence()
    assert MaskedPrediction().feed_spec(seed=0, batch_size=4, order="uniform").pairing == Single()


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (MaskedPrediction(terms=(MaskedTokens(), SentencePair())), "Single has no pairs: use NextSentence"),
        (MaskedPrediction(pairing=FullSentences(), terms=(MaskedTokens(), SentencePair("sop"))), "use SentenceOrder"),
        (MaskedPrediction(pairing=NextSentence()), "add SentencePair('nsp') to objective.terms, with weight=0"),
        (MaskedPrediction(terms=(SentencePair(),), pairing=NextSentence()), "expected at least MaskedTokens"),
    ],
)
def test_terms_that_do_not_go_with_the_pairing_are_problems(objective: MaskedPrediction, said: str) -> None:
    (problem,) = objective.problems(ENCODER)
    assert said in problem


def test_every_problem_of_a_pair_is_named() -> None:
    wrong = MaskedPrediction(pairing=SentenceOrder(), terms=(MaskedTokens(), SentencePair("nsp", weight=-1.0)))
    problems = "\n".join(wrong.problems(dataclasses.replace(ENCODER, types=1)))
    for said in (
        "objective.terms.1.weight is -1.0",
        "the label 'sop': use NextSentence()",
        "add SentencePair('sop')",
        "encoder.types of at least 2, got 1",
    ):
        assert said in problems
    assert (
        MaskedPrediction(pairing=NextSentence(), terms=(MaskedTokens(), SentencePair(weight=0.0))).problems(ENCODER)
        == []
    )
    assert MaskedPrediction(pairing=FullSentences()).problems(dataclasses.replace(ENCODER, types=1)) == []


def test_means_of_parts_of_a_batch_add_up(module: nnx.Module, batch: dict) -> None:
    """What microbatches, devices and hosts rely on: rows with 2, 1 and 1 pairs."""
    hidden = jax.random.normal(jax.random.key(3), (3, 32, 16))

    def measured(rows: slice) -> dict:
        part = {name: value[rows] for name, value in batch.items()}
        return SentencePair().measure(module.nsp, hidden[rows], part)  # pyright: ignore

    whole, parts = measured(slice(3)), [measured(slice(1)), measured(slice(1, 3))]
    for name in ("nsp/loss", "nsp/accuracy"):
        merged = parts[0][name].merge(parts[1][name])
        assert float(merged.count) == float(whole[name].count) == 4
        assert float(merged.total) == pytest.approx(float(whole[name].total), abs=1e-5)
