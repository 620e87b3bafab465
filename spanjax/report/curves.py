"""Curves of runs over steps, a figure for each number: losses of every term in training and held out, scores, rate, speed."""

import math
from collections.abc import Iterator, Sequence

from spanjax.report.document import Block, Figure, Figures, Heading, Table, Text, number
from spanjax.report.plot import POINTS, Line, Scale, colours, line_plot, thinned
from spanjax.report.runs import Group, LogRecord, Recorded
from spanjax.tasks.base import SCORE

OTHERS: tuple[tuple[str, str, Scale], ...] = (
    ("learning_rate", "learning rate", "zero"),
    ("gradient_norm", "norm of the gradient", "auto"),
    ("speed/tokens_per_s", "tokens per second", "zero"),
    ("speed/mfu", "model FLOPs utilisation (MFU)", "zero"),
    ("speed/data_wait", "share of the time spent waiting for data", "zero"),
    ("speed/goodput", "share of the time in steps that counted", "zero"),
)
SHOWN = 8  # steps of a curve that a table tells


def _names(runs: Sequence[Recorded]) -> list[str]:
    """Losses and accuracies of terms, then the total and the scores of evaluations."""
    found = {name for run in runs for record in (*run.training, *run.evaluations) for name in record.values}
    terms = sorted(name for name in found if name.endswith(("/loss", "/accuracy")) and not name.startswith("speed/"))
    held_out = {name for run in runs for record in run.evaluations for name in record.values}
    return [*terms, *(["loss"] if "loss" in held_out else []), *sorted(n for n in held_out if n.startswith(SCORE))]


def _curve(records: Sequence[LogRecord], name: str) -> tuple[list[int], list[float]]:
    """Steps and values; NaN for a record of training without the value."""
    return [record.step for record in records], [record.values.get(name, math.nan) for record in records]


def _lines(groups: Sequence[Group], name: str) -> Iterator[Line]:
    for group, colour in zip(groups, colours(len(groups)), strict=True):
        caption = f"{group.name}, {len(group.runs)} seeds" if len(group.runs) > 1 else group.name
        for run in group.runs:
            own = f"{group.name}, seed {run.seed}"
            if any(name in record.values for record in run.training):
                yield Line(caption, colour, *_curve(run.training, name), name=own)
            held_out = [record for record in run.evaluations if name in record.values]
            if held_out:
                yield Line(
                    f"{caption}, held out", colour, *_curve(held_out, name), dotted=True, name=f"{own}, held out"
                )


def _table(title: str, lines: Sequence[Line]) -> Table:
    """Some points of every curve: its first, its last, and evenly spaced ones between."""
    rows = []
    for line in lines:
        points = [(step, value) for step, value in zip(line.steps, line.values, strict=True) if math.isfinite(value)]
        if not points:
            continue
        places = sorted({round(i * (len(points) - 1) / (SHOWN - 1)) for i in range(SHOWN)})
        values = ", ".join(f"{points[at][0]:,}: {number(points[at][1])}" for at in places)
        least, most = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
        rows.append([line.name or line.label, values, number(least[1]), number(most[1])])
    return Table(["run", "step: value", "lowest", "highest"], rows, title, numbers=False)


def figure(title: str, lines: Sequence[Line], scale: Scale = "auto") -> Figure | None:
    """Draws a figure of these curves; None if no value is finite."""
    svg = line_plot(title, lines, scale=scale)
    if not svg:
        return None
    gaps = sum(not math.isfinite(value) for line in lines for value in line.values)
    caption = [f"{gaps:,} values are missing or not finite: gaps"] if gaps else []
    if any(len(thinned(line.steps, line.values)) < len(line.steps) for line in lines):
        caption.append(f"thinned to at most {POINTS} points a curve; the highest and lowest of every stretch are kept")
    return Figure(svg, "; ".join(caption), _table(title, lines))


def curve_blocks(groups: Sequence[Group]) -> list[Block]:
    """Builds the section of curves, with pretraining and every fine-tuning task apart: their losses are not comparable."""
    kinds: dict[str, list[Group]] = {}
    for group in groups:
        kinds.setdefault(f"fine-tuning: {group.first.row.name}" if group.tuned else "pretraining", []).append(group)
    blocks: list[Block] = [Heading(2, "Curves")]
    for kind, some in kinds.items():
        runs = [run for group in some for run in group.runs]
        wanted: list[tuple[str, str, Scale]] = [(name, name, "auto") for name in _names(runs)]
        made = [figure(title, list(_lines(some, name)), scale) for name, title, scale in (*wanted, *OTHERS)]
        figures = [each for each in made if each is not None]
        blocks.append(Heading(3, kind[0].upper() + kind[1:]))
        blocks.append(Figures(figures) if figures else Text("No numbers yet: metrics.jsonl has no records."))
    return blocks
