"""The core installed from the index into an empty environment: its size, what it lacks, and what it does."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.journeys.conftest import Journey, check_installed, documents

pytestmark = pytest.mark.slow
MOST_MB = 1_200
ABSENT = ("tensorflow", "torch", "numba", "seqio", "matplotlib")
IMPORTED = """
import json, sys
import spanjax
model = spanjax.load("weights")
vectors = model.encode(["the river", "the cat sat on the mat"])
print(json.dumps({"shape": vectors.shape, "modules": sorted({name.split(".")[0] for name in sys.modules})}))
"""


def pip(python: pathlib.Path | str, *words: str) -> subprocess.CompletedProcess:
    """pip of this or another environment."""
    return subprocess.run([str(python), "-m", "pip", "install", "--quiet", *words], capture_output=True, text=True)


def megabytes(folder: pathlib.Path) -> float:
    """Space on disk of all files; hard links count once."""
    found = {(each.st_dev, each.st_ino): each.st_blocks * 512 for each in map(os.lstat, folder.rglob("*"))}
    return sum(found.values()) / 1e6


def test_the_core_alone(
    wheel_file: pathlib.Path, weights: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pip install WHEEL`: small, without TensorFlow and torch, and every command that the README promises for it works."""
    if pip(sys.executable, "--dry-run", "--ignore-installed", "--no-deps", "tyro").returncode:
        pytest.skip("no index of packages can be reached")
    python = tmp_path / "fresh" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "fresh")], check=True)
    done = pip(python, str(wheel_file))
    assert done.returncode == 0, done.stderr[-2000:]
    check_installed(python, tmp_path)
    size = megabytes(tmp_path / "fresh")
    with capsys.disabled():
        print(f"\nthe core takes {size:,.0f} MB")
    assert size < MOST_MB
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "weights").symlink_to(weights)
    (folder / "texts.txt").write_text("\n".join(text[:40] for text in documents("numpy", 5)) + "\n")
    user = Journey(folder, python.parent, "core")
    user("spanjax predict encode weights --input texts.txt --output vectors.npy")
    assert np.load(folder / "vectors.npy").shape == (5, 48)
    filled = json.loads(user("spanjax predict fill-mask weights --text 'the [MASK] sat' --json").splitlines()[0])
    assert "[MASK]" in json.dumps(filled)
    user("spanjax convert from-torch weights checkpoint --vocab weights/vocab.txt")
    user("spanjax convert to-torch checkpoint again")
    assert (folder / "again" / "model.safetensors").is_file()
    user("spanjax convert inspect again --json")
    (folder / "program.py").write_text(IMPORTED)
    found = json.loads(user("python program.py").splitlines()[-1])
    assert found["shape"] == [2, 48] and not set(ABSENT) & set(found["modules"])
    for name in ABSENT:
        user(f"python -c 'import {name}'", code=1)
    # what the core leaves to the extra `train` names the extra
    said = user("spanjax predict encode weights --input texts.txt --output vectors.parquet", code=2)
    assert "pip install 'spanjax[train]'" in said
