"""The writing guide as far as a program can check it: how docstrings begin, phrases, and a reason in every long function."""

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
OPENINGS = ("What", "Which", "Where", "Whether", "Why", "Those", "Of", "See", "How")
"""A docstring begins with a verb ("Returns ...", "Builds ...") or a noun phrase, never with one of these."""
PHRASES = {
    "is said": "is reported, or who says it",
    "are said": "are reported, or who says them",
    "goes on": "resumes, continues",
    "go on": "resume, continue",
    "belongs into": "goes into",
    "by itself": "on its own, automatically",
    "by themselves": "on their own",
    "that is there": "existing",
    "that are there": "existing",
    "not there": "missing",
    "as it stands": "unchanged",
    "has to": "must",
    "have to": "must",
    "laid out": "sharded, arranged",
    "laid onto": "initialised from",
    "asked for": "requested",
    "in words": "as text, human-readable",
    "hands on": "passes",
    "hands over": "passes, dispatches",
    "holds up": "blocks, delays",
    "left out": "skipped",
}
"""Phrase -> what to write instead, in docstrings and comments."""
LONG = 25  # lines of a function that has a comment


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring: of modules, classes, functions, and below fields and constants."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not body:
            continue
        for place, part in enumerate(body):
            text = part.value.value if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) else None
            below = place > 0 and isinstance(body[place - 1], ast.Assign | ast.AnnAssign)
            if isinstance(text, str) and (place == 0 or below):
                yield part.lineno, text


def problems(path: pathlib.Path) -> list[str]:
    """Everything in a file that the guide refuses, with the line and what to write."""
    text = path.read_text()
    tree, found = ast.parse(text), []
    lines = text.splitlines()
    for line, docstring in docstrings(tree):
        first = re.match(r"\w+", docstring.strip())
        if first and first[0] in OPENINGS:
            found.append((line, f"a docstring begins with {first[0]!r}: begin with a verb or a noun phrase"))
        found += [
            (line, f"{phrase!r}: write {better}") for phrase, better in PHRASES.items() if says(docstring, phrase)
        ]
    for number, line in enumerate(lines, start=1):
        comment = line.partition("# ")[2] if line.lstrip().startswith("#") or "  # " in line else ""
        found += [
            (number, f"{phrase!r}: write {better}") for phrase, better in PHRASES.items() if says(comment, phrase)
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = lines[node.lineno - 1 : node.end_lineno]
            if len(own) > LONG and not any("# " in line for line in own):
                found.append((node.lineno, f"{node.name} has {len(own)} lines and no comment that says why"))
    return [f"{path}:{line} {problem}" for line, problem in sorted(found)]


def says(text: str, phrase: str) -> bool:
    """Whether the text has the phrase as words, over line breaks too."""
    return re.search(r"\b" + r"\s+".join(phrase.split()) + r"\b", text) is not None


def test_the_guide_is_kept() -> None:
    found = [problem for path in sorted((ROOT / "spanjax").rglob("*.py")) for problem in problems(path)]
    assert not found, f"{len(found)}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"""What is shown."""\n', "begins with 'What'"),
        (
            '"""A module."""\nclass A:\n    """A."""\n    x: int = 0\n    """Whether it is."""\n',
            ":5 a docstring begins",
        ),
        ('"""A run that goes\non."""\n', "'goes on': write resumes"),
        ('"""A module."""\nx = 1  # as it stands\n', ":2 'as it stands': write unchanged"),
        ('"""A module."""\ndef f():\n' + "    x = 1\n" * 25, "f has 26 lines and no comment"),
    ],
)
def test_a_text_that_breaks_the_guide_is_found(text: str, said: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.py").write_text(text)
    assert said in "\n".join(problems(tmp_path / "a.py"))


def test_plain_text_passes(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.py").write_text('"""Builds a session."""\ndef f():\n    # a reason\n' + "    x = 'has to'\n" * 30)
    assert problems(tmp_path / "a.py") == []


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:]:
        print(*problems(pathlib.Path(name)), sep="\n")
