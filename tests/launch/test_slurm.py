"""The batch script with programs that stand for srun and scontrol: what it does with exit codes and signals."""

import os
import pathlib
import signal
import subprocess
import time

import pytest

from spanjax.launch import slurm
from tests.launching import printed, programs

# srun as SLURM documents it: USR1 goes to the tasks, TERM kills them; the task is the program behind the options
SRUN = """#!/usr/bin/env bash
echo "$*" >>"$ARGV_FILE.srun"
while [[ $1 == --* ]]; do shift; done
"$@" &
task=$!
told=
trap 'told=1; kill -USR1 "$task"' USR1
trap 'kill -KILL "$task"; exit 137' TERM
while true; do
  told=
  wait "$task"
  code=$?
  [ -n "$told" ] || exit "$code"
done
"""
# a run: ends with $CODE, or waits for a signal, saves for a while and ends with 75
PYTHON = """#!/usr/bin/env bash
echo "$$" >"$ARGV_FILE.pid"
echo "$SPANJAX_MEETING_TOKEN" >>"$ARGV_FILE.token"
[ -z "${CODE:-}" ] || exit "$CODE"
trap 'echo told >>"$ARGV_FILE.told"; sleep 0.5; exit 75' USR1
touch "$ARGV_FILE.ready"
for _ in {1..600}; do sleep 0.05; done
exit 1
"""
SCONTROL = '#!/usr/bin/env bash\necho "$*" >>"$ARGV_FILE.scontrol"\n'


def start(folder: pathlib.Path, *settings: str, **more: str) -> subprocess.Popen[str]:
    """The printed script, as SLURM starts it."""
    python = more.pop("python", PYTHON)
    variables = programs(folder / "bin", python=python, srun=SRUN, scontrol=SCONTROL) | more | {"SLURM_JOB_ID": "4711"}
    (folder / "job").write_text(printed("slurm", *settings))
    return subprocess.Popen(
        ["bash", folder / "job"], env=variables, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def told(folder: pathlib.Path, what: str) -> list[str]:
    file = folder / "bin" / f"argv.{what}"
    return file.read_text().splitlines() if file.exists() else []


def ready(folder: pathlib.Path) -> None:
    """Waits until the run looks at signals."""
    until = time.monotonic() + 30
    while not (folder / "bin" / "argv.ready").exists():
        assert time.monotonic() < until
        time.sleep(0.02)


AGAIN = ["requeue 4711"]


@pytest.mark.parametrize(
    ("code", "restarts", "queued"),
    [(75, "", AGAIN), (75, "99", AGAIN), (0, "", []), (1, "", []), (2, "", [])]
    + [(3, "", AGAIN), (3, "3", AGAIN), (3, "4", []), (137, "3", AGAIN), (134, "", AGAIN), (137, "4", [])],
)
def test_what_is_queued_again(code: int, restarts: str, queued: list[str], tmp_path: pathlib.Path) -> None:
    """Saved: as often as it takes. Processes that are missing or were killed: up to --max-restarts. Anything else: not."""
    more = {"SLURM_RESTART_COUNT": restarts} if restarts else {}
    job = start(tmp_path, "--max-restarts", "4", CODE=str(code), **more)
    output, _ = job.communicate(timeout=60)
    assert (job.returncode, told(tmp_path, "scontrol")) == (code, queued), output
    assert ("restarts the job ends" in output) == (code in (3, 137) and not queued)


def test_tasks_that_do_not_end_are_given_up_before_the_time_is_over(tmp_path: pathlib.Path) -> None:
    """A job that reaches its time is never queued again, although it has checkpoints."""
    stubborn = PYTHON.replace("exit 75' USR1", "' USR1")
    job = start(tmp_path, "--save-seconds", "4", python=stubborn)
    ready(tmp_path)
    job.send_signal(signal.SIGUSR1)
    time.sleep(0.7)
    assert told(tmp_path, "told") and not told(tmp_path, "scontrol")
    until = time.monotonic() + 20
    while not told(tmp_path, "scontrol") and time.monotonic() < until:
        time.sleep(0.05)
    assert told(tmp_path, "scontrol") == AGAIN and job.poll() is None
    job.send_signal(signal.SIGTERM)  # as SLURM ends a job that goes back into the queue
    pid = int((tmp_path / "bin" / "argv.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    job.communicate(timeout=60)
    assert told(tmp_path, "scontrol") == AGAIN


def test_every_go_has_a_token_of_its_own(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        start(tmp_path, CODE="0").communicate(timeout=60)
    first, second = told(tmp_path, "token")
    assert len(first) == len(second) == 32 and first != second


@pytest.mark.parametrize("times", [1, 3])
def test_usr1_reaches_the_run_which_saves_and_is_queued_again(times: int, tmp_path: pathlib.Path) -> None:
    job = start(tmp_path)
    ready(tmp_path)
    for _ in range(times):  # also while it saves: the script has to wait on
        job.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
    output, _ = job.communicate(timeout=60)
    assert set(told(tmp_path, "told")) == {"told"}
    assert (job.returncode, told(tmp_path, "scontrol")) == (75, ["requeue 4711"]), output


def test_term_ends_neither_the_script_nor_srun_and_slurm_decides(tmp_path: pathlib.Path) -> None:
    job = start(tmp_path)
    ready(tmp_path)
    job.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert job.poll() is None and not told(tmp_path, "told")
    job.send_signal(signal.SIGUSR1)  # SLURM would send TERM to the tasks, which save all the same
    output, _ = job.communicate(timeout=60)
    assert (job.returncode, told(tmp_path, "scontrol")) == (75, []), output


def test_srun_leaves_processes_time_to_save(tmp_path: pathlib.Path) -> None:
    start(tmp_path, CODE="0").communicate(timeout=60)
    (call,) = told(tmp_path, "srun")
    assert (
        "--kill-on-bad-exit=0" in call and "--cpus-per-task=16" in call and f"--wait={slurm.Slurm.save_seconds}" in call
    )


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [(("--nodes", "64"), 600), (("--nodes", "100"), 744), (("--nodes", "100", "--startup-seconds", "90"), 90)],
)
def test_many_nodes_wait_longer_for_each_other(settings: tuple[str, ...], seconds: int) -> None:
    assert f"\nexport SPANJAX_STARTUP_TIMEOUT={seconds}\n" in printed("slurm", *settings)


def test_headers_are_the_settings() -> None:
    text = printed("slurm", "--nodes", "4", "--tasks-per-node", "8", "--time", "2-00:00:00", "--save-seconds", "120")
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    headers = {name: value for name, _, value in (line.partition("=") for line in lines)}
    assert headers == {
        "job-name": "spanjax",
        "nodes": "4",
        "ntasks-per-node": "8",
        "cpus-per-task": "16",
        "gpus-per-node": "8",
        "time": "2-00:00:00",
        "signal": "B:USR1@120",
        "requeue": "",
        "open-mode": "append",
        "output": "%x-%j.out",
    }
    assert all(
        line.startswith("#") for line in text.split("\n\n")[0].splitlines()
    )  # SLURM reads headers up to the first command
