"""A report as Markdown: the same words and tables; a figure is a table of some of its numbers."""

import re
from collections.abc import Iterator, Sequence

from spanjax.pages.document import Block, Cell, Figures, Folded, Heading, Headline, Table, Text

_SIGNS = re.compile(r"[\\`*_\[\]|~#]")
_AROUND = {
    "truth": ("**", "**"),
    "right": ("**", "**"),
    "wrong": ("~~", "~~"),
    "paper": ("*", "*"),
    "value": ("**", "**"),
}


def escaped(text: str) -> str:
    """Text as words of one line of Markdown, in a table or out of it."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return _SIGNS.sub(r"\\\g<0>", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return escaped(cell)
    parts = []
    for words in cell:
        body = escaped(words.title if words.role == "short" else words.text)
        before, after = _AROUND.get(words.role, ("", "")) if body else ("", "")
        parts.append(
            " " * words.text.startswith(" ") + before + body + after + " " * (words.text.endswith(" ") and bool(body))
        )
    return "".join(parts)


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield f"**{escaped(table.caption)}**\n"
    yield "| " + " | ".join(map(_cell, table.head)) + " |"
    yield "|" + "|".join("---:" if table.is_number(column) else "---" for column in range(len(table.head))) + "|"
    for row in table.rows:
        yield "| " + " | ".join(_cell(cell) for cell in row) + " |"
    yield ""


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Heading(level, text):
                yield f"{'#' * level} {escaped(text)}\n"
            case Headline(findings):
                yield from (f"- {_cell(each.words)}. {escaped(each.detail)}".rstrip() for each in findings)
                yield ""
            case Text(words):
                yield f"{_cell(words)}\n"
            case Table():
                yield from _table(block)
            case Figures(figures):
                for figure in figures:
                    yield from _table(figure.table)
                    if figure.caption:
                        yield f"{escaped(figure.caption)}\n"
            case Folded(summary, inside):
                yield f"<details><summary>{escaped(summary)}</summary>\n"
                yield from _blocks(inside)
                yield "</details>\n"


def markdown(blocks: Sequence[Block]) -> str:
    """The whole text."""
    return "\n".join(_blocks(blocks)) + "\n"
