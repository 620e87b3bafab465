"""The generated reference pages: they have every command, setting, preset and public name, as a user meets them."""

import ast
import dataclasses
import functools
import inspect
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

import spanjax
from docs import _ext as extension
from docs._ext import commands, presets, settings
from docs._ext.markdown import escaped, prose
from spanjax.__main__ import COMMANDS
from spanjax.run import Run
from spanjax.storage.shipped import presets as shipped_presets
from tests.running import ROOT, environment

BASES = {"Objective", "Task", "MaskingPolicy", "Pairing", "Term", "Optimizer", "Tracker"}
OF_COMMANDS = {"config", "list", "sweep", "workdir", "preset", "dry-run", "compilation-cache"}
"""Options of `train` that are no settings of its run."""


@functools.cache
def page(name: str) -> str:
    """The generated Markdown of a page of the reference."""
    return extension.with_generated(f"<!-- generated: {name} -->")


@functools.cache
def helps() -> dict[tuple[str, ...], str]:
    """The help of every command."""
    return {words: commands.help_text(words) for words, _ in commands.commands()}


def settings_classes() -> set[str]:
    """Names of all frozen dataclasses in the sources that derive from a base of settings."""
    nodes = {
        node.name: node
        for file in (ROOT / "spanjax").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    }

    def derives(name: str) -> bool:
        return name in BASES or (name in nodes and any(derives(ast.unparse(base)) for base in nodes[name].bases))

    frozen = {
        name for name, node in nodes.items() if any("frozen=True" in ast.unparse(each) for each in node.decorator_list)
    }
    return {name for name in frozen if derives(name)}


def parts_of(value: Any) -> list[Any]:
    """A dataclass and all dataclasses inside of it."""
    inner = [getattr(value, field.name) for field in dataclasses.fields(value)]
    nested = [each for part in inner for each in (part if isinstance(part, tuple) else (part,))]
    return [value, *(more for each in nested if dataclasses.is_dataclass(each) for more in parts_of(each))]


def test_every_command_has_a_section() -> None:
    text = page("commands")
    words = [words for words in helps() if words]
    assert {first for first, *_ in words} == set(COMMANDS)
    assert {("prepare", "check-vocab"), ("convert", "to-torch"), ("launch", "slurm"), ("predict", "ner")} <= set(words)
    for each in words:
        heading = f"\n{'#' * (1 + len(each))} spanjax {' '.join(each)}\n"
        assert text.count(heading) == 1, heading
        assert helps()[each] and helps()[each] in text


def test_helps_name_no_path_of_this_machine_and_have_no_colours() -> None:
    for words, text in helps().items():
        assert "\x1b" not in text and str(ROOT) not in text and str(pathlib.Path.home()) not in text, words
        wide = [line for line in text.splitlines() if len(line) > commands.WIDTH and " " in line.strip()]
        assert not wide, (words, wide)


def test_a_help_is_that_of_the_terminal() -> None:
    words = ("convert", "to-torch")
    done = subprocess.run(
        [sys.executable, "-m", "spanjax", *words, "--help"],
        env=environment(1, COLUMNS="80", PYTHONIOENCODING="utf-8"),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert "╭─ options" in done.stdout
    assert done.stdout.split() == helps()[words].split()


def test_wrapped_text_keeps_lists_and_boxes() -> None:
    text = f"A line\nof prose.\n\n  one    {'word ' * 20}\n  two    words\n\n╭{'─' * 78}╮\n│ x{' ' * 76}│\n╰{'─' * 78}╯"
    lines = commands.wrapped(text).splitlines()
    assert (
        lines[:2] == ["A line of prose.", ""] and lines[3].startswith("         word") and lines[4] == "  two    words"
    )
    assert lines[-3:] == text.splitlines()[-3:] and max(map(len, lines)) == 80


def test_every_setting_of_a_run_appears() -> None:
    text = page("settings")
    for part in parts_of(Run()):
        declared = {kind for kind in type(part).__mro__ if dataclasses.is_dataclass(kind)}
        for field in dataclasses.fields(part):
            anchors = [f"{{#{settings.anchor(kind, field)}}}" for kind in declared]
            assert any(anchor in text for anchor in anchors), (type(part).__name__, field.name)


def test_flags_are_those_of_the_help() -> None:
    """Every flag of `train --help` is on the page under its name, with its default."""
    named = set(re.findall(r"`--([\w.-]+)`", page("settings")))
    flags = re.findall(r"^│ (--[^│]+?)\s*│$", helps()[("train",)], re.MULTILINE)
    found = {word.lstrip("-") for line in flags for word in re.findall(r"--[\w.-]+", line)}
    wanted = {
        re.sub(r"\.\d+\.", ".N.", word)
        for word in found
        if not re.search(r"(^|\.)no-", word) and word not in OF_COMMANDS
    }
    assert len(wanted) > 80 and wanted - named == set()


def test_every_class_of_settings_has_a_section() -> None:
    text, classes = page("settings"), settings_classes()
    assert {"MaskedPrediction", "GeometricSpans", "NextSentence", "SpanBoundary", "Coref", "Muon", "Wandb"} <= classes
    shared = {"Task", "SentenceTask"}  # these are abstract and have sections as well
    missing = {name for name in classes | shared if f"\n### {name}\n" not in text}
    # an abstract class without fields has nothing to list
    assert all(not settings.own_fields(_class(name)) for name in missing), missing


def _class(name: str) -> type:
    return next(kind for group in settings.groups() for kind in settings.derived(group.base) if kind.__name__ == name)


def test_every_setting_is_described() -> None:
    text = page("settings")
    entries = re.findall(r"^\[`([^`]+)`\]\{#([^}]+)\}.*: .+; (?:default .+|no default)\n: (.+)", text, re.MULTILINE)
    assert len(entries) == text.count("]{#") > 150
    anchors = [anchor for _, anchor, _ in entries]
    assert len(set(anchors)) == len(anchors)


@dataclasses.dataclass(frozen=True)
class Undocumented:
    """A class with a field that has no docstring."""

    documented: int = 1
    """A number."""
    bare: int = 2


def test_a_setting_without_a_docstring_is_found() -> None:
    assert settings.field_docs(Undocumented) == {"documented": "A number."}
    fields = settings.own_fields(Undocumented)
    written = settings.setting(Undocumented, fields[0], "--x.", settings.field_docs(Undocumented), {})
    assert written == "[`--x.documented`]{#undocumented-documented}: int; default `1`\n: A number."
    with pytest.raises(KeyError, match="bare"):
        settings.setting(Undocumented, fields[1], "--x.", settings.field_docs(Undocumented), {})


def test_every_preset_appears() -> None:
    text = page("presets")
    for name, file in shipped_presets().items():
        first = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()[0]
        assert f"(../../configs/{name}.py)" in text and escaped(first) in text, name
    sections = text.split("\n### ")[1:]
    assert len(sections) == len(shipped_presets())
    assert all(
        "```bash\n" in section and "python -m spanjax.train --config configs/" in section for section in sections
    )
    large = next(each for each in sections if each.startswith("spanbert\\_large\n"))
    assert "| `--encoder.hidden-size` | `1024` |" in large and "`--config spanbert_large`" in large


def test_differences_are_those_to_the_defaults() -> None:
    assert list(presets.differences(Run(), Run())) == []
    run = dataclasses.replace(Run(), steps=7, encoder=dataclasses.replace(Run().encoder, hidden_size=8))
    assert list(presets.differences(run, Run())) == [("--encoder.hidden-size", "8"), ("--steps", "7")]


def test_every_public_name_has_a_signature() -> None:
    text = page("api")
    for name in (name for name in spanjax.__all__ if not name.startswith("__")):
        assert re.search(rf"^:::::\{{py:(function|class)\}} spanjax\.{name}\b", text, re.MULTILINE), name
    model = text.split("} spanjax.TextModel")[1].split("\n:::::\n")[0]
    assert model.count("encode(texts: Sequence[str]") == 6, "its overloads"
    methods = [name for name, _ in inspect.getmembers(spanjax.TextModel) if not name.startswith("_")]
    assert [name for name in methods if not re.search(rf"py:\w+\}} {name}\b", model)] == []


def test_marks_are_replaced_and_pages_have_them() -> None:
    for name in extension.GENERATED:
        assert f"\n<!-- generated: {name} -->\n" in (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    text = extension.with_generated("# A\n\n<!-- generated: presets -->\n\nEnd `<!-- generated: x -->`")
    assert "### albert" in text and text.startswith("# A\n\n## ") and text.endswith("End `<!-- generated: x -->`")
    with pytest.raises(ValueError, match="expected one of api"):
        extension.with_generated("<!-- generated: gone -->")


def test_links_to_the_repository_are_marked() -> None:
    text = "[a](../CHANGELOG.md#x) [b](data.md) [c](../gone.py) [d](https://a.b) [e](../launch)\n```\n[f](../README.md)\n```\n"
    found = extension.with_repository_links(text, ROOT / "docs" / "some.md")
    assert found == text.replace("../CHANGELOG.md", "repository:CHANGELOG.md").replace("../launch", "repository:launch")
    assert "(repository:Makefile)" in extension.with_repository_links(
        "[a](../../Makefile)", ROOT / "docs" / "x" / "y.md"
    )


def test_a_notebook_gets_the_language_of_its_cells() -> None:
    header = "---\nkernelspec:\n  name: python3\n---\n"
    assert extension.with_language(header) == header.replace(":\n  name", ":\n  language: ipython3\n  name")
    assert all(extension.with_language(text) == text for text in ("# A\n", header.replace("name", "language")))


def test_prose_is_escaped() -> None:
    assert escaped("[MASK] and a_b of `x_y` <z>") == r"\[MASK\] and a\_b of `x_y` \<z\>"
    assert (
        escaped("see docs/tasks_coref.md, docs/gone.md")
        == r"see [docs/tasks\_coref.md](../tasks_coref.md), docs/gone.md"
    )
    assert prose("One.\n\n    code()\n\nTwo.") == "One.\n\n```python\ncode()\n```\n\nTwo."
