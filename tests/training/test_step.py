"""The step: the same losses on 1, 2 and 4 devices, with and without a tensor axis, in 1 and 4 microbatches."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.nn.config import EncoderConfig
from spanjax.objectives.loss_terms import MaskedTokens, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.sharding import MeshConfig, make_mesh, to_global
from spanjax.training.optimizers import AdamW
from spanjax.training.state import TrainState, abstract_module, state_factory, state_shardings
from spanjax.training.step import StepBuilder
from tests.made import synthetic_batch, tiny_encoder

ENCODER = tiny_encoder(hidden_size=32, heads=4, intermediate_size=64, positions=32, initializer_std=0.1)
# epsilon is large because the gradient of a key bias is zero but for rounding, which Adam would blow up to full steps
OPTIMIZER = AdamW(learning_rate=1e-2, warmup_steps=2, epsilon=1e-3)
STEPS = 4
SPANBERT = MaskedPrediction()


def builder(
    mesh: MeshConfig,
    devices: int,
    microbatches: int = 1,
    objective: MaskedPrediction = SPANBERT,
    dtype: Any = jnp.float32,
    encoder: EncoderConfig = ENCODER,
) -> StepBuilder:
    grid = make_mesh(mesh, jax.devices()[:devices])
    structure, params = abstract_module(objective, encoder)
    return StepBuilder(objective, structure, params, grid, dtype, microbatches, seed=5, fsdp=mesh.fsdp)


def built(
    of: StepBuilder, encoder: EncoderConfig = ENCODER, optimizer: AdamW = OPTIMIZER
) -> tuple[Any, Any, TrainState]:
    """(step, function that makes the state, shardings of the state)."""
    transform = optimizer.transformation(STEPS)
    make = state_factory(of.objective, encoder, transform, seed=5)
    shardings = state_shardings(jax.eval_shape(make), transform, of.mesh)
    return of.train_step(transform, optimizer.rate_schedule(STEPS), shardings), make, shardings


def run(
    mesh: MeshConfig,
    devices: int,
    microbatches: int = 1,
    objective: MaskedPrediction = SPANBERT,
    dtype: Any = jnp.float32,
    optimizer: AdamW = OPTIMIZER,
    encoder: EncoderConfig = ENCODER,
    layerwise: bool = False,
) -> tuple[list[dict[str, float]], TrainState]:
    of = builder(mesh, devices, microbatches, objective, dtype, encoder)
    of = dataclasses.replace(of, layerwise=layerwise)
    step, make, shardings = built(of, optimizer=optimizer)
    state, history = jax.jit(make, out_shardings=shardings)(), []
    for number in range(STEPS):
        state, shown = step(state, to_global(synthetic_batch(8, 32, 16, 50, seed=number), of.mesh))
        means = {name: mean.value() for name, mean in jax.device_get(shown["means"]).items()}
        history.append({**means, "norm": float(shown["gradient_norm"])})
    return history, state


@pytest.fixture(scope="module")
def reference() -> tuple[list[dict[str, float]], TrainState]:
    return run(MeshConfig(), 1)


@pytest.mark.parametrize(
    ("mesh", "devices", "microbatches"),
    [
        pytest.param(MeshConfig(), 2, 1, marks=pytest.mark.slow),
        (MeshConfig(), 4, 1),
        pytest.param(MeshConfig(replica=2), 4, 1, marks=pytest.mark.slow),
        (MeshConfig(tensor=2), 4, 1),
        pytest.param(MeshConfig(), 1, 4, marks=pytest.mark.slow),
        pytest.param(MeshConfig(), 2, 4, marks=pytest.mark.slow),
        pytest.param(MeshConfig(fsdp=True), 4, 1, marks=pytest.mark.slow),
        (MeshConfig(replica=2, fsdp=True), 4, 2),
    ],
    ids=[
        *("2 devices", "4 devices", "2 replicas", "tensor axis", "4 microbatches", "2 devices x 4 microbatches"),
        *("fsdp", "fsdp, 2 replicas x 2 microbatches"),
    ],
)
def test_layout_changes_nothing(reference: tuple, mesh: MeshConfig, devices: int, microbatches: int) -> None:
    assert_alike(reference, run(mesh, devices, microbatches))


@pytest.mark.parametrize(
    ("mesh", "remat", "unroll"),
    [
        (MeshConfig(replica=2), "elementwise", ENCODER.layers),
        (MeshConfig(replica=2), "none", 1),
        pytest.param(MeshConfig(), "none", ENCODER.layers, marks=pytest.mark.slow),
        pytest.param(MeshConfig(), "dots", 1, marks=pytest.mark.slow),
        pytest.param(MeshConfig(tensor=2), "full", ENCODER.layers, marks=pytest.mark.slow),
    ],
    ids=["replicas", "replicas, in a scan", "devices", "devices, in a scan", "tensor axis"],
)
def test_gathering_layer_by_layer_changes_nothing(reference: tuple, mesh: MeshConfig, remat: Any, unroll: int) -> None:
    encoder = dataclasses.replace(ENCODER, unroll=unroll, remat=remat)
    assert_alike(reference, run(mesh, 4, encoder=encoder, layerwise=True))


def assert_alike(reference: tuple, found: tuple) -> None:
    for expected, got in zip(reference[0], found[0], strict=True):
        for name in expected:
            assert got[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-7), name
    for expected, got in zip(jax.tree.leaves(reference[1].params), jax.tree.leaves(found[1].params), strict=True):
        np.testing.assert_allclose(expected, got, atol=1e-4)


def test_training_lowers_the_loss_and_counts_steps() -> None:
    """Every step on one batch: both losses of pretraining fall from each step to the next."""
    of = builder(MeshConfig(), 1)
    step, make, shardings = built(of)
    state, batch = jax.jit(make, out_shardings=shardings)(), to_global(synthetic_batch(8, 32, 16, 50), of.mesh)
    losses = []
    for _ in range(STEPS):
        state, shown = step(state, batch)
        losses.append([float(shown["means"][name].value()) for name in ("mlm/loss", "sbo/loss")])
    assert int(state.step) == STEPS
    assert (np.diff(losses, axis=0) < 0).all(), losses


@pytest.mark.slow
def test_fsdp_never_holds_all_layers() -> None:
    encoder = dataclasses.replace(ENCODER, hidden_size=128, intermediate_size=512, layers=8)
    layers = 8 * (4 * 128**2 + 2 * 128 * 512) * 4  # bytes of their kernels
    taken = {}
    for fsdp in (False, True):
        of = builder(MeshConfig(fsdp=fsdp), 4, encoder=encoder)
        step, make, shardings = built(of, encoder)
        state = jax.jit(make, out_shardings=shardings)()
        compiled = step.lower(state, to_global(synthetic_batch(8, 32, 16, 50, seed=0), of.mesh)).compile()
        taken[fsdp] = compiled.memory_analysis().temp_size_in_bytes
        whole = [line for line in compiled.as_text().splitlines() if "all-gather(" in line and "f32[8,128,512]" in line]
        assert bool(whole) == (not fsdp)
    # without: whole parameters and whole gradients of all layers; with: those of one layer at a time, and the parts
    assert taken[False] - taken[True] > 1.25 * layers


def test_state_is_sharded_over_data() -> None:
    _, state = run(MeshConfig(), 4)
    table = state.params["encoder"]["embeddings"]["token"]["embedding"]
    moments = state.opt_state[2].mu["encoder"]["embeddings"]["token"]["embedding"]
    for leaf in (table, moments):
        assert leaf.addressable_shards[0].data.size * 4 == leaf.size
    assert table.dtype == jnp.float32


def test_bfloat16_follows_float32(reference: tuple) -> None:
    history, state = run(MeshConfig(), 2, dtype=jnp.bfloat16)
    assert jax.tree.leaves(state.params)[0].dtype == jnp.float32
    # one rounding to bfloat16 is up to 2e-3; over the targets of a batch they average out: 2.1e-4 measured at most
    for found, expected in zip(history, reference[0], strict=True):
        for name in ("mlm/loss", "sbo/loss"):
            assert found[name] == pytest.approx(expected[name], rel=5e-4), name


def test_extra_count_divides_the_gradient() -> None:
    """With one more than n targets (D6) the gradient of that term is n / (n + 1) of the mean's."""
    counted = int(synthetic_batch(8, 32, 16, 50, seed=0)["slot_boundary_weight_BK"].sum())
    norms = []
    for extra in (0.0, 1.0):
        only = MaskedPrediction(terms=(MaskedTokens(weight=0.0), SpanBoundary(extra_count=extra)))
        norms.append(run(MeshConfig(), 1, objective=only)[0][0]["norm"])
    assert norms[1] / norms[0] == pytest.approx(counted / (counted + 1), rel=1e-5)


def test_zero_weight_term_does_not_train_its_head() -> None:
    only = MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(weight=0.0)))
    plain = dataclasses.replace(OPTIMIZER, weight_decay=0.0)
    _, state = run(MeshConfig(), 1, objective=only, optimizer=plain)
    fresh = state_factory(only, ENCODER, plain.transformation(STEPS), seed=5)().params
    np.testing.assert_allclose(state.params["sbo"]["dense1"]["kernel"], fresh["sbo"]["dense1"]["kernel"], atol=1e-7)
    assert not np.allclose(state.params["mlm"]["dense"]["kernel"], fresh["mlm"]["dense"]["kernel"], atol=1e-4)


def test_one_program_serves_all_seeds() -> None:
    """The seed is an argument of the compiled step, so that runs of several seeds share the compilation cache."""
    builders = [dataclasses.replace(builder(MeshConfig(), 1), seed=seed) for seed in (5, 6, 5 + 2**32)]
    batch = to_global(synthetic_batch(8, 32, 16, 50, seed=0), builders[0].mesh)
    texts, losses = [], []
    for of in builders:
        step, make, shardings = built(of)
        state = jax.jit(make, out_shardings=shardings)()
        texts.append(step.lower(state, batch).as_text())
        _, shown = step(state, batch)
        losses.append(float(jax.device_get(shown["gradient_norm"])))
    assert texts[0] == texts[1] == texts[2]
    assert losses[0] == losses[2] != losses[1], "dropout is that of the seed, of which 32 bits count"
