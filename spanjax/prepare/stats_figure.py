"""Draws the figures of `prepare stats`: span lengths next to the paper's Figure 2, replacement, offsets, lengths."""

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from spanjax.data.inspect.masking_figures import KINDS, MaskingFigures
from spanjax.data.inspect.row_figures import Lengths
from spanjax.prepare.stats_tables import MEASURED, SEEN, Figures, span_columns

_COLOURS = ("#4477aa", "#cc6677", "#ddaa33")
_OFFSETS = 24  # that are drawn


def _span_lengths(axes: Axes, figures: MaskingFigures) -> None:
    names, columns = span_columns(figures)
    width = 0.8 / len(columns)
    for number, (name, shares) in enumerate(columns.items()):
        title = name.replace(MEASURED, "measured (proposals that touch are one, the last is cut by the budget)")
        places = np.arange(len(names)) + (number - (len(columns) - 1) / 2) * width
        axes.bar(places, 100 * np.array(shares), width, label=title, color=_COLOURS[number])
    axes.set_xticks(np.arange(len(names)), names)
    axes.set_xlabel(f"span length in {'tokens' if figures.every_token else 'words'}")
    axes.set_ylabel("% of spans")
    axes.set_title("Span lengths: measured, as the policy proposes them, and in the paper")
    axes.legend(frameon=False)


def _seen(axes: Axes, figures: MaskingFigures, asked: dict[str, float]) -> None:
    kept = 1 - asked["mask"] - asked["random"]
    series = {
        "of tokens": [figures.seen_tokens[kind] for kind in KINDS],
        "of spans": [figures.seen_spans[kind] for kind in KINDS],
        "requested": [asked["mask"], asked["random"], kept],
    }
    for number, (title, shares) in enumerate(series.items()):
        drawn = axes.bar(
            np.arange(3) + (number - 1) * 0.27, 100 * np.array(shares), 0.27, label=title, color=_COLOURS[number]
        )
        axes.bar_label(drawn, fmt="%.1f", fontsize=8)
    axes.margins(y=0.1)
    axes.set_xticks(np.arange(3), [SEEN[kind] for kind in KINDS])
    axes.set_ylabel("%")
    axes.set_title("What the model sees of masked tokens")
    axes.legend(frameon=False)


def _offsets(axes: Axes, figures: MaskingFigures, max_offset: int) -> None:
    counts = np.array(figures.offsets[:_OFFSETS])
    places = np.arange(len(counts))
    colours = [_COLOURS[0] if place < max_offset else "#bbbbbb" for place in places]
    axes.bar(places, 100 * counts / max(1, figures.masked_tokens), color=colours)
    axes.set_xlabel(f"offset in the span, from the left boundary (none used from {max_offset} on)")
    axes.set_ylabel("% of masked tokens")
    axes.set_title(f"Offsets; {100 * figures.boundary_share:.1f} % of masked tokens have boundaries")


def _lengths(axes: Axes, lengths: dict[str, Lengths], what: str) -> None:
    width = 0.8 / len(lengths)
    edges: tuple[int, ...] = ()
    for number, (name, each) in enumerate(lengths.items()):
        edges = each.edges
        places = np.arange(len(each.counts)) + (number - (len(lengths) - 1) / 2) * width
        title = f"{each.count:,} {name}, mean {each.mean:,.0f}"
        shares = 100 * np.array(each.counts) / max(1, each.count)
        axes.bar(places, shares, width, label=title, color=_COLOURS[number])
    names = [f"{low + 1:,}–{high:,}" for low, high in zip(edges, edges[1:], strict=False)]
    axes.set_xticks(np.arange(len(names)), names, rotation=30, ha="right", fontsize=8)
    axes.set_xlabel("tokens")
    axes.set_ylabel("%")
    axes.set_title(f"Lengths of {what}")
    axes.legend(frameon=False)


def draw(figures: Figures, file: str) -> None:
    """Draws all figures into a PNG file."""
    figure = matplotlib.figure.Figure(figsize=(14, 11), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(3, 2, height_ratios=(1.2, 1, 1))
    settings = figures.settings
    _span_lengths(figure.add_subplot(grid[0, :]), figures.masking)
    _seen(figure.add_subplot(grid[1, 0]), figures.masking, settings["masking"]["replacement"])
    _offsets(figure.add_subplot(grid[1, 1]), figures.masking, settings["boundaries"]["max_offset"])
    both = {name: figures.lengths[name] for name in ("blocks", "rows")}
    _lengths(figure.add_subplot(grid[2, 0]), both, "blocks (text) and rows (used positions)")
    _lengths(figure.add_subplot(grid[2, 1]), {"documents": figures.lengths["documents"]}, "documents (text)")
    figure.suptitle(
        f"{settings['masking']['class']}, {settings['pairing']['class']}: {figures.masking.rows:,} rows of"
        f" {figures.measured}, {100 * figures.masking.masked_share:.2f} % masked"
    )
    figure.savefig(file)
