"""The last N and the best are kept; what is restored is what was saved, on any mesh; unfinished saves do not count."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.parallel import MeshConfig, make_mesh, parameter_shardings, replicated
from spanjax.training.checkpoint import CHECKSUMS, Checkpoints, damage, read_weights, whole_step
from spanjax.training.state import TrainState


def state(step: int, devices: int) -> TrainState:
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    params = {"table": {"embedding": jnp.arange(32.0).reshape(8, 4) + step}, "norm": {"scale": jnp.ones(3) * step}}
    params = jax.device_put(params, parameter_shardings(params, mesh))
    return TrainState(
        jax.device_put(jnp.int32(step), replicated(mesh)), params, {"count": jax.device_put(step, replicated(mesh))}
    )


def abstract(like: TrainState) -> TrainState:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)


def test_last_and_best_are_kept(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.5), (6, 2.0)):
        checkpoints.save(state(step, 2), step, {"note": step}, loss)
    checkpoints.close()
    assert sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()) == [2, 5, 6]
    step, params, meta = read_weights(tmp_path / "checkpoints" / "6")
    assert (step, meta) == (6, {"note": 6}) and whole_step(tmp_path) == (6, [])
    np.testing.assert_array_equal(params["table"]["embedding"], state(6, 1).params["table"]["embedding"])
    assert (tmp_path / "checkpoints" / "6" / CHECKSUMS).exists() and damage(tmp_path / "checkpoints" / "6") is None


@pytest.mark.parametrize("devices", [1, 4])
def test_restored_onto_another_mesh(tmp_path: pathlib.Path, devices: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(state(7, 2), 7, {}, None)
    checkpoints.close()
    target = state(0, devices)
    restored = Checkpoints(tmp_path, keep=1).restore_newest(abstract(target))
    assert restored is not None and int(restored.step) == 7
    for expected, got, like in zip(*(jax.tree.leaves(s) for s in (state(7, 1), restored, target)), strict=True):
        np.testing.assert_array_equal(expected, got)
        assert got.sharding == like.sharding


def test_half_written_checkpoint_is_ignored(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(state(1, 1), 1, {}, None)
    checkpoints.close()
    (tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp-123").mkdir()
    again = Checkpoints(tmp_path, keep=2)
    restored = again.restore_newest(abstract(state(0, 1)))
    assert again.steps() == [1] and restored is not None and int(restored.step) == 1


def test_nothing_there_is_none(tmp_path: pathlib.Path) -> None:
    assert Checkpoints(tmp_path, keep=1).restore_newest(abstract(state(0, 1))) is None


def test_damage_names_the_files(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(state(1, 1), 1, {}, None)
    checkpoints.close()
    folder = tmp_path / "checkpoints" / "1"
    (folder / "meta" / "metadata").write_text('{"other": 1}')
    assert "meta/metadata" in (damage(folder) or "")
