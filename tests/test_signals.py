"""Stop signals from the first line of `spanjax.train` to its last, in processes of their own."""

import contextlib
import os
import pathlib
import pty
import signal
import subprocess
import sys
import time

import pytest

from spanjax.cli import STOP_SIGNALS, STOPPED
from tests.running import ROOT, begin_together, environment, finish, last_step, shrunk, start, wait_until

CONFIG = "configs/pretrain/demo.py"


def wait_for_file(process: subprocess.Popen, file: pathlib.Path) -> None:
    assert wait_until([process], file.exists, 120), process.communicate()[0]


def blocked(tmp_path: pathlib.Path, where: str, how: str) -> subprocess.Popen:
    """spanjax.train whose function `where` ("module:name") waits, after making a file."""
    module, name = where.split(":")
    file = tmp_path / "there"
    code = f"""
import ctypes, importlib, pathlib, sys, time
from spanjax import train
def wait(*_, **__):
    pathlib.Path({str(file)!r}).touch()
    {how}
module = importlib.import_module({module!r})
setattr(module, {name!r}, wait)
train.end(train.main(["--config", {CONFIG!r}]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(1),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    wait_for_file(process, file)
    return process


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_before_anything_is_imported_ends_with_75(number: signal.Signals, tmp_path: pathlib.Path) -> None:
    process = blocked(tmp_path, "spanjax.train:parse", "time.sleep(60)")
    process.send_signal(number)
    assert number.name in finish(process, STOPPED, timeout=10)


def test_a_signal_does_not_wait_for_a_main_thread_that_is_blocked_in_c(tmp_path: pathlib.Path) -> None:
    """As where it waits for other processes, or compiles: no handler of Python runs there."""
    call = "ctypes.CDLL(None).usleep(40_000_000); ctypes.CDLL(None).usleep(40_000_000)"
    process = blocked(tmp_path, "spanjax.train:parse", call)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    finish(process, STOPPED, timeout=30)
    assert time.monotonic() - began < 20


def test_a_signal_while_a_process_waits_for_the_others(tmp_path: pathlib.Path) -> None:
    common = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    process = start([f"--config={CONFIG}"], env=environment(1, **common))
    loaded = pathlib.Path(f"/proc/{process.pid}/maps")
    assert wait_until([process], lambda: "jaxlib" in loaded.read_text(), 120)
    process.send_signal(signal.SIGUSR1)
    finish(process, STOPPED, timeout=20)


def test_nohup_outlives_its_terminal(tmp_path: pathlib.Path) -> None:
    code = "import os, signal; from spanjax.cli import *\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    code += "with StopSignals(stop_at_once): os.kill(os.getpid(), signal.SIGHUP); print('still there')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "still there\n"), done.stderr


def spent(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_closed_terminal_saves_and_leaves_at_once(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """SIGHUP with nobody left to read: the state is saved, the exit code is 75, and the end takes no 2 CPU seconds."""
    master, slave = pty.openpty()
    arguments = shrunk(
        CONFIG, rows_folder, tmp_path / "run", 100_000, "--data.feed=numpy", "--cadence.checkpoint-every=100000"
    )
    process = start(arguments, stdout=slave, stderr=slave, stdin=slave, start_new_session=True)
    os.close(slave)
    os.set_blocking(master, False)

    def read_on() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(master, 65536)
        return last_step(tmp_path / "run") >= 3

    assert wait_until([process], read_on, 300)
    os.close(master)  # the terminal is gone
    process.send_signal(signal.SIGHUP)  # which the shell of that terminal sends
    saved = tmp_path / "run" / "checkpoints"
    assert wait_until([process], lambda: list(saved.glob("[0-9]*/checksums.json")), 120)
    before = spent(process.pid)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == STOPPED
    assert usage.ru_utime + usage.ru_stime - before < 2.0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["imports", "restore", "compilation"])
def test_two_processes_stop_at_any_moment_of_the_start(
    moment: str, rows_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """While they import, all get the signal, as from a launcher; after they have met, one is enough."""
    workdir = tmp_path / "run"
    pair = begin_together(2, shrunk(CONFIG, rows_folder, workdir, 100_000, "--data.feed=numpy"))
    file = workdir / ("run.lock" if moment == "restore" else "metrics.jsonl")

    def come() -> bool:
        if moment == "imports":
            return all("jaxlib" in pathlib.Path(f"/proc/{each.pid}/maps").read_text() for each in pair)
        return file.exists()

    assert wait_until(pair, come, 300), [each.communicate()[0] for each in pair]
    for each in pair[:: 1 if moment == "imports" else -2]:
        each.send_signal(signal.SIGTERM)
    for each in pair:
        finish(each, STOPPED, timeout=120)
    assert not list(workdir.glob("checkpoints/[0-9]*"))
