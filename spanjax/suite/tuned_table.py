"""The table of a fine-tuning suite: scores on the half of the dev examples that chose no setting."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spanjax.pages.document import Block, Cell, Folded, Heading, Table, Text
from spanjax.scoring.paired import Paired
from spanjax.scoring.spread import Spread
from spanjax.suite.table import TITLE
from spanjax.suite.tuned import TunedScore, TunedTask, compared

NOTE = (
    "Percent, by the score that selects checkpoints of the task. Mean ± deviation over the seeds, on the half of the dev examples"
    " that did not choose the entry of the grid; the last checkpoint of every run counts. Differences are paired by seed, with"
    " Student's 95 % interval, and are not corrected for their number."
)


def score_cell(values: Iterable[float]) -> str:
    """Returns mean and deviation of scores; a dash without any."""
    found = Spread.of(values)
    if found is None:
        return "–"
    spread = "" if math.isnan(found.deviation) else f" ± {found.deviation:.1f}"
    return f"{found.mean:.1f}{spread}"


def difference_cell(found: Paired | None) -> str:
    """Returns a paired difference; one pair has no interval."""
    if found is None:
        return "–"
    return f"{found.mean:+.1f}" + (f" ({found.low:+.1f} to {found.high:+.1f})" if found.verdict else "")


def tuned_blocks(
    scores: Mapping[str, Mapping[str, TunedScore]], tasks: Mapping[str, TunedTask], missing: Sequence[str]
) -> list[Block]:
    """Builds the page: scores, differences from the first encoder, the chosen settings, tasks without files."""
    columns = [column for task in tasks.values() for column in task.dev]
    base, *others = scores
    rows: list[Sequence[Cell]] = []
    for name, own in scores.items():
        # a mean over fewer tasks than the others have would look comparable
        whole = all(column in own for column in columns)
        mean = f"{math.fsum(own[column].mean for column in columns) / len(columns):.1f}" if whole else "–"
        rows.append(
            [name, *(score_cell(own[column].values.values() if column in own else ()) for column in columns), mean]
        )
    blocks: list[Block] = [Heading(1, TITLE), Table(["Encoder", *columns, "Mean"], rows, "Fine-tuning", numbers=False)]
    blocks.append(Text(NOTE, small=True))
    compared_rows: list[Sequence[Cell]] = []
    for name in others:
        pairs = (compared(scores[base].get(column), scores[name].get(column)) for column in columns)
        compared_rows.append([name, *map(difference_cell, pairs)])
    if compared_rows:
        blocks.append(Table(["Encoder", *columns], compared_rows, f"Differences from {base}", numbers=False))
    chosen = [[name, column, score.entry] for name, own in scores.items() for column, score in own.items()]
    blocks.append(Folded("Chosen entries of the grid", [Table(["Encoder", "Task", "Entry"], chosen, numbers=False)]))
    if missing:
        blocks.append(Text(f"Without files in the data folder: {', '.join(missing)}.", small=True))
    return blocks


def tuned_json(
    scores: Mapping[str, Mapping[str, TunedScore]], settings: Mapping[str, Any], missing: Sequence[str]
) -> dict[str, Any]:
    """Returns the table as JSON values."""
    encoders = {
        name: {
            column: {"entry": each.entry, "mean": each.mean, "seeds": {str(s): v for s, v in each.values.items()}}
            for column, each in own.items()
        }
        for name, own in scores.items()
    }
    return {"title": TITLE, "settings": dict(settings), "encoders": encoders, "missing": list(missing)}
