"""The step benchmark: what is a target, what a left-out peer does, and all of it at a tiny size."""

import json
import pathlib
import sys

import pytest

from benchmarks import step, timing
from benchmarks.torch_peer import LossesDiffer, same_losses

SECONDS = {
    **{"spanjax": [1.0, 1.2, 1.1], "spanjax, dropout 0": [1.1] * 3, "spanjax, rows from disk": [1.1] * 3},
    **{step.SHIPPED: [3.3] * 3, step.MASKED: [2.2] * 3},
}


def test_ratios_are_of_medians_and_a_peer_that_is_left_out_misses() -> None:
    text = {"spanjax": {"median": 800.0}, step.SHIPPED: {"median": 200.0}}
    found = {target.name: target for target in step.targets_of(SECONDS, text)}
    values = [(round(target.value, 6), target.met) for name, target in found.items() if "keras" not in name]
    assert values == [(3.0, True), (2.0, True), (1.0, True), (1.0, True), (4.0, True)]
    left_out = [target for name, target in found.items() if "keras" in name]
    assert len(left_out) == 3 and not any(target.met for target in left_out)


def test_losses_that_differ_stop_everything() -> None:
    with pytest.raises(LossesDiffer, match="mlm 1.000000 here, 1.100000 there"):
        same_losses({"mlm": 1.0}, {"mlm": 1.1}, 1e-3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_tiny_model(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(timing, "pin", lambda cores: None)
    file = tmp_path / "step.json"
    arguments = ["--layers=1", "--width=64", "--batch=4", "--repeats=5", f"--json={file}"]
    monkeypatch.setattr(sys, "argv", ["benchmarks.step", *arguments])
    assert step.main() == 0
    said, found = capsys.readouterr().out, json.loads(file.read_text())
    assert {*SECONDS} <= {*found["figures"]["seconds"]}
    assert all(value > 0 for values in found["figures"]["seconds"].values() for value in values)
    assert "equal to 0.0001" in said and "GFLOP/s in jax" in said
