"""Every trap is seen on facts that describe it, and the command line runs here."""

import dataclasses
import io
import json
import pathlib
import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import rich.console

from spanjax import doctor
from spanjax.distributed import meeting
from spanjax.doctor import checks

ROOT = pathlib.Path(__file__).parents[2]
HEALTHY = checks.Facts(
    python="3.12.1",
    system="Linux",
    versions={
        **{"jax": "0.12.0.1", "jaxlib": "0.12.0.1", "flax": "0.12.12", "optax": "0.2.8", "orbax-checkpoint": "0.12.8"},
        **{
            "numpy": "2.5.5",
            "numba": "0.68.1",
            "tyro": "1.0.17",
            "tokenizers": "0.23.3",
            "safetensors": "0.8.0",
            "rich": "15.0.0",
        },
        **{"tensorflow": "2.21.0", "tensorflow-text": "2.21.1", "tensorflow-datasets": "4.9.10", "seqio": "0.0.20"},
        **{"sentencepiece": "0.2.3", "protobuf": "7.36.2"},
    },
    environment={},
    devices=(checks.Device("cpu", "cpu"),),
    jax_probe=checks.Probe(),
    seqio_probe=checks.Probe(seconds=5.0),
    jaxlib_required="<=0.12.0.1,>=0.11.2",
    sentencepiece_gencode="7.36.1",
    tensorflow_gpus=0,
    nvidia_gpu=False,
    tpu_chips=0,
    memory_total=64 * checks.GIB,
    memory_available=32 * checks.GIB,
    disk_free=100 * checks.GIB,
)
CUDA = {"jax-cuda13-plugin": "0.12.0.1", "jax-cuda13-pjrt": "0.12.0.1"}
JAX_0_10 = dict.fromkeys((*CUDA, "jax", "jaxlib"), "0.10.2")
OLD_CUDA = CUDA | {"jax-cuda13-plugin": "0.11.0"}
NO_ANSWER = checks.Probe("no answer within 9 s")
OLD, NEW = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"

# name of the finding, its status, words of its message, facts that differ from HEALTHY (versions are added; "" removes)
CASES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("installed", "fail", "missing flax, tyro: pip install", {"versions": {"flax": "", "tyro": ""}}),
    ("installed", "note", "without seqio only the NumPy feed", {"versions": {"seqio": ""}, "seqio_probe": None}),
    ("python", "fail", "3.10.4 is too old", {"python": "3.10.4"}),
    ("python", "note", "stays at jax 0.10.2", {"python": "3.11.7"}),
    ("jaxlib", "fail", "found 0.13.0: pip install", {"versions": {"jaxlib": "0.13.0"}}),
    ("jaxlib", "fail", "needs jaxlib<=0.12.0.1,>=0.11.2, found 0.10.2", {"versions": {"jaxlib": "0.10.2"}}),
    ("cuda plugin", "fail", "jax-cuda13-plugin 0.11.0 beside jaxlib 0.12.0.1", {"versions": OLD_CUDA}),
    ("cuda plugin", "fail", "cuda12 and cuda13", {"versions": CUDA | {"jax-cuda12-plugin": "0.12.0.1"}}),
    ("cuda plugin", "note", "unset it", {"versions": CUDA, "environment": {"LD_LIBRARY_PATH": "/opt/CUDA/lib64"}}),
    ("cuda plugin", "note", "jax[cuda13]", {"nvidia_gpu": True}),
    ("libtpu", "note", "set JAX_PLATFORMS=cpu", {"versions": {"libtpu": "0.0.50"}}),
    ("libtpu", "note", "jax[tpu]", {"tpu_chips": 4}),
    ("devices", "fail", "jax does not start: no answer", {"jax_probe": NO_ANSWER, "devices": ()}),
    ("devices", "fail", "sees no device", {"devices": ()}),
    ("start-up", "fail", "is not set", {"start_up_error": "JAX_PROCESS_ID is not set"}),
    ("cudnn mask", "note", "jax 0.11 or later", {"nvidia_gpu": True, "versions": JAX_0_10, "jaxlib_required": "<=0.10.2"}),
    ("memory fraction", "note", f"set {NEW}", {"environment": {OLD: "0.9"}}),
    ("memory fraction", "fail", f"unset {OLD}", {"environment": {OLD: "0.9", NEW: "0.8"}}),
    ("tensorflow-text", "fail", "cannot be imported", {"versions": {"tensorflow-text": "2.21.0"}}),
    ("tensorflow-text", "fail", "tensorflow-text==2.21.*", {"versions": {"tensorflow-text": "2.20.1"}}),
    ("protobuf", "fail", "pip install 'protobuf>=7.36.1'", {"versions": {"protobuf": "6.33.6"}}),
    ("protobuf", "fail", "apache-beam holds", {"versions": {"protobuf": "6.33.6", "apache-beam": "2.77.0"}}),
    ("seqio", "fail", "VersionError", {"seqio_probe": checks.Probe("VersionError: gencode")}),
    ("seqio", "note", "its import took 90 s", {"seqio_probe": checks.Probe(seconds=90.0)}),
    ("private jax", "fail", "has no jax._src.lib._jax", {"private_missing": ("jax._src.lib._jax",)}),
    ("tensorflow gpu", "note", "set_visible_devices", {"tensorflow_gpus": 2}),
    ("transformers", "note", "no Flax", {"versions": {"transformers": "5.23.0"}}),
    ("coval", "note", "not the coreference scorer", {"versions": {"coval": "0.0.3"}}),
    ("torch", "note", "CPU build", {"versions": {"torch": "2.13.0", "nvidia-cublas": "13.1"}}),
    ("disk", "fail", "will not fit", {"disk_free": checks.GIB // 2}),
    ("disk", "note", "few checkpoints", {"disk_free": 5 * checks.GIB}),
)  # fmt: skip

# the same things where they do no harm
HARMLESS: tuple[dict[str, Any], ...] = (
    {},
    {"versions": CUDA, "nvidia_gpu": True},
    {"versions": {"libtpu": "0.0.50"}, "tpu_chips": 4},
    {"versions": {"libtpu": "0.0.50"}, "environment": {"JAX_PLATFORMS": "cpu"}},
    {"environment": {NEW: "0.9"}},
    {"versions": {"protobuf": "6.33.6", "sentencepiece": "0.2.2"}, "sentencepiece_gencode": "6.30.0"},
    {"versions": {"protobuf": "7.36.2", "apache-beam": "2.90.0"}},
    {"versions": {"torch": "2.13.0+cpu"}},
    {"versions": {"torch": "2.13.0", "nvidia-cublas": "13.1"} | CUDA, "nvidia_gpu": True},
    {"versions": {"transformers": "4.57.0"}},
    {"versions": {"jaxlib": "0.11.2"}},
)


def facts_with(changes: dict[str, Any]) -> checks.Facts:
    """HEALTHY with some facts replaced."""
    versions = dict(HEALTHY.versions) | changes.get("versions", {})
    return dataclasses.replace(HEALTHY, **changes | {"versions": {k: v for k, v in versions.items() if v}})


@pytest.mark.parametrize(("name", "status", "message", "changes"), CASES)
def test_trap_is_seen(name: str, status: str, message: str, changes: dict[str, Any]) -> None:
    found = {finding.name: finding for finding in checks.diagnose(facts_with(changes))}
    assert (found[name].status, message in found[name].message) == (status, True), found[name]
    assert [other for other in found if found[other].status != "ok"] == [name]


@pytest.mark.parametrize("changes", HARMLESS)
def test_harmless_facts_are_ok(changes: dict[str, Any]) -> None:
    assert [finding for finding in checks.diagnose(facts_with(changes)) if finding.status != "ok"] == []


def test_every_check_has_a_case() -> None:
    assert {finding.name for finding in checks.diagnose(HEALTHY)} == {case[0] for case in CASES}
    assert len(checks.CHECKS) == len({finding.name for finding in checks.diagnose(HEALTHY)})


def test_expectations() -> None:
    two = dataclasses.replace(HEALTHY, devices=(checks.Device("gpu", "H200"), checks.Device("gpu", "H200")))
    assert [f.status for f in checks.check_expected(two, 2, "gpu")] == ["ok", "ok"]
    assert [f.message for f in checks.check_expected(two, 8, "tpu")] == [
        "expected 8 devices, jax sees 2",
        "expected platform tpu, jax sees gpu",
    ]
    assert checks.check_expected(two, None, None) == []


@pytest.mark.parametrize(
    ("version", "numbers"), [("2.13.0+cpu", (2, 13)), ("0.12.0.1", (0, 12, 0, 1)), ("3.13.0rc1", (3, 13)), ("", ())]
)
def test_release(version: str, numbers: tuple[int, ...]) -> None:
    assert checks.release(version) == numbers


def test_broken_import_is_reported_not_fatal() -> None:
    assert (
        doctor.run_probe("import no_such_package", 60.0)[1] == "ModuleNotFoundError: No module named 'no_such_package'"
    )
    assert doctor.run_probe("import os; os.abort()", 60.0)[1].startswith("ended with status -")
    assert doctor.run_probe("import time; time.sleep(60)", 0.5)[1] == "no answer within 0 s"
    assert doctor.run_probe(f"print('noise'); print('{doctor.MARK}[1, 2]')", 60.0) == ([1, 2], "")


@pytest.mark.parametrize("terminal", [True, False])
def test_shown_text_holds_the_remedy(terminal: bool) -> None:
    text = io.StringIO()
    console = rich.console.Console(file=text, force_terminal=terminal, width=200, color_system=None)
    facts = facts_with({"versions": {"protobuf": "6.33.6"}, "environment": {"XLA_FLAGS": "--xla_a=[b]"}})
    doctor.show(console, facts, checks.diagnose(facts))
    for words in ("1 x cpu cpu", "32.0 GiB available of 64.0 GiB", "--xla_a=[b]", "'protobuf>=7.36.1'", "0.12.0.1"):
        assert words in text.getvalue()


def test_start_up_is_one_line() -> None:
    line, error, _ = doctor.start_up_line({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}, 0)
    assert line == "slurm: one process (SLURM_JOB_ID=7, SLURM_NTASKS=1)" and not error
    assert ("start-up", line) in doctor.fact_lines(dataclasses.replace(HEALTHY, start_up=line))
    line, error, _ = doctor.start_up_line({"JAX_PROCESS_ID": "1"}, 0)
    assert not line and "JAX_NUM_PROCESSES" in error


def test_a_coordinator_whose_name_leads_to_loopback_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the line "127.0.1.1 node001" of Debian, copied to all hosts."""
    addresses = {"node001": "127.0.1.1", "node002": "10.0.0.2"}
    monkeypatch.setattr(meeting.socket, "getaddrinfo", lambda host, port, **_: [(2, 1, 6, "", (addresses[host], port))])
    variables = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    for coordinator, noted in (("node001:99", True), ("node002:99", False), ("127.0.0.1:99", False)):
        line, error, note = doctor.start_up_line({**variables, "JAX_COORDINATOR_ADDRESS": coordinator}, 0)
        assert line and not error and bool(note) == noted
        found = checks.diagnose(dataclasses.replace(HEALTHY, start_up=line, start_up_note=note))
        (start_up,) = (each for each in found if each.name == "start-up")
        assert (
            start_up.status == "note",
            "node001, the host of process 0, leads to 127.0.1.1" in start_up.message,
        ) == (
            noted,
            noted,
        )


@pytest.mark.slow
def test_real_run() -> None:
    command = [sys.executable, "-m", "spanjax.doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["ok"]
    assert said["facts"]["versions"]["jax"]
    assert said["facts"]["devices"]
    assert said["facts"]["memory_total"] > said["facts"]["memory_available"] > 0
    assert said["facts"]["seqio_probe"]["seconds"] > 0
    assert len(said["findings"]) == len(checks.CHECKS)
    assert said["facts"]["start_up"]


@pytest.mark.parametrize(
    ("facts", "arguments", "status", "words"),
    [
        (HEALTHY, ["--expect-devices", "1", "--expect-platform", "cpu"], 0, "ok   expected platform"),
        (HEALTHY, ["--expect-devices", "8"], 1, "fail expected devices: expected 8 devices, jax sees 1"),
        (HEALTHY, ["--expect-platform", "tpu", "--json"], 1, '"ok": false'),
        (dataclasses.replace(HEALTHY, tpu_chips=4), [], 0, "note libtpu: 4 TPU chips"),
        (dataclasses.replace(HEALTHY, disk_free=0), [], 1, "fail disk: 0.00 GiB free"),
    ],
)
def test_exit_status(
    facts: checks.Facts,
    arguments: list[str],
    status: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "collect", lambda timeout: facts)
    assert doctor.main(arguments) == status
    assert words in capsys.readouterr().out


def requirement_lines(name: str) -> list[str]:
    """Requirements of a file, without comments and blanks."""
    lines = [re.sub(r"\s*#.*", "", line) for line in (ROOT / name).read_text().splitlines()]
    return [line for line in lines if line]


def test_requirements_and_metadata_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    assert extras["train"] == requirement_lines("requirements.txt")
    assert set(project["project"]["dependencies"]) < set(extras["train"])
    assert requirement_lines("requirements-dev.txt") == ["-r requirements.txt", *extras["dev"]]
    names = {re.split(r"[<>=\[ ]", line)[0].lower() for line in requirement_lines("requirements.txt")}
    assert set(checks.TENSORFLOW_FEED) | set(checks.REQUIRED) - {"jaxlib"} <= names
