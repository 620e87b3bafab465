"""Trackers through the real command line: killed and resumed, failing and hanging, with secrets around.

Most tests put stand-ins in the place of wandb and mlflow; two use the packages themselves, where they are installed.
"""

import importlib
import importlib.util
import json
import pathlib
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spanjax import train
from spanjax.training import trackers
from spanjax.training.preemption import StopRequest
from tests.fake_trackers import install_fakes
from tests.running import (
    ROOT,
    begin_group,
    environment,
    final_leaves,
    finish,
    kill,
    records,
    shrunk,
    start,
    wait_for_step,
)

DEMO = "configs/pretrain/demo.py"
BOTH = ("--tracking.to", "wandb", "mlflow")
SECRETS = {
    "WANDB_API_KEY": "hush" * 10,
    "MLFLOW_TRACKING_PASSWORD": "hushpassword",
    "MLFLOW_TRACKING_USERNAME": "somebody",
}


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def arguments(rows: pathlib.Path, workdir: pathlib.Path, steps: int, *more: str) -> list[str]:
    return shrunk(DEMO, rows, workdir, steps, "--data.feed=numpy", "--cadence.checkpoint-every=2", *more)


def files_with(folder: pathlib.Path, *words: str) -> list[str]:
    """Files, links included, in which a word stands."""
    held = ((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())
    return [str(path) for path, content in held if any(word.encode() in content for word in words)]


def test_a_resumed_run_is_one_curve_and_its_id_is_in_every_checkpoint(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb, mlflow = install_fakes(monkeypatch)
    workdir = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "agreed", lambda self, step: step == 3)
        assert train.main(arguments(rows_folder, workdir, 5, *BOTH)) == 75
    assert mlflow.only_run().info.status == "KILLED"
    assert train.main(arguments(rows_folder, workdir, 5, *BOTH, "--tracking.name=other", "--tracking.tags=new")) == 0
    run = mlflow.only_run()
    assert run.info.status == "FINISHED" and run.params["steps"] == "5" and "rows_fingerprint" in run.params
    for key in ("train/mlm/loss", "eval/mlm/loss"):
        expected = records(workdir, key)
        assert [(m.step, m.value) for m in run.history if m.key == key] == sorted(expected.items())
        (rows,) = wandb.runs.values()
        assert {row["step"]: row[key] for row in rows if key in row} == expected
    ids = json.loads((workdir / "tracking.json").read_text())["ids"]
    for file in (workdir / "checkpoints").glob("*/meta/metadata"):
        assert json.loads(file.read_text())["tracking"] == ids
    assert ids["mlflow"]["id"] == run.info.run_id and ids["wandb"]["id"] == next(iter(wandb.runs))


@pytest.mark.parametrize("how", ["fail", pytest.param("hang", marks=pytest.mark.slow)])
def test_trackers_that_fail_or_hang_change_nothing(
    rows_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    how: str,
) -> None:
    wandb, mlflow = install_fakes(monkeypatch)
    monkeypatch.setattr(trackers, "CLOSE_S", 0.5)
    if how == "fail":
        wandb.faults.calls |= dict.fromkeys(("init", "finish"), RuntimeError("no such project"))
        mlflow.faults.calls |= dict.fromkeys(("log", "finish"), OSError("connection reset"))
    else:
        wandb.faults.hanging, mlflow.faults.hanging = {"init"}, {"log"}
    assert train.main(arguments(rows_folder, tmp_path / "run", 4, *BOTH)) == 0
    wandb.faults.released.set()
    mlflow.faults.released.set()
    said = capsys.readouterr().out
    assert "finished: 4 steps" in said and sorted(records(tmp_path / "run", "train/mlm/loss")) == [1, 2, 3, 4]
    reasons = ("no such project", "connection reset") if how == "fail" else ("it did not finish in time",) * 2
    for name, reason in zip(("wandb", "mlflow"), reasons, strict=True):
        (line,) = [line for line in said.splitlines() if line.startswith(f"{name}: ") and "not sent" in line]
        assert reason in line and "metrics.jsonl holds every record" in line
    assert train.main(arguments(rows_folder, tmp_path / "calm", 4)) == 0
    with_trackers, calm = final_leaves(tmp_path / "run"), final_leaves(tmp_path / "calm")
    for name, leaf in calm.items():
        np.testing.assert_array_equal(leaf, with_trackers[name], err_msg=name)


def test_a_missing_package_is_an_error_before_anything_is_written(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    install_fakes(monkeypatch)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train.main(arguments(rows_folder, tmp_path / "run", 4, *BOTH)) == 2
    said = capsys.readouterr().err
    assert "pip install wandb" in said and "mlflow" not in said and not (tmp_path / "run").exists()


def test_an_address_with_a_password_is_refused_and_not_repeated(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    install_fakes(monkeypatch)
    uri = "--tracking.uri=https://somebody:hushpassword@server"
    assert train.main(arguments(rows_folder, tmp_path / "run", 4, *BOTH, uri)) == 2
    said = capsys.readouterr()
    assert "MLFLOW_TRACKING_PASSWORD" in said.err and "hushpassword" not in said.err + said.out
    assert not (tmp_path / "run").exists()


def test_secrets_are_in_no_file_and_no_line(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Even where the tracker's own error message holds them."""
    wandb, mlflow = install_fakes(monkeypatch)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://somebody:hushother@server")
    wandb.faults.calls["log"] = PermissionError(f"key {SECRETS['WANDB_API_KEY']} is not valid")
    mlflow.faults.calls["finish"] = OSError("no route to https://somebody:hushother@server, user hushpassword")
    named = [f"--tracking.{name}=my {SECRETS['MLFLOW_TRACKING_PASSWORD']}" for name in ("name", "group")]
    assert train.main(arguments(rows_folder, tmp_path / "run", 2, *BOTH, *named)) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["tracking"]["name"] == "my ***"
    assert mlflow.only_run().info.run_name == "my ***"
    said = capsys.readouterr()
    assert "key *** is not valid" in said.out and "https://***@server, user ***" in said.out
    assert "hush" not in said.out + said.err
    assert files_with(tmp_path / "run", "hush") == []
    assert "hush" not in str(mlflow.only_run().params) + str(mlflow.only_run().tags) + str(wandb.started)
    assert files_with(tmp_path / "run", "tracking"), "the search finds what is there"


@pytest.mark.slow
def test_only_process_0_talks_to_trackers(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Process 1 has no wandb at all; process 0 starts one run."""
    program = (
        "import os, sys, pathlib, pytest\n"
        "from tests.fake_trackers import install_fakes\n"
        "wandb, _ = install_fakes(pytest.MonkeyPatch())\n"
        "if os.environ['JAX_PROCESS_ID'] == '1': sys.modules['wandb'] = None\n"
        "from spanjax import train\n"
        f"code = train.main({arguments(rows_folder, tmp_path / 'run', 2, '--tracking.to=wandb')!r})\n"
        "print('started', len(wandb.started), 'rows', [len(rows) for rows in wandb.runs.values()])\n"
        "sys.exit(code)\n"
    )
    pair = begin_group([sys.executable, "-c", program], range(2))
    said = [finish(process) for process in pair]
    assert "started 1 rows [3]" in said[0] and "started 0 rows []" in said[1]


def installed(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install 'spanjax[{name}]'")


def offline_history(folder: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(run id, row) of every row in the files that wandb writes offline: records of wandb in LevelDB's log format.

    A file is 7 bytes of its own and then blocks of 32 KiB with parts of records: crc, length, kind (1 whole, 2 first, 3 middle,
    4 last).
    """
    proto: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

    for path in sorted(folder.glob("offline-run-*/run-*.wandb")):
        content, place, held = path.read_bytes(), 7, b""
        while place + 7 <= len(content):
            if 32768 - place % 32768 < 7:
                place += 32768 - place % 32768
                continue
            _, length, kind = struct.unpack("<IHB", content[place : place + 7])
            held += content[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):
                record = proto.Record.FromString(held)
                held = b""
                if record.HasField("history"):
                    items = record.history.item
                    row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                    yield path.stem.removeprefix("run-"), row


def killed_and_resumed(rows: pathlib.Path, workdir: pathlib.Path, name: str) -> tuple[str, dict[str, Any]]:
    """A run that is killed after step 12 and ends ten steps later, with a real tracker; what was said, and its ids."""
    more = ("--tracking.to", name, "--tracking.mode=offline", "--cadence.checkpoint-every=5")
    env = environment(1, **SECRETS, PYTHONWARNINGS="error::RuntimeWarning")  # such as jax's warning of a fork
    options = {"env": {k: v for k, v in env.items() if k not in ("WANDB_MODE", "MLFLOW_TRACKING_URI")}}
    process = start(arguments(rows, workdir, 100_000, *more), **options)
    wait_for_step(process, workdir, 12)
    end, sent = time.monotonic() + 60, {}
    while sent.get("train", 0) < 12 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
        file = workdir / "tracking.json"
        sent = json.loads(file.read_text())["sent"].get(name, {}) if file.exists() else {}
    assert process.poll() is None, finish(process)
    kill(process)
    assert 12 <= sent["train"] < 100_000
    description = json.loads((workdir / "run.json").read_text())
    newest = max(records(workdir, "train/mlm/loss"))
    (workdir / "run.json").write_text(json.dumps({**description, "steps": newest + 10}))
    said = finish(start(arguments(rows, workdir, newest + 10, *more), **options))
    assert "continuing" in said and f"{name}: run " in said and "failure" not in said
    assert files_with(workdir, "hush", "somebody") == [] and "hush" not in said
    return said, json.loads((workdir / "tracking.json").read_text())["ids"]


@pytest.mark.slow
def test_wandb_offline_is_one_curve_after_a_kill(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    installed("wandb")
    _, ids = killed_and_resumed(rows_folder, tmp_path / "run", "wandb")
    rows = list(offline_history(tmp_path / "run" / "wandb"))
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*"))) == 2
    assert {id for id, _ in rows} == {ids["wandb"]["id"]}
    for key in ("train/mlm/loss", "eval/loss"):
        points = {(row["step"], row[key]) for _, row in rows if key in row}
        assert sorted(points) == sorted(records(tmp_path / "run", key).items()), "every step, and always the same value"


@pytest.mark.slow
def test_mlflow_is_one_curve_after_a_kill(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    installed("mlflow")
    _, ids = killed_and_resumed(rows_folder, tmp_path / "run", "mlflow")
    program = (
        "import json, sys\n"
        "from mlflow.tracking import MlflowClient\n"
        "client = MlflowClient(sys.argv[1])\n"
        "(run,) = client.search_runs([client.get_experiment_by_name('spanjax').experiment_id])\n"
        "keys = ('train/mlm/loss', 'eval/loss')\n"
        "points = {k: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, k)] for k in keys}\n"
        "print(json.dumps([run.info.run_id, run.info.status, run.data.params['seed'], points]))"
    )
    env = environment(1, MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true")
    command = [sys.executable, "-c", program, (tmp_path / "run" / "mlruns").as_uri()]
    read = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert read.returncode == 0, read.stderr
    id, status, seed, points = json.loads(read.stdout.splitlines()[-1])
    assert (id, status, seed) == (ids["mlflow"]["id"], "FINISHED", "0")
    for key, got in points.items():
        assert [tuple(point) for point in got] == sorted(records(tmp_path / "run", key).items())
