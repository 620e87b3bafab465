"""Processes on this machine: their variables, output, signals and exit codes; and a run that is stopped and goes on."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from spanjax.cli import STOP_SIGNALS
from spanjax.distributed import detect
from spanjax.distributed.launchers import TOKEN
from spanjax.launch import processes
from spanjax.launch.local import Local
from tests.running import ROOT, environment, final_leaves, finish, records, shrunk, wait_for_step, wait_until

CONFIG = "configs/pretrain/demo.py"


def run(settings: Local, script: str) -> int:
    """The exit code of processes that run a script; each has its number in JAX_PROCESS_ID."""
    start = "import os, signal, sys, time; me = int(os.environ.get('JAX_PROCESS_ID', 0))\n"
    return processes.run_local(settings, [], [sys.executable, "-c", start + script])


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("", 0),
        ("sys.exit(75)", 75),
        ("sys.exit(75 if me else 0)", 75),
        ("sys.exit(2)", 2),
        ("sys.exit(3 if me else 75)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL) if me else None", 3),
        ("os.kill(os.getpid(), signal.SIGKILL) if me else sys.exit(3)", 3),
    ],
)
def test_one_exit_code(script: str, code: int) -> None:
    assert run(Local(processes=3), script) == code


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_others_are_ended_after_the_grace(
    stubborn: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.5)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    began = time.monotonic()
    assert run(Local(processes=3, grace=1.0), f"{ignore}sys.exit(4) if me == 1 else time.sleep(600)") == 4
    assert 1.0 < time.monotonic() - began < 60
    assert "process 1 ended with 4" in capsys.readouterr().err


def test_they_are_asked_before_they_are_killed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "signal.signal(signal.SIGTERM, lambda *_: (print('asked'), sys.exit(0)))\n"
    assert run(Local(processes=2, grace=1.0), asked + "sys.exit(4) if me == 1 else time.sleep(600)") == 4
    assert "[0] asked" in capsys.readouterr().out


def test_others_that_end_within_the_grace_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    script = "sys.exit(3) if me == 0 else (time.sleep(0.5), print('ended by itself'))"
    assert run(Local(processes=2, grace=60.0), script) == 3
    told = capsys.readouterr()
    assert "[1] ended by itself" in told.out and "are ended" not in told.err


def test_lines_have_the_number_in_front(capsys: pytest.CaptureFixture[str]) -> None:
    script = "[print('line', me, each) for each in range(50)]; print('to stderr', me, file=sys.stderr)\nsys.stdout.write('last')"
    assert run(Local(processes=3), script) == 0
    told = capsys.readouterr()
    wanted = [f"[{me}] line {me} {each}" for me in range(3) for each in range(50)] + [f"[{me}] last" for me in range(3)]
    assert sorted(told.out.splitlines()) == sorted(wanted)
    assert sorted(told.err.splitlines()) == [f"[{me}] to stderr {me}" for me in range(3)]


def test_one_that_is_killed_is_missing_to_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """As at the start, where the others wait for it: they are ended, and the same command is to be run again (3)."""
    script = "os.kill(os.getpid(), signal.SIGKILL) if me else time.sleep(600)"
    assert run(Local(processes=2, grace=0.5), script) == 3
    assert "process 1 was killed by signal 9" in capsys.readouterr().err
    assert run(Local(processes=1), "os.kill(os.getpid(), signal.SIGKILL)") == 137


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_signals_go_to_all_and_75_comes_back(number: signal.Signals, tmp_path: pathlib.Path) -> None:
    train = f"""
import os, pathlib, signal, sys, time
me, got = os.environ["JAX_PROCESS_ID"], []
signal.signal({int(number)}, lambda number, _: got.append(number))
pathlib.Path({str(tmp_path)!r}, me).touch()
while not got:
    time.sleep(0.01)
time.sleep(0.2)
sys.exit(75 if got == [{int(number)}] else 1)
"""
    code = "from spanjax.launch.processes import run_local; from spanjax.launch.local import Local; import sys\n"
    code += f"sys.exit(run_local(Local(processes=2), [], [sys.executable, '-c', {train!r}]))"
    launcher = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True)
    until = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(launcher.pid, number)  # as Ctrl-C does: the group of the terminal, in which only the launcher is
    assert launcher.wait(timeout=60) == 75


def test_no_process_outlives_a_launcher_that_is_killed(tmp_path: pathlib.Path) -> None:
    """They get SIGTERM, and their output into a pipe that nobody reads ends nothing."""
    train = f"""
import os, pathlib, signal, sys, time
from spanjax.cli import StopSignals, end_with_launcher
folder, me, got = pathlib.Path({str(tmp_path)!r}), os.environ["JAX_PROCESS_ID"], []
with StopSignals(got.append):
    end_with_launcher()
    (folder / me).write_text(str(os.getpid()))
    while not got:
        time.sleep(0.01)
    # inside the block: Linux sends the signal once more for every thread of the launcher
    (folder / f"saved {{me}}").touch()
"""
    code = "from spanjax.launch.processes import run_local; from spanjax.launch.local import Local\n"
    code += f"run_local(Local(processes=2), [], [{sys.executable!r}, '-c', {train!r}])"
    launcher = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment(1), start_new_session=True)
    wait_until([launcher], lambda: len(list(tmp_path.iterdir())) == 2, 60)
    launcher.kill()
    launcher.wait()
    until = time.monotonic() + 30
    while len(list(tmp_path.glob("saved *"))) < 2:
        assert time.monotonic() < until, "they go on"
        time.sleep(0.02)


def test_every_group_has_a_token_of_its_own() -> None:
    first, second = (processes.environments(Local(processes=2), {}, 1) for _ in range(2))
    tokens = [own[TOKEN] for own in (*first, *second)]
    assert tokens[0] == tokens[1] != tokens[2] == tokens[3] and len(tokens[0]) == 32


def described(settings: Local, **inherited: str) -> list[Any]:
    found = [detect(own) for own in processes.environments(settings, inherited, 4242)]
    assert all(launch.kind == "variables" for launch in found)
    return found


def test_variables_are_what_start_up_reads() -> None:
    slurm = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "JAX_LOCAL_DEVICE_IDS": "7", "JAX_PROCESS_ID": "1"}
    for inherited in ({}, slurm):
        found = described(Local(processes=2, cpu_devices=3), **inherited)
        assert [launch.process_id for launch in found] == [0, 1]
        assert {(f.processes, f.coordinator, f.devices, f.local_device_ids) for f in found} == {
            (2, "127.0.0.1:4242", 6, None)
        }
    assert [launch.local_device_ids for launch in described(Local(processes=2, gpus=4))] == [(0, 1), (2, 3)]
    (alone,) = described(Local(processes=1, cpu_devices=2))
    assert (alone.processes, alone.coordinator, alone.devices) == (1, None, 2)


def test_cpu_devices_and_variables_of_the_user() -> None:
    inherited = {
        "XLA_FLAGS": "--xla_a=1 --xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cuda",
        "HOME": "/h",
    }
    (own,) = processes.environments(Local(processes=1, cpu_devices=2, env=("A=b=c",)), inherited, 1)
    assert own["XLA_FLAGS"].split() == ["--xla_a=1", "--xla_force_host_platform_device_count=2"]
    assert (own["JAX_PLATFORMS"], own["A"], own["HOME"]) == ("cpu", "b=c", "/h")
    (own,) = processes.environments(Local(processes=1, gpus=1), inherited, 1)
    assert own["JAX_PLATFORMS"] == "cuda" and own["XLA_FLAGS"] == inherited["XLA_FLAGS"]


def start(train: list[str]) -> subprocess.Popen[str]:
    """`python -m spanjax.launch local` with two processes, in a process of its own."""
    command = [sys.executable, "-m", "spanjax.launch", "local", "--processes", "2", "--", *train]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment(4), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_train_stop_and_go_on(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Stopped by SIGTERM with 75 and started again, two processes end bit for bit where an undisturbed run ends."""
    whole = finish(start(shrunk(CONFIG, rows_folder, tmp_path / "whole", 30)), timeout=400)
    assert "[0] finished: 30 steps" in whole and "[1] finished" not in whole
    arguments = shrunk(CONFIG, rows_folder, tmp_path / "parts", 30)
    first = start(arguments)
    wait_for_step(first, tmp_path / "parts", 2)
    first.send_signal(signal.SIGTERM)
    assert "[0] stopped by a signal after step" in finish(first, 75, timeout=400)
    assert "[0] continuing" in finish(start(arguments), timeout=400)
    one, two = (final_leaves(tmp_path / name) for name in ("whole", "parts"))
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)
    key = "train/loss"
    assert records(tmp_path / "whole", key) == records(tmp_path / "parts", key)
    for name in ("whole", "parts"):
        assert (tmp_path / name / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wrong_input_comes_back_as_2(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = finish(start(shrunk(CONFIG, rows_folder, tmp_path / "run", 4, "--batch-size=3")), 2)
    assert re.search(r"^\[\d\] spanjax.train: .*batch.size", output, re.M), output
