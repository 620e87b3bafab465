"""Checkpoints of a sweep as encoders of a suite, and what the suite says of its arms over their seeds of pretraining.

Scores are Encoder -> column -> score, one number for each checkpoint: probes are averaged over their own seeds first, so that
the pretraining runs are the sample, and arms are compared run by run, paired by the seed of pretraining.
"""

import itertools
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spanjax.bounds import raise_problems
from spanjax.experiment.sweep_folder import SweepFolder
from spanjax.pages.document import Block, Folded, Heading, Table, Text
from spanjax.scoring.checks import listed
from spanjax.scoring.paired import Paired, paired
from spanjax.storage.inputs import SWEEP
from spanjax.suite.tuned_table import difference_cell, score_cell
from spanjax.training.checkpoint_files import steps_of

Scores = Mapping[str, Mapping[str, float]]


class Member(NamedTuple):
    """A checkpoint of a sweep."""

    sweep: str
    arm: str
    seed: int
    step: int
    last: bool
    """True for the newest checkpoint of its run."""


def expand(paths: Sequence[str], every: bool) -> tuple[list[str], dict[str, Member]]:
    """Replaces each work directory of a sweep by the last checkpoints of its finished runs, or by `every` kept checkpoint.

    Also returns path -> member for those. `every` holds for plain run directories too. ValueError for a sweep with runs that
    are missing: an arm with fewer seeds than another one is no fair comparison.
    """
    found, members, problems = list[str](), dict[str, Member](), list[str]()
    for path in paths:
        steps = steps_of(pathlib.Path(path))
        if (pathlib.Path(path) / SWEEP).is_file():
            own, missing = _members(path, every)
            members |= own
            found += own
            if not own and not missing:
                problems.append(f"{path}: its {SWEEP} has no arms; name the work directory of a sweep")
            if missing:
                problems.append(f"{path}: {listed(missing)} not finished: train first (spanjax.train --sweep resumes)")
        elif every and steps:
            found += [f"{path}/checkpoints/{step}" for step in steps]
        else:
            found.append(path)
    raise_problems(problems)
    return list(dict.fromkeys(found)), members


def _members(path: str, every: bool) -> tuple[dict[str, Member], list[str]]:
    folder, missing, found = SweepFolder(path), list[str](), dict[str, Member]()
    content: Any = folder.read(SWEEP) or {}
    for arm in content.get("arms", ()):
        for seed in content.get("seeds", ()):
            run = folder.run(arm, seed)
            steps = steps_of(pathlib.Path(run))
            if not steps or not folder.finished(arm, seed):
                missing.append(f"{arm}/{seed}")
                continue
            for step in steps if every else steps[-1:]:
                found[f"{run}/checkpoints/{step}"] = Member(path, arm, seed, step, step == steps[-1])
    return found, missing


class ArmScores(NamedTuple):
    """The scores of a sweep's arms."""

    columns: Sequence[str]
    last: Mapping[str, Mapping[str, Mapping[int, float]]]
    """Arm -> column -> seed -> score of the last checkpoint."""
    steps: Mapping[str, Mapping[int, Mapping[str, float]]]
    """Arm -> step -> column -> mean over the seeds."""

    @property
    def differences(self) -> dict[str, dict[str, Paired]]:
        """Every arm minus each one before it: "ARM - BASE" -> column -> difference over the seeds that both have."""
        found = dict[str, dict[str, Paired]]()
        for base, arm in itertools.combinations(self.last, 2):
            own = found.setdefault(f"{arm} - {base}", {})
            for column in self.columns:
                values, others = self.last[arm].get(column, {}), self.last[base].get(column, {})
                if seeds := sorted(values.keys() & others.keys()):
                    own[column] = paired([values[s] for s in seeds], [others[s] for s in seeds])
        return found


def arm_scores(members: Mapping[str, Member], scores: Scores) -> dict[str, ArmScores]:
    """Returns sweep -> scores of its arms; `members` by the encoder's name."""
    found = dict[str, ArmScores]()
    for sweep in dict.fromkeys(member.sweep for member in members.values()):
        own = {name: member for name, member in members.items() if member.sweep == sweep}
        columns = list(dict.fromkeys(column for name in own for column in scores.get(name, {})))
        last: dict[str, dict[str, dict[int, float]]] = {}
        by_step: dict[str, dict[int, dict[str, list[float]]]] = {}
        for name, member in own.items():
            for column, value in scores.get(name, {}).items():
                if member.last:
                    last.setdefault(member.arm, {}).setdefault(column, {})[member.seed] = value
                steps = by_step.setdefault(member.arm, {}).setdefault(member.step, {})
                steps.setdefault(column, []).append(value)
        means = {
            arm: {step: {c: statistics.fmean(values) for c, values in of.items()} for step, of in sorted(steps.items())}
            for arm, steps in by_step.items()
        }
        found[sweep] = ArmScores(columns, last, means)
    return found


NOTE = (
    "Mean ± deviation over the seeds of pretraining, of the last checkpoints. Differences are paired by that seed, with Student's"
    " 95 % interval, and are not corrected for their number."
)


def arm_blocks(found: Mapping[str, ArmScores]) -> list[Block]:
    """Builds the sections of the sweeps: arms, differences of every pair of arms, scores by step."""
    blocks = list[Block]()
    for sweep, arms in found.items():
        names, columns = list(arms.last), arms.columns
        rows = [[arm, *(score_cell(arms.last[arm].get(column, {}).values()) for column in columns)] for arm in names]
        blocks += [Heading(2, f"Arms of {sweep}"), Table(["Arm", *columns], rows, numbers=False)]
        blocks.append(Text(NOTE, small=True))
        differences = [
            [pair, *(difference_cell(of.get(column)) for column in columns)] for pair, of in arms.differences.items()
        ]
        blocks.append(Table(["Arms", *columns], differences, "Differences", numbers=False))
        by_step = [
            [arm, f"{step:,}", *(f"{of[c]:.1f}" if c in of else "–" for c in columns)]
            for arm, steps in arms.steps.items()
            for step, of in steps.items()
        ]
        if any(len(steps) > 1 for steps in arms.steps.values()):
            blocks.append(Folded("Scores by step", [Table(["Arm", "Step", *columns], by_step)]))
    return blocks


def arm_json(found: Mapping[str, ArmScores]) -> dict[str, Any]:
    """Returns the sections as JSON values."""
    return {
        sweep: {
            "last": {
                arm: {c: {str(s): v for s, v in of.items()} for c, of in own.items()} for arm, own in a.last.items()
            },
            "steps": {arm: {str(step): dict(of) for step, of in own.items()} for arm, own in a.steps.items()},
            "differences": {pair: {c: vars(d) for c, d in of.items()} for pair, of in a.differences.items()},
        }
        for sweep, a in found.items()
    }
