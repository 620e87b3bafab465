"""The journeys of users: the command `spanjax` of an installed wheel, in a folder that is not the clone's.

SPANJAX_INSTALLED=FOLDER takes the commands FOLDER/spanjax and FOLDER/python of another environment: another Python, say.
SPANJAX_JOURNEYS=FILE appends a line of JSON for every journey: its commands, and their CPU and wall seconds.
"""

import dataclasses
import json
import os
import pathlib
import resource
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import shared
from tests.running import ROOT, environment

INSTALLED, RECORD = "SPANJAX_INSTALLED", "SPANJAX_JOURNEYS"
ANY_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def variables() -> dict[str, str]:
    """Environment of a user: the clone is not on the path; another environment may have a jaxlib that lacks flags of this one."""
    found = {name: value for name, value in environment(1).items() if name != "PYTHONPATH"}
    return found | ({"XLA_FLAGS": ANY_XLA} if INSTALLED in os.environ else {})


@dataclasses.dataclass
class Journey:
    """The commands of one user, in a folder of their own."""

    folder: pathlib.Path
    bin: pathlib.Path
    name: str
    commands: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    worked: bool = False

    def __call__(self, command: str, code: int = 0) -> str:
        """Runs one `spanjax` or `python` command line and counts it; returns what it prints."""
        program, *words = shlex.split(command)
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [str(self.bin / program), *words],
            cwd=self.folder,
            env=variables(),
            capture_output=True,
            text=True,
            timeout=600,
        )
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime
        seconds = {"cpu": round(cpu, 1), "wall": round(time.perf_counter() - began, 1)}
        self.commands.append({"command": command, **seconds})
        self.worked = done.returncode == code
        assert self.worked, (command, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout + done.stderr


def installed_in(folder: pathlib.Path, wheel: pathlib.Path) -> None:
    """A virtual environment in `folder` whose only package is the wheel; the other packages are those of this environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    # a .pth file adds the folder, but not the .pth files in it: an editable spanjax of this environment stays outside
    (site / "stack.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")


@pytest.fixture(scope="session")
def installed(wheel_file: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Folder of the commands `spanjax` and `python` of an environment with the wheel."""
    if INSTALLED in os.environ:
        return pathlib.Path(os.environ[INSTALLED])
    return shared(tmp_path_factory, "installed", lambda folder: installed_in(folder, wheel_file)) / "bin"


def check_installed(command: pathlib.Path, folder: pathlib.Path) -> None:
    """The spanjax of this Python is an installed one, not that of the clone."""
    program = "import spanjax; print(spanjax.__file__)"
    found = subprocess.run([command, "-c", program], cwd=folder, env=variables(), capture_output=True, text=True)
    assert "site-packages" in found.stdout and str(ROOT / "spanjax") not in found.stdout, (found.stdout, found.stderr)


@pytest.fixture
def journey(installed: pathlib.Path, tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Journey]:
    """A user in an empty folder; the seconds of its commands are recorded if requested and they worked."""
    check_installed(installed / "python", tmp_path)
    user = Journey(tmp_path, installed, request.node.name.removeprefix("test_"))
    yield user
    if (file := os.environ.get(RECORD)) and user.worked:
        with open(file, "a") as lines:
            lines.write(json.dumps({"journey": user.name, "python": str(installed), "commands": user.commands}) + "\n")


def documents(package: str, count: int) -> list[str]:
    """Prose of the docstrings of an installed package: real text that is always here."""
    from spanjax.data.sources.docstrings import package_documents

    return [" ".join(text.split()) for text, _ in package_documents((package,))][:count]


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small BERT that transformers has made and saved, of sizes that no preset has."""
    from tests.torch_format.references import saved

    return shared(tmp_path_factory, "hf-weights", lambda folder: saved("bert", folder))
