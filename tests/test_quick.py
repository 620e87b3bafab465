"""The limits of unit tests, which keep `make quick` quick."""

import pathlib
import subprocess
import sys

from tests.running import ROOT, environment

TESTS = """
import os, subprocess, time
import pytest

def spend(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

@pytest.mark.unit
def test_small(): spend(0.1)

@pytest.mark.unit
def test_large(): spend(2.2)

@pytest.mark.unit
def test_program(): subprocess.run(["true"])

@pytest.mark.unit
def test_fork(): os.fork()

def test_without_mark():
    spend(2.2)
    subprocess.run(["true"], check=True)
"""


def test_unit_tests_are_small_and_start_no_process(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=ROOT,
        env=environment(1, UNIT_CPU_SECONDS="2"),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "2 passed" in done.stdout and "3 failed" in done.stdout, done.stdout + done.stderr
    assert "a unit test has 2" in done.stdout and done.stdout.count("a unit test starts a process") >= 2, done.stdout
