"""Building blocks of a report: headings, text, tables, figures; `page` and `markdown` render them."""

import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

TITLE = "Report of spanjax runs"

ROLES = (
    "text",
    "truth",
    "right",
    "wrong",
    "mask",
    "random",
    "kept",
    "boundary",
    "mark",
    "paper",
    "code",
    "short",
    "value",
)
"""Styles of words: plain; the original of a span; a right or wrong prediction; the model's input at a masked token (mask, random,
kept); boundary tokens of a span; marks; quotes from the paper; names of settings and metrics; a shortened value; a result."""
SHORT = 12  # letters of a fingerprint that a reader compares
_FINGERPRINT = re.compile(r"[0-9a-f]{40,}")


class Words(NamedTuple):
    """Words of one style."""

    text: str
    role: str = "text"
    title: str = ""
    """Tooltip: the raw name behind a label, or the whole of a shortened value."""


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
    sample: bool = False
    """Text of a row, set apart from the report's own."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows as wide as the head. The first `names` columns hold words; the others hold numbers if `numbers`."""

    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    numbers: bool = True
    names: int = 1

    def is_number(self, column: int) -> bool:
        """True for a column of numbers, which are aligned at their right."""
        return self.numbers and column >= self.names


@dataclasses.dataclass(frozen=True)
class Figure:
    """A drawing; `table` has its numbers for formats without drawings."""

    svg: str
    caption: str
    table: Table
    title: Cell = ""
    legend: "Sequence[Entry]" = ()
    """Entries of this figure alone."""


class Entry(NamedTuple):
    """An entry of a legend."""

    label: str
    colour: str = "currentColor"
    mark: str = "box"
    """Its shape in the figures: a `box`, a `line`, or a dotted line with `dots`."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """Figures next to each other."""

    figures: Sequence[Figure]
    legend: Sequence[Entry] = ()
    """Entries that all figures share."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A result in a sentence, and a second one on where it comes from."""

    words: Cell
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Headline:
    """The results that a reader looks for first."""

    findings: Sequence[Finding]


@dataclasses.dataclass(frozen=True)
class Folded:
    """Details for few readers: collapsed behind one line if the format can."""

    summary: str
    blocks: "Sequence[Block]"


Block = Heading | Text | Table | Figures | Folded | Headline


def plain(cell: Cell) -> str:
    """The text of a cell alone."""
    return cell if isinstance(cell, str) else "".join(words.text for words in cell)


def code(text: str) -> Cell:
    """A name or value verbatim; fingerprints are shortened."""
    if not _FINGERPRINT.search(text):
        return [Words(text, "code")]
    return [Words(_FINGERPRINT.sub(lambda found: f"{found[0][:SHORT]}…", text), "short", text)]


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
