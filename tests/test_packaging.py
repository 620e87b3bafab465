"""The installed package: its contents, its dependencies, and its commands outside of the clone."""

import os
import pathlib
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest

from spanjax.storage import shipped
from tests.running import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OWN_CONFIG = """
import dataclasses

from configs.pretrain.tiny import RUN as TINY

RUN = dataclasses.replace(TINY, steps=7)
"""


def test_packages_are_those_of_the_tree() -> None:
    found = {
        str(file.parent.relative_to(ROOT)) for top in ("spanjax", "configs") for file in (ROOT / top).rglob("*.py")
    }
    names = {name.replace("/", ".") for name in found}
    names = {f"spanjax.{name}" if name.startswith("configs") else name for name in names}
    # folders of data alone count, too: setuptools warns of those that it is not told
    names |= {"spanjax.launch.templates", "spanjax.xla_flags"}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == names


@pytest.fixture(scope="module")
def installed(wheel_file: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Folder with the unpacked wheel."""
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel_file).extractall(folder)
    return folder


def run(installed: pathlib.Path, folder: pathlib.Path, *words: str, code: int = 0) -> subprocess.CompletedProcess:
    """`python -m spanjax` of the unpacked wheel in another folder than the clone."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "spanjax", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def test_nothing_lies_outside_of_the_package(installed: pathlib.Path) -> None:
    tops = {path.name.partition("-")[0] for path in installed.iterdir()}
    assert tops == {"spanjax"}
    files = {
        str(path.relative_to(installed / "spanjax")) for path in (installed / "spanjax").rglob("*") if path.is_file()
    }
    assert {f"configs/{name}.py" for name in shipped.presets()} <= files
    assert {f"xla_flags/{path.name}" for path in shipped.XLA_FLAGS.glob("*.txt")} <= files
    assert {"py.typed", "__main__.py", "launch/templates/slurm.sbatch", "serve/page.html"} <= files
    (entry,) = installed.glob("*.dist-info/entry_points.txt")
    assert "spanjax = spanjax.__main__:main" in entry.read_text()


def test_presets_are_found_from_any_folder(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Listed, run by name, by the documentation's path, and imported by a config of one's own."""
    (tmp_path / "mine.py").write_text(OWN_CONFIG)
    listed = run(installed, tmp_path, "train", "--list").stdout
    assert "pretrain/spanbert_base" in listed and "finetune/squad2" in listed
    assert run(installed, tmp_path, "--version").stdout.startswith("spanjax 0.")
    help_text = run(installed, tmp_path, "train", "--config", "mine.py", "--help").stdout
    assert re.search(r"--steps INT.{,300}default: 7\)", help_text, re.DOTALL)
    for name in ("tiny", "pretrain/tiny", "configs/pretrain/tiny.py"):
        done = run(installed, tmp_path, "train", "--config", name, "--workdir", "w", code=2)
        assert "data.rows is not set" in done.stderr, done.stderr
    done = run(installed, tmp_path, "train", "--config", "spanbert_bass", code=2)
    assert "did you mean pretrain/spanbert_base?" in done.stderr


WITHOUT_NUMBA = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "tensorflow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from spanjax.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "words", [["prepare", "stats", "rows"], ["train", "--config", "tiny", "--rows", "rows", "--dry-run"]]
)
def test_training_without_its_packages_is_one_message(words: list[str], rows_folder: pathlib.Path) -> None:
    """An installation of the core alone: the command names what to install."""
    words = [str(rows_folder) if word == "rows" else word for word in words]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", WITHOUT_NUMBA, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert re.search(
        r"(numba|tensorflow) is not installed, which this needs: pip install 'spanjax\[train\]'", done.stderr
    )
    assert "Traceback" not in done.stderr
