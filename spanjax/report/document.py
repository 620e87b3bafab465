"""Building blocks of a report: headings, text, tables, figures; `page` and `markdown` render them."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

TITLE = "Report of spanjax runs"

ROLES = ("text", "truth", "right", "wrong", "mask", "random", "kept", "boundary", "mark", "paper")
"""Styles of words: plain; the original of a span; a right or wrong prediction; the model's input at a masked token (mask, random,
kept); boundary tokens of a span; marks; quotes from the paper."""


class Words(NamedTuple):
    """Words of one style."""

    text: str
    role: str = "text"


Cell = str | Sequence[Words]


@dataclasses.dataclass(frozen=True)
class Heading:
    """A heading of level 1 (the page's), 2 or 3."""

    level: int
    text: str


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: Cell
    small: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows as wide as the head. The first column holds names; the others hold numbers if `numbers`."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    numbers: bool = True


@dataclasses.dataclass(frozen=True)
class Figure:
    """A drawing; `table` has its numbers for formats without drawings."""

    svg: str
    caption: str
    table: Table


@dataclasses.dataclass(frozen=True)
class Figures:
    """Figures next to each other."""

    figures: Sequence[Figure]


@dataclasses.dataclass(frozen=True)
class Folded:
    """Details for few readers: collapsed behind one line if the format can."""

    summary: str
    blocks: "Sequence[Block]"


Block = Heading | Text | Table | Figures | Folded


def plain(cell: Cell) -> str:
    """The text of a cell alone."""
    return cell if isinstance(cell, str) else "".join(words.text for words in cell)


def number(value: float | None, digits: int = 4) -> str:
    """A number with this many significant digits, "NaN", "inf", or a dash for none."""
    if value is None:
        return "–"
    if value != value:
        return "NaN"
    text = f"{value:,.{digits}g}"
    if "e" in text and 1 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return text


def percent(value: float | None) -> str:
    """A score in percent with one decimal, as the paper's tables have it; "NaN", or a dash for none."""
    if value is None:
        return "–"
    return "NaN" if value != value else f"{value:.1f}"
