"""python -m spanjax.prepare show ROWS: a few rows as text, with masked spans, their boundaries and the model's input.

Each block stands on its own, pairs as A and B. On a terminal in colour; a pipe gets the same text, one line a block.
Exit codes: 0 done, 2 wrong input.
"""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
import rich.text
import tyro

from spanjax.bounds import collect, flag_problems, raise_problems
from spanjax.data.feed.batch import Batch
from spanjax.data.feed.host_slice import MaskedRows
from spanjax.data.feed.rows import Rows
from spanjax.data.inspect.as_text import TAG_MARKS, Token, block_tokens, fragments, masked, right_to_left
from spanjax.data.inspect.pair_figures import foreign_pairs
from spanjax.data.shards.record_file import CHECK_SECONDS, whole_rows
from spanjax.prepare.reading import (
    Color,
    Reading,
    coloured_console,
    opened,
    run_command,
    sharer,
)

STYLES = {
    "text": "",
    "special": "dim",
    "mask": "bold red",
    "random": "bold magenta",
    "kept": "bold green",
    "left": "bold cyan",
    "right": "bold blue",
    "both": "bold yellow",
    "offset": "dim",
    "mark": "dim",
}
_TAGGED = ("underline", "italic", "underline2")  # by the layer of tags, of those that are shown


@dataclasses.dataclass(frozen=True)
class Show:
    """Prints a few rows as text."""

    rows: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ROWS")]
    """Folder that `prepare` wrote, of which train/ is taken, or its train/ or validation/."""
    reading: Annotated[Reading, tyro.conf.arg(name="")]
    count: int = 3
    """Number of rows."""
    first: int = 0
    """The first row, in stored order."""
    color: Color = "auto"
    """auto: on a terminal."""


class View(NamedTuple):
    """Rows to show, and facts about their blocks."""

    rows: Rows
    reading: Reading
    found: MaskedRows
    index_B: np.ndarray
    foreign: set[tuple[int, int]]  # (batch index, block) of pairs whose B is from elsewhere
    layers: tuple[int, ...]


def open_view(options: Show) -> View:
    """Reads and masks the rows; one ValueError with everything that is wrong."""
    problems = flag_problems(options.reading)
    rows = opened(options.rows)
    share = collect(problems, sharer, rows, options.reading)
    if options.count < 1:
        problems.append(f"--count {options.count}: expected 1 or more")
    if options.first < 0 or options.first >= len(rows):
        problems.append(f"--first {options.first}: expected 0 to {len(rows) - 1:,}, there are {len(rows):,} rows")
    elif options.count > len(rows) - options.first:
        problems.append(
            f"--count {options.count}: there are {len(rows):,} rows, {len(rows) - options.first:,} from"
            f" --first {options.first} on; ask for fewer"
        )
    raise_problems(problems, "")
    index_B = options.first + np.arange(options.count, dtype=np.int64)
    reading = options.reading
    # Damaged shards give wrong text or an IndexError of masking, so their checksums are compared meanwhile.
    with whole_rows(rows.checks, wait=CHECK_SECONDS):
        found = share.masked(index_B, reading.epoch, reading.step)
        epoch_B = found.keys.epoch_B
        blocks, foreign_M = foreign_pairs(rows, reading.pairing, index_B, epoch_B, reading.seed)
    foreign = {*zip(blocks.row_M[foreign_M].tolist(), blocks.number_M[foreign_M].tolist(), strict=True)}
    tag = reading.masking.at(reading.step).tag
    layers = (rows.manifest.tags.index(tag),) if tag else tuple(range(len(rows.manifest.tags)))
    return View(rows, reading, found, index_B, foreign, layers)


def styled(tokens: list[Token], isolates: bool) -> rich.text.Text:
    """Formats a block or segment as styled text; a pipe gets its `plain`."""
    text = rich.text.Text(end="")
    for part in fragments(tokens, isolates=isolates):
        tagged = " ".join(style for layer, style in enumerate(_TAGGED) if part.tagged >> layer & 1)
        text.append(part.text, f"{STYLES[part.role]} {tagged}".strip())
    return text


def _pair_words(view: View, row: int, segment: int) -> str:
    """Describes the label of the block's pair; "" if the pairing makes no labels."""
    batch, label_name = view.found.batch, view.reading.pairing.label
    if not label_name or not batch["pair_weight_BP"][row, segment - 1]:
        return ", too short for a pair" * bool(label_name)
    label = int(batch["pair_label_BP"][row, segment - 1])
    if (row, segment) in view.foreign:
        what = "B is from elsewhere"
    elif label:
        what = "the segments are swapped"
    else:
        what = "B follows A"
    return f"; {label_name} label {label}: {what}"


def _heading(view: View, row: int, segment: int, tokens: list[Token]) -> str:
    index = int(view.index_B[row])
    texts = sum(token.kind != "special" for token in tokens)
    hidden = [token for token in tokens if masked(token)]
    places = [token.place for token in hidden]
    spans = sum(place - 1 not in places for place in places)
    blocks = int(view.found.batch["segments_BL"][row].max())
    stored = int(view.rows.fetch(view.index_B[row : row + 1]).segments_BL.max())
    if stored > blocks:
        where = f"row {index:,}, {stored} texts as one sequence"
    else:
        document = int(view.rows.block_documents(np.array([index]), np.array([segment]))[0])
        where = f"row {index:,}, block {segment} of {blocks}, document {document:,}"
    share = 100 * len(hidden) / max(1, texts)
    return (
        f"{where}: {texts} tokens, {len(hidden)} masked ({share:.1f} %) in {spans} spans"
        f"{_pair_words(view, row, segment)}"
    )


def legend(view: View) -> rich.text.Text:
    """Legend of the rows."""
    text = rich.text.Text("«original words → ")
    text.append("[MASK]", STYLES["mask"]).append(", ").append("random pieces", STYLES["random"]).append(" or ")
    text.append("the original pieces", STYLES["kept"]).append("», ").append("₀ ₁ ₂", STYLES["offset"])
    text.append(" offsets, ").append("|left|", STYLES["left"]).append(", ").append("|right|", STYLES["right"])
    text.append(" or ").append("|both|", STYLES["both"]).append(" boundaries")
    for place, layer in enumerate(view.layers):
        (begin, end), name = TAG_MARKS[place], view.rows.manifest.tags[layer]
        text.append(f", {begin}").append(name, _TAGGED[place]).append(end)
    return text


def row_texts(view: View, row: int, isolates: bool) -> Iterator[tuple[str, list[tuple[str, rich.text.Text]]]]:
    """Yields every block of a row: its heading, and its segments as text with their names (A and B, or none)."""
    batch: Batch = view.found.batch
    for segment in range(1, int(batch["segments_BL"][row].max()) + 1):
        flags_L = view.found.examples.flags_BL[row]
        tokens = block_tokens(batch, row, segment, view.rows.vocabulary, flags_L, view.layers)
        bidi = isolates and any(right_to_left(token.text) for token in tokens)
        parts = [[token for token in tokens if token.second == second] for second in (False, True)]
        named = [("A", parts[0]), ("B", parts[1])] if parts[1] else [("", tokens)]
        yield _heading(view, row, segment, tokens), [(name, styled(part, bidi)) for name, part in named]


def show(options: Show) -> None:
    """Prints the rows; ValueError with everything that is wrong."""
    view = open_view(options)
    console = coloured_console(options.color)
    terminal = sys.stdout.isatty()
    console.print(legend(view), soft_wrap=not terminal)
    for row in range(options.count):
        for heading, segments in row_texts(view, row, isolates=terminal):
            console.print()
            console.print(rich.text.Text(heading, "bold"), soft_wrap=not terminal)
            for name, text in segments:
                begin = rich.text.Text().append(f"{name}  " * bool(name), "bold")
                console.print(begin.append_text(text), soft_wrap=not terminal)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return run_command("show", Show, show, __doc__, arguments, {"--rows": "--count"})
