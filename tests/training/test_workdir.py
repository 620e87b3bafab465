"""A second run in a work directory is refused and told of the first; a run that was killed holds nothing."""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from spanjax import train
from spanjax.training import workdir as lock
from spanjax.training.workdir import FILE, STALE_SECONDS, LockedError, open_workdir, sole_run, stored_start
from tests.running import ROOT, shrunk

HOLD = """
import pathlib, sys, time
from spanjax.training.workdir import sole_run
with sole_run(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_until_the_first_is_dead(tmp_path: pathlib.Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None and first.stdout.readline() == "held\n"
    with pytest.raises(LockedError) as refused, sole_run(tmp_path):
        pass
    host, pid, year = socket.gethostname(), first.pid, datetime.datetime.now().year
    assert f"in use by another run: host {host}, process {pid}, started {year}-" in str(refused.value)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    for _ in range(2):
        with sole_run(tmp_path):
            assert json.loads((tmp_path / FILE).read_text())["pid"] == os.getpid()


def test_the_command_line_is_refused(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    arguments = shrunk("configs/pretrain/demo.py", rows_folder, tmp_path / "run", 1, "--data.feed=numpy")
    with sole_run(tmp_path / "run"):
        assert train.main(arguments) == 2
        assert train.main([*arguments, "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("spanjax.train: --workdir ") and f"process {os.getpid()}" in said
    assert not (tmp_path / "run" / "run.json").exists()


def test_an_open_work_directory_is_locked_until_its_resources_close(tmp_path: pathlib.Path) -> None:
    """Also when the directory is refused, after its lock was taken."""
    with contextlib.ExitStack() as resources:
        assert open_workdir(tmp_path, {"seed": 1}, resources) == {"seed": 1}
        with pytest.raises(LockedError), sole_run(tmp_path):
            pass
    with pytest.raises(ValueError, match="holds another run.*\n  seed: 1 -> 2"), contextlib.ExitStack() as resources:
        open_workdir(tmp_path, {"seed": 2}, resources)
    with contextlib.ExitStack() as resources:
        assert open_workdir(tmp_path, {"seed": 1}, resources)["started_in"]


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.0)


def written(folder: pathlib.Path, host: str, pid: int, age: float) -> None:
    (folder / FILE).write_text(json.dumps({"host": host, "pid": pid, "started": "2026-01-01T00:00:00+00:00"}))
    now = (folder / FILE).stat().st_mtime
    os.utime(folder / FILE, (now - age, now - age))


@pytest.mark.usefixtures("no_flock")
def test_without_flock_the_file_is_touched(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.01)
    with sole_run(tmp_path):
        os.utime(tmp_path / FILE, (0, 0))
        with pytest.raises(LockedError, match=f"process {os.getpid()}, .*in 10 minutes its lock is stale"):
            while (tmp_path / FILE).stat().st_mtime == 0:
                time.sleep(0.01)
            with sole_run(tmp_path):
                pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_flock")
def test_without_flock_a_stale_lock_is_taken_over(tmp_path: pathlib.Path) -> None:
    written(tmp_path, "elsewhere", 1, STALE_SECONDS - 60)
    with pytest.raises(LockedError, match="host elsewhere, process 1, started 2026-01-01"), sole_run(tmp_path):
        pass
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for host, pid, age in (("elsewhere", 1, STALE_SECONDS + 60), (socket.gethostname(), dead.pid, 0.0)):
        written(tmp_path, host, pid, age)
        with sole_run(tmp_path):
            assert json.loads((tmp_path / FILE).read_text())["host"] == socket.gethostname()


def test_the_lock_is_not_opened_through_a_link(tmp_path: pathlib.Path) -> None:
    victim, workdir = tmp_path / "victim", tmp_path / "run"
    victim.write_text("precious")
    workdir.mkdir()
    (workdir / FILE).symlink_to(victim)
    with pytest.raises(ValueError, match="run.lock is a link to .*victim.*: remove the link"), sole_run(workdir):
        pass
    assert victim.read_text() == "precious"


def test_the_folder_of_the_first_start_is_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert stored_start(tmp_path / "run") is None
    with contextlib.ExitStack() as resources:
        open_workdir(tmp_path / "run", {"init_from": "data"}, resources)
    monkeypatch.chdir(tmp_path / "data")
    with contextlib.ExitStack() as resources:
        open_workdir(tmp_path / "run", {"init_from": str(tmp_path / "data")}, resources)
    assert stored_start(tmp_path / "run") == str(tmp_path)
    (tmp_path / "run" / "run.json").write_text("{}")
    assert stored_start(tmp_path / "run") == ""
    (tmp_path / "run" / "run.json").write_text("{")
    assert stored_start(tmp_path / "run") is None
