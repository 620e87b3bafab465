"""Run directories read: records, evaluations, broken lines, runs at work."""

import json
import math
import pathlib
from typing import Any

import pytest

from spanjax.report.runs import read_run, read_runs
from tests.report.made_runs import made_run


def test_broken_lines_are_counted_and_a_line_being_written_is_not(tmp_path: pathlib.Path) -> None:
    bad = ["{broken", "[1, 2]", '{"step": "x", "train/a/loss": 1}', '{"train/a/loss": 1}', "", '{"step": true}']
    path = made_run(tmp_path / "run", [{"mean": 1.0}], lines=bad, finished=False)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 20, "train/task/lo')
    run = read_run(path)
    assert run.bad_lines == 5  # an empty line is none
    assert [record.step for record in run.training] == [10]
    assert "stopped or at work" in run.status and not run.finished


def test_values_that_are_no_numbers_are_left_out_and_nan_is_kept(tmp_path: pathlib.Path) -> None:
    line = '{"step": 30, "train/task/loss": NaN, "train/word": "x", "train/yes": true, "speed/data_wait": 0.5}'
    run = read_run(made_run(tmp_path / "run", [{"mean": 1.0}], lines=[line]))
    values = run.training[-1].values
    assert math.isnan(values["task/loss"]) and values["speed/data_wait"] == 0.5
    assert set(values) == {"task/loss", "speed/data_wait"}


def test_best_is_the_first_of_the_highest_scores_and_nan_is_none(tmp_path: pathlib.Path) -> None:
    scores = [
        {"mean": 1.0, "f1": 9.0},
        {"mean": 3.0, "f1": 5.0},
        {"mean": 3.0, "f1": 6.0},
        {"mean": math.nan, "f1": 7.0},
    ]
    best = read_run(made_run(tmp_path / "run", scores)).best
    assert best is not None and best.step == 20 and best.values["score/f1"] == 5.0
    assert read_run(made_run(tmp_path / "nan", [{"mean": math.nan}])).best is None


@pytest.mark.parametrize(
    ("objective", "metric"),
    [
        ({"class": "Questions", "version": "2.0"}, "best_f1"),
        ({"class": "Questions", "version": "1.1"}, "f1"),
        ({"class": "Relation", "scheme": "semeval"}, "f1"),
        ({"class": "Ner", "labels": ["O"]}, "f1"),
        ({"class": "Glue", "task": "MRPC"}, "mean"),
        ({"class": "Chess"}, "accuracy"),
        ({"class": "Glue", "of_another_version": 1}, "accuracy"),
    ],
)
def test_the_score_is_the_one_that_the_task_says(
    objective: dict[str, Any], metric: str, tmp_path: pathlib.Path
) -> None:
    names: list[str] = ["mean", "exact_match", "f1", "accuracy", "best_f1", "average_f1"]
    scores = dict.fromkeys(names, 1.0)
    assert read_run(made_run(tmp_path / "run", [scores], objective=objective)).metric == f"score/{metric}"
    left = read_run(made_run(tmp_path / "left", [{"b": 1.0, "a": 2.0}], objective=objective))
    assert left.metric == "score/a" and read_run(made_run(tmp_path / "no", objective=objective)).metric == ""


def test_pretraining_is_best_where_the_loss_is_lowest(tmp_path: pathlib.Path) -> None:
    path = made_run(tmp_path / "run")
    found = json.loads((path / "run.json").read_text())
    found["objective"] = {"class": "MaskedPrediction"}
    (path / "run.json").write_text(json.dumps(found))
    lines = [{"step": step, "eval/loss": loss} for step, loss in ((10, 5.0), (20, 4.0), (30, 4.5))]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(path)
    assert not run.tuned and run.best is not None and run.best.step == 20


def test_the_summary_stands_in_for_a_lost_evaluation(tmp_path: pathlib.Path) -> None:
    path = made_run(tmp_path / "run", [{"mean": 1.0}, {"mean": 4.0}])
    (path / "metrics.jsonl").unlink()
    run = read_run(path)
    assert run.best is not None and run.best.step == 20 and run.finished


def test_damaged_lines_are_counted_and_the_others_read(tmp_path: pathlib.Path) -> None:
    path = made_run(tmp_path / "run", [{"mean": 1.0}])
    for bad in (b'{"step": 1' + b"0" * 400 + b"}", b"[" * 100_000, b'{"step": 10, "x": \xff}', b"[1]"):
        with (path / "metrics.jsonl").open("ab") as file:
            file.write(bad + b"\n")
    run = read_run(path)
    assert run.bad_lines == 4 and len(run.evaluations) == 1


def test_all_problems_come_at_once_and_a_folder_counts_once(tmp_path: pathlib.Path) -> None:
    good = made_run(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    made_run(tmp_path / "json")
    (tmp_path / "json" / "run.json").write_text("{")
    made_run(tmp_path / "other")
    (tmp_path / "other" / "run.json").write_text('{"objective": 3}')
    names = ["good", "empty", "file", "json", "other", "gone"]
    with pytest.raises(ValueError) as error:
        read_runs([str(tmp_path / name) for name in names])
    for words in ("no run.json", "a file", "not readable JSON", "describes no run", "no such folder"):
        assert str(error.value).count(words) == 1
    assert len(str(error.value).splitlines()) == 5
    assert len(read_runs([str(good), f"{good}/."])) == 1
