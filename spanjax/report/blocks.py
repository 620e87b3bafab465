"""The whole report, section by section; its first sections: the runs, their settings and the differences of these."""

from collections.abc import Sequence
from typing import Any

from spanjax import __version__
from spanjax.report.comparisons import comparison_blocks
from spanjax.report.curves import curve_blocks
from spanjax.report.document import TITLE, Block, Cell, Folded, Heading, Table, Text
from spanjax.report.masking import masking_blocks
from spanjax.report.runs import BOOKKEEPING, Group, Recorded, grouped, identity
from spanjax.report.tables import loss_table, score_blocks
from spanjax.run_format import flat


def _text(value: Any) -> str:
    return "(absent)" if value is None else str(value)


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
    head = ["runs", "what", "seeds", "how far", "devices", "broken lines of metrics"]
    return Table(head, rows, "Runs; those that differ in their seed alone are one line", numbers=False)


def _hardware(meta: Any) -> str:
    hardware = meta.get("hardware")
    return str(hardware.get("devices", "")) if isinstance(hardware, dict) else ""


def differing(groups: Sequence[Group]) -> Table | None:
    """Builds the table of settings that differ between groups, a column for each group; None if none does."""
    settings = [identity(group.first) for group in groups]
    names = sorted({name for each in settings for name in each})
    rows = [
        [name.replace("/", "."), *(_text(each.get(name)) for each in settings)]
        for name in names
        if len({_text(each.get(name)) for each in settings}) > 1
    ]
    head = ["setting", *(group.name for group in groups)]
    what = "fine-tuning" if groups[0].tuned else "pretraining"
    return Table(head, rows, f"Settings that differ between runs of {what}", numbers=False) if rows else None


def _all_settings(group: Group) -> Folded:
    """Lists every setting, with all values if the runs of the group differ in bookkeeping."""
    each = [flat(dict(run.settings)) for run in group.runs]
    names = list(dict.fromkeys(name for settings in each for name in settings))
    rows = [
        [name.replace("/", "."), " | ".join(dict.fromkeys(_text(settings.get(name)) for settings in each))]
        for name in names
    ]
    return Folded(f"All settings of {group.name}", [Table(["setting", "value"], rows, numbers=False)])


def settings_blocks(groups: Sequence[Group]) -> list[Block]:
    """The sections of runs and settings."""
    blocks: list[Block] = [Heading(2, "Runs"), overview(groups), Heading(2, "Settings")]
    kinds = [[group for group in groups if group.tuned == tuned] for tuned in (False, True)]
    tables = [table for some in kinds if len(some) > 1 for table in (differing(some),) if table]
    blocks += tables
    if tables:
        kept = ", ".join(name.rstrip("/").replace("/", ".") for name in BOOKKEEPING)
        blocks.append(Text(f"Left out, as they do not decide what is computed, or are the seed: {kept}.", small=True))
    return [*blocks, *map(_all_settings, groups)]


def blocks_of(runs: Sequence[Recorded], rows: int, examples: int) -> list[Block]:
    """Builds all sections; measures `rows` of every pretraining run (0: all), and fills in `examples` by its checkpoint."""
    groups = grouped(runs)
    count = f"{len(runs)} run{'s' * (len(runs) != 1)} in {len(groups)} group{'s' * (len(groups) != 1)}"
    blocks: list[Block] = [Heading(1, TITLE), Text(f"{count}; spanjax {__version__}.")]
    blocks += settings_blocks(groups)
    blocks += score_blocks(groups)
    pretraining = [group for group in groups if not group.tuned]
    table = loss_table(pretraining)
    if table:
        blocks += [Heading(2, "Held-out losses of pretraining"), table]
        blocks.append(Text("Losses of different maskings, vocabularies or rows are not comparable.", small=True))
    blocks += comparison_blocks(groups)
    blocks += curve_blocks(groups)
    return [*blocks, *masking_blocks(groups, rows, examples)]
