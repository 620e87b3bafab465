"""Fine-tuning suites: the grid file of a task, the choice by one half, and a whole small suite."""

import json
import pathlib
import tomllib

import pytest

from spanjax.evaluate import main as evaluate
from spanjax.scoring.paired import paired
from spanjax.suite import tuned
from spanjax.suite.tuned import TunedTask


def test_grid_of_a_task(tmp_path: pathlib.Path) -> None:
    task = TunedTask("glue", ("a b.tsv",), {"RTE": ("dev.tsv",)}, "--objective.task RTE")
    encoders, grid = {"one": "runs/one", "two": "my runs/two"}, {"low": "--optimizer.learning-rate 1e-5", "plain": ""}
    command = tuned.sweep_command(task, encoders, grid, (0, 3), tmp_path / "work")
    assert command[3:] == [
        *("--config", "glue", "--train", "a b.tsv", "--objective.task", "RTE"),
        *("--sweep", str(tmp_path / "work/grid.toml"), "--workdir", str(tmp_path / "work")),
    ]
    from spanjax.experiment.grid import read_grid

    found = read_grid(str(tmp_path / "work/grid.toml"))
    assert found.seeds == (0, 3)
    assert {arm.name: arm.settings for arm in found.arms} == {
        "one=low": ("--init-from", "runs/one", "--optimizer.learning-rate", "1e-5"),
        "one=plain": ("--init-from", "runs/one"),
        "two=low": ("--init-from", "my runs/two", "--optimizer.learning-rate", "1e-5"),
        "two=plain": ("--init-from", "my runs/two"),
    }


def test_one_half_chooses_and_the_other_is_reported(tmp_path: pathlib.Path) -> None:
    halves = {"low": ((60.0, 10.0), (62.0, 20.0)), "high": ((70.0, 30.0), (50.0, 90.0))}
    task = TunedTask("glue", ("t",), {"RTE": ("d",)})
    for entry, seeds in halves.items():
        for seed, (choose, report) in enumerate(seeds):
            folder = tmp_path / "RTE" / f"one={entry}" / str(seed)
            folder.mkdir(parents=True)
            score = {"RTE": {"metric": "mean", "choose": choose, "report": report}}
            (folder / tuned.HALVES).write_text(json.dumps(score))
    found = tuned.tuned_scores(tmp_path, {"RTE": task}, ["one", "none"], ["low", "high"], [0, 1])
    # 61 of low is above 60 of high on the half that chooses, whatever the other half has
    assert found["one"]["RTE"] == tuned.TunedScore("low", {0: 10.0, 1: 20.0}) and found["none"] == {}
    other = tuned.TunedScore("high", {0: 12.0, 1: 21.0})
    assert tuned.compared(found["one"]["RTE"], other) == paired([12.0, 21.0], [10.0, 20.0])
    assert tuned.compared(None, other) is None
    assert not tuned.tuned_scores(tmp_path, {"RTE": task}, ["one"], ["low", "high"], [0, 1, 2])["one"]


def test_files_of_tasks(tmp_path: pathlib.Path) -> None:
    (tmp_path / "glue/RTE").mkdir(parents=True)
    for name in ("train.tsv.gz", "dev.tsv"):
        (tmp_path / "glue/RTE" / name).write_text("")
    found, missing = tuned.existing(tuned.GLUE, tmp_path)
    assert list(found) == ["RTE"] and len(missing) == 8
    assert found["RTE"].train == (str(tmp_path / "glue/RTE/train.tsv.gz"),)
    file = tmp_path / "suite.toml"
    file.write_text('[tasks.mine]\nconfig = "glue"\ntrain = "a.csv"\ndev = "b.csv"\n[grid]\nonly = ""\n')
    tasks, grid = tuned.read_tasks(str(file))
    assert tasks["mine"] == TunedTask("glue", ("a.csv",), {"mine": ("b.csv",)}) and grid == {"only": ""}
    assert tomllib.loads(file.read_text())
    file.write_text('[tasks.mine]\nconfg = "glue"\n[other]\n')
    with pytest.raises(
        ValueError, match="(?s)other: expected tasks and grid.*unknown confg, missing config, train, dev"
    ):
        tuned.read_tasks(str(file))


@pytest.mark.slow
def test_a_small_suite(run_folder: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, count in (("train", 40), ("dev", 30)):
        lines = [f"the {['old', 'blue'][n % 2]} clock {n}\t{n % 2}" for n in range(count)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    tasks = tmp_path / "suite.toml"
    tasks.write_text(
        '[tasks.clocks]\nconfig = "glue"\ntrain = "train.tsv"\ndev = "dev.tsv"\n'
        'settings = "--objective.task own --objective.epochs 1 --objective.length 32 --batch-size 8 --data.cache ."\n'
        '[grid]\nlow = "--optimizer.learning-rate 1e-5"\nhigh = "--optimizer.learning-rate 1e-3"\n'
    )
    words = [
        "suite",
        str(run_folder),
        "--suite",
        "glue",
        "--tasks",
        str(tasks),
        "--data",
        str(tmp_path),
        "--seeds",
        "0",
        "1",
    ]
    workdir = tmp_path / "work"
    assert evaluate([*words, "--workdir", str(workdir)]) == 0
    found = json.loads((workdir / "suite.json").read_text())["encoders"]["run"]["clocks"]
    assert found["seeds"].keys() == {"0", "1"} and found["entry"] in ("low", "high")
    table = (workdir / "suite.md").read_text()
    assert evaluate([*words, "--workdir", str(workdir)]) == 0  # nothing is left to train
    assert (workdir / "suite.md").read_text() == table
    floor = json.loads((workdir / "suite.json").read_text())["encoders"]["random-run"]["clocks"]
    assert floor["seeds"].keys() == {"0", "1"}
    started = {
        name: json.loads((workdir / f"tuned/clocks/{name}=low/0/run.json").read_text())["init_from"]
        for name in ("run", "random-run")
    }
    assert started == {"run": str(run_folder), "random-run": f"random:{run_folder}"}
    assert "| random-run |" in table and "random-run" in capfd.readouterr().out
