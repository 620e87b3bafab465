"""Trials of the project's kernels by the doctor: which devices have which, what is said of them, and that nothing else stops."""

import json
from typing import Any
from unittest import mock

import pytest

from spanjax import doctor
from spanjax.doctor import kernels
from spanjax.nn import relative, residual_norm
from spanjax.nn.attention import cudnn_packed, pallas_hopper, pallas_tpu, pallas_triton
from tests.doctor.test_doctor import HEALTHY

HOPPER = ["pallas_hopper", "pallas_hopper, window 64", "pallas_triton", "pallas_triton, window 64"]


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> dict[str, mock.Mock]:
    """The trials of the kernels, which keep their signatures and take 1 ms in place of 2."""
    modules = (pallas_hopper, pallas_triton, pallas_tpu, cudnn_packed, relative, residual_norm)
    made = {}
    for module in modules:
        name = module.__name__.rpartition(".")[2]
        timed = None if module is cudnn_packed else (1e-3, 2e-3)
        made[name] = mock.create_autospec(module.verify.__wrapped__, return_value=timed)
        monkeypatch.setattr(module, "verify", made[name])
    return made


@pytest.mark.parametrize(
    ("platform", "kind", "names"),
    [
        ("gpu", "NVIDIA H200", [*HOPPER, "cudnn_packed", "residual_norm"]),
        ("gpu", "NVIDIA A100-SXM4-80GB", [*HOPPER[2:], "residual_norm"]),
        ("gpu", "Tesla V100-SXM2-16GB", []),
        ("tpu", "TPU v5 lite", ["pallas_tpu", "pallas_tpu, window 64", "pallas_tpu of XLNet"]),
        ("cpu", "cpu", []),
    ],
)
def test_a_device_has_the_kernels_that_it_supports(
    platform: str, kind: str, names: list[str], verified: dict[str, mock.Mock]
) -> None:
    """And each is tried with arguments that its trial has."""
    trials = kernels._trials(platform, kind)
    assert list(trials) == names
    for name, (other, trial) in trials.items():
        assert trial() == ((0.0, 0.0) if name == "cudnn_packed" else (1e-3, 2e-3)) and other, name
    assert sum(each.call_count for each in verified.values()) == len(names)
    for name in set(names) & {"pallas_hopper", "pallas_triton"}:
        assert verified[name].call_args_list == [
            mock.call(512, 64, "bfloat16", 0, 0.1, "xla"),
            mock.call(2048, 64, "bfloat16", 64, 0.0, "cudnn"),
        ]
    if "pallas_tpu" in names:
        assert verified["pallas_tpu"].call_args_list == [
            mock.call(512, 64, "bfloat16", 0, 0.1, "xla_chunked"),
            mock.call(2048, 64, "bfloat16", 64, 0.1, "xla_chunked"),
        ]


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (([1e-3, 2.5e-3, "cudnn"], ""), "ok", "equal to xla, 1.00 ms in place of 2.50 by cudnn"),
        (
            ([3e-3, 2e-3, "xla"], ""),
            "note",
            "equal to xla, 3.00 ms in place of 2.00 by xla: a run by auto does without it",
        ),
        (([0.0, 0.0, "cudnn"], ""), "ok", "equal to xla"),
        (
            (None, "no answer within 9 s"),
            "fail",
            "no answer within 9 s: a run by auto does without it; report this with the versions above",
        ),
    ],
    ids=["faster", "slower", "not timed", "does not end"],
)
def test_what_is_said_of_a_kernel(answer: Any, status: str, message: str) -> None:
    """The one after it is tried in any case."""
    answers = {
        "supported()": (["NVIDIA H200", ["a", "b"]], ""),
        "tried('a')": answer,
        "tried('b')": ([1, 2, "xla"], ""),
    }
    first, second = kernels.check_kernels(answers.__getitem__)
    assert (first.name, first.status, first.message) == ("kernel a", status, message)
    assert (second.name, second.status) == ("kernel b", "ok")


def test_jax_that_does_not_start_is_one_failure() -> None:
    (finding,) = kernels.check_kernels(lambda _: (None, "no backend"))
    assert (finding.status, finding.message) == ("fail", "no backend")


def test_the_command_on_a_cpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "collect", lambda _: HEALTHY)
    doctor.main(["--kernels", "--json"])
    findings = {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["kernels"]["status"] == "note" and "for this device (cpu)" in findings["kernels"]["message"]


def test_a_kernel_is_tried_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that this device does not have, so that the process ends with the error; another one here."""
    answer, problem = doctor.run_probe(kernels.PROGRAM.format(mark=doctor.MARK, call="tried('pallas_tpu')"), 120)
    assert answer is None and problem == "KeyError: 'pallas_tpu'"
    monkeypatch.setattr(kernels, "_trials", lambda platform, kind: {platform: ("xla", lambda: (1.0, 2.0))})
    assert kernels.tried("cpu") == (1.0, 2.0, "xla") and kernels.supported()[1] == ["cpu"]
