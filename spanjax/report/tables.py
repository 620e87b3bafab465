"""Scores of fine-tuning runs, and the paper's tables 1 to 7 with the runs that fill them; dev files and arms of ablations."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spanjax.data.feed.masking import GeometricSpans, MaskingPolicy, TaggedSpans, Tokens, WholeWords
from spanjax.data.feed.pairing import NextSentence, Single
from spanjax.json_files import read_json
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.pages.document import Block, Cell, Folded, Heading, Table, Text, Words, percent
from spanjax.report.labels import labelled, percentage, rank
from spanjax.report.paper import TABLES, Column, PaperTable
from spanjax.report.runs import Group, Recorded, pretrained_folder, pretrained_names, score_names
from spanjax.run_format import describe
from spanjax.scoring.spread import Spread
from spanjax.tasks.base import SCORE


class Tuned(NamedTuple):
    """The fine-tuning groups of one pretrained model, or of one with a larger head."""

    name: str
    arm: str
    """Config in configs/ablations that the pretraining is of, or ""."""
    by_task: Mapping[str, Sequence[Group]]
    """The best first."""

    def best(self, task: str, score: str) -> Spread | None:
        """Returns this score of the best group of a task that has it."""
        return next(filter(None, (group.spread(SCORE + score) for group in self.by_task.get(task, ()))), None)


def _quality(group: Group) -> float:
    spread = group.spread(group.first.metric)
    return spread.mean if spread else -math.inf


def _pretraining(run: Recorded, runs: Sequence[Recorded]) -> Mapping[str, Any] | None:
    """Settings of the pretraining run that a run started from: one of `runs`, or read from its folder."""
    folder = pretrained_folder(str(run.settings.get("init_from") or ""))
    given = [each for each in runs if not each.tuned]
    there = [each for each in given if each.path.resolve() == folder.resolve()]
    named = [each for each in given if each.path.absolute().name == folder.name]
    if there or (len(named) == 1 and not folder.exists()):
        return (there or named)[0].settings
    try:
        found = read_json(folder / "run.json")
    except (OSError, ValueError):
        return None
    return found if isinstance(found.get("objective"), dict) else None


def _usual_dev_files(groups: Sequence[Group]) -> dict[str, str]:
    """Returns for every task the dev files of most groups, the first of equals: a column holds only figures on these."""
    files: dict[str, list[str]] = {}
    for group in groups:
        files.setdefault(group.first.row.name, []).append(dev_names(group.first))
    return {task: max(each, key=each.count) for task, each in files.items()}


def tuned_models(groups: Sequence[Group]) -> list[Tuned]:
    """Returns every pretrained model with its groups, in the order of the runs."""
    runs = [run for group in groups for run in group.runs]
    tuned = [group for group in groups if group.tuned]
    names = pretrained_names([group.first for group in tuned])
    usual = _usual_dev_files(tuned)
    found: dict[tuple[str, str], list[Group]] = {}
    for group in tuned:
        origin = str(group.first.settings.get("init_from") or "")
        found.setdefault((origin, group.first.row.variant), []).append(group)
    models = []
    for (origin, variant), some in found.items():
        by_task: dict[str, list[Group]] = {}
        for group in sorted(some, key=_quality, reverse=True):
            if dev_names(group.first) == usual[group.first.row.name]:
                by_task.setdefault(group.first.row.name, []).append(group)
        settings = _pretraining(some[0].first, runs) if origin else None
        arm = arm_of(settings, origin) if origin else ""
        models.append(Tuned(names[origin] + (f", {variant}" if variant else ""), arm, by_task))
    return models


def _mean_of(model: Tuned, parts: Sequence[tuple[str, str]]) -> float | None:
    """Mean over tasks; the halves of MNLI count as one. None if a task is missing."""
    tasks: dict[str, list[float]] = {}
    for task, score in parts:
        if (spread := model.best(task, score)) is None:
            return None
        tasks.setdefault(task.removesuffix("-mm").removesuffix("-m"), []).append(spread.mean)
    means = [math.fsum(values) / len(values) for values in tasks.values()]
    return math.fsum(means) / len(means)


def cell_of(model: Tuned, column: Column) -> str:
    """'84.3 ± 0.5 (3)', a mean of other columns, or a dash."""
    if column.mean_of:
        return percent(_mean_of(model, column.mean_of))
    spread = model.best(column.task, column.score)
    return spread.words(percent) if spread else percent(None)


def _quoted(name: str, values: Sequence[float | None]) -> list[Cell]:
    return [[Words(each, "paper")] for each in (f"{name} (paper)", *map(percent, values))]


def filled(table: PaperTable, models: Sequence[Tuned]) -> Table | None:
    """Returns the table with a row for every model that fills a cell of it; None if none does."""
    ours: dict[str, list[Sequence[Cell]]] = {}
    for model in models:
        row = table.arms.get(model.arm, "") if table.arms else ""
        cells = [cell_of(model, column) for column in table.columns]
        if (table.arms and not row) or all(cell == percent(None) for cell in cells):
            continue
        ours.setdefault(row, []).append([f"{row}: {model.name}" if row else model.name, *cells])
    if not ours:
        return None
    rows: list[Sequence[Cell]] = []
    for name, values in table.rows.items():
        rows += [_quoted(name, values), *ours.get(name, [])]
    head = ["", *(column.title for column in table.columns)]
    return Table(head, [*rows, *ours.get("", [])], f"{table.source}: {table.title}")


def _sources(table: PaperTable, models: Sequence[Tuned]) -> str:
    """Describes the basis of the cells of runs: dev files by task, and the number of settings that the best is chosen from."""
    parts = []
    tasks = {column.task for column in table.columns} | {task for column in table.columns for task, _ in column.mean_of}
    for task in sorted(tasks - {""}):
        groups = [group for model in models for group in model.by_task.get(task, ())]
        files = [dev_files(run) for group in groups for run in group.runs]
        if files:
            parts.append(f"{task} on {'; '.join(dict.fromkeys(files))}")
        most = max((len(model.by_task.get(task, ())) for model in models), default=0)
        if most > 1:
            parts[-1] += f", the best of up to {most} settings"
    return ". ".join(parts)


WIDEST = 6  # scores in the first table of a task; the others are folded


def _columns(groups: Sequence[Group]) -> list[str]:
    """Names of the values at the best evaluations."""
    best = [run.best for group in groups for run in group.runs]
    return sorted({name for record in best if record for name in record.values}, key=rank)


def _displayed(group: Group, name: str, seeds: bool) -> str:
    """A value at the best evaluations of a group; with deviation and number of runs if any group of the table has several."""
    spread = group.spread(name)
    if spread is None:
        return "–" if not any(run.best and name in run.best.values for run in group.runs) else "NaN"

    def show(value: float) -> str:
        if name.startswith(SCORE):
            return f"{value:.2f}"
        return f"{100 * value:.2f}" if percentage(name) else f"{value:.4f}"

    return spread.words(show) if seeds else show(spread.mean)


def _values_table(
    groups: Sequence[Group], names: Sequence[str], caption: str, starts: Mapping[str, str] | None = None
) -> Table:
    """A row for each group, with the weights it started from if they are given, and a column for each value."""
    seeds = any(len(group.runs) > 1 for group in groups)
    rows: list[Sequence[Cell]] = []
    for group in groups:
        best = [run.best for run in group.runs]
        steps = ", ".join(f"{record.step:,}" if record else "–" for record in best)
        start = [] if starts is None else [starts[str(group.first.settings.get("init_from") or "")]]
        rows.append([group.name, *start, steps, *(_displayed(group, name, seeds) for name in names)])
    heads = list(map(labelled, names))
    start = [] if starts is None else ["Started from"]
    return Table(["Runs", *start, "Best at step", *heads], rows, caption, names=1 + len(start))


def score_tables(groups: Sequence[Group]) -> list[Block]:
    """Scores of fine-tuning runs, a table for each task."""
    starts = pretrained_names([group.first for group in groups])
    tasks: dict[str, list[Group]] = {}
    for group in groups:
        tasks.setdefault(group.first.row.name, []).append(group)
    blocks: list[Block] = []
    for task, some in tasks.items():
        names = score_names(run for group in some for run in group.runs)
        if not names:
            blocks.append(Text(f"{task}: not evaluated yet ({', '.join(group.name for group in some)})."))
            continue
        caption = f"{task}: dev scores at the best evaluation of each run"
        blocks.append(_values_table(some, names[:WIDEST], caption, starts))
        if names[WIDEST:]:
            more = _values_table(some, names[WIDEST:], f"{task}: further scores at the same evaluation")
            blocks.append(Folded(f"{len(names) - WIDEST} further scores of {task}", [more]))
    return blocks


def score_blocks(groups: Sequence[Group]) -> list[Block]:
    """Builds the section of scores and of the paper's tables; empty without a fine-tuning run."""
    tuned = [group for group in groups if group.tuned]
    if not tuned:
        return []
    # not `tuned` alone: the ablation arm of a model comes from the settings of its pretraining run
    models = tuned_models(groups)
    blocks: list[Block] = [Heading(2, "Scores of fine-tuning"), *score_tables(tuned)]
    blocks.append(
        Text(
            "Dev scores in percent, correlations times 100. The evaluation is the best by the first score of a table; its"
            " checkpoint is kept. Several seeds: mean ± standard deviation (n - 1), with the number of runs in brackets. A score"
            " on the dev file that chose the checkpoint is a little too high.",
            small=True,
        )
    )
    blocks.append(Heading(2, "Compared with the paper"))
    left = []
    for table in TABLES:
        displayed = filled(table, models)
        if displayed is None:
            left.append(table.source)
            continue
        blocks += [displayed, Text(f"{table.note} {_sources(table, models)}.", small=True)]
    if left:
        listed = ", ".join(left)
        blocks.append(Text(f"No run fills a cell of {listed} (Joshi et al., 2020): skipped.", small=True))
    return blocks


def loss_table(groups: Sequence[Group]) -> Table | None:
    """Builds the table of the lowest held-out loss of every group of pretraining runs; None without an evaluation."""
    names = _columns(groups) if groups else []
    return _values_table(groups, names, "Held-out rows at the lowest total loss of each run") if names else None


def dev_names(run: Recorded) -> str:
    """The names of a run's dev files with their folders, and the part of them that it scores."""
    files = run.objective.get("dev")
    names = ", ".join("/".join(pathlib.PurePath(str(each)).parts[-2:]) for each in files) if files else "no file"
    return f"{names}, {run.row.part}" if run.row.part else names


def dev_files(run: Recorded) -> str:
    """Returns the same with the number of examples, if a checkpoint records it."""
    examples = run.meta.get("examples")
    size = examples.get("dev") if isinstance(examples, dict) else None
    return f"{dev_names(run)} ({size:,} examples)" if isinstance(size, int) else dev_names(run)


def arm_of(settings: Mapping[str, Any] | None, name: str) -> str:
    """Returns the row of tables 6 and 7 of a pretraining run: by its settings if known, else by the name of its folder, which is
    that of a config in configs/ablations. "" for another one."""
    if settings is None:
        named = {arm: arm for arm in ARMS} | {"table7_two_sequences": "table6_geometric_spans"}
        return next((named[arm] for arm in sorted(named, key=len, reverse=True) if arm in name), "")
    made = _looks(settings.get("objective", {}))
    return next((arm for arm, objective in ARMS.items() if _looks(describe(objective)) == made), "")


def _looks(objective: Mapping[str, Any]) -> list[Any]:
    """Classes of a described objective's masking, pairing and terms, and the tag of its masking: what the arms differ in."""
    masking, pairing = objective.get("masking", {}), objective.get("pairing", {})
    terms = [term.get("class") for term in objective.get("terms", []) if isinstance(term, dict)]
    return [masking.get("class"), masking.get("tag") or None, pairing.get("class"), *terms]


def _masked(masking: MaskingPolicy) -> MaskedPrediction:
    return MaskedPrediction(masking=masking, pairing=NextSentence(), terms=(MaskedTokens(), SentencePair()))


ARMS: Mapping[str, MaskedPrediction] = {
    "table6_subword_tokens": _masked(Tokens()),
    "table6_whole_words": _masked(WholeWords()),
    "table6_named_entities": _masked(TaggedSpans(tag="entities")),
    "table6_noun_phrases": _masked(TaggedSpans(tag="noun_phrases")),
    "table6_geometric_spans": _masked(GeometricSpans()),
    "table7_single_sequence": MaskedPrediction(GeometricSpans(), Single(), (MaskedTokens(),)),
    "table7_single_sequence_sbo": MaskedPrediction(GeometricSpans(), Single(), (MaskedTokens(), SpanBoundary())),
}
"""Config in configs/ablations -> an objective that looks like its own; table7_two_sequences is table6_geometric_spans."""
