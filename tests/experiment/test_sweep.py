"""Sweeps of two arms and two seeds: interrupted, resumed, skipped, failed, refused and reported."""

import dataclasses
import json
import pathlib
import shutil
import signal
from typing import Any

import pytest

from spanjax import train
from spanjax.cli import SOME_FAILED, STOPPED
from spanjax.data.feed.masking import GeometricSpans, Stage, Staged, Tokens
from spanjax.data.feed.rows import open_rows
from spanjax.experiment import sweep as sweeps
from spanjax.experiment.sweep import step_flops, training_seconds, with_steps
from spanjax.inference.token_loss import single_token_loss
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.pretrained.load import load_model
from spanjax.report import main as report
from spanjax.run import Run
from tests.conftest import shared
from tests.running import finish, shrunk, start, wait_for_step

CONFIG = "configs/pretrain/tiny.py"
GRID = """
seeds = [0, 1]
[arms]
base = []
fast = "--optimizer.learning-rate 0.5 --optimizer.warmup-steps 1"
"""


def command(rows: pathlib.Path, workdir: pathlib.Path, grid: str, steps: int = 3, *more: str) -> list[str]:
    """The command line of a sweep of tiny runs; the grid lies next to its work directory."""
    file = workdir.with_suffix(".toml")
    file.write_text(grid)
    return shrunk(CONFIG, rows, workdir, steps, "--data.feed=numpy", f"--sweep={file}", *more)


def result(workdir: pathlib.Path, arm: str, seed: int) -> dict[str, Any]:
    return json.loads((workdir / arm / str(seed) / "result.json").read_text())


@pytest.fixture(scope="module")
def done(rows_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A finished sweep; not to be changed."""

    def make(folder: pathlib.Path) -> None:
        assert train.main(command(rows_folder, folder / "sweep", GRID)) == 0

    return shared(tmp_path_factory, "swept", make) / "sweep"


@pytest.mark.slow
def test_every_run_records_its_result(done: pathlib.Path, rows_folder: pathlib.Path) -> None:
    for arm, differs in (("base", {}), ("fast", {"optimizer/learning_rate": 0.5, "optimizer/warmup_steps": 1})):
        for seed in (0, 1):
            found = result(done, arm, seed)
            assert (found["arm"], found["seed"], found["steps"]) == (arm, seed, 3) and found["settings"] == differs
            assert found["flops"] > 0 and found["seconds"] > 0 and {"loss", "mlm/loss"} <= found["held_out"].keys()
            rows = open_rows(rows_folder / "validation")
            again = single_token_loss(load_model(done / arm / str(seed)), rows)
            assert again and found["single_tokens"] == again._asdict()
    assert json.loads((done / "base/1/run.json").read_text())["seed"] == 1
    losses = [result(done, arm, seed)["single_tokens"]["loss"] for arm in ("base", "fast") for seed in (0, 1)]
    assert len(set(losses)) == 4


@pytest.mark.slow
def test_finished_runs_are_skipped_and_seeds_interleave(
    done: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir = tmp_path / "sweep"
    shutil.copytree(done, workdir)
    begun = list[str]()
    monkeypatch.setattr(train, "train", lambda command, named: begun.append(command.workdir) or STOPPED)
    assert train.main(command(rows_folder, workdir, GRID)) == 0 and begun == []
    assert train.main(command(rows_folder, workdir, GRID + "third = '--optimizer.beta1 0.8'\n")) == STOPPED
    assert begun == [str(workdir / "third/0")]
    order = list[str]()
    monkeypatch.setattr(train, "train", lambda command, named: order.append(command.workdir))
    monkeypatch.setattr(sweeps, "result", lambda arm, seed, folder, held_out: {})
    assert train.main(command(rows_folder, tmp_path / "new", GRID)) == 0
    assert [pathlib.Path(each).relative_to(tmp_path / "new").as_posix() for each in order] == [
        "base/0",
        "fast/0",
        "base/1",
        "fast/1",
    ]


@pytest.mark.slow
def test_changed_settings_of_a_finished_arm_are_refused(
    done: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    workdir = tmp_path / "sweep"
    shutil.copytree(done, workdir)
    assert train.main(command(rows_folder, workdir, GRID.replace("0.5", "0.25"))) == 2
    message = capsys.readouterr().err
    assert message.startswith("spanjax.train: this sweep cannot run:") and "Traceback" not in message
    for seed in (0, 1):
        assert f"arm fast: {workdir / 'fast' / str(seed)} has other settings" in message
    assert "optimizer.learning_rate: 0.5 -> 0.25" in message and "arm base" not in message


def test_one_error_lists_the_problems_of_all_arms(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    arms = {
        "typo": "--optimizer.learning-rat 3",
        "text": "--optimizer.beta1 x",
        "range": "--optimizer.beta1 3",
        "same": "--cadence.log-every 2",
        "config": "--config none.py",
        "short": "--encoder.positions 64",
    }
    grid = GRID + "".join(f"{name} = '{value}'\n" for name, value in arms.items())
    assert train.main(command(rows_folder, tmp_path / "sweep", grid)) == 2
    message = capsys.readouterr().err
    assert "arm typo: Unrecognized options: --optimizer.learning-rat" in message
    assert "arm text: Error parsing --optimizer.beta1: " in message and "arm range: optimizer.beta1 is 3" in message
    assert "arm same: it has the settings of arm base" in message and "arm config: --config none.py" in message
    assert "arm short: rows of 128 tokens" in message and not (tmp_path / "sweep").exists()
    for words, part in ((["--seed=3"], "leave --seed away"), (["--workdir="], "it needs --workdir")):
        assert train.main([*command(rows_folder, tmp_path / "sweep", GRID), *words]) == 2
        assert part in capsys.readouterr().err


@pytest.mark.slow
def test_a_failed_run_is_recorded_and_repeated(
    done: pathlib.Path,
    rows_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    workdir = tmp_path / "sweep"
    shutil.copytree(done, workdir)
    for arm in ("base", "fast"):
        (workdir / arm / "1/result.json").unlink()

    def fails(command: Any, named: Any) -> int:
        raise RuntimeError("no memory") if "base" in command.workdir else ValueError("not finite")

    with monkeypatch.context() as patched:
        patched.setattr(train, "train", fails)
        assert train.main(command(rows_folder, workdir, GRID)) == SOME_FAILED
    captured = capsys.readouterr()
    assert "2 of 4 runs are finished" in captured.out and "arm fast, seed 1: not finite" in captured.err
    assert result(workdir, "base", 1)["error"] == "RuntimeError: no memory"
    assert report([str(workdir), "--output=", f"--json={tmp_path / 'a.json'}"]) == 0
    said = capsys.readouterr().out
    assert "one seed: no interval" in said and "Failed: arm base, seed 1: RuntimeError: no memory" in said
    assert train.main(command(rows_folder, workdir, GRID)) == 0 and "error" not in result(workdir, "base", 1)
    assert result(workdir, "base", 1) == result(done, "base", 1)


@pytest.mark.slow
def test_an_interrupted_sweep_resumes(done: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """SIGTERM in the second run: exit code 75, and the same command ends with the results of a sweep in one sitting."""
    workdir = tmp_path / "sweep"
    slow = command(rows_folder, workdir, GRID, 400)
    process = start(slow)
    wait_for_step(process, workdir / "fast/0", 20)
    process.send_signal(signal.SIGTERM)
    assert "Run the same command to continue" in finish(process, STOPPED)
    assert (workdir / "base/0/result.json").is_file() and not (workdir / "fast/0/result.json").exists()
    assert not (workdir / "base/1").exists()
    output = finish(start(slow))
    assert "run 1 of 4" not in output and "run 2 of 4" in output and f"continuing {workdir / 'fast/0'}" in output
    assert "4 of 4 runs are finished" in output
    whole = tmp_path / "whole"
    finish(start(command(rows_folder, whole, GRID, 400)))
    for arm in ("base", "fast"):
        for seed in (0, 1):
            one, other = (result(each, arm, seed) for each in (workdir, whole))
            assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_equal_flops_gives_a_larger_encoder_fewer_steps(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    grid = 'seeds = [0]\nequal_flops = true\n[arms]\nbase = []\nwide = "--encoder.hidden-size 32"\n'
    words = command(rows_folder, tmp_path / "sweep", grid, 1000, "--dry-run")
    assert train.main(words) == 0
    base, wide = capsys.readouterr().out.splitlines()
    flops = [float(line.partition(" steps of ")[2].partition(" ")[0]) for line in (base, wide)]
    steps = int(wide.removeprefix("wide: ").partition(" ")[0])
    assert base.startswith("base: 1,000 steps") and "encoder.hidden_size 32" in wide and f"steps {steps}" in wide
    assert 200 < steps < 700 and flops[1] >= flops[0] and not (tmp_path / "sweep").exists()
    from spanjax.experiment.pretrain import open_pretraining_session

    runs = [train.parse([*words[:-2], f"--encoder.hidden-size={size}"]).run for size in (16, 32)]
    costs = [step_flops(open_pretraining_session(run)) for run in runs]
    assert steps == round(1000 * costs[0] / costs[1])


@pytest.mark.unit
def test_stages_keep_their_share_of_the_steps() -> None:
    masking = Staged(stages=(Stage(0, Tokens()), Stage(60, GeometricSpans())))
    found: Any = with_steps(Run(objective=MaskedPrediction(masking=masking), steps=100), 50)
    assert found.steps == 50 and [stage.first_step for stage in found.objective.masking.stages] == [0, 30]
    assert with_steps(Run(steps=100), 50) == dataclasses.replace(Run(), steps=50)


@pytest.mark.unit
def test_seconds_are_those_of_all_steps(tmp_path: pathlib.Path) -> None:
    lines = [{"step": 10, "speed/step_ms": 100}, {"step": 10, "eval/loss": 1}, {"step": 30, "speed/step_ms": 50}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "{broken")
    assert training_seconds(tmp_path) == 2.0 and training_seconds(tmp_path / "none") == 0.0
