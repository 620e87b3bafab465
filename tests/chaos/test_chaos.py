"""The test of faults can fail; and in a short form, that it does not."""

import json
import pathlib
import shutil

import pytest

import tests.chaos.__main__ as chaos
from tests.chaos.__main__ import RUNS, compare, made_task, plan
from tests.chaos.kinds import KINDS, TASK_KINDS


def test_every_kind_comes_as_often_as_any_other() -> None:
    count = 2 * len(KINDS)
    chosen = plan([*KINDS], count, 0)
    assert {chosen.count(kind) for kind in KINDS} == {2} and {*TASK_KINDS} < {*KINDS}
    assert plan([*KINDS], count, 0) == chosen != plan([*KINDS], count, 1)
    assert {(processes, task) for _, processes, task, _ in RUNS} == {(1, False), (2, False), (1, True), (2, True)}
    assert sum(count for *_, count in RUNS) >= 150


def test_another_state_or_another_number_is_seen(run_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run_folder, other)
    compare(run_folder, other)
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    place = next(place for place, line in enumerate(lines) if "train/mlm/loss" in line)
    lines[place]["train/mlm/loss"] += 1e-6
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(AssertionError, match="train/mlm/loss"):
        compare(run_folder, other)


def test_another_parameter_is_seen(
    run_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves, calls = chaos.final_leaves(run_folder), []

    def changed(workdir: pathlib.Path):
        calls.append(workdir)
        found = {name: leaf.copy() for name, leaf in leaves.items()}
        if len(calls) == 2:
            max(found.values(), key=lambda leaf: leaf.size).flat[0] += 1e-6
        return found

    monkeypatch.setattr(chaos, "final_leaves", changed)
    with pytest.raises(AssertionError, match="params|opt_state"):
        compare(run_folder, run_folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_through_some_faults(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    kinds = ["SIGTERM to one process", "kill -9 of one process", "kill -9, newest checkpoint cut to half"]
    kinds += ["a full disk, until a save has failed", "SIGSTOP of one process for 1 to 5 s"]
    kinds += ["a process that is alive and blocked for ever"]
    found = chaos.chaos(tmp_path, rows_folder, kinds, 2, 3)
    assert [row["survived"] for row in found["kinds"].values()] == [1] * (6 if found["mounts"] else 5)
    assert 3 in found["kinds"][kinds[-1]]["ends"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_task_through_faults_in_its_evaluations(tmp_path: pathlib.Path) -> None:
    found = chaos.chaos(tmp_path, made_task(tmp_path / "made"), list(TASK_KINDS[:2]), 2, 1, task=True)
    assert [row["survived"] for row in found["kinds"].values()] == [1, 1]
    assert found["kinds"][TASK_KINDS[0]]["ends"] == [75] and found["kinds"][TASK_KINDS[0]]["lost"] == [0]
