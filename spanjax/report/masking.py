"""Masking statistics of a pretraining run next to Figure 2 of the paper, and spans that its checkpoint fills in.

Shapes: B rows, K slots a row.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spanjax.data.feed import masking
from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.host_slice import AnyRows, HostShare
from spanjax.data.feed.mixture import MixedRows
from spanjax.data.feed.rows import open_rows
from spanjax.data.inspect.masking_figures import MaskingCounts, MaskingFigures, span_mean, span_shares
from spanjax.data.inspect.row_figures import parts, some_of
from spanjax.objectives.base import Pretraining
from spanjax.report.document import Block, Figure, Figures, Heading, Table, Text, percent
from spanjax.report.examples import example_blocks
from spanjax.report.groups import Group
from spanjax.report.plot import bar_plot
from spanjax.report.runs import Recorded
from spanjax.run_format import restored

LONGEST = 15  # longest length with a bar of its own


class Opened(NamedTuple):
    """Rows of a run, and their feed settings."""

    rows: AnyRows
    held_out: AnyRows | None
    spec: FeedSpec


def _found(run: Recorded, name: str) -> pathlib.Path:
    """Finds a run's folder of rows by name, relative to where the run was started, to this folder, or to the run's parents."""
    bases = (str(run.settings.get("started_in", "")), "", *run.path.resolve().parents)
    return next((path for base in bases if (path := pathlib.Path(base, name)).is_dir()), pathlib.Path(name))


def opened(run: Recorded) -> Opened:
    """Opens the rows of a run with their masking. ValueError if they are gone, or no longer those of the run."""
    data = run.settings.get("data", {})
    folders = [_found(run, each) for each in data.get("rows", [])]
    gone = [str(folder) for folder in folders if not folder.is_dir()]
    if gone or not folders:
        raise ValueError(f"its rows are not here any more ({', '.join(gone) or 'none named'})")
    splits = [folder / "train" if (folder / "train").is_dir() else folder for folder in folders]
    train = [open_rows(split) for split in splits]
    rows = MixedRows(train, tuple(data.get("weights", ()))) if len(train) > 1 else train[0]
    if rows.manifest.fingerprint != run.settings.get("rows_fingerprint"):
        raise ValueError(f"the rows in {', '.join(map(str, folders))} are not those that it was trained on")
    held_out = [open_rows(folder / "validation") for folder in folders if (folder / "validation").is_dir()]
    objective = restored(run.objective, Pretraining)
    spec = objective.feed_spec(seed=run.seed, batch_size=1, order="uniform")
    return Opened(rows, held_out[0] if held_out else None, spec)


def measured(found: Opened, sample: int) -> MaskingFigures:
    """Measures `sample` training rows, sampled by the run's seed (0: all)."""
    counts = MaskingCounts(found.spec, found.rows.vocabulary.specials, found.rows.manifest.tags)
    share = HostShare(found.rows, found.spec, held_out=True)
    for index_B in parts(some_of(len(found.rows), sample, found.spec.seed)):
        counts.add(*share.masked(index_B))
    return counts.figures()


def span_figure(name: str, figures: MaskingFigures) -> Figure:
    """Draws span lengths, by words and by tokens, next to Figure 2."""
    paper = (0.0, *masking.GeometricSpans().length_distribution().tolist())
    given: dict[str, Sequence[float]] = {"Figure 2 of the paper, words": paper}
    if figures.proposed_words is not None and not np.array_equal(figures.proposed_words, paper):
        given["proposed, tokens" if figures.every_token else "proposed, words"] = figures.proposed_words
    given |= {"measured, words": figures.span_words, "measured, tokens": figures.span_tokens}
    columns = [
        (f"{what}, mean {span_mean(counts):.2f}", [100 * share for share in span_shares(counts, LONGEST)])
        for what, counts in given.items()
    ]
    names = [*map(str, range(1, LONGEST + 1)), "more"]
    title = f"{name}: span lengths, % of spans"
    rows = [[each, *(percent(values[place]) for _, values in columns)] for place, each in enumerate(names)]
    caption = (
        f"{figures.rows:,} rows, {figures.spans:,} spans, {100 * figures.masked_share:.2f} % of the text tokens masked."
        " Figure 2 is the geometric distribution with p = 0.2, cut at 10 words and renormalised. A measured span is a run of"
        " masked tokens: proposals that touch are one, and the last of a block is cut by the budget."
    )
    svg = bar_plot(title, names, columns, "length of the span")
    return Figure(svg, caption, Table(["length", *(what for what, _ in columns)], rows, title))


def masking_blocks(groups: Sequence[Group], sample: int, count: int) -> list[Block]:
    """Builds the section: a figure of the first run of each group of pretraining runs, and `count` examples of its checkpoint."""
    some = [group for group in groups if not group.tuned]
    blocks: list[Block] = [Heading(2, "Masking and what is filled in")] if some else []
    for group in some:
        blocks.append(Heading(3, group.name))
        try:
            found = opened(group.first)
            blocks.append(Figures([span_figure(group.name, measured(found, sample))]))
        except (ValueError, OSError) as error:
            blocks.append(Text(f"No figures and no examples: {error}."))
            continue
        if count:
            rows = found.rows if found.held_out is None else found.held_out
            batch = HostShare(rows, found.spec, held_out=True).masked(np.arange(min(count, len(rows)))).batch
            which = "training rows (none are held out)" if found.held_out is None else "held-out rows"
            blocks += example_blocks(group.first, batch, rows.vocabulary, which)
    return blocks
