"""The section of a sweep: every arm next to the base arm, paired by seed."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spanjax.bounds import raise_problems
from spanjax.experiment.sweep_folder import RESTORE
from spanjax.json_files import read_json
from spanjax.pages.document import Block, Cell, Heading, Table, Text, code, number
from spanjax.scoring.paired import Paired, paired
from spanjax.scoring.spread import Spread
from spanjax.storage.inputs import RESULT, SWEEP
from spanjax.tasks.base import SCORE

COSTS = ("steps", "flops", "seconds")
SINGLE = "single_tokens/loss"
"""Name of the yardstick among the values of a run."""


class ReadSweep(NamedTuple):
    """A sweep with the results that its folder holds."""

    path: pathlib.Path
    arms: Mapping[str, Mapping[str, Any]]
    """Entries of sweep.json; the first is the base arm."""
    seeds: Sequence[int]
    results: Mapping[tuple[str, int], Mapping[str, Any]]
    """(arm, seed) -> result.json."""

    def values(self, arm: str) -> dict[int, dict[str, float]]:
        """Seed -> values of a finished run: held-out metrics, and those of single tokens."""
        found = {}
        for seed in self.seeds:
            result = self.results.get((arm, seed), {"error": ""})
            if "error" not in result:
                single = {f"single_tokens/{name}": value for name, value in (result["single_tokens"] or {}).items()}
                found[seed] = {**result["held_out"], **single, **{n: result[n] for n in COSTS}}
        return found

    @property
    def metrics(self) -> list[str]:
        """Metrics by which arms are compared: the loss of single tokens; of a task all scores."""
        names = {name for arm in self.arms for values in self.values(arm).values() for name in values}
        return sorted(name for name in names if name == SINGLE or name.startswith(SCORE))


def is_sweep(path: pathlib.Path) -> bool:
    """True for the work directory of a sweep."""
    return (path / SWEEP).is_file()


def read_sweep(path: pathlib.Path) -> ReadSweep:
    """Reads a sweep. ValueError if a file is damaged."""
    content = read_json(path / SWEEP, dict, RESTORE)
    try:
        arms, seeds = dict(content["arms"]), [int(seed) for seed in content["seeds"]]
        pairs = ((arm, seed, path / arm / str(seed) / RESULT) for arm in arms for seed in seeds)
        results = {(arm, seed): read_json(file, dict, RESTORE) for arm, seed, file in pairs if file.is_file()}
        sweep = ReadSweep(path, arms, seeds, results)
        raise_problems([] if arms and all("settings" in arm for arm in arms.values()) else [f"{path / SWEEP}: no arms"])
        assert sweep.metrics is not None  # reads every result
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds a damaged {SWEEP} or {RESULT} ({error}): {RESTORE}") from error
    return sweep


def compared(sweep: ReadSweep, metric: str) -> dict[str, Paired | None]:
    """Compares every arm but the base with the base over the seeds that both have; None without a common one."""
    base, *others = sweep.arms
    known = {arm: {s: v[metric] for s, v in sweep.values(arm).items() if metric in v} for arm in sweep.arms}
    found: dict[str, Paired | None] = {}
    for arm in others:
        seeds = [seed for seed, value in known[arm].items() if math.isfinite(value + known[base].get(seed, math.nan))]
        found[arm] = paired([known[arm][s] for s in seeds], [known[base][s] for s in seeds]) if seeds else None
    return found


def sweep_json(sweep: ReadSweep) -> dict[str, Any]:
    """Returns the comparison as JSON: values of every arm by seed, and paired differences by metric; null for no interval."""
    differences = {
        metric: {
            arm: {**{n: None if v != v else v for n, v in vars(found).items()}, "verdict": found.verdict}
            for arm, found in compared(sweep, metric).items()
            if found
        }
        for metric in sweep.metrics
    }
    arms = {
        arm: {
            "settings": entry["settings"],
            "seeds": {
                seed: {name: value if math.isfinite(value) else None for name, value in values.items()}
                for seed, values in sweep.values(arm).items()
            },
        }
        for arm, entry in sweep.arms.items()
    }
    return {"base": next(iter(sweep.arms)), "arms": arms, "differences": differences}


def _comparison(sweep: ReadSweep, metric: str) -> Table:
    """Builds the table of one metric, a row for every arm."""
    found, rows = compared(sweep, metric), list[Sequence[Cell]]()
    for arm in sweep.arms:
        values = list(sweep.values(arm).values())
        steps, flops, seconds, spread = (
            Spread.of(each[name] for each in values if name in each) for name in (*COSTS, metric)
        )
        costs = (
            number(steps and steps.mean),
            number(flops and flops.mean / 1e12),
            number(seconds and seconds.mean, 3),
            spread.words(lambda value: f"{value:.4f}") if spread else "–",
        )
        one = found.get(arm)
        interval = f"{one.low:+.4f} to {one.high:+.4f}" if one and one.verdict else "–"
        verdict = "base" if arm not in found else (one.verdict or "one seed: no interval") if one else "–"
        rows.append([arm, *costs, f"{one.mean:+.4f}" if one else "–", interval, verdict])
    head = ["Arm", "Steps", "TFLOP", "Seconds of training", f"{metric}: mean ± dev. (n)"]
    head += ["Difference from base", "95 % interval", "Verdict"]
    return Table(head, rows, f"{metric}, arms paired with the base arm by seed")


def sweep_blocks(sweep: ReadSweep) -> list[Block]:
    """Builds the section: progress, comparisons, all held-out metrics, settings, failures."""
    done, total = sum(len(sweep.values(arm)) for arm in sweep.arms), len(sweep.arms) * len(sweep.seeds)
    blocks: list[Block] = [Heading(2, f"Sweep {sweep.path.name}"), Text(f"{done} of {total} runs are finished.")]
    blocks += [_comparison(sweep, metric) for metric in sweep.metrics]
    comparisons = len(sweep.metrics) * (len(sweep.arms) - 1)
    blocks.append(
        Text(
            "Differences are arm minus base over the same seeds; intervals are Student's t of these differences, not corrected"
            f" for there being {comparisons} comparisons. The loss of single tokens is on the same 15 % of the same held-out"
            " rows for all arms, each token replaced by [MASK]; lower is better.",
            small=True,
        )
    )
    # losses of other masking are no measure across arms, but show how each arm did at its own objective
    means = {arm: list(sweep.values(arm).values()) for arm in sweep.arms}
    names = sorted(
        {name for values in means.values() for each in values for name in each} - {*COSTS, "single_tokens/tokens"}
    )
    rows: list[Sequence[Cell]] = []
    for arm, values in means.items():
        spreads = [Spread.of(each[name] for each in values if name in each) for name in names]
        rows.append([arm, *(number(spread and spread.mean) for spread in spreads)])
    blocks.append(Table(["Arm", *map(code, names)], rows, "Held-out metrics, means over the seeds"))
    settings = [
        [arm, code(name.replace("/", ".")), code(str(value))]
        for arm, entry in sweep.arms.items()
        for name, value in entry["settings"].items()
        if value is not None
    ]
    if settings:
        blocks.append(Table(["Arm", "Setting", "Value"], settings, "Settings that differ from the base", numbers=False))
    failed = [(*key, result["error"]) for key, result in sweep.results.items() if "error" in result]
    return [*blocks, *(Text(f"Failed: arm {arm}, seed {seed}: {error}") for arm, seed, error in failed)]
