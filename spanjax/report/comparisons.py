"""Differences tested: two groups of seeds by Welch's t-test, two single runs with predictions by McNemar's."""

import itertools
import json
import math
import pathlib
from collections.abc import Iterator, Sequence

from spanjax.pages.document import Block, Cell, Heading, Table, Text, number
from spanjax.report.labels import labelled
from spanjax.report.runs import Group, Recorded, score_names
from spanjax.report.tables import dev_names
from spanjax.run_format import flat
from spanjax.scoring.compare import PREDICTIONS, compared, read_labelled
from spanjax.scoring.welch import welch

LOSSES = ("objective/", "rows_fingerprint", "cadence/eval_batches")
"""Settings that make held-out losses comparable."""


def _key(group: Group) -> str:
    """Key that groups with comparable figures share: task and dev files; for pretraining, rows and objective."""
    if group.tuned:
        return f"{group.first.row.name} on {dev_names(group.first)}"
    same = {name: value for name, value in flat(dict(group.first.settings)).items() if name.startswith(LOSSES)}
    return f"held-out loss {json.dumps(same, sort_keys=True, default=str)}"


def comparable(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups with comparable figures, in the order of their first ones."""
    keys: dict[str, list[Group]] = {}
    for group in groups:
        keys.setdefault(_key(group), []).append(group)
    return list(keys.values())


def pairs(groups: Sequence[Group]) -> Iterator[tuple[str, Group, Group]]:
    """Yields (task, one, other) for all pairs of groups with comparable figures."""
    for some in comparable(groups):
        task = some[0].first.row.name if some[0].tuned else "pretraining"
        yield from ((task, one, other) for one, other in itertools.combinations(some, 2))


def p_text(p: float) -> str:
    """A p-value with two digits, or "<0.0001"."""
    return "<0.0001" if p < 1e-4 else number(p, 2)


def welch_rows(groups: Sequence[Group]) -> list[Sequence[Cell]]:
    """A row for every pair of groups with at least two runs each that have the same score."""
    rows: list[Sequence[Cell]] = []
    for task, one, other in pairs(groups):
        metric = one.first.metric
        first, second = one.spread(metric), other.spread(metric)
        if not metric or first is None or second is None or min(len(first.values), len(second.values)) < 2:
            continue
        found = welch(first.values, second.values)
        digits = 2 if one.tuned else 4
        cells = (
            first.words(lambda value, digits=digits: f"{value:.{digits}f}"),
            second.words(lambda value, digits=digits: f"{value:.{digits}f}"),
        )
        test = (number(found.difference), number(found.t), number(found.degrees, 3))
        known = "no deviation: not known" if math.isnan(found.p) else p_text(found.p)
        label = labelled(score_names(one.runs)[0] if one.tuned else metric)
        rows.append([task, label, one.name, other.name, *cells, *test, known])
    return rows


def predictions_file(run: Recorded) -> pathlib.Path | None:
    """predictions.jsonl of a run: in its folder, or the only one in a folder of it. None without, or with several."""
    if (run.path / PREDICTIONS).is_file():
        return run.path / PREDICTIONS
    found = sorted(run.path.glob(f"*/{PREDICTIONS}"))
    return found[0] if len(found) == 1 else None


def mcnemar_rows(groups: Sequence[Group]) -> tuple[list[Sequence[Cell]], list[str]]:
    """Returns a row for every pair of single runs with predictions of the same examples, and notes on skipped ones."""
    rows: list[Sequence[Cell]] = []
    notes = []
    files = {id(g): predictions_file(g.first) for g in groups if g.tuned and len(g.runs) == 1}
    read = {key: read_labelled(path) for key, path in files.items() if path}
    for task, one, other in pairs(groups):
        if id(one) not in read or id(other) not in read:
            continue
        first, second = read[id(one)], read[id(other)]
        bad = len(first.problems) + len(second.problems)
        if first.labels != second.labels or not first.labels:
            notes.append(
                f"{one.name} and {other.name} have predictions of other examples, or none with labels as words"
            )
            continue
        found = compared(first, second).test
        sizes = (f"{len(first.labels):,}", f"{found.only_first:,}", f"{found.only_second:,}")
        rows.append([task, one.name, other.name, *sizes, number(found.chi_square), p_text(found.exact_p)])
        if bad:
            notes.append(
                f"{one.name} and {other.name}: {bad} lines of predictions without a label of their own were skipped"
            )
    return rows, notes


def comparison_blocks(groups: Sequence[Group]) -> list[Block]:
    """Builds the section, with a note if nothing can be compared."""
    blocks: list[Block] = [Heading(2, "Differences tested")]
    rows = welch_rows(groups)
    if rows:
        head = ["Task", "Score", "One", "Other", "One: mean ± dev. (n)", "Other: mean ± dev. (n)"]
        blocks.append(
            Table([*head, "Difference", "t", "df", "p"], rows, "Welch's t-test between groups of seeds", names=4)
        )
    exact, notes = mcnemar_rows(groups)
    if exact:
        head = ["Task", "One", "Other", "Examples", "Only one right", "Only other right", "χ²", "Exact p"]
        blocks.append(Table(head, exact, "McNemar's test between single runs", names=3))
    if rows or exact:
        # a reader of many p-values must know that some are small by chance
        count = len(rows) + len(exact)
        several = f" and of one comparison each, not corrected for there being {count}" if count > 1 else ""
        blocks.append(
            Text(
                f"p-values are two-sided{several}. Welch's test takes"
                " the seed for the only source of chance: the dev examples are the same in all runs.",
                small=True,
            )
        )
    else:
        need = "two comparable groups with at least two seeds each, or two single runs with predictions.jsonl"
        blocks.append(Text(f"Nothing could be tested: a test needs {need}.", small=True))
    return [*blocks, *(Text(f"{each}.", small=True) for each in notes)]
