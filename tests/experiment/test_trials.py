"""Trials of kernels before a run takes them, and what is kept of them."""

import json
import os
import pathlib
import time
from typing import Any

import jax
import pytest

from spanjax.experiment import trials

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("wanted", "outcome", "expected"),
    [
        ("auto", (1e-3, 2e-3), ("pallas_hopper", "first; equal to xla on this device, 1.00 ms in place of 2.00")),
        (
            "auto",
            (2e-3, 1e-3),
            ("xla", "not pallas_hopper: it is slower than xla on this device: 2.00 ms in place of 1"),
        ),
        ("auto", ValueError("output differ"), ("xla", "not pallas_hopper: ValueError: output differ")),
        ("auto", AttributeError("no wgmma"), ("xla", "not pallas_hopper: AttributeError: no wgmma")),
        (
            "pallas_hopper",
            (2e-3, 1e-3),
            ("pallas_hopper", "first; equal to xla on this device, 2.00 ms in place of 1.00"),
        ),
    ],
    ids=["faster", "slower", "wrong", "does not run", "named, slower"],
)
def test_the_own_kernel_is_tried_before_it_is_taken(wanted: str, outcome: Any, expected: tuple[str, str]) -> None:
    backend, reason = trials.tried(wanted, "first", verified(outcome), "pallas_hopper")
    assert (backend, reason[: len(expected[1])]) == expected


def test_what_takes_its_place_is_named() -> None:
    slower = verified((2e-3, 1e-3))
    assert trials.tried("auto", "first", slower, "pallas_tpu", "xla_chunked")[0] == "xla_chunked"
    assert trials.tried("pallas_tpu", "first", slower, "pallas_tpu", "xla_chunked")[0] == "pallas_tpu"


def verified(outcome: Any) -> Any:
    def verify() -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return verify


def test_a_kernel_that_was_named_and_is_wrong_stops_the_run() -> None:
    with pytest.raises(ValueError, match="encoder.attention 'pallas_hopper' cannot be used: ValueError: output differ"):
        trials.tried("pallas_hopper", "first", verified(ValueError("output differ")), "pallas_hopper")


def test_a_problem_of_another_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes with different backends would compile different steps."""
    monkeypatch.setattr(trials, "all_gather_text", lambda name, mine: [mine, "ValueError: value differ"])
    backend, reason = trials.tried("auto", "first", verified((1e-3, 2e-3)), "pallas_hopper")
    assert (backend, reason) == ("xla", "not pallas_hopper: ValueError: value differ")


def test_a_trial_that_takes_long_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(trials, "SECONDS", 0.01)

    def verify() -> Any:
        time.sleep(0.3)
        return 1e-3, 2e-3

    assert trials.tried("auto", "first", verify, "pallas_hopper")[0] == "pallas_hopper"
    assert "has not ended its trial" in capsys.readouterr().err
    trials.tried("auto", "first", verified((1e-3, 2e-3)), "pallas_hopper")
    assert not capsys.readouterr().err


def counted(calls: list[int], outcome: Any = (1e-3, 2e-3)) -> Any:
    def trial() -> Any:
        calls.append(1)
        return verified(outcome)()

    return trial


def test_a_trial_is_remembered(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(trials.VARIABLE, raising=False)
    calls: list[int] = []
    for _ in range(2):
        assert trials.remembered("mine", (512, "bfloat16"), counted(calls)) == (1e-3, 2e-3)
    assert len(calls) == 1
    trials.remembered("mine", (512, "float32"), counted(calls))
    trials.remembered("other", (512, "bfloat16"), counted(calls))
    assert len(calls) == 3
    assert len(list((tmp_path / "spanjax" / "trials").glob("*.json"))) == 3


@pytest.mark.parametrize("change", ["device", "jax", "source"])
def test_another_device_jax_or_source_is_tried_again(
    change: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(trials.VARIABLE, raising=False)
    calls: list[int] = []
    trials.remembered("mine", (512,), counted(calls))
    if change == "device":
        other = type("Device", (), {"device_kind": "NVIDIA H300"})()
        monkeypatch.setattr(jax, "local_devices", lambda: [other])
    elif change == "jax":
        monkeypatch.setattr(jax, "__version__", "99.0")
    else:
        monkeypatch.setattr(trials, "_source", lambda: "another")
    trials.remembered("mine", (512,), counted(calls))
    assert len(calls) == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"seconds": [1, 2]}', '{"seconds": [1], "trial": {}}'])
def test_a_broken_entry_is_made_anew(content: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(trials.VARIABLE, raising=False)
    calls: list[int] = []
    trials.remembered("mine", (512,), counted(calls))
    (entry,) = (tmp_path / "spanjax" / "trials").glob("*.json")
    entry.write_text(content)
    assert trials.remembered("mine", (512,), counted(calls)) == (1e-3, 2e-3)
    assert len(calls) == 2 and json.loads(entry.read_text())["seconds"] == [1e-3, 2e-3]


def test_a_trial_that_failed_is_not_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(trials.VARIABLE, raising=False)
    with pytest.raises(ValueError, match="output differ"):
        trials.remembered("mine", (512,), verified(ValueError("output differ")))
    assert not (tmp_path / "spanjax").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_is_none(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert trials.remembered("mine", (512,), verified((1e-3, 2e-3))) == (1e-3, 2e-3)


def test_the_cache_can_be_turned_off(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(trials.VARIABLE, "off")
    trials.remembered("mine", (512,), verified((1e-3, 2e-3)))
    assert not (tmp_path / "spanjax").exists()
