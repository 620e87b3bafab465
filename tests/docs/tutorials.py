"""python -m tests.docs.tutorials PAGE FOLDER: runs the code of a tutorial in a folder, as a reader would.

A page whose header names a kernel is a notebook: its `{code-cell}` blocks run in one kernel. Of any other page the blocks of bash
run in one shell, one after the other, and a block of Python between them as a program of its own. A block that does not run says
why in a comment above it, `<!-- not run: needs a GPU -->`; a cell then has the tag `skip-execution` too.
"""

import dataclasses
import importlib
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
from typing import Any

from tests.running import ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
SHELL, PYTHON, CELL = ("bash", "sh"), ("python",), "{code-cell}"
_REASON = re.compile(r"<!-- not run: (.*\S) -->")
CELL_SECONDS = 1800


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of code of a page."""

    line: int
    """Line of the page on which its code begins."""
    language: str
    text: str
    reason: str
    """Reason why it does not run; "" if it does."""


def header(text: str) -> str:
    """Returns the YAML header of a page, or ""."""
    found = re.match(r"---\n(.*?)^---\n", text, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


def is_notebook(text: str) -> bool:
    """Returns True for a page whose header names a kernel."""
    return bool(re.search(r"^kernelspec:", header(text), re.MULTILINE))


def blocks(text: str) -> list[Block]:
    """Returns the fenced blocks of a page that name a language, in their order."""
    found: list[Block] = []
    fence, start, language, before = "", 0, "", ""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        mark = re.match(r"(`{3,})\s*(\S*)", line)
        if fence and mark and mark[1] == fence and not mark[2]:
            reason = _REASON.fullmatch(before.strip())
            code = "\n".join(lines[start:number]) + "\n"
            found += [Block(start + 1, language, code, reason[1] if reason else "")] if language else []
            fence, before = "", ""
        elif not fence and mark:
            fence, start, language = mark[1], number + 1, mark[2]
        elif not fence and line.strip():
            before = line
    return found


def problems(text: str) -> list[str]:
    """Lists blocks of a tutorial that would not run and give no reason."""
    found, notebook = [], is_notebook(text)
    if notebook and not re.search(r"format_name: myst$|file_format: mystnb$", header(text), re.MULTILINE):
        found.append("line 1: the header names a kernel without `format_name: myst`: the site would show no cells")
    for block in blocks(text):
        skipped = "skip-execution" in block.text.partition("\n\n")[0]
        if block.language == CELL and not notebook:
            found.append(f"line {block.line}: a cell, but the header of the page names no kernelspec")
        elif block.language == CELL and skipped != bool(block.reason):
            found.append(f"line {block.line}: the tag skip-execution and a comment `not run: REASON` go together")
        elif block.language in (*SHELL, *PYTHON) and notebook and not block.reason:
            found.append(
                f"line {block.line}: a block of a notebook that is no cell: make it one, or say why it is not run"
            )
    return found


def variables() -> dict[str, str]:
    """Returns the environment of a reader who has installed this tree: its commands come first."""
    # flags of the tests make compiled programs slow, and four devices are not what a reader has
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "COLUMNS")}
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TQDM_DISABLE": "1"}


def run_notebook(text: str, folder: pathlib.Path) -> None:
    """Runs the cells of a notebook; raises the error of the first cell that fails."""
    # of the extra `docs`, which reading and running shell pages does not need
    nbclient: Any = importlib.import_module("nbclient")
    read: Any = importlib.import_module("myst_nb.core.read")
    notebook = read.read_myst_markdown_notebook(text)
    client = nbclient.NotebookClient(
        notebook, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=variables() | {"IPYTHONDIR": str(folder / ".ipython")})


def run_page(text: str, folder: pathlib.Path) -> int:
    """Runs the blocks of a page that is no notebook, in one shell; returns its exit code. stderr names the line of each block."""
    code = folder / ".blocks"
    code.mkdir()
    script = ["set -euo pipefail"]
    for block in blocks(text):
        if block.reason or block.language not in (*SHELL, *PYTHON):
            continue
        file = code / f"line_{block.line}.{'py' if block.language in PYTHON else 'sh'}"
        file.write_text(block.text)
        # sourced, so that `cd` and variables of a block hold for the next ones
        script += [
            f"echo 'block of line {block.line}' >&2",
            f"{'python' if file.suffix == '.py' else 'source'} '{file}'",
        ]
    return subprocess.run(["bash", "-c", "\n".join(script)], cwd=folder, env=variables()).returncode


def main(arguments: list[str]) -> int:
    """Runs a page; returns the exit code."""
    page, folder = map(pathlib.Path, arguments)
    text = page.read_text()
    if not is_notebook(text):
        return run_page(text, folder.resolve())
    run_notebook(text, folder.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
