"""Markdown of docstrings: plain prose with code in backticks, whose other signs must not become markup."""

import pathlib
import re
import textwrap

DOCS = pathlib.Path(__file__).resolve().parents[1]
_SPECIAL = re.compile(r"[\\*_{}\[\]<>#|$~]")
_PARTS = re.compile(r"(`[^`]+`)|\bdocs/([\w/-]+\.md)\b")


def escaped(text: str) -> str:
    """Escapes prose: code in backticks stays, a page of docs/ becomes a link as seen from docs/reference/."""
    parts, start = [], 0
    for found in _PARTS.finditer(text):
        parts.append(_plain(text[start : found.start()]))
        page = found[2]
        known = page and (DOCS / page).is_file()
        parts.append(found[1] or (f"[{_plain(found[0])}](../{page})" if known else _plain(found[0])))
        start = found.end()
    return "".join([*parts, _plain(text[start:])])


def _plain(text: str) -> str:
    return _SPECIAL.sub(lambda sign: f"\\{sign[0]}", text.replace("`", "\\`"))


def prose(docstring: str) -> str:
    """Returns the Markdown of a docstring: paragraphs of prose, indented ones as blocks of code."""
    paragraphs, blocks = re.split(r"\n\s*\n", docstring.strip("\n")), []
    for paragraph in filter(str.strip, paragraphs):
        lines = paragraph.splitlines()
        if all(line.startswith("    ") for line in lines):
            blocks.append(f"```python\n{textwrap.dedent(paragraph)}\n```")
        else:
            blocks.append(escaped(paragraph))
    return "\n\n".join(blocks)


def code(text: str) -> str:
    """Returns text as code in a line of Markdown."""
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"
