"""The writing guide as far as a program can check it: how docstrings begin, phrases, and a reason in every long function."""

import ast
import io
import pathlib
import re
import tokenize
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.unit

ROOT = pathlib.Path(__file__).resolve().parents[1]
OPENINGS = ("What", "Which", "Where", "Whether", "Why", "Those", "Of", "See", "How")
"""A docstring begins with a verb ("Returns ...", "Builds ...") or a noun phrase, never with one of these."""
PHRASES = {
    "is said": "is reported, or who says it",
    "are said": "are reported, or who says them",
    "goes on": "resumes, continues",
    "go on": "resume, continue",
    "gone on": "continued, resumed",
    "belongs into": "goes into",
    "belong into": "go into",
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
    "asks for": "requests, needs",
    "in words": "as text, human-readable",
    "hands on": "passes",
    "hand on": "pass",
    "handed on": "passed",
    "hands over": "passes, dispatches",
    "hand over": "pass, dispatch",
    "holds up": "blocks, delays",
    "hold up": "block, delay",
    "left out": "skipped",
    "leaves out": "skips",
    "leave out": "skip",
    "recomputation": "rematerialisation",
    "the pace": "the schedule",
    "place in the batch": "batch index",
    "processes meet": "rendezvous",
}
"""Phrase -> what to write instead, in docstrings, comments, messages and pages."""
BANNED = {
    "Applied": "TaskModel",
    "Built": "CompiledRun",
    "Law": "SpanSampler",
    "LawText": "SpanSampler",
    "Pulse": "Watchdog",
    "Room": "Scratch, or what it limits",
    "Scene": "RelativeContext",
    "Set": "EncodedExamples",
    "Sight": "AttentionMask",
    "Start": "InitialWeights",
    "Steady": "ResilientWriter",
    "Turns": "RotaryAngles",
    "beats": "heartbeats",
    "carried": "recurrent_state",
    "decided": "inferred_settings",
    "fitted": "with_training_labels, or what is made to fit",
    "gated": "gated_mlp",
    "groups_of_layers": "num_layer_groups",
    "judge": "selection_metric, evaluate",
    "judged": "eval_history, evaluated",
    "known_nothing": "baseline_losses",
    "measure_carrying": "losses_with_state",
    "rotary": "rope_theta",
    "said": "notes, message",
    "shown": "metrics, or what is listed",
    "stalls": "stall detection",
    "together": "collective_call",
    "told": "notes, message",
    "turned": "apply_rotary",
    "turns_of": "rotary_angles",
    "whole_scene": "full_context",
}
"""Identifier -> the field's name for it: the left column of the lexicon, without words that are often right."""
LONG = 25  # lines of a function that has a comment
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "launch/README.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
OTHER_PAGES = ("errors.md",)
"""Pages that are not checked: the page of messages, which the messages' own test writes."""


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
    tree, found = ast.parse(text), list[tuple[int, str]]()
    for line, docstring in docstrings(tree):
        first = re.match(r"\w+", docstring.strip())
        if first and first[0] in OPENINGS:
            found.append((line, f"a docstring begins with {first[0]!r}: begin with a verb or a noun phrase"))
    texts = [(node.lineno, node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    read = list(tokens(text))
    comments = {token.start[0]: token.string for token in read if token.type == tokenize.COMMENT}
    names = [token for token in read if token.type == tokenize.NAME]
    for line, said in [*comments.items(), *((line, value) for line, value in texts if isinstance(value, str))]:
        found += [(line, f"{phrase!r}: write {better}") for phrase, better in PHRASES.items() if found_in(said, phrase)]
    found += [
        (name.start[0], f"the name {name.string}: write {BANNED[name.string.lstrip('_')]}")
        for name in names
        if name.string.lstrip("_") in BANNED
    ]
    found += [
        (name.start[0], f"the name {name.string}: end it with from_hf or to_hf")
        for name in names
        if name.string.lstrip("_").startswith(("our_", "their_"))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if len(own) > LONG and not comments.keys() & set(own):
                found.append((node.lineno, f"{node.name} has {len(own)} lines and no comment that says why"))
    return [f"{path}:{line} {problem}" for line, problem in sorted(found)]


def page_problems(path: pathlib.Path) -> list[str]:
    """Phrases of a page outside of blocks of code, with the line and what to write."""
    text = re.sub(
        r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), path.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    places = ((match.start(), phrase) for phrase in PHRASES for match in found_in(text, phrase))
    return [
        f"{path}:{text.count(chr(10), 0, at) + 1} {phrase!r}: write {PHRASES[phrase]}" for at, phrase in sorted(places)
    ]


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """Those of Python's own reader, which knows a comment from a string."""
    return tokenize.generate_tokens(io.StringIO(text).readline)


def found_in(text: str, phrase: str) -> list[re.Match[str]]:
    """Returns where the text has the phrase as words, over line breaks too."""
    first, *_ = words = phrase.split()
    # most texts do not have the word at all, and a search costs far more than this question
    return list(re.finditer(r"\b" + r"\s+".join(words) + r"\b", text)) if first in text else []


ROOMS = sorted({path.parent if path.parent != ROOT / "spanjax" else path for path in (ROOT / "spanjax").rglob("*.py")})


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT / "spanjax")))
def test_the_guide_is_kept(room: pathlib.Path) -> None:
    files = sorted(room.glob("*.py")) if room.is_dir() else [room]
    found = [problem for file in files for problem in problems(file)]
    assert files and not found, f"{len(found)}:\n" + "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_keep_the_guide(page: pathlib.Path) -> None:
    found = page_problems(page) if page.name not in OTHER_PAGES else []
    assert not found, f"{len(found)}:\n" + "\n".join(found)


def test_a_page_that_breaks_the_guide_is_found(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.md").write_text("# A page\n\n```\nit goes on\n```\nA run goes\non, and `x` is said.\n")
    assert [problem.split(" ", 1)[1].split(":")[0] for problem in page_problems(tmp_path / "a.md")] == [
        "'goes on'",
        "'is said'",
    ]
    assert page_problems(tmp_path / "a.md")[0].startswith(f"{tmp_path / 'a.md'}:6 ")


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
        ('"""A module."""\nx = f"{1} has to be 2"\n', ":2 'has to': write must"),
        ('"""A module."""\ndef f():\n' + "    x = 1\n" * 25, "f has 26 lines and no comment"),
        ('"""A module."""\nshown = 1\n', ":2 the name shown: write metrics"),
        ('"""A module."""\ndef _our_config(): pass\n', ":2 the name _our_config: end it with from_hf"),
    ],
)
def test_a_text_that_breaks_the_guide_is_found(text: str, said: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.py").write_text(text)
    assert said in "\n".join(problems(tmp_path / "a.py"))


def test_plain_text_passes(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.py").write_text('"""Builds a session."""\ndef f():\n    # a reason\n' + "    x = 'has two'\n" * 30)
    assert problems(tmp_path / "a.py") == []


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:]:
        print(*problems(pathlib.Path(name)), sep="\n")
