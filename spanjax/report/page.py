"""A report as one HTML page that needs nothing else: no script, no other file, no network."""

from collections.abc import Iterator, Sequence

from spanjax.cli import escaped
from spanjax.report.document import Block, Cell, Figures, Folded, Heading, Table, Text

STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8881; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { margin-top: 2.4rem; border-bottom: 1px solid var(--line); } h3 { margin-top: 1.6rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0 1rem; font-size: .9rem; }
caption { text-align: left; padding: .2rem 0; font-weight: 600; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .6rem; text-align: left; vertical-align: top; }
table.numbers th + th, table.numbers td + td { text-align: right; font-variant-numeric: tabular-nums; }
td { overflow-wrap: anywhere; } thead th { background: var(--soft); }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; } figure svg { width: 460px; max-width: 100%; height: auto; }
figcaption, .small { font-size: .85rem; opacity: .8; max-width: 460px; } p.small { max-width: none; }
details { margin: .6rem 0; } summary { cursor: pointer; }
.truth { background: #4477aa33; border-radius: 3px; padding: 0 .1em; } .right { color: #1a7f37; font-weight: 600; }
.wrong { color: #c1121f; } .mask { color: #c1121f; } .random { color: #a0306f; } .kept { color: #1a7f37; }
.boundary { border-bottom: 2px solid #4477aa; } .mark { opacity: .6; } .paper { opacity: .75; font-style: italic; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; } svg .axis { stroke: currentColor; opacity: .5; }
svg .grid { stroke: currentColor; opacity: .12; }
"""


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return escaped(cell)
    return "".join(
        escaped(words.text) if words.role == "text" else f'<span class="{words.role}">{escaped(words.text)}</span>'
        for words in cell
    )


def _table(table: Table) -> Iterator[str]:
    yield f'<div class="wide"><table{" class=" + chr(34) + "numbers" + chr(34) if table.numbers else ""}>'
    if table.caption:
        yield f"<caption>{escaped(table.caption)}</caption>"
    yield f"<thead><tr>{''.join(f'<th>{escaped(name)}</th>' for name in table.head)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>"
    yield "</tbody></table></div>"


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Heading(level, text):
                yield f"<h{level}>{escaped(text)}</h{level}>"
            case Text(words, small):
                yield f"<p{' class=small' if small else ''}>{_cell(words)}</p>"
            case Table():
                yield from _table(block)
            case Figures(figures):
                yield '<div class="figures">'
                for figure in figures:
                    yield f"<figure>{figure.svg}<figcaption>{escaped(figure.caption)}</figcaption></figure>"
                yield "</div>"
            case Folded(summary, inside):
                yield f"<details><summary>{escaped(summary)}</summary>"
                yield from _blocks(inside)
                yield "</details>"


def page(blocks: Sequence[Block]) -> str:
    """The whole page."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "report")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style>"
    )
    body = "\n".join(_blocks(blocks))
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'
