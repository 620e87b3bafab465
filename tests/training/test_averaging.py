"""The moving average of the weights is a plain loop over the weights after each update: on any layout, through checkpoints, past
skipped updates; the run is evaluated and loaded with it."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax import train
from spanjax.experiment.build import CompiledRun, build
from spanjax.experiment.summary import compiled_peak
from spanjax.pretrained.load import load_model
from spanjax.run import Run
from spanjax.sharding import MeshConfig, make_mesh, named_leaves, to_global
from spanjax.training.checkpoint import Checkpoints
from spanjax.training.optimizers import AdamW
from spanjax.training.optimizers.averaging import moving_average
from spanjax.training.preemption import StopRequest
from spanjax.training.state import TrainState
from tests.made import synthetic_batch, tiny_encoder
from tests.running import ROOT, final_leaves, records, shrunk

DECAY, STEPS = 0.75, 6
ENCODER = tiny_encoder(hidden_size=32, heads=4, intermediate_size=64, positions=32, initializer_std=0.1)


def of(mesh: MeshConfig, devices: int, microbatches: int = 1, decay: float = DECAY) -> CompiledRun:
    run = Run(
        encoder=ENCODER,
        optimizer=AdamW(learning_rate=1e-2, warmup_steps=2, epsilon=1e-3, ema_decay=decay),
        mesh=mesh,
        steps=STEPS,
        batch_size=8,
        microbatches=microbatches,
        seed=5,
    )
    return build(run, 32, make_mesh(mesh, jax.devices()[:devices]))


def batch(number: int, broken: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = synthetic_batch(8, 32, 16, 50, seed=number)
    made["slot_weight_BK"] = made["slot_weight_BK"] * np.float32(np.nan if broken else 1)
    return made


def leaves(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf, np.float64) for name, leaf in named_leaves(jax.device_get(tree)).items()}


@pytest.mark.parametrize(
    ("mesh", "devices", "microbatches"),
    [
        pytest.param(MeshConfig(), 1, 1, marks=pytest.mark.slow),
        (MeshConfig(replica=2, fsdp=True), 4, 2),
        pytest.param(MeshConfig(), 4, 1, marks=pytest.mark.slow),
        pytest.param(MeshConfig(tensor=2), 4, 1, marks=pytest.mark.slow),
    ],
    ids=["1 device", "fsdp, 2 replicas x 2 microbatches", "4 devices", "tensor axis"],
)
def test_it_is_a_plain_loop_on_every_layout(mesh: MeshConfig, devices: int, microbatches: int) -> None:
    """Step 2 has a loss that is not finite: it changes nothing, and the warm-up of the decay does not count it."""
    built = of(mesh, devices, microbatches)
    state, step = built.fresh_state(), built.train_step()
    expected, updates = leaves(state.params), 0
    for number in range(STEPS):
        before = jax.device_get(state.averaged)
        state, shown = step(state, to_global(batch(number, broken=number == 2), built.mesh))
        assert (int(shown["skipped"]) == 1) == (number == 2)
        if number == 2:
            jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.averaged), before)
            continue
        share = max(1 - DECAY, 9 / (10 + updates))
        expected = {name: mean + share * (leaves(state.params)[name] - mean) for name, mean in expected.items()}
        updates += 1
    for name, mean in leaves(state.averaged).items():
        np.testing.assert_allclose(mean, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)
    assert any(np.abs(leaves(state.params)[name] - mean).max() > 1e-3 for name, mean in expected.items())
    for one, other in zip(jax.tree.leaves(state.averaged), jax.tree.leaves(state.params), strict=True):
        assert one.sharding == other.sharding and one.dtype == jnp.float32


def test_the_decay_is_exact_and_its_warmup_can_be_left_out() -> None:
    """1 - 0.9999 to all digits of float32, and the warmed-up decay of the updates n = 0 and n = 90."""
    zero, one = {"a": jnp.zeros(1)}, {"a": jnp.ones(1)}
    for warmup, count, share in ((False, 0, 1e-4), (True, 0, 0.9), (True, 90, 0.09), (True, 10**6, 1e-4)):
        found = moving_average(0.9999, warmup)(zero, one, jnp.int32(count))
        np.testing.assert_allclose(found["a"], np.float32(share), rtol=2e-7)


@pytest.mark.slow
def test_training_keeps_its_bits_and_the_average_goes_onto_other_devices(tmp_path: pathlib.Path) -> None:
    states = list[TrainState]()
    for decay in (0.0, DECAY):
        built = of(MeshConfig(), 2, decay=decay)
        state, step = built.fresh_state(), built.train_step()
        for number in range(3):
            state, _ = step(state, to_global(batch(number), built.mesh))
        states.append(state)
    jax.tree.map(np.testing.assert_array_equal, *(jax.device_get(state.params) for state in states))
    assert states[0].averaged == ()
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(states[1], 3, {}, None)
    checkpoints.close()
    found = Checkpoints(tmp_path, keep=1).restore_newest(of(MeshConfig(), 4).abstract)
    assert found is not None
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found.averaged), jax.device_get(states[1].averaged))


def test_the_figures_of_a_plan_count_it() -> None:
    """A device's share of the state and the peak of the compiled step, as `--dry-run` prints them, grow by one copy of the
    weights."""
    without, kept = (of(MeshConfig(), 2, decay=decay) for decay in (0.0, DECAY))

    def size(tree: Any) -> int:
        return sum(4 * int(np.prod(leaf.sharding.shard_shape(leaf.shape))) for leaf in jax.tree.leaves(tree))

    copy = size(without.abstract.params)
    assert size(kept.abstract) - size(without.abstract) == copy
    given: Any = to_global(batch(0), kept.mesh)
    peaks = [compiled_peak(built, given) for built in (without, kept)]
    assert peaks[0] is not None and peaks[1] is not None and peaks[1] - peaks[0] >= copy


@pytest.mark.slow
def test_a_run_is_resumed_evaluated_and_loaded_with_it(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Four steps equal two and two, bit for bit; next to the run without an average only the evaluation differs."""
    monkeypatch.chdir(ROOT)

    def arguments(name: str, *more: str) -> list[str]:
        common = ("--data.feed=numpy", "--optimizer.warmup-steps=1", "--optimizer.learning-rate=1e-2", *more)
        return shrunk("configs/pretrain/demo.py", rows_folder, tmp_path / name, 4, *common)

    average = "--optimizer.ema-decay=0.9"
    assert train.main(arguments("without")) == 0
    assert train.main(arguments("whole", average)) == 0
    assert (
        "decay 0.9, warmed up by (1 + n) / (10 + n): evaluated, and loaded from checkpoints" in capsys.readouterr().out
    )
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "agreed", lambda self, step: step == 2)
        assert train.main(arguments("parts", average)) == 75
    assert train.main(arguments("parts", average)) == 0
    whole, parts = final_leaves(tmp_path / "whole"), final_leaves(tmp_path / "parts")
    assert whole.keys() == parts.keys() and sum("averaged" in name for name in whole) > 10
    for name, leaf in whole.items():
        np.testing.assert_array_equal(leaf, parts[name], err_msg=name)
    plain = final_leaves(tmp_path / "without")
    assert {name for name in whole if "averaged" not in name} == plain.keys()
    for name, leaf in plain.items():
        np.testing.assert_array_equal(leaf, whole[name], err_msg=name)
    assert records(tmp_path / "whole", "train/mlm/loss") == records(tmp_path / "without", "train/mlm/loss")
    assert records(tmp_path / "whole", "eval/loss") != records(tmp_path / "without", "eval/loss")
    model = load_model(str(tmp_path / "whole"))
    assert any("moving average" in note for note in model.notes)
    for name, leaf in named_leaves(model.params).items():
        place = "".join(f"['{part}']" for part in name.split("/"))
        np.testing.assert_array_equal(leaf, whole[f"['averaged']{place}"], err_msg=name)


def test_a_run_begins_its_average_with_the_loaded_weights() -> None:
    from spanjax.experiment.init_from import InitialWeights

    built = of(MeshConfig(), 2)
    name = "encoder/embeddings/token/embedding"
    shape = named_leaves(built.abstract.params)[name].shape
    state = built.fresh_state(InitialWeights({name: np.full(shape, 3.0, np.float32)}, ()))
    assert float(named_leaves(state.averaged)[name][0, 0]) == 3.0
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.averaged), jax.device_get(state.params))
    built.train_step()(state, to_global(batch(0), built.mesh))  # donates every buffer once
