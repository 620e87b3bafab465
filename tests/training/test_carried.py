"""What rows hand on to the next batch is part of the state: on any layout, through checkpoints, past updates left out."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.data.feed.pairing import FullSentences
from spanjax.experiment.build import CompiledRun, build
from spanjax.objectives.xlnet import STATES, USED, PermutedPrediction
from spanjax.run import Run
from spanjax.sharding import MeshConfig, make_mesh, to_global
from spanjax.training.checkpoint import Checkpoints
from spanjax.training.optimizers import AdamW
from spanjax.training.state import TrainState
from tests.made import synthetic_batch, tiny_encoder

ENCODER = tiny_encoder(
    hidden_size=32, heads=4, intermediate_size=64, positions=32, relative_attention=True, initializer_std=0.1
)
OBJECTIVE = PermutedPrediction(pairing=FullSentences(), memory=8, block=16)
ROWS, LENGTH, STEPS = 8, 32, 4


def of(mesh: MeshConfig, devices: int, microbatches: int = 1) -> CompiledRun:
    run = Run(
        objective=OBJECTIVE,
        encoder=ENCODER,
        optimizer=AdamW(learning_rate=1e-2, warmup_steps=2, epsilon=1e-3),
        mesh=mesh,
        steps=STEPS,
        batch_size=ROWS,
        microbatches=microbatches,
        seed=5,
    )
    return build(run, LENGTH, make_mesh(mesh, jax.devices()[:devices]))


def trained(built: CompiledRun, steps: int = STEPS, state: TrainState | None = None) -> tuple[list[float], TrainState]:
    now: TrainState = built.fresh_state() if state is None else state
    step, losses = built.train_step(), []
    first = int(now.step)
    for number in range(first, first + steps):
        batch = to_global(synthetic_batch(ROWS, LENGTH, 12, 50, seed=number), built.mesh)
        now, shown = step(now, batch)
        losses.append(jax.device_get(shown["means"])["plm/loss"].value())
    return losses, now


@pytest.fixture(scope="module")
def alone() -> tuple[list[float], TrainState]:
    return trained(of(MeshConfig(), 1))


def test_it_begins_with_nothing_and_comes_from_the_rows_before(alone: tuple[list[float], TrainState]) -> None:
    fresh = of(MeshConfig(), 1).fresh_state()
    assert not any(np.asarray(leaf).any() for leaf in fresh.recurrent_state.values())
    carried = alone[1].recurrent_state
    assert carried[STATES].shape == (ROWS, 2, 8, 32) and carried[USED].shape == (ROWS, 8)
    last = synthetic_batch(ROWS, LENGTH, 12, 50, seed=STEPS - 1)
    assert (last["segments_BL"][:, -1] == 0).any(), "some rows are padded: they hand on their text"
    assert np.asarray(carried[USED]).all() and np.abs(carried[STATES]).max(axis=(1, 2, 3)).all()


@pytest.mark.parametrize(
    ("mesh", "devices", "microbatches"),
    [
        pytest.param(MeshConfig(), 4, 1, marks=pytest.mark.slow),
        (MeshConfig(replica=2), 4, 2),
        pytest.param(MeshConfig(), 1, 4, marks=pytest.mark.slow),
        pytest.param(MeshConfig(fsdp=True), 4, 1, marks=pytest.mark.slow),
    ],
    ids=["4 devices", "2 replicas x 2 microbatches", "4 microbatches", "fsdp"],
)
def test_layout_changes_nothing(
    alone: tuple[list[float], TrainState], mesh: MeshConfig, devices: int, microbatches: int
) -> None:
    losses, state = trained(of(mesh, devices, microbatches))
    np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
    for name, expected in alone[1].recurrent_state.items():
        np.testing.assert_allclose(state.recurrent_state[name], expected, atol=1e-4)
        assert state.recurrent_state[name].addressable_shards[0].data.shape[0] * devices == ROWS


@pytest.mark.slow
def test_it_goes_through_a_checkpoint_onto_other_devices(
    alone: tuple[list[float], TrainState], tmp_path: pathlib.Path
) -> None:
    losses, state = trained(of(MeshConfig(), 4), steps=2)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(state, 2, {}, None)
    checkpoints.close()
    tree = (tmp_path / "checkpoints" / "2" / "state" / "_METADATA").read_text()
    assert "'carried'" in tree and "recurrent_state" not in tree, "the name of version 0.1"
    built = of(MeshConfig(), 2)
    found = Checkpoints(tmp_path, keep=1).restore_newest(built.abstract)
    assert found is not None
    for name, expected in jax.device_get(state.recurrent_state).items():
        np.testing.assert_array_equal(found.recurrent_state[name], expected)
    rest, _ = trained(built, steps=2, state=found)
    np.testing.assert_allclose(losses + rest, alone[0], rtol=1e-5)


@pytest.mark.slow
def test_without_what_was_handed_on_the_losses_are_others(alone: tuple[list[float], TrainState]) -> None:
    built = of(MeshConfig(), 1)
    _, state = trained(built, steps=2)
    emptied = state._replace(recurrent_state=jax.tree.map(jnp.zeros_like, state.recurrent_state))
    rest, _ = trained(built, steps=1, state=emptied)
    assert abs(rest[0] - alone[0][2]) > 1e-4


def test_a_batch_that_is_left_out_hands_nothing_on() -> None:
    built = of(MeshConfig(), 1)
    _, state = trained(built, steps=1)
    kept = jax.device_get(state.recurrent_state)
    broken: Any = to_global(synthetic_batch(ROWS, LENGTH, 12, 50, seed=1), built.mesh)
    broken["slot_weight_BK"] = broken["slot_weight_BK"] * jnp.nan
    state, shown = built.train_step()(state, broken)
    assert int(shown["skipped"]) == 1
    for name, expected in kept.items():
        np.testing.assert_array_equal(state.recurrent_state[name], expected)
