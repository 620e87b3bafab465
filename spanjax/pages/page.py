"""A report as one HTML page that needs nothing else: no script, no other file, no network."""

import re
from collections.abc import Iterator, Sequence

from spanjax.cli import escaped
from spanjax.pages.document import Block, Cell, Entry, Figures, Folded, Heading, Headline, Table, Text, Words
from spanjax.pages.style import STYLE

_AFTER = re.compile(r"(?<=[./_])(?=\w)")
_HYPHENATED = re.compile(r"(?<![^\s>])[\w.]+(?:-[\w.]+)+(?![^\s<])")
_MARKS = {
    "box": '<rect x="8" y="0" width="14" height="10" rx="2" fill="{colour}"/>',
    "line": '<path d="M0 5H22" stroke="{colour}" stroke-width="2"/>',
    "dots": '<path d="M0 5H22" stroke="{colour}" stroke-width="2" stroke-dasharray="2 3"/>'
    '<circle cx="11" cy="5" r="3" fill="{colour}"/>',
}
"""Shape of an entry in the legend -> its drawing."""


def _head(cell: Cell) -> str:
    """A head whose words stay whole: "SST-2" is no pair of lines."""
    return _HYPHENATED.sub(r'<span class="whole">\g<0></span>', _cell(cell))


def _words(words: Words) -> str:
    body = escaped(words.text)
    title = f' title="{escaped(words.title)}"' if words.title else ""
    if words.role == "code":
        # a long name may break after a separator, never inside a word
        broken = "<wbr>".join(map(escaped, _AFTER.split(words.text)))
        return f"<code{title}>{broken}</code>"
    if words.role != "text":
        return f'<span class="{words.role}"{title}>{body}</span>'
    return f"<span{title}>{body}</span>" if title else body


def _cell(cell: Cell) -> str:
    return escaped(cell) if isinstance(cell, str) else "".join(map(_words, cell))


def _table(table: Table) -> Iterator[str]:
    kinds = [' class="n"' if table.is_number(column) else "" for column in range(len(table.head))]
    # a caption inside of the table would scroll away with it
    if table.caption:
        yield f'<p class="caption">{escaped(table.caption)}</p>'
    named = f' aria-label="{escaped(table.caption)}"' if table.caption else ""
    yield f'<div class="wide"><table{named}>'
    head = (f"<th{kind}>{_head(name)}</th>" for kind, name in zip(kinds, table.head, strict=True))
    yield f"<thead><tr>{''.join(head)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        cells = (f"<td{kind}>{_cell(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _legend(entries: Sequence[Entry]) -> Iterator[str]:
    if not entries:
        return
    yield '<ul class="legend">'
    for entry in entries:
        mark = _MARKS[entry.mark].format(colour=entry.colour)
        yield f'<li><svg viewBox="0 0 22 10" aria-hidden="true">{mark}</svg>{escaped(entry.label)}</li>'
    yield "</ul>"


def _figures(block: Figures) -> Iterator[str]:
    yield from _legend(block.legend)
    yield f'<div class="figures{" one" if len(block.figures) == 1 else ""}">'
    for figure in block.figures:
        yield "<figure>"
        if figure.title:
            yield f"<figcaption>{_cell(figure.title)}</figcaption>"
        yield figure.svg
        yield from _legend(figure.legend)
        if figure.caption:
            yield f'<p class="small">{escaped(figure.caption)}</p>'
        yield "</figure>"
    yield "</div>"


def _headline(headline: Headline) -> Iterator[str]:
    yield '<ul class="headline">'
    for finding in headline.findings:
        detail = f'<span class="small">{escaped(finding.detail)}</span>' if finding.detail else ""
        yield f"<li>{_cell(finding.words)}{detail}</li>"
    yield "</ul>"


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Heading(level, text):
                yield f"<h{level}>{escaped(text)}</h{level}>"
            case Headline():
                yield from _headline(block)
            case Text(words, small, sample):
                kind = "sample" if sample else "small" if small else ""
                yield f"<p{f' class={kind}' if kind else ''}>{_cell(words)}</p>"
            case Table():
                yield from _table(block)
            case Figures():
                yield from _figures(block)
            case Folded(summary, inside):
                yield f"<details><summary>{escaped(summary)}</summary>"
                yield from _blocks(inside)
                yield "</details>"


def page(blocks: Sequence[Block]) -> str:
    """The whole page."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "report")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style>"
    )
    body = "\n".join(_blocks(blocks))
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n<main>\n{body}\n</main>\n</body></html>\n'
