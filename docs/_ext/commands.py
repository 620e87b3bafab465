"""Reference page of the commands: the help of each, as a terminal of 80 columns shows it."""

import contextlib
import importlib
import io
import os
import re
import textwrap
from collections.abc import Iterator
from typing import Any
from unittest import mock

from docs._ext.markdown import escaped
from spanjax.__main__ import COMMANDS, main

WIDTH = 80
Words = tuple[str, ...]
_WHOLE: Any = {"break_long_words": False, "break_on_hyphens": False}


def commands() -> Iterator[tuple[Words, str]]:
    """Yields the words of every command and subcommand, with its line of description; the command `spanjax` itself first."""
    yield (), "Lists the commands."
    for name, about in COMMANDS.items():
        yield (name,), about
        module = importlib.import_module(f"spanjax.{name}")
        # kinds of launch files are classes, whose docstrings describe them
        inside = getattr(module, "COMMANDS", None) or getattr(module, "KINDS", {})
        for word, what in inside.items():
            yield (name, word), what if isinstance(what, str) else (what.__doc__ or "").splitlines()[0]


def help_text(words: Words) -> str:
    """Returns what a command prints with --help, without colours."""
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # boxes have lines where the encoding has them
    # a command may set variables of its own, which must not outlive it
    with (
        mock.patch.dict(os.environ, environment | {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}, clear=True),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main([*words, "--help"])
    printed.seek(0)
    return wrapped(printed.read().strip("\n"))


def wrapped(text: str) -> str:
    """Wraps the paragraphs and the lists of a help at the width; its boxes of options have that width already."""
    blocks = []
    for block in re.split(r"\n[ \t]*\n", text):
        lines: list[str] = []
        # lines of a paragraph are one; those that begin with a blank, as in lists and commands, and those of boxes stay apart
        for line in re.sub(r"(?<![│╭╰╮╯])\n(?=[^\s│╭╰])", " ", block).splitlines():
            name = re.match(r"\s*\S+(?: \S+)*\s{2,}|\s*", line)
            hanging = " " * len(name[0]) if name else ""
            long = len(line) > WIDTH
            lines += textwrap.wrap(line, WIDTH, subsequent_indent=hanging, **_WHOLE) if long else [line.rstrip()]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def page() -> str:
    """Returns the Markdown of all commands."""
    parts = []
    for words, about in commands():
        heading = "###" if len(words) > 1 else "##"
        parts += [f"{heading} {' '.join(('spanjax', *words))}", escaped(f"{about[0].upper()}{about[1:].rstrip('.')}.")]
        parts.append(f"```text\n{help_text(words)}\n```")
    return "\n\n".join(parts)
