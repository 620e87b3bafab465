"""A loss term and an objective of a user's own, which spanjax does not know: everything that is done with an objective."""

import dataclasses
import importlib
import pathlib
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.bounds import NotNegative
from spanjax.convert.options import ToTorch
from spanjax.convert.to_torch import to_torch
from spanjax.data.feed.masking import Boundaries, MaskingPolicy, Tokens
from spanjax.data.feed.pairing import Pairing, Single
from spanjax.data.vocab.wordpiece import WordPieceVocabulary
from spanjax.experiment.init_from import start_from
from spanjax.inference.fill_mask import Filler
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.encoder import Encoder
from spanjax.nn.heads import TokenHead, gather_positions
from spanjax.nn.layer import linear
from spanjax.objectives.base import Batch, FillHead, Mean, Pretraining
from spanjax.objectives.loss_terms import MaskedTokens, SpanBoundary, Term, TokenTerm
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.objectives.tied_decoder import tied_table, token_logits, token_means
from spanjax.pages.document import Table, plain
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model
from spanjax.report import masking
from spanjax.report.tables import arm_of
from spanjax.run import Run
from spanjax.run_format import describe
from spanjax.sharding import named_leaves
from tests.made import synthetic_batch, tiny_encoder

ENCODER = tiny_encoder(positions=32, initializer_std=0.2)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(45))]


@dataclasses.dataclass(frozen=True)
class LeftNeighbour(TokenTerm):
    """Predicts the first tokens of a span from the token before it."""

    weight: NotNegative = 1.0
    extra_count: NotNegative = 0.0
    name = "left"

    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        return TokenHead(encoder, rngs)

    def vectors(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        return head(gather_positions(hidden_BLD, batch["slot_left_BK"]))

    def target_weights(self, batch: Batch) -> jax.Array:
        return batch["slot_boundary_weight_BK"]

    def flops_per_slot(self, encoder: EncoderConfig) -> float:
        return 1000.0

    def boundaries(self) -> Boundaries:
        return Boundaries(max_offset=2)

    @property
    def fill_head(self) -> FillHead:
        return FillHead(self.name, neighbours=True, reach=2)


@dataclasses.dataclass(frozen=True)
class RowLength(Term):
    """Predicts the length of a row from its first position: a term without tokens."""

    weight: NotNegative = 0.1
    extra_count: NotNegative = 0.0
    name = "length"

    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        return linear(encoder.hidden_size, 1, encoder, rngs)

    def target_weights(self, batch: Batch) -> jax.Array:
        return jnp.ones(batch["row_B"].shape)

    def measure(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> dict[str, Mean]:
        length_B = jnp.sum(batch["segments_BL"] > 0, axis=1) / batch["segments_BL"].shape[1]
        error_B = jnp.square(head(hidden_BLD[:, :1])[:, 0, 0] - length_B)
        return {"length/loss": Mean(jnp.sum(error_B), jnp.float32(len(error_B)))}


TERM = MaskedTokens()


class OwnModule(nnx.Module):
    def __init__(self, encoder: EncoderConfig, rngs: nnx.Rngs):
        self.encoder = Encoder(encoder, rngs)
        self.mlm = TERM.head(encoder, rngs)
        self.gauge = linear(encoder.hidden_size, 3, encoder, rngs)
        self.vocab_size = encoder.vocab_size


@dataclasses.dataclass(frozen=True)
class Own(Pretraining):
    """Masked tokens, read from hidden states that a layer of its own has changed: nothing but the abstract methods and a head."""

    masking: MaskingPolicy = Tokens()
    pairing: Pairing = Single()
    strength: NotNegative = 0.5

    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        return OwnModule(encoder, rngs)

    def loss_weights(self) -> dict[str, float]:
        return {"mlm/loss": self.strength}

    def counts(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {"mlm/loss": jnp.sum(batch["slot_weight_BK"])}

    def measure(self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None) -> dict[str, Mean]:
        return token_means((TERM,), module, *tied_table(module), self.hidden(module, batch, key), batch)

    @property
    def fill_heads(self) -> tuple[FillHead, ...]:
        return (FillHead("own"),)

    def logits(self, module: Any, hidden_BLD: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
        changed_BLD = hidden_BLD * self.strength + jnp.sum(module.gauge(hidden_BLD), axis=-1, keepdims=True)
        return token_logits((TERM,), module, *tied_table(module), changed_BLD, batch)


@pytest.fixture(scope="module")
def batch() -> dict[str, jax.Array]:
    return {name: jnp.asarray(value) for name, value in synthetic_batch(3, 32, 16, 50).items()}


def model_of(objective: Pretraining) -> Model:
    """Weights of step 0 as a checkpoint gives them, with the objective that trained them."""
    params = nnx.to_pure_dict(nnx.split(objective.build(ENCODER, nnx.Rngs(0)))[1])
    vocabulary = WordPieceVocabulary(WORDS, lower_case=False)
    return Model(ENCODER, jax.tree.map(np.asarray, params), vocabulary, pathlib.Path("own"), trained=objective)


def test_what_is_not_written_has_a_default(batch: dict) -> None:
    own, module = Own(), Own().build(ENCODER, nnx.Rngs(0))
    assert own.problems(ENCODER) == []
    assert any("objective.strength" in problem for problem in Own(strength=-1.0).problems(ENCODER))
    assert own.extra_counts() == {"mlm/loss": 0.0} and own.baseline_losses(3.0) == {} and own.setting_of("mlm") == ""
    assert own.flops_per_row(ENCODER, 32, 8) == ENCODER.flops(32, 32**2)
    spec = own.feed_spec(seed=3, batch_size=8, order="auto")
    assert (spec.masking, spec.pairing, spec.boundaries, spec.order) == (Tokens(), Single(), Boundaries(), "uniform")
    (name,), (best,) = zip(*own.predict(module, batch).items(), strict=True)
    logits = own.logits(module, own.hidden(module, batch, None), batch)
    assert name == "own" and np.array_equal(best, jnp.argmax(logits[:, 0], axis=-1))
    assert MaskedPrediction(terms=(RowLength(),)).predict(module, batch) == {}


def test_terms_of_a_users_own_stand_among_the_known_ones(batch: dict) -> None:
    objective = MaskedPrediction(masking=Tokens(), terms=(RowLength(), LeftNeighbour(), MaskedTokens()))
    module = objective.build(ENCODER, nnx.Rngs(0))
    assert objective.problems(ENCODER) == []
    means = objective.measure(module, batch, None)
    assert means["length/loss"].value() > 0 and means["left/loss"].value() > 0
    assert float(means["left/loss"].count) == float(jnp.sum(batch["slot_boundary_weight_BK"]))
    assert objective.feed_spec(seed=0, batch_size=8, order="uniform").boundaries == Boundaries(max_offset=2)
    assert {*objective.baseline_losses(3.0)} == {"left/loss", "mlm/loss"}
    assert objective.setting_of("left") == "terms.1" and objective.setting_of("sbo") == ""
    without = dataclasses.replace(objective, terms=(RowLength(), MaskedTokens()))
    decoder = 6 * ENCODER.embedding_width * ENCODER.vocab_size
    assert objective.flops_per_row(ENCODER, 32, 8) - without.flops_per_row(ENCODER, 32, 8) == 8 * (1000 + decoder)


def test_masks_are_filled_by_an_objective_of_a_users_own() -> None:
    model, own = model_of(Own()), Own()
    filler = Filler(model)
    (mask,) = filler.fill_mask("w1 [MASK] w2", top=1)
    ids = np.array([[2, 6, 4, 7, 3]], np.int32)
    rows = {"tokens_BL": ids, "segments_BL": ids * 0 + 1, "types_BL": ids * 0, "positions_BL": np.arange(5)[None]}
    batch = {name: jnp.asarray(value) for name, value in rows.items()} | {"slot_position_BK": jnp.array([[2]])}
    module = own.build(ENCODER, nnx.Rngs(0))
    logits = own.logits(module, own.hidden(module, batch, None), batch)[0, 0, 0, :50]
    assert mask.candidates[0][0] == WORDS[int(jnp.argmax(logits))]
    assert mask.candidates[0][1] == pytest.approx(float(jax.nn.softmax(logits).max()), rel=1e-4)
    assert [set(span.fills) for span in filler.spans("w1 [MASK] [MASK] w2")] == [{"own"}]
    with pytest.raises(ValueError, match="no head that predicts tokens"):
        Filler(dataclasses.replace(model_of(MaskedPrediction(terms=(RowLength(),))), trained=None))


def test_a_head_of_the_neighbours_fills_the_offsets_that_it_reaches() -> None:
    terms = (LeftNeighbour(), MaskedTokens(), SpanBoundary(max_offset=3))
    filler = Filler(model_of(MaskedPrediction(masking=Tokens(), terms=terms)))
    short, middle, long = filler.spans("w1 [MASK] [MASK] w2 [MASK] [MASK] [MASK] w3 " + "[MASK] " * 4)
    assert set(short.fills) == {"left", "mlm", "sbo", "all"}
    assert set(middle.fills) == {"mlm", "sbo"} and set(long.fills) == {"mlm"}
    chances = [dict(short.fills[name].candidates[0]) for name in ("left", "mlm", "sbo", "all")]
    best = max(chances[-1], key=lambda piece: chances[-1][piece])
    assert all(0 < chance[best] <= 1 for chance in chances if best in chance)
    with pytest.raises(ValueError, match="no head that reads the masked token itself: its heads are left"):
        Filler(model_of(MaskedPrediction(terms=(LeftNeighbour(),)))).fill_mask("w1 [MASK]")


def test_the_report_shows_what_an_objective_of_a_users_own_fills_in(
    batch: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(Own())
    monkeypatch.setattr(masking, "load_model", lambda path: model)
    run: Any = types.SimpleNamespace(checkpoint=1, path=pathlib.Path("own"))
    assert model.vocabulary is not None
    blocks = masking.example_blocks(run, jax.device_get(batch), model.vocabulary, "held-out rows")
    tables = [block for block in blocks if isinstance(block, Table)]
    words, used = plain(getattr(blocks[0], "words")), int(batch["slot_weight_BK"].sum())  # noqa: B009
    assert "Right pieces: by OWN " in words and f" of {used}. " in words
    assert tables and list(tables[0].head) == ["Truth", "Model input", "by OWN"]
    assert arm_of(describe(Run(objective=Own())), "") == ""


@pytest.mark.parametrize(
    ("objective", "left", "kept"),
    [
        (Own(), "gauge", {"encoder", "mlm"}),
        (MaskedPrediction(terms=(LeftNeighbour(), RowLength())), "left, length", {"encoder"}),
    ],
)
def test_the_encoder_is_exported_without_heads_of_a_users_own(
    objective: Pretraining,
    left: str,
    kept: set[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    model = model_of(objective)
    importlib.import_module("spanjax.convert.compare")  # imported later, it would keep the replacement for all tests
    monkeypatch.setattr("spanjax.pretrained.load.load_model", lambda path: model)
    assert to_torch(ToTorch("own", str(tmp_path / "hf"), verify="mlm" in kept)) == 0
    said = f"{left} skipped: transformers has no class with such a head; what lies below is written"
    assert said in capsys.readouterr().out and said in (tmp_path / "hf" / "README.md").read_text()
    back = load_model(tmp_path / "hf")
    assert back.parts == kept
    before, after = named_leaves({name: model.params[name] for name in kept}), named_leaves(back.params)
    assert before.keys() == after.keys()
    for name, array in before.items():
        if array.shape[:1] != (ENCODER.padded_vocab_size,):
            np.testing.assert_array_equal(after[name], array)


def test_weights_start_an_objective_of_a_users_own() -> None:
    model, own = model_of(MaskedPrediction(masking=Tokens())), Own()
    assert model.vocabulary is not None
    shapes = nnx.to_pure_dict(nnx.split(own.build(ENCODER, nnx.Rngs(0)))[1])
    start = start_from(model, ENCODER, model.vocabulary, shapes, 0, objective=own)
    assert "drawn fresh: gauge" in start.lines and {name.split("/")[0] for name in start.leaves} == {"encoder", "mlm"}


def test_a_bias_of_the_vocabulary_follows_its_tokens_into_another_vocabulary() -> None:
    objective = MaskedPrediction(masking=Tokens(), terms=(MaskedTokens(), LeftNeighbour()))
    model = model_of(objective)
    bias_V = np.arange(128, dtype=np.float32)
    params: Any = {**model.params, "left": {**model.params["left"], "bias": bias_V}}
    turned = WordPieceVocabulary([*WORDS[:5], *reversed(WORDS[5:])], lower_case=False)
    model = dataclasses.replace(model, params=params)
    start = start_from(model, ENCODER, turned, model.params, 0, objective=objective)
    np.testing.assert_array_equal(start.leaves["left/bias"][:50], [*range(5), *reversed(range(5, 50))])
