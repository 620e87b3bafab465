"""The benchmark of what unrolled layers cost to compile, on a small model."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests.pods import SMALL
from tests.running import ROOT, environment


@pytest.mark.slow
def test_it_compiles_both_and_writes_what_it_saw(tmp_path: pathlib.Path) -> None:
    settings = [word for word in SMALL if not word.startswith("--encoder.layers")]
    command = [sys.executable, "-m", "benchmarks.unrolling", "--layers", "2", "--json", str(tmp_path / "found.json")]
    process = subprocess.run([*command, *settings], cwd=ROOT, env=environment(1), capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    total = {name: row[name]["lower"] + row[name]["compile"] for name in ("scan", "unrolled")}
    assert row["layers"] == 2 and row["ratio"] == pytest.approx(total["unrolled"] / total["scan"])
    assert min(total.values()) > 0 and "2 layers:" in process.stdout
