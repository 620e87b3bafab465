"""Two processes under a real mpirun."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from spanjax.cli import visible
from tests.running import ROOT, environment, shrunk

MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2", sys.executable]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun missing: install the package openmpi-bin"),
]


def mpirun(*words: str) -> str:
    """Everything that the two processes print; both must succeed."""
    done = subprocess.run(
        [*MPIRUN, *words], cwd=ROOT, env=environment(1), capture_output=True, timeout=280, check=False
    )
    text = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, text
    return text


def test_mpirun_gives_a_process_a_terminal() -> None:
    """The reason for the next test: on such a terminal a process alone would draw its progress."""
    printed = mpirun("-c", "import sys; print(sys.stdout.isatty())")
    assert "True" in printed


def test_two_processes_train_and_print_plain_lines(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    arguments = shrunk("configs/pretrain/demo.py", rows_folder, tmp_path / "run", 12, "--data.feed=numpy")
    printed = mpirun("-m", "spanjax.train", *arguments)
    assert "2 x cpu, 2 processes (data 2)" in printed and "finished: 12 steps" in printed, printed
    # a terminal ends its lines with \r\n
    lines = printed.replace("\r\n", "\n")
    assert visible(lines) == lines
    steps = re.findall(r"^step (\d+)/12 ", lines, re.MULTILINE)
    assert steps == [str(step) for step in range(1, 13)], printed
