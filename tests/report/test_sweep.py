"""The section of a sweep, from made results."""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import scipy.stats

from spanjax.pages.terminal import terminal_text
from spanjax.report import main as report
from spanjax.report.sweep import compared, is_sweep, read_sweep, sweep_blocks, sweep_json

pytestmark = pytest.mark.unit


def made_sweep(folder: pathlib.Path, losses: Mapping[str, Sequence[float | None]], **single: Any) -> pathlib.Path:
    """A sweep with these losses of single tokens by seed; None is a run that failed. The first arm is the base."""
    seeds = range(max(map(len, losses.values())))
    arms = {arm: {"settings": {} if not n else {"optimizer/beta1": n / 10}, "steps": 3} for n, arm in enumerate(losses)}
    folder.mkdir()
    (folder / "sweep.json").write_text(json.dumps({"seeds": [*seeds], "arms": arms}))
    for arm, values in losses.items():
        for seed, loss in enumerate(values):
            tokens = {"single_tokens": {"loss": loss, "accuracy": 0.5, "tokens": 9}, **single}
            ended = {"held_out": {"loss": 5.0}, "steps": 3, "flops": 6e12, "seconds": 1.5, **tokens}
            (folder / arm / str(seed)).mkdir(parents=True)
            content = {"arm": arm, "seed": seed, **({"error": "no memory"} if loss is None else ended)}
            (folder / arm / str(seed) / "result.json").write_text(json.dumps(content))
    return folder


LOSSES = {"base": [3.0, 3.1, 2.9], "good": [2.5, 2.62, 2.39], "same": [3.01, 3.0, 2.95], "broken": [2.0, None, None]}


def test_arms_are_paired_by_seed(tmp_path: pathlib.Path) -> None:
    found = compared(read_sweep(made_sweep(tmp_path / "a", LOSSES)), "single_tokens/loss")
    assert {arm: each and (each.verdict, each.pairs) for arm, each in found.items()} == {
        "good": ("lower", 3),
        "same": ("no difference", 3),
        "broken": ("", 1),
    }
    expected = scipy.stats.ttest_rel(LOSSES["good"], LOSSES["base"]).confidence_interval(0.95)
    good = found["good"]
    assert good and (good.low, good.high) == pytest.approx((expected.low, expected.high))


def test_the_text_has_verdicts_costs_settings_and_failures(tmp_path: pathlib.Path) -> None:
    text = terminal_text(sweep_blocks(read_sweep(made_sweep(tmp_path / "a", LOSSES))))
    assert "10 of 12 runs are finished." in text and "Failed: arm broken, seed 2: no memory" in text
    rows = [line for line in text.splitlines() if line.startswith("good ")]
    assert "-0.4967" in rows[0] and "lower" in rows[0] and "2.5033 ± 0.1150 (3)" in rows[0]
    assert rows[0].split()[1:4] == ["3", "6", "1.5"] and rows[-1].split()[1:] == ["optimizer.beta1", "0.1"]
    assert "one seed: no interval" in text and "not corrected for there being 3 comparisons" in text


def test_arms_of_a_task_are_compared_by_scores(tmp_path: pathlib.Path) -> None:
    folder = made_sweep(
        tmp_path / "a", {"base": [1.0], "other": [1.0]}, single_tokens=None, held_out={"score/f1": 80.0}
    )
    sweep = read_sweep(folder)
    assert sweep.metrics == ["score/f1"] and compared(sweep, "score/f1")["other"] is not None


def test_files_of_a_sweep(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    folder, nothing = made_sweep(tmp_path / "a", {**LOSSES, "nan": [math.nan, 1.0, 2.0]}), tmp_path / "run"
    files = {name: str(tmp_path / f"report.{name}") for name in ("html", "md", "json")}
    words = [f"--output={files['html']}", f"--markdown={files['md']}", f"--json={files['json']}"]
    for _ in range(2):  # a report may be written again
        assert report([str(folder), *words]) == 0
    assert "no difference" in capsys.readouterr().out and is_sweep(folder) and not is_sweep(nothing)
    for name in ("html", "md"):
        assert "no difference" in pathlib.Path(files[name]).read_text()
    stored = json.loads(pathlib.Path(files["json"]).read_text(), parse_constant=pytest.fail)["sweeps"][str(folder)]
    assert (
        stored == json.loads(json.dumps(sweep_json(read_sweep(folder)), allow_nan=False)) and stored["base"] == "base"
    )
    differences = stored["differences"]["single_tokens/loss"]
    assert differences["broken"] == {"mean": -1.0, "low": None, "high": None, "pairs": 1, "verdict": ""}
    assert differences["nan"]["pairs"] == 2 and stored["arms"]["nan"]["seeds"]["0"]["single_tokens/loss"] is None


def test_wrong_input_is_one_message(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    folder = made_sweep(tmp_path / "a", {"base": [1.0]})
    mine = tmp_path / "mine.json"
    mine.write_text("{}")
    assert report([str(folder), "--output=", f"--json={mine}"]) == 2 and mine.read_text() == "{}"
    assert "no report of spanjax" in capsys.readouterr().err
    assert report([str(tmp_path), "--output=", f"--json={tmp_path / 'a.json'}"]) == 2
    assert "--json holds comparisons of sweeps" in capsys.readouterr().err
    for name, text in (
        ("base/0/result.json", "{}"),
        ("sweep.json", '{"arms": {"a": {}}, "seeds": [0]}'),
        ("sweep.json", "["),
    ):
        (folder / name).write_text(text)
        assert report([str(folder), f"--output={tmp_path / 'a.html'}"]) == 2
        message = capsys.readouterr().err
        assert name.rpartition("/")[2] in message and "Traceback" not in message
