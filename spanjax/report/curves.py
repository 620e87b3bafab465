"""Curves of runs over steps, a figure for each number: losses of every term in training and held out, scores, rate, speed."""

import math
from collections.abc import Iterator, Sequence

from spanjax.pages.document import Block, Entry, Figure, Figures, Folded, Heading, Table, Text, Words, number
from spanjax.pages.plot import POINTS, Line, Scale, colours, line_plot, thinned
from spanjax.report.labels import percentage, rank, titled
from spanjax.report.runs import Group, LogRecord, Recorded, score_names
from spanjax.tasks.base import SCORE

OTHERS: tuple[tuple[str, Scale], ...] = (
    ("learning_rate", "zero"),
    ("gradient_norm", "auto"),
    ("speed/tokens_per_s", "zero"),
    ("speed/mfu", "zero"),
    ("speed/data_wait", "zero"),
    ("speed/goodput", "zero"),
)
PROBE = "probe/"  # before the names of the quick suite's figures
MAIN = 3  # scores of a task before its losses; the others are folded
SHOWN = 8  # steps of a curve that a table tells


def _losses(runs: Sequence[Recorded]) -> list[str]:
    """Losses and accuracies of terms, and the total of evaluations."""
    found = {name for run in runs for record in (*run.training, *run.evaluations) for name in record.values}
    terms = (name for name in found if name.endswith(("/loss", "/accuracy")) and not name.startswith(("speed/", SCORE)))
    held_out = {name for run in runs for record in run.evaluations for name in record.values}
    return [*(["loss"] if "loss" in held_out else []), *sorted(terms, key=rank)]


def _curve(records: Sequence[LogRecord], name: str) -> tuple[list[int], list[float]]:
    """Steps and values; NaN for a record of training without the value."""
    times = 100 if percentage(name) else 1
    return [record.step for record in records], [times * record.values.get(name, math.nan) for record in records]


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
    return Table(["Run", "Step: value", "Lowest", "Highest"], rows, title, numbers=False)


def figure(name: str, lines: Sequence[Line], scale: Scale = "auto") -> Figure | None:
    """Draws a figure of these curves of a metric; None if no value is finite."""
    title = titled(name)
    svg = line_plot(title, lines, scale=scale)
    if not svg:
        return None
    gaps = sum(not math.isfinite(value) for line in lines for value in line.values)
    caption = f"{gaps:,} values are missing or not finite: gaps" if gaps else ""
    words = [Words(title), Words(" "), Words(name, "code")]
    return Figure(svg, caption, _table(title, lines), words)


def _legend(groups: Sequence[Group], lines: Sequence[Line]) -> list[Entry]:
    """Entries that the figures share: a colour for each group, and how training and held-out values are drawn."""
    marks = {line.dotted for line in lines}
    kinds = [Entry("training", mark="line")] if False in marks else []
    kinds += [Entry("held out", mark="dots")] if True in marks else []
    names = [f"{group.name}, {len(group.runs)} seeds" if len(group.runs) > 1 else group.name for group in groups]
    return [*map(Entry, names, colours(len(groups))), *kinds]


def _drawn(groups: Sequence[Group], metrics: Sequence[tuple[str, Scale]]) -> tuple[list[Figure], list[Line]]:
    """Figures of the metrics that have values, and the curves of them all."""
    lines = [list(_lines(groups, name)) for name, _ in metrics]
    made = (figure(name, curves, scale) for (name, scale), curves in zip(metrics, lines, strict=True))
    return [each for each in made if each is not None], [line for curves in lines for line in curves]


def curve_blocks(groups: Sequence[Group]) -> list[Block]:
    """Builds the section of curves, with pretraining and every fine-tuning task apart: their losses are not comparable."""
    kinds: dict[str, list[Group]] = {}
    for group in groups:
        kinds.setdefault(f"fine-tuning: {group.first.row.name}" if group.tuned else "pretraining", []).append(group)
    blocks: list[Block] = [Heading(2, "Curves")]
    drawn: list[Line] = []
    for kind, some in kinds.items():
        runs = [run for group in some for run in group.runs]
        scores = score_names(runs)
        probes = sorted({n for run in runs for e in run.evaluations for n in e.values if n.startswith(PROBE)})
        names = [*scores[:MAIN], *_losses(runs), *probes]
        figures, lines = _drawn(some, [*((name, "auto") for name in names), *OTHERS])
        blocks.append(Heading(3, kind[0].upper() + kind[1:]))
        none = Text("No numbers yet: metrics.jsonl has no records.")
        blocks.append(Figures(figures, _legend(some, lines)) if figures else none)
        # coreference alone has 22 scores, which would bury the others
        further, more = _drawn(some, [(name, "auto") for name in scores[MAIN:]])
        blocks += [Folded(f"Curves of {len(further)} further scores", [Figures(further)])] if further else []
        drawn += [*lines, *more]
    if any(len(thinned(line.steps, line.values)) < len(line.steps) for line in drawn):
        note = f"Curves are thinned to at most {POINTS} points; the highest and lowest of every stretch are kept."
        blocks.append(Text(note, small=True))
    return blocks
