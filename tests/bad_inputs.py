"""Wrong inputs: what a case is, how it is run, how the table of messages is written.

`tests/bad_inputs_run.py` and its neighbours hold the cases; `tests/test_bad_inputs.py` runs them.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import spanjax
from tests.running import ROOT, environment, shrunk

DEMO = str(ROOT / "configs/pretrain/demo.py")
TITLE = """# Messages for wrong input

This page lists the messages and exit codes of every command for wrong input. Each command has a
section. Search the page for the words of your message; the left column names the cause.

No wrong input of this page loses a file: existing files keep their bytes.

`tests/test_bad_inputs.py` gives every command these inputs, on four devices, and writes the tables. A
changed message fails the test until you write the page again:

```
SPANJAX_WRITE_ERRORS=1 .venv/bin/python -m pytest tests/test_bad_inputs.py
```

In the tables, paths lack the folders of the test. `HEX` is a fingerprint, `N` a size, and `...` text
of another library.
"""
TITLES = frozenset({"Value error", "Invalid choice", "Required options", "Unrecognized options", "Parsing error"})
"""First lines of what tyro says, which has its own form."""
BOX = re.compile(r"[\u2500-\u257f]+")


@dataclasses.dataclass(frozen=True)
class World:
    """Good inputs to make bad ones of; `here` is the empty folder of the case."""

    here: pathlib.Path
    rows: pathlib.Path
    run: pathlib.Path
    weights: pathlib.Path
    corpus: pathlib.Path
    tuned: pathlib.Path
    """A run of fine-tuning on sentences with the labels no and yes."""

    def copy(self, name: str) -> pathlib.Path:
        """A copy of "rows", "run" or "weights" in the folder of the case."""
        return pathlib.Path(shutil.copytree(getattr(self, name), self.here / name))

    def write(self, name: str, content: str | bytes) -> pathlib.Path:
        """A file in the folder of the case."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def train(self, *more: str, rows: Any = None, workdir: str = "work") -> list[str]:
        """The arguments of a training that would do two steps."""
        given = shrunk(DEMO, rows or self.rows, self.here / workdir, 2, "--data.feed=numpy")
        names = {word.split("=")[0] for word in more}
        return [*(word for word in given if word.split("=")[0] not in names), *more]

    def prepare(self, *more: str, **options: Any) -> list[str]:
        """The arguments of a prepare; `options` replace the good ones, None leaves one out."""
        good = {"input": self.corpus, "train_vocab": 120, "length": 64, "workers": 1, "output": self.here / "out"}
        words = [
            [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
            for name, value in (good | options).items()
            if value is not None
        ]
        return [*(word for each in words for word in each), *more]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One wrong input."""

    command: str
    """train, or "prepare rows", "convert to-torch", ..."""
    wrong: str
    """What is wrong, in words."""
    words: tuple[str, ...]
    """What the message has to hold: the value, what was expected, the remedy."""
    arguments: Callable[[World], list[Any]]
    """Makes the input and returns the words of the command line."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    apart: bool = False
    """In a process of its own: jax reads the variables when it is imported."""
    moves: bool = False
    """Files may be moved; their contents are all kept."""
    library: str = ""
    """A pattern of another library's words, left out of the table."""
    code: int = 2

    @property
    def name(self) -> str:
        """For the test's id."""
        return f"{self.command}: {self.wrong}"


@dataclasses.dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    error: str


def _in_process(case: Case, words: list[str]) -> Said:
    """Runs `main` here; what it and tyro write to stderr."""
    package, *rest = case.command.split()
    main = importlib.import_module(f"spanjax.{package}").main
    said = io.StringIO()
    with (
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
        mock.patch.dict(os.environ, {"COLUMNS": "2000", **case.variables}),
    ):
        try:
            code = main([*rest, *words])
        except SystemExit as end:
            code = int(end.code or 0)
    return Said(code, said.getvalue())


def _in_another(case: Case, words: list[str]) -> Said:
    package, *rest = case.command.split()
    program = [sys.executable, "-m", f"spanjax.{package}", *rest, *words]
    done = subprocess.run(
        program,
        cwd=ROOT,
        env=environment(4, **case.variables),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return Said(done.returncode, done.stderr)


def run(case: Case, world: World) -> Said:
    """Gives the command the wrong input. AssertionError where anything that was there is not as it was, or something is left."""
    words = [str(word) for word in case.arguments(world)]
    before = contents(world.here)
    said = (_in_another if case.apart else _in_process)(case, words)
    after = contents(world.here)
    if case.moves:
        assert set(before.values()) <= set(after.values()), "a file was lost"
    else:
        assert after == before, f"changed or left behind: {sorted(set(after.items()) ^ set(before.items()))}"
    return said


def contents(folder: pathlib.Path) -> dict[str, str]:
    """Name -> digest of every file but locks, "folder" of every folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if path.name != "run.lock"
    }


def plain(text: str) -> str:
    """A message without tyro's frame, the choices that it lists in an order of their own."""
    lines = [BOX.sub(" ", line).strip() for line in text.splitlines()]
    whole = "\n".join(line for line in lines if line.strip("-"))
    return re.sub(r"(?<=Expected one of \().*?(?=\))", lambda found: ", ".join(sorted(found[0].split(", "))), whole)


def shortened(text: str, world: World) -> str:
    """Paths without the folders of the test."""
    for path in (
        world.here,
        world.rows.parent,
        world.run.parent,
        world.weights.parent,
        world.corpus.parent,
        world.tuned.parent,
        ROOT,
    ):
        text = text.replace(f"{path}/", "").replace(str(path), ".")
    return text


def shown(case: Case, said: Said, world: World) -> str:
    """The message as the table has it: the same on every machine."""
    text = shortened(plain(said.error), world).replace(spanjax.__version__, "VERSION")
    text = re.sub(r"\b[\d,]+ bytes", "N bytes", re.sub(r"\b[0-9a-f]{16,}\b", "HEX", text))
    return re.sub(case.library, "...", text, flags=re.DOTALL) if case.library else text


def problems(case: Case, said: Said, world: World) -> list[str]:
    """What is wrong with a message; empty when it is good."""
    text, found = shortened(plain(said.error), world), []
    if said.code != case.code:
        found.append(f"exit code {said.code}, expected {case.code}")
    if "Traceback" in text:
        found.append("a traceback")
    lacking = [word for word in case.words if word not in text]
    if lacking:
        found.append(f"the message lacks {lacking}")
    if not case.words:
        found.append("the case expects no words")
    prefix = text.split(":")[0]
    if text.partition("\n")[0] not in TITLES:
        told = [line for line in text.splitlines() if line.startswith(f"{prefix}: ")]
        if not prefix or " " in prefix.replace("prepare vocab", "prepare") or len(told) != 1:
            found.append("expected one message that begins with the name of the command")
    return found


def cell(text: str) -> str:
    """Text in a cell of a Markdown table."""
    for mark, replaced in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_")):
        text = text.replace(mark, replaced)
    return text.replace("\n", "<br>")


def page(lines: Mapping[Case, str]) -> str:
    """docs/errors.md."""
    parts = [TITLE]
    for command in dict.fromkeys(case.command for case in lines):
        parts.append(f"\n## {command}\n\n| what was wrong | the message | exit |\n|---|---|---|\n")
        parts += [
            f"| {cell(case.wrong)} | {cell(message)} | {case.code} |\n"
            for case, message in lines.items()
            if case.command == command
        ]
    return "".join(parts)
