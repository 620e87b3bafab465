"""The table of a suite: scores of every encoder with intervals, differences from the first one, tested, and details.

Shapes: N units, R samples, F facts.
"""

import bisect
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spanjax.pages.document import Block, Cell, Folded, Heading, Table, Text, Words
from spanjax.scoring.resampling import Difference, Figures, Interval, Summed, Units
from spanjax.scoring.spread import Spread
from spanjax.suite.probes import partial_spearman
from spanjax.suite.quick import PROBES, QuickSuite
from spanjax.suite.resampled import Resampled

TITLE = "Evaluation suite of spanjax"
SAMPLES, PERMUTATIONS = 1000, 10_000
Results = Mapping[str, Mapping[str, Mapping[int, Any]]]
"""Encoder -> part -> seed -> result."""


@dataclasses.dataclass(frozen=True, eq=False)
class Partial(Units):
    """Pairs of sentences, scored by `partial_spearman`."""

    gold_N: np.ndarray
    predicted_N: np.ndarray
    facts_NF: np.ndarray

    @property
    def count(self) -> int:
        """Number of pairs."""
        return len(self.gold_N)

    def sampled(self, index_RN: np.ndarray) -> Figures:
        """Implements `Units.sampled`."""
        columns = self.gold_N, self.predicted_N, self.facts_NF
        return {"score": np.array([partial_spearman(*(column[index_N] for column in columns)) for index_N in index_RN])}

    def exchanged(self, other: Units, taken_RN: np.ndarray) -> tuple[Figures, Figures]:
        """Implements `Units.exchanged`; what is exchanged are ranks, as cosines of two encoders have two scales."""
        from scipy.stats import rankdata

        assert isinstance(other, Partial)
        one_N, other_N = rankdata(self.predicted_N), rankdata(other.predicted_N)
        sides: list[list[float]] = [[], []]
        for taken_N in taken_RN:
            for side, (kept_N, given_N) in zip(sides, ((one_N, other_N), (other_N, one_N)), strict=True):
                side.append(partial_spearman(self.gold_N, np.where(taken_N, given_N, kept_N), self.facts_NF))
        return {"score": np.array(sides[0])}, {"score": np.array(sides[1])}


class Measured(NamedTuple):
    """A part of one encoder over its seeds."""

    values: dict[int, float]
    """Seed -> score; empty where the encoder has none."""
    baseline: float | None
    interval: Interval | None
    units: Units | None

    @property
    def mean(self) -> float | None:
        """Mean over the seeds."""
        return math.fsum(self.values.values()) / len(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Deviation over the seeds (n - 1); None of fewer than two."""
        found = Spread.of(self.values.values())
        return None if found is None or math.isnan(found.deviation) else found.deviation


def _ratio(sums_RS: np.ndarray) -> Figures:
    """Mean over tasks of the share of right items; columns are right items and items of each task."""
    shares = sums_RS[:, ::2] / np.maximum(sums_RS[:, 1::2], 1e-9)
    return {"score": 100.0 * shares.mean(axis=1)}


def units_of(part: str, results: Mapping[int, Any], suite: QuickSuite) -> Units | None:
    """Returns the units of a part: items with their right answers over all seeds, sentence pairs, or passages."""
    if part in PROBES:
        sums: dict[int, list[float]] = {}
        for result in results.values():
            # a task's items are numbered from its `first` on
            firsts = [task["first"] for task in result["tasks"].values()]
            for item, right in zip(result["items"], result["right"], strict=True):
                column = 2 * (bisect.bisect_right(firsts, item) - 1)
                entry = sums.setdefault(int(item), [0.0] * 2 * len(firsts))
                entry[column] += right == "1"
                entry[column + 1] += 1
        return Summed(np.array([sums[item] for item in sorted(sums)]), _ratio)
    values = [result["values"] for result in results.values() if result["score"] is not None]
    if not values:
        return None
    if part == "similarity":
        # over seeds of random weights: the mean cosine of a pair has no meaning, the first seed stands for them
        gold_N = np.array(suite.read(part).scores)
        return Partial(gold_N, np.array(values[0]), suite.overlap())
    if len({len(each) for each in values}) > 1:
        return None
    return Summed(np.stack([np.sum(values, axis=0), np.full(len(values[0]), float(len(values)))], axis=1), _ratio)


def measured(part: str, results: Mapping[int, Any], suite: QuickSuite, resampled: Resampled) -> Measured:
    """Returns the scores of a part and their bootstrap interval over its units."""
    values = {seed: float(result["score"]) for seed, result in results.items() if result["score"] is not None}
    if not values:
        return Measured({}, None, None, None)
    units = units_of(part, results, suite)
    baselines = [float(result["baseline"]) for result in results.values()]
    # the correlation takes milliseconds for each sample
    samples = SAMPLES // 5 if part == "similarity" else SAMPLES
    interval = resampled.interval(units, samples) if units else None
    return Measured(values, math.fsum(baselines) / len(baselines), interval, units)


def compared(base: Measured, other: Measured, part: str, resampled: Resampled) -> Difference | None:
    """Returns other minus base on the units of both, tested; None where one has no score, or other seeds."""
    if base.units is None or other.units is None or base.units.count != other.units.count:
        return None
    if part in PROBES and base.values.keys() != other.values.keys():
        return None
    fewer = 5 if part == "similarity" else 1
    return resampled.difference(other.units, base.units, SAMPLES // fewer, PERMUTATIONS // (10 * fewer))


class SuiteTable(NamedTuple):
    """Everything that the table holds."""

    parts: Sequence[str]
    measures: Mapping[str, Mapping[str, Measured]]
    """Encoder -> part -> measure."""
    differences: Mapping[str, Mapping[str, Difference | None]]
    """Encoder but the first -> part -> difference from the first."""


def build_table(
    results: Results, parts: Sequence[str], suite: QuickSuite, folder: pathlib.Path | None = None
) -> SuiteTable:
    """Measures every part of every encoder, and compares with the first encoder; `folder` keeps what was resampled."""
    resampled = Resampled(folder)
    measures = {
        name: {part: measured(part, by_part[part], suite, resampled) for part in parts}
        for name, by_part in results.items()
    }
    base, *others = measures
    found = {
        name: {part: compared(measures[base][part], measures[name][part], part, resampled) for part in parts}
        for name in others
    }
    resampled.write()
    return SuiteTable(parts, measures, found)


def _score_cell(measure: Measured) -> Cell:
    if measure.mean is None:
        return "–"
    spread = "" if measure.deviation is None else f" ± {measure.deviation:.1f}"
    interval = measure.interval
    ends = f" ({interval.low:.1f} to {interval.high:.1f})" if interval else ""
    return [Words(f"{measure.mean:.1f}{spread}", "value"), Words(ends)]


def _difference_cell(found: Difference | None) -> str:
    if found is None:
        return "–"
    p = f"p {found.p:.3g}" if found.p >= 0.001 else "p < 0.001"
    return f"{found.difference:+.1f} ({found.low:+.1f} to {found.high:+.1f}), {p}"


NOTE = (
    "Percent; a higher score is better. Mean over the seeds ± deviation, then the 95 % bootstrap interval over the items of all"
    " seeds. tags (parts of speech, and chunks), entities and relations are probed on words that training did not have,"
    " sentences (their labels, and whether two words are exchanged) on those that a bag of their words tells as often as not,"
    " similarity is Spearman's correlation of cosines that the words of a pair leave unexplained; pairs counts good sentences"
    " that are likelier, fills whole words that are the most probable ones. The baseline is the most frequent label, no"
    " correlation, or chance. Differences are tested by paired permutation and are not corrected for their number."
)


def suite_blocks(table: SuiteTable, results: Results, arms: Sequence[Block] = ()) -> list[Block]:
    """Builds the page: scores, differences, sections of sweeps in `arms`, and details."""
    names = list(table.measures)
    rows: list[Sequence[Cell]] = [
        [name, *(_score_cell(table.measures[name][part]) for part in table.parts)] for name in names
    ]
    floors = [
        [m.baseline for m in (table.measures[n][part] for n in names) if m.baseline is not None] for part in table.parts
    ]
    rows.append(["baseline", *(f"{each[0]:.1f}" if each else "–" for each in floors)])
    blocks: list[Block] = [Heading(1, TITLE), Table(["Encoder", *table.parts], rows, "Scores", numbers=False)]
    blocks.append(Text(NOTE, small=True))
    if table.differences:
        compared_rows = [
            [name, *(_difference_cell(found[part]) for part in table.parts)]
            for name, found in table.differences.items()
        ]
        caption = f"Differences from {names[0]}"
        blocks.append(Table(["Encoder", *table.parts], compared_rows, caption, numbers=False))
    return [*blocks, *arms, *_details(results, table.parts)]


def _details(results: Results, parts: Sequence[str]) -> list[Block]:
    blocks: list[Block] = []
    seeds = [
        [
            name,
            task,
            str(seed),
            f"{found['score']:.2f}",
            f"{found['baseline']:.2f}",
            "none" if found["layer"] is None else str(found["layer"]),
            str(found["penalty"] or "infinite"),
        ]
        for name, by_part in results.items()
        for part in parts
        if part in PROBES
        for seed, result in by_part[part].items()
        for task, found in result["tasks"].items()
    ]
    if seeds:
        head = ["Encoder", "Probe", "Seed", "Score", "Baseline", "Layer", "Penalty"]
        blocks.append(Folded("Probes by seed", [Table(head, seeds, names=2)]))
    for part, key, head in (
        ("similarity", "spearman", ["Encoder", "Spearman's correlation of cosines"]),
        ("pairs", "phenomena", ["Encoder", "Phenomenon", "Right"]),
        ("fills", "figures", ["Encoder", "Head, kind, frequency", "Right", "Nats a word", "Fills"]),
    ):
        rows: list[Sequence[Cell]] = []
        for name, by_part in results.items():
            # of random weights the first seed
            for result in list(by_part.get(part, {}).values())[:1]:
                found = result.get(key)
                if isinstance(found, float):
                    rows.append([name, f"{found:.2f}"])
                for inner, value in found.items() if isinstance(found, dict) else ():
                    numbers = list(value.values()) if isinstance(value, dict) else [value]
                    rows.append(
                        [name, inner.replace("/", ", "), *(f"{each:,.2f}".removesuffix(".00") for each in numbers)]
                    )
        if rows:
            blocks.append(
                Folded(
                    f"Details of {part}",
                    [Table(head, rows, names=len(head) - len(rows[0][2:]) - 0 if part != "similarity" else 1)],
                )
            )
    return blocks


def suite_json(table: SuiteTable, settings: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """Returns the table as JSON values, with its settings, without the items."""

    # NaN is no JSON, and the items would be most of the file
    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    encoders = {
        name: {
            part: {
                "mean": finite(each.mean),
                "deviation": finite(each.deviation),
                "baseline": finite(each.baseline),
                "interval": [finite(each.interval.low), finite(each.interval.high)] if each.interval else None,
                "seeds": {str(seed): value for seed, value in each.values.items()},
                **({"tasks": {str(s): r["tasks"] for s, r in results[name][part].items()}} if part in PROBES else {}),
                **{
                    k: v
                    for k, v in next(iter(results[name][part].values()), {}).items()
                    if k in ("spearman", "phenomena", "figures", "nats")
                },
            }
            for part, each in by_part.items()
        }
        for name, by_part in table.measures.items()
    }
    tested = {
        name: {part: vars(found) if found else None for part, found in by_part.items()}
        for name, by_part in table.differences.items()
    }
    return {"title": TITLE, "settings": dict(settings), "encoders": encoders, "differences": tested}
