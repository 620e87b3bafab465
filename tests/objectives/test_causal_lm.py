"""Next-token prediction: causal inside the blocks of packed rows, a loop over prefixes, a start for masked prediction."""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax import train
from spanjax.data.feed.masking import GeometricSpans
from spanjax.inference.fill_mask import Filler
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.causal_lm import TERM, CausalPrediction
from spanjax.objectives.masked_lm import MaskedPredictor
from spanjax.objectives.tied_decoder import tied_table, token_logits
from spanjax.pretrained.load import load_model
from spanjax.run import Run
from spanjax.sharding import MeshConfig, make_mesh, named_leaves, to_global
from tests.made import tiny_encoder
from tests.running import ROOT, records, shrunk

ENCODERS = {
    "xla": tiny_encoder(initializer_std=0.3, attention="xla"),
    "xla_chunked": tiny_encoder(initializer_std=0.3, attention="xla_chunked"),
    "relative": tiny_encoder(initializer_std=0.3, relative_attention=True),
    "disentangled": tiny_encoder(
        initializer_std=0.3, disentangled_attention="both", max_distance=8, distance_buckets=4
    ),
    "local": tiny_encoder(
        initializer_std=0.3,
        layers=3,
        types=0,
        norm_first=True,
        rope_theta=100.0,
        local_rope_theta=10.0,
        local_window=2,
        global_every=3,
    ),
}


def batch(rows: int = 2, length: int = 16, seed: int = 0) -> dict[str, Any]:
    """Rows of two blocks of unequal lengths and padding; every token but the first and the last of a block is a target."""
    random = np.random.default_rng(seed)
    made: dict[str, Any] = {
        name: np.zeros((rows, length), np.int32) for name in ("tokens_BL", "segments_BL", "positions_BL", "types_BL")
    }
    slots = {name: np.zeros((rows, length), np.int32) for name in ("slot_position_BK", "slot_target_BK")}
    weight_BK = np.zeros((rows, length), np.float32)
    for row in range(rows):
        places, start = [], 0
        for number, size in enumerate((6 + row, 7 - row), 1):
            block = slice(start, start + size)
            made["tokens_BL"][row, block] = random.integers(5, 50, size)
            made["segments_BL"][row, block], made["positions_BL"][row, block] = number, np.arange(size)
            places += range(start + 1, start + size - 1)
            start += size
        slots["slot_position_BK"][row, : len(places)] = places
        slots["slot_target_BK"][row, : len(places)] = made["tokens_BL"][row, places]
        weight_BK[row, : len(places)] = 1
    pairs = {f"pair_{name}_BP": np.zeros((rows, 2), np.int32) for name in ("position", "label", "weight")}
    boundaries = {
        f"slot_{name}_BK": np.zeros_like(weight_BK) for name in ("left", "right", "offset", "boundary_weight")
    }
    return {
        **made,
        **slots,
        "slot_weight_BK": weight_BK,
        **boundaries,
        **pairs,
        "row_B": np.arange(rows, dtype=np.int32),
    }


def module_of(encoder: EncoderConfig) -> MaskedPredictor:
    return CausalPrediction().build(encoder, nnx.Rngs(1))


@pytest.mark.parametrize("name", ENCODERS)
def test_no_loss_depends_on_later_tokens_or_on_another_block(name: str) -> None:
    """Gradients of every target's loss with respect to the embedding at every position: exactly 0 from its own position on and
    in the other block, and not 0 at those before it that its layers reach."""
    module, given = module_of(ENCODERS[name]), batch()
    rows = {key: jnp.asarray(value) for key, value in given.items()}
    first = module.encoder.embeddings(rows["tokens_BL"], rows["positions_BL"], rows["types_BL"], None, site=0)

    def losses(embedded_BLD: jax.Array) -> jax.Array:
        hidden = module.encoder.run(
            embedded_BLD, rows["segments_BL"], rows["positions_BL"], rows["types_BL"], None, causal=True
        )[0]
        scores = jax.nn.log_softmax(token_logits((TERM,), module, *tied_table(module), hidden, rows)[:, 0])
        return -jnp.take_along_axis(scores, rows["slot_target_BK"][..., None], axis=-1)[..., 0]

    reached_BKBL = np.abs(jax.jit(jax.jacrev(losses))(first)).max(axis=-1)
    found = 0
    for row, slot in zip(*np.nonzero(given["slot_weight_BK"]), strict=True):
        place, segments = given["slot_position_BK"][row, slot], given["segments_BL"]
        before = (segments[row] == segments[row, place]) & (np.arange(16) < place)
        assert not reached_BKBL[row, slot, 1 - row].any() and not reached_BKBL[row, slot, row][~before].any()
        assert (reached_BKBL[row, slot, row][before] > 0).all()
        found += before.sum()
    assert found == 10 + 15 + 15 + 10


def test_it_equals_a_loop_over_prefixes() -> None:
    """One layer, whose attention in both directions over a prefix is causal at its last position: every prefix of every block in
    a row of its own, without `causal`, decoded in NumPy."""
    encoder = tiny_encoder(initializer_std=0.3, layers=1)
    module, given = module_of(encoder), batch(seed=3)
    means = jax.jit(lambda rows: CausalPrediction().measure(module, rows, None))(given)
    total, right, count = 0.0, 0, 0
    table = np.asarray(module.encoder.token_table(), np.float64)[:50]
    for row, slot in zip(*np.nonzero(given["slot_weight_BK"]), strict=True):
        place = given["slot_position_BK"][row, slot]
        begin = np.flatnonzero(given["segments_BL"][row] == given["segments_BL"][row, place])[0]
        prefix = jnp.asarray(given["tokens_BL"][row, begin:place])[None]
        ones = jnp.ones_like(prefix)
        hidden = module.encoder(prefix, ones, jnp.arange(place - begin)[None], 0 * ones)[:, -1]
        head: Any = getattr(module, TERM.name)
        scores = np.asarray(head(hidden), np.float64)[0] @ table.T + np.asarray(head.bias[...], np.float64)[:50]
        target = given["tokens_BL"][row, place]
        total -= scores[target] - scores.max() - np.log(np.exp(scores - scores.max()).sum())
        right += scores.argmax() == target
        count += 1
    assert float(means["clm/loss"].value()) == pytest.approx(total / count, rel=1e-5)
    assert float(means["clm/accuracy"].value()) == pytest.approx(right / count)
    assert float(CausalPrediction().counts(given)["clm/loss"]) == count == 18


@pytest.mark.parametrize(
    ("mesh", "devices", "microbatches"),
    [
        pytest.param(MeshConfig(replica=2, fsdp=True), 4, 2, marks=pytest.mark.slow),
        pytest.param(MeshConfig(tensor=2), 4, 1, marks=pytest.mark.slow),
    ],
    ids=["fsdp, 2 replicas x 2 microbatches", "tensor axis"],
)
def test_layout_changes_nothing(mesh: MeshConfig, devices: int, microbatches: int) -> None:
    from spanjax.experiment.build import build

    run = Run(objective=CausalPrediction(), encoder=ENCODERS["xla"], steps=4, batch_size=8, seed=5)
    run = dataclasses.replace(run, optimizer=dataclasses.replace(run.optimizer, warmup_steps=1, learning_rate=1e-2))
    losses = []
    for layout, count, parts in ((MeshConfig(), 1, 1), (mesh, devices, microbatches)):
        of = dataclasses.replace(run, mesh=layout, microbatches=parts)
        built = build(of, 16, make_mesh(layout, jax.devices()[:count]))
        state, step, found = built.fresh_state(), built.train_step(), []
        for number in range(4):
            state, shown = step(state, to_global(batch(8, seed=number), built.mesh))
            found.append(jax.device_get(shown["means"])["clm/loss"].value())
        losses.append(found)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.slow
def test_it_starts_masked_prediction(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """All of its weights pass to the masked run, whose first checkpoint is made without an update; it fills no masks itself."""
    monkeypatch.chdir(ROOT)

    def arguments(config: str, name: str, *more: str) -> list[str]:
        return shrunk(f"configs/pretrain/{config}.py", rows_folder, tmp_path / name, 2, "--data.feed=numpy", *more)

    assert train.main(arguments("causal_small", "causal")) == 0
    assert "held-out clm loss" in capsys.readouterr().out
    assert set(records(tmp_path / "causal", "data/masked").values()) == {1.0}, "every token of the text is a target"
    causal = load_model(tmp_path / "causal")
    with pytest.raises(ValueError, match="no head that predicts tokens .*: train one with .* --init-from"):
        Filler(causal)
    still = ("--optimizer.learning-rate=1e-30", f"--init-from={tmp_path / 'causal'}")
    assert train.main(arguments("causal_then_masked", "masked", *still)) == 0
    assert "loaded encoder, mlm" in capsys.readouterr().out
    masked = named_leaves(load_model(tmp_path / "masked").params)
    for name, leaf in named_leaves(causal.params).items():
        # rows that only pad the vocabulary are zero in a run that loads weights
        count = causal.encoder.vocab_size if CausalPrediction().has_pieces(name) or "token/" in name else len(leaf)
        np.testing.assert_array_equal(masked[name][:count], leaf[:count], err_msg=name)


def test_replaced_tokens_are_refused() -> None:
    masking = GeometricSpans()
    assert CausalPrediction(masking=masking).problems(ENCODERS["xla"]) == [
        f"objective.masking GeometricSpans has {masking.replacement}: expected mask=0 and random=0, the next tokens are read"
        " unchanged; set both to 0"
    ]
    assert all(CausalPrediction().problems(encoder) == [] for encoder in ENCODERS.values())
    half = CausalPrediction().flops(ENCODERS["xla"], 64, 64**2, 0) - ENCODERS["xla"].flops(64, 0)
    assert half / (ENCODERS["xla"].flops(64, 64**2) - ENCODERS["xla"].flops(64, 0)) == pytest.approx(65 / 128)
