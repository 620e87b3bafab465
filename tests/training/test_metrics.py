"""Metrics files survive a kill; the progress line says what a person wants to know."""

import json
import pathlib

import pytest

from spanjax.training.metrics import JsonLines, format_duration, progress_line


def test_lines_after_the_restored_step_and_half_lines_are_cut(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 3, "a": 3}\n{"step": 4, "a"')
    writer = JsonLines(path, resumed_from=2)
    writer.write(3, {"a": 30.0})
    writer.close()
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [1, 2, 30.0]


def test_progress_line() -> None:
    values = {"train/mlm/loss": 2.5, "train/mlm/accuracy": 0.5, "speed/tokens_per_s": 1234.6, "speed/data_wait": 0.02}
    line = progress_line(10, 1000, {**values, "speed/eta_s": 3725.0})
    assert line == "step 10/1,000  mlm 2.500  mlm acc 50.0%  1,235 tokens/s  data wait 2%  ETA 1h02m"


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "7s"), (95, "1m35s"), (3725, "1h02m"), (-1, "0s")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
