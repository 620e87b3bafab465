"""Launch files as the command prints them, and programs that stand for a cluster's."""

import contextlib
import io
import os
import pathlib
import shutil
import subprocess
import sys

from spanjax.launch import KINDS, main

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ("local", "tpu-vm", "xpk", "slurm")
EVIL = (
    *("--config", "configs/my run.py", "--workdir", "/data/it's $(touch pwned) `touch pwned` \"q\" $HOME ${HOME} * ;&|"),
    *("--name=a  b", "--empty", "", "--dollars", "$$ $(NAME) $", "--slashes", "\\ \\n \\", "--hash", "# no: comment", "@@name"),
)  # fmt: skip
ARGV = """#!/usr/bin/env bash
printf '%s\\0' "$@" >"$ARGV_FILE"
"""
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


def printed(kind: str, *settings: str, train: tuple[str, ...] = ()) -> str:
    """What `python -m spanjax.launch KIND --print` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main([kind, "--print", *settings, *(("--", *train) if train else ())]) == 0
    return out.getvalue()


def committed(kind: str) -> pathlib.Path:
    """The file in launch/ of that kind."""
    return ROOT / "launch" / KINDS[kind].FILE


def programs(folder: pathlib.Path, **texts: str) -> dict[str, str]:
    """Variables of a process that finds these programs before all others."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / name.replace("_", "-")
        path.write_text(text)
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "ARGV_FILE": str(folder / "argv")}


def seen(folder: pathlib.Path) -> list[str]:
    """The arguments that a program of the text ARGV was called with."""
    return (folder / "argv").read_text().split("\0")[:-1]


def run_script(text: str, folder: pathlib.Path, variables: dict[str, str], code: int = 0) -> str:
    """Runs a script in a folder; checks its exit code, returns its output."""
    command = ["bash", "-c", text, "script"]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def tool(name: str) -> str | None:
    """A program beside the interpreter or on the PATH."""
    return shutil.which(name, path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
