"""The whole report, section by section: the headline, the runs, the differences of their settings, results, all settings."""

from collections.abc import Sequence
from typing import Any

from spanjax import __version__
from spanjax.pages.document import TITLE, Block, Cell, Folded, Heading, Table, Text, Words, code
from spanjax.report.comparisons import comparison_blocks
from spanjax.report.curves import curve_blocks
from spanjax.report.headline import headline_blocks
from spanjax.report.masking import masking_blocks
from spanjax.report.runs import BOOKKEEPING, Group, Recorded, grouped, identity
from spanjax.report.tables import loss_table, score_blocks
from spanjax.run_format import flat, restored
from spanjax.training.optimizers import Optimizer


def _text(value: Any) -> str:
    return "–" if value is None else str(value)


def overview(groups: Sequence[Group]) -> Table:
    """A row for every group."""
    rows: list[Sequence[Cell]] = []
    for group in groups:
        kind = f"fine-tuning, {group.first.row.name}" if group.tuned else "pretraining"
        status = "; ".join(dict.fromkeys(run.status for run in group.runs))
        seeds = ", ".join(str(run.seed) for run in group.runs)
        bad = sum(run.bad_lines for run in group.runs)
        hardware = dict.fromkeys(_hardware(run.meta) for run in group.runs)
        rows.append([group.name, kind, seeds, status, ", ".join(filter(None, hardware)) or "–", f"{bad:,}"])
    head = ["Runs", "Kind", "Seeds", "Progress", "Devices", "Broken lines of metrics"]
    if not any(run.bad_lines for group in groups for run in group.runs):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return Table(head, rows, numbers=False)


def _hardware(meta: Any) -> str:
    hardware = meta.get("hardware")
    return str(hardware.get("devices", "")) if isinstance(hardware, dict) else ""


def differing(groups: Sequence[Group]) -> Table | None:
    """Builds the table of settings that differ between groups, a column for each group; None if none does."""
    settings = [identity(group.first) for group in groups]
    names = sorted({name for each in settings for name in each})
    rows = [
        [_name(name), *(code(_text(each.get(name))) for each in settings)]
        for name in names
        if len({_text(each.get(name)) for each in settings}) > 1
    ]
    head = ["Setting", *(group.name for group in groups)]
    what = groups[0].first.row.name if groups[0].tuned else "pretraining"
    return Table(head, rows, f"Settings that differ between runs of {what}", numbers=False) if rows else None


def _name(setting: str) -> Cell:
    return [Words(setting.replace("/", "."), "code")]


def _all_settings(group: Group) -> Folded:
    """Lists every setting, with all values if the runs of the group differ in bookkeeping."""
    each = [flat(dict(run.settings)) for run in group.runs]
    names = list(dict.fromkeys(name for settings in each for name in settings))
    rows = [
        [_name(name), code(" | ".join(dict.fromkeys(_text(settings.get(name)) for settings in each)))] for name in names
    ]
    schedule = [Text(f"Learning rate: {line}.")] if (line := _schedule(group.first)) else []
    return Folded(f"All settings of {group.name}", [*schedule, Table(["Setting", "Value"], rows, numbers=False)])


def _schedule(run: Recorded) -> str:
    """Describes the learning rate of a run; "" for an optimizer that is not known here."""
    try:
        return restored(run.settings["optimizer"], Optimizer).schedule_line(run.settings["steps"])
    except (ValueError, KeyError, TypeError, AttributeError):  # of another version, or a user's own
        return ""


def difference_blocks(groups: Sequence[Group]) -> list[Block]:
    """Tables of the settings that differ, with the names of those that are not compared; empty if none differs."""
    kinds: dict[str, list[Group]] = {}
    for group in groups:  # those of two tasks differ in nearly all settings of the task
        kinds.setdefault(group.first.row.name if group.tuned else "", []).append(group)
    tables = [table for some in kinds.values() if len(some) > 1 for table in (differing(some),) if table]
    if not tables:
        return []
    kept = ", ".join(name.rstrip("/").replace("/", ".") for name in BOOKKEEPING)
    note = Text(f"Not listed: the seed, and settings that do not change the result ({kept}).", small=True)
    return [*tables, note]


def blocks_of(runs: Sequence[Recorded], rows: int, examples: int) -> list[Block]:
    """Builds all sections; measures `rows` of every pretraining run (0: all), and fills in `examples` by its checkpoint."""
    groups = grouped(runs)
    count = f"{len(runs)} run{'s' * (len(runs) != 1)} in {len(groups)} group{'s' * (len(groups) != 1)}"
    alike = "; runs that differ only in their seed are one group" if len(runs) > len(groups) else ""
    blocks: list[Block] = [Heading(1, TITLE), *headline_blocks(groups)]
    blocks += [Text(f"{count}{alike}. Written by spanjax {__version__}.", small=True)]
    # results come before the long tables of settings, after the short one that tells the groups apart
    blocks += [Heading(2, "Runs"), overview(groups), *difference_blocks(groups)]
    blocks += score_blocks(groups)
    pretraining = [group for group in groups if not group.tuned]
    if pretraining:
        blocks.append(Heading(2, "Held-out losses of pretraining"))
        table = loss_table(pretraining)
        blocks += [table] if table else [Text("No evaluation on held-out rows yet.")]
        note = "Losses in nats. Losses of different maskings, vocabularies or rows are not comparable."
        blocks += [Text(note, small=True)] if table else []
    blocks += comparison_blocks(groups)
    blocks += curve_blocks(groups)
    blocks += masking_blocks(groups, rows, examples)
    return [*blocks, Heading(2, "Settings"), *map(_all_settings, groups)]
