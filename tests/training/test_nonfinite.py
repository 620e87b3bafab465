"""An update whose loss or gradient is not finite is left out: nothing but the number of the batch moves, and it is said."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spanjax import train
from spanjax.bounds import range_problems
from spanjax.experiment.pretrain import PretrainingSession
from spanjax.nn.dropout import step_key
from spanjax.objectives.base import Mean
from spanjax.sharding import MeshConfig, to_global
from spanjax.training.metrics import MetricsWindow
from spanjax.training.nonfinite import Guard, NonFiniteError, Watch
from spanjax.training.state import TrainState
from tests.made import synthetic_batch
from tests.running import ROOT, records, shrunk
from tests.training.test_step import OPTIMIZER, STEPS, builder, built

DEMO = "configs/pretrain/demo.py"


def made_batch(seed: int, poisoned: bool = False) -> dict[str, Any]:
    batch = dict(synthetic_batch(8, 32, 16, 50, seed=seed))
    if poisoned:  # one weight of one row, which lies on one device
        batch["slot_weight_BK"] = batch["slot_weight_BK"].copy()
        batch["slot_weight_BK"][5, 0] = np.nan
    return batch


def assert_equal(expected: Any, got: Any) -> None:
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("mesh", "devices"),
    [
        (MeshConfig(), 4),
        pytest.param(MeshConfig(), 1, marks=pytest.mark.slow),
        pytest.param(MeshConfig(tensor=2), 4, marks=pytest.mark.slow),
    ],
    ids=["4", "1", "tensor"],
)
def test_a_poisoned_batch_leaves_everything_as_it_was(mesh: MeshConfig, devices: int) -> None:
    of = builder(mesh, devices)
    step, make, shardings = built(of)
    state, rates, skipped = jax.jit(make, out_shardings=shardings)(), [], []
    for number, poisoned in enumerate((False, True, True, False, True)):
        before = jax.device_get(state)
        state, shown = step(state, to_global(made_batch(number, poisoned), of.mesh))
        rates.append(float(shown["learning_rate"]))
        skipped.append(int(shown["skipped"]))
        assert int(state.step) == number + 1
        if poisoned:
            assert_equal((before.params, before.opt_state), (state.params, state.opt_state))
        else:
            with pytest.raises(AssertionError):
                assert_equal(before.params, state.params)
    assert skipped == [0, 1, 2, 0, 1]
    assert (int(state.skipped), int(state.skipped_in_a_row)) == (3, 1)
    rate = OPTIMIZER.rate_schedule(STEPS)
    assert rates == pytest.approx([float(jnp.asarray(rate(count))) for count in (0, 1, 1, 1, 2)])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state.params, state.opt_state)))


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_poisoned_parameter_leaves_the_others_as_they_were(devices: int) -> None:
    of = builder(MeshConfig(), devices)
    step, make, shardings = built(of)
    state = jax.jit(make, out_shardings=shardings)()
    state.params["mlm"]["dense"]["kernel"] = state.params["mlm"]["dense"]["kernel"].at[3, 0].set(jnp.inf)
    before = jax.device_get(state)
    for number in range(2):
        state, _ = step(state, to_global(made_batch(number), of.mesh))
    assert_equal((before.params, before.opt_state), (state.params, state.opt_state))
    assert int(state.skipped_in_a_row) == 2


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_finite_steps_are_what_they_are_without_the_guard(devices: int) -> None:
    of, transform = builder(MeshConfig(), devices), OPTIMIZER.transformation(STEPS)
    step, make, shardings = built(of)
    gradients = of._mapped(of._local_gradients, lambda specs, rows, whole: (specs, whole, rows))

    def plain(state: TrainState, batch: Any) -> TrainState:
        grads, _, _ = gradients(state.params, batch, step_key(of.seed, state.step))
        updates, opt_state = transform.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return state._replace(step=state.step + 1, params=params, opt_state=opt_state)

    unguarded = jax.jit(plain, out_shardings=shardings)
    fresh = jax.jit(make, out_shardings=shardings)
    one, other = fresh(), fresh()
    for number in range(3):
        batch = to_global(made_batch(number), of.mesh)
        one, _ = step(one, batch)
        other = unguarded(other, batch)
    # two programs: XLA may fuse a product and a sum in the one and not in the other
    for expected, got in zip(jax.tree.leaves(other), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-7)


def shown(loss: float, skipped: int) -> dict[str, Any]:
    means = {"mlm/loss": Mean(np.float32(loss), np.float32(1)), "sbo/loss": Mean(np.float32(1), np.float32(1))}
    return {
        "means": means,
        "gradient_norm": np.float32(loss),
        "learning_rate": np.float32(1),
        "skipped": np.int32(skipped),
    }


def test_a_window_sums_up_the_finite_steps() -> None:
    window = MetricsWindow()
    window.statistics = [{"tokens": 1.0}] * 3
    values = window.record([shown(2, 0), shown(np.nan, 1), shown(4, 0)], 0, 1.0)
    assert values["train/mlm/loss"] == 3 and values["train/gradient_norm"] == 3 and values["train/skipped"] == 1
    values = window.record([shown(np.nan, 1)] * 3, 0, 1.0)
    assert "train/mlm/loss" not in values and values["train/skipped"] == 3
    assert all(np.isfinite(list(values.values())))


def test_the_watch_lists_batches_and_stops_at_the_limit(tmp_path: pathlib.Path) -> None:
    watch = Watch(Guard(limit=3), tmp_path, lambda batch: [10 * batch, 10 * batch + 1])
    watch.look(4, [shown(1, 0), shown(np.nan, 1), shown(np.inf, 2)])
    with pytest.raises(NonFiniteError, match="step 5: mlm/loss and gradient_norm not finite, 3 updates in a row"):
        watch.look(6, [shown(np.nan, 3), shown(np.nan, 4)])
    lines = [json.loads(line) for line in (tmp_path / "nonfinite.jsonl").read_text().splitlines()]
    assert [(line["step"], line["batch"], line["in_a_row"]) for line in lines] == [
        *((3, 2, 1), (4, 3, 2), (5, 4, 3), (6, 5, 4))
    ]
    assert lines[0]["rows"] == [20, 21] and lines[0]["not_finite"] == ["mlm/loss", "gradient_norm"]
    Watch(Guard(limit=0)).look(9, [shown(np.nan, 99)])
    assert range_problems(Guard(limit=-1), "guard.") == ["guard.limit is -1: expected 0 or more"]


def test_a_run_goes_on_over_bad_batches_and_stops_at_too_many(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Through the command line; a run in two parts, the counters among what is saved, ends as one in one part."""
    monkeypatch.chdir(ROOT)
    feed = PretrainingSession.feed

    def poisoned(self: PretrainingSession, start: int) -> Iterator[Any]:
        for number, batch in enumerate(feed(self, start), start):
            if number in (1, 2):
                batch["slot_weight_BK"] = np.full_like(batch["slot_weight_BK"], np.inf)
            yield batch

    monkeypatch.setattr(PretrainingSession, "feed", poisoned)
    arguments = shrunk(DEMO, rows_folder, tmp_path / "run", 5, "--data.feed=numpy", "--cadence.checkpoint-every=2")
    assert train.main([*arguments, "--guard.limit=2"]) == 2
    said = capsys.readouterr()
    assert "step 3: " in said.err and "2 updates in a row" in said.err and "nonfinite.jsonl" in said.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "nonfinite.jsonl").read_text().splitlines()]
    assert [line["batch"] for line in lines] == [1, 2] and [len(set(line["rows"])) for line in lines] == [4, 4]
    assert train.main(arguments) == 0
    assert "from step 2" in capsys.readouterr().out
    assert records(tmp_path / "run", "train/skipped") == {1: 0, 2: 1, 3: 1, 4: 0, 5: 0}
    assert set(records(tmp_path / "run", "train/mlm/loss")) == {1, 4, 5}
    assert train.main(shrunk(DEMO, rows_folder, tmp_path / "whole", 5, "--data.feed=numpy")) == 0
    assert records(tmp_path / "whole", "train/mlm/loss") == records(tmp_path / "run", "train/mlm/loss")
    assert records(tmp_path / "whole", "eval/loss") == records(tmp_path / "run", "eval/loss")
