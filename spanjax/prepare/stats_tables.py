"""The figures of `prepare stats`, and how they are printed on a terminal: tables, and histograms as bars next to each other."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.table
import rich.text

from spanjax.data.feed.masking import GeometricSpans
from spanjax.data.inspect.masking_figures import KINDS, MaskingFigures, span_mean, span_shares
from spanjax.data.inspect.pair_figures import PairFigures
from spanjax.data.inspect.row_figures import Lengths
from spanjax.data.shards.totals import totals_table

BARS = "▏▎▍▌▋▊▉█"
MEASURED, PAPER = "measured, merged", "the paper's Figure 2"
SEEN = {"mask": "[MASK]", "random": "another piece", "kept": "itself"}
_BEYOND = 5  # measured lengths listed one by one beyond the longest proposal
_MUCH_UNUSED = 0.9  # a smaller used share of the budget gives a warning
_COLOURS = ("cyan", "magenta", "yellow")


@dataclasses.dataclass(frozen=True)
class Figures:
    """All results of `stats`; as a dictionary it is the file."""

    folder: str
    measured: str
    """Split on which lengths, masking and pairs were measured."""
    settings: dict[str, Any]
    """Masking, boundaries and pairing with the names of their classes, seed, epoch and step."""
    totals: dict[str, dict[str, Any]]
    """Totals by split."""
    lengths: dict[str, Lengths]
    """documents, blocks (text tokens) and rows (used positions)."""
    masking: MaskingFigures
    pairs: PairFigures | None
    """None if the pairing makes no pairs."""


def bar(share: float, width: int) -> str:
    """A bar of up to `width` cells, in eighths of a cell; any positive share is visible."""
    eighths = max(round(8 * width * share), 1 if share > 0 else 0)
    return BARS[-1] * (eighths // 8) + (BARS[eighths % 8 - 1] if eighths % 8 else "")


def histogram(first: str, names: Sequence[str], columns: Mapping[str, Sequence[float]], room: int) -> rich.table.Table:
    """Draws shares as bars next to each other, one column per title, on one scale; `room` is the total width."""
    table = rich.table.Table(box=None, pad_edge=False)
    table.add_column(first, justify="right")
    width = max(4, min(36, (room - max(map(len, [first, *names]))) // len(columns) - 10))
    top = max((max(shares, default=0.0) for shares in columns.values()), default=0.0) or 1.0
    for title in columns:
        table.add_column(title, min_width=width + 8)
    for place, name in enumerate(names):
        cells = []
        for number, shares in enumerate(columns.values()):
            share = shares[place]
            cell = rich.text.Text(bar(share / top, width), _COLOURS[number % len(_COLOURS)])
            cells.append(cell.append(f" {100 * share:.{1 if share >= 0.001 else 2}f} %" if share else "", "default"))
        table.add_row(name, *cells)
    return table


def facts(lines: Mapping[str, str]) -> rich.table.Table:
    """Builds a table of names and values."""
    table = rich.table.Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, what in lines.items():
        table.add_row(name, what)
    return table


def _bins(lengths: Lengths) -> list[str]:
    return [f"{low + 1:,}-{high:,}" for low, high in zip(lengths.edges, lengths.edges[1:], strict=False)]


def _length_tables(lengths: Mapping[str, Lengths], room: int) -> list[rich.table.Table]:
    """Builds the tables of lengths; blocks and rows share their bins, documents have their own."""
    tables = []
    for names in (("blocks", "rows"), ("documents",)):
        columns = {}
        for name in names:
            each = lengths[name]
            columns[f"{each.count:,} {name}"] = [count / max(1, each.count) for count in each.counts]
        tables.append(histogram("tokens", _bins(lengths[names[0]]), columns, room))
    quantiles = rich.table.Table(box=None, pad_edge=False)
    for title in ("tokens of", "mean", "least", "quarter", "median", "three quarters", "most"):
        quantiles.add_column(title, justify="left" if title == "tokens of" else "right")
    for name, each in lengths.items():
        quantiles.add_row(name, f"{each.mean:,.1f}", *(f"{quantile:,.0f}" for quantile in each.quantiles))
    return [*tables, quantiles]


def span_columns(figures: MaskingFigures) -> tuple[list[str], dict[str, list[float]]]:
    """Returns the names of span lengths, and their shares among measured, proposed and the paper's spans.

    Lengths well beyond the longest proposal are "more"; those that none reaches are skipped. The policy's own distribution
    and the paper's share one column if they are the same.
    """
    paper = (0.0, *GeometricSpans().length_distribution().tolist())
    proposed, measured = figures.proposed_words, figures.measured_lengths
    longest = max(len(proposed or ()), len(paper)) - 1 + _BEYOND
    names = [*map(str, range(1, longest + 1)), "more"]

    def title(name: str, counts: Sequence[float]) -> str:
        return f"{name}, mean {span_mean(counts):.2f}"

    columns = {title(MEASURED, measured): span_shares(measured, longest)}
    if proposed is not None and len(proposed) == len(paper) and np.allclose(proposed, paper):
        columns[title(f"proposed = {PAPER}", paper)] = span_shares(paper, longest)
    else:
        if proposed is not None:
            columns[title("proposed, drawn" if figures.proposed_drawn else "proposed", proposed)] = span_shares(
                proposed, longest
            )
        columns[title(PAPER, paper)] = span_shares(paper, longest)
    used = 1 + max(place for place in range(len(names)) if any(shares[place] for shares in columns.values()))
    return names[:used], {name: shares[:used] for name, shares in columns.items()}


def masking_facts(figures: MaskingFigures, max_offset: int) -> dict[str, str]:
    """Formats the measured figures as text."""

    def seen(shares: Mapping[str, float]) -> str:
        return ", ".join(f"{SEEN[kind]} {100 * shares[kind]:.1f} %" for kind in KINDS)

    tags = {
        f"tags {name}": f"{100 * shares.text:.1f} % of text tokens are inside, {100 * shares.masked:.1f} % of masked tokens"
        for name, shares in figures.tags.items()
    }
    # Such rows train on far fewer targets than the masking rate promises, so the warning comes first.
    unused = figures.masked_share < _MUCH_UNUSED * figures.budget_share
    warned = {
        "WARNING": "much of the budget is not used, because words are too long for what is left of it (in a language without"
        " blanks a sentence may be one word): --masking.cut exact, --masking tokens, or a vocabulary whose pieces are words"
    }
    return {
        **(warned if unused else {}),
        "masked": f"{100 * figures.masked_share:.2f} % of {figures.text_tokens:,} text tokens"
        f" (the budget is {100 * figures.budget_share:.2f} %)",
        "spans": f"{figures.spans_per_row:.2f} a row, of {figures.tokens_per_span:.2f} tokens and"
        f" {figures.words_per_span:.2f} words",
        "masked tokens seen as": seen(figures.seen_tokens),
        "spans seen as": f"{seen(figures.seen_spans)} (by their first token)",
        "SBO/MLM slots": f"{100 * figures.boundary_share:.1f} % of masked tokens have boundaries",
        "at a block's edge": f"{100 * figures.edge_share:.1f} % of spans",
        "far from the left": f"{100 * figures.beyond_share:.2f} % of masked tokens are at offset {max_offset} or beyond",
        "slots": f"{figures.slots} a row, {100 * figures.slots_used:.1f} % used, at most {figures.most_slots_used}",
        **tags,
    }


def pair_facts(figures: PairFigures) -> dict[str, str]:
    """Formats the figures of pairs as text."""
    return {
        "pairs": f"{figures.pairs:,}; {figures.unpaired_blocks:,} blocks are too short for one",
        f"{figures.label} label 1": f"{100 * figures.label_share:.1f} % of pairs",
        "foreign B": f"{100 * figures.foreign_share:.1f} % of pairs, {100 * figures.foreign_text:.1f} % of the text",
        "segments": f"{figures.first_tokens:.1f} tokens in A, {figures.second_tokens:.1f} in B",
        "text kept": f"{100 * figures.kept_text:.2f} % of the stored text; the rest is cut, or gives way to a foreign B",
    }


def print_figures(console: rich.console.Console, figures: Figures) -> None:
    """Prints everything."""
    room = console.width
    masking, settings = figures.masking, figures.settings

    def section(title: str) -> None:
        console.print(rich.text.Text(f"\n{title}\n", "bold"))

    console.print(rich.text.Text(f"{figures.folder}\n", "bold"))
    console.print(totals_table(figures.totals))
    section(f"lengths of {figures.measured} (text tokens of blocks and documents, used positions of rows)")
    for table in _length_tables(figures.lengths, room):
        console.print(table)
        console.print()
    names, columns = span_columns(masking)
    # A policy that takes every token for a word proposes lengths in tokens, so only those can be compared with it.
    unit = "tokens" if masking.every_token else "words"
    section(
        f"{settings['masking']['class']}, {settings['pairing']['class']}, {masking.rows:,} rows of {figures.measured}"
    )
    pairs = pair_facts(figures.pairs) if figures.pairs else {}
    console.print(facts(masking_facts(masking, settings["boundaries"]["max_offset"]) | pairs))
    section(f"span lengths in {unit}")
    console.print(histogram(unit, names, columns, room))
    console.print(
        "\nA measured span is a run of masked tokens: proposals that touch or overlap are one longer span, and the last of a"
        "\nblock is cut by the budget. What is proposed is "
        + (
            "drawn from the tags of these rows."
            if masking.proposed_drawn
            else "the distribution that the policy draws from."
        ),
        soft_wrap=True,
    )
