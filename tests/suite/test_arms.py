"""Sweeps as encoders of a suite: which checkpoints stand for them, and differences of arms paired by the seed of pretraining."""

import json
import pathlib

import pytest

from spanjax.pages.document import Folded, Table
from spanjax.suite.arms import Member, arm_blocks, arm_json, arm_scores, expand

pytestmark = pytest.mark.unit


def sweep(folder: pathlib.Path, runs: dict[str, list[int]], failed: str = "") -> pathlib.Path:
    """A work directory with runs ARM/SEED of these steps; runs without steps never began."""
    arms = list(dict.fromkeys(run.split("/")[0] for run in runs))
    seeds = sorted({int(run.split("/")[1]) for run in runs})
    folder.mkdir()
    (folder / "sweep.json").write_text(json.dumps({"seeds": seeds, "arms": {arm: {"settings": {}} for arm in arms}}))
    for run, steps in runs.items():
        for step in steps:
            (folder / run / "checkpoints" / str(step)).mkdir(parents=True)
        if steps:
            (folder / run / "result.json").write_text(json.dumps({"error": "no"} if run == failed else {"steps": 1}))
    return folder


def test_a_sweep_stands_for_its_last_or_all_checkpoints(tmp_path: pathlib.Path) -> None:
    folder = str(sweep(tmp_path / "s", {"a/0": [10, 20], "a/1": [10, 20], "b/0": [10, 15], "b/1": [5, 15]}))
    paths, members = expand([folder, "other"], False)
    assert paths == [*(f"{folder}/{run}" for run in paths_of("a/0:20 a/1:20 b/0:15 b/1:15")), "other"]
    assert members[paths[2]] == Member(folder, "b", 0, 15, True) and "other" not in members
    every, members = expand([folder], True)
    assert every == [f"{folder}/{run}" for run in paths_of("a/0:10 a/0:20 a/1:10 a/1:20 b/0:10 b/0:15 b/1:5 b/1:15")]
    assert [member.last for member in members.values()] == [False, True] * 4
    assert expand([f"{folder}/a/0"], True)[0] == [f"{folder}/a/0/checkpoints/{step}" for step in (10, 20)]
    assert expand([f"{folder}/a/0"], False) == ([f"{folder}/a/0"], {})


def paths_of(runs: str) -> list[str]:
    return [run.replace(":", "/checkpoints/") for run in runs.split()]


def test_unfinished_runs_are_named(tmp_path: pathlib.Path) -> None:
    folder = sweep(tmp_path / "s", {"a/0": [10], "a/1": [10], "b/0": [], "b/1": [10]}, failed="a/1")
    with pytest.raises(ValueError, match=r"a/1, b/0 not finished: train first"):
        expand([str(folder)], False)


def test_a_sweep_without_arms_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="has no arms"):
        expand([str(sweep(tmp_path / "s", {}))], False)


SCORES = {"x": [50.0, 52.0, 54.0], "y": [51.0, 54.5, 55.0]}


def members_and_scores() -> tuple[dict[str, Member], dict[str, dict[str, float]]]:
    members, scores = {}, {}
    for arm, values in SCORES.items():
        for seed, value in enumerate(values):
            members[f"{arm}-{seed}-1"] = Member("s", arm, seed, 1, False)
            members[f"{arm}-{seed}-2"] = Member("s", arm, seed, 2, True)
            scores[f"{arm}-{seed}-1"] = {"tags": value - 10}
            scores[f"{arm}-{seed}-2"] = {"tags": value, "fills": 1.0} if seed else {"tags": value}
    return members, scores


def test_arms_are_paired_by_their_seed() -> None:
    members, scores = members_and_scores()
    found = arm_scores(members, {**scores, "another encoder": {"tags": 99.0}})["s"]
    assert found.columns == ["tags", "fills"]
    assert found.last["y"]["tags"] == dict(enumerate(SCORES["y"])) and found.last["x"]["fills"] == {1: 1.0, 2: 1.0}
    assert found.steps["x"][1] == {"tags": 42.0} and found.steps["x"][2] == {"tags": 52.0, "fills": 1.0}
    difference = found.differences["y - x"].get("tags")
    # differences 1, 2.5, 1: mean 1.5, deviation 0.866, Student's 4.303 of two degrees of freedom
    assert difference is not None and difference.mean == pytest.approx(1.5)
    assert difference.high - difference.mean == pytest.approx(4.3027 * 0.866025 / 3**0.5, rel=1e-4)
    assert "pairs" not in found.differences["y - x"]


def test_the_page_and_the_json_have_every_pair_of_arms() -> None:
    found = arm_scores(*members_and_scores())
    tables = [block for block in arm_blocks(found) if isinstance(block, Table)]
    assert [list(row)[0] for row in tables[0].rows] == ["x", "y"]
    assert list(tables[1].rows[0]) == ["y - x", "+1.5 (-0.7 to +3.7)", "+0.0 (+0.0 to +0.0)"]
    (folded,) = [block for block in arm_blocks(found) if isinstance(block, Folded)]
    (steps,) = [block for block in folded.blocks if isinstance(block, Table)]
    assert list(steps.rows[0]) == ["x", "1", "42.0", "–"]
    values = json.loads(json.dumps(arm_json(found)))["s"]
    assert values["last"]["y"]["tags"] == {"0": 51.0, "1": 54.5, "2": 55.0}
    assert values["differences"]["y - x"]["tags"]["mean"] == pytest.approx(1.5) and arm_blocks({}) == []
