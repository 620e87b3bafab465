"""Runs a grid of arms and seeds one after the other, each in a work directory of its own, over any number of sittings.

WORKDIR/sweep.json describes the arms, WORKDIR/ARM/SEED is an ordinary run directory, and result.json in it records a finished
or failed run; WORKDIR may be in a bucket. All runs share one process: `train` closes what it opens, and compiled programs are
dropped after each run.
"""

import contextlib
import dataclasses
import gc
import io
import json
import pathlib
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax

from spanjax.bounds import raise_problems
from spanjax.cli import SOME_FAILED, visible
from spanjax.data.feed.host_slice import AnyRows
from spanjax.data.feed.masking import Staged
from spanjax.data.feed.rows import slots_needed
from spanjax.data.feed.warmup import steps_for
from spanjax.experiment.grid import Arm, Grid
from spanjax.experiment.pretrain import PretrainingSession
from spanjax.experiment.session import description, open_session
from spanjax.experiment.sweep_folder import RESTORE, SweepFolder
from spanjax.inference.token_loss import single_token_loss
from spanjax.json_files import read_json
from spanjax.pretrained.load import load_model
from spanjax.run import Run
from spanjax.run_format import MAY_CHANGE, differences_in_paths, flat
from spanjax.scoring.checks import listed
from spanjax.storage.inputs import RESULT, SWEEP
from spanjax.training.metrics import record_of
from spanjax.training.redaction import redacted


class Commands(NamedTuple):
    """Functions of the command line, which imports this module."""

    parse: Callable[[list[str], Run | None], Any]
    named: Callable[[Sequence[str]], set[str]]
    train: Callable[[Any, Collection[str]], int]
    explain: Callable[[Exception], tuple[str | None, int]]


class Planned(NamedTuple):
    """An arm that is ready to run."""

    name: str
    command: Any
    """Its parsed command; seed and work directory are added."""
    named: set[str]
    described: dict[str, Any]
    """run.json of its first seed."""
    steps: int
    flops: float
    """FLOPs of one step, of a whole batch; 0 of a task."""
    settings: dict[str, Any]
    """Settings in which it differs from the base arm."""

    def summary(self) -> dict[str, Any]:
        """Returns its entry of sweep.json."""
        return {"settings": self.settings, "steps": self.steps, "flops_per_step": self.flops}


def step_flops(session: PretrainingSession) -> float:
    """Model FLOPs of a training step on a batch of full rows, forward and backward, with as many slots as its batches have."""
    spec, run = session.spec, session.run
    slots = slots_needed(session.rows.manifest, spec.masking.most, spec.pairing.parts)
    return session.objective.flops_per_row(run.encoder, session.rows.length, slots) * run.batch_size


def equal_steps(run: Run, batches: float) -> int:
    """Returns the steps, at least 1, in which the run reads as many rows as there are in so many batches."""
    return max(1, steps_for(batches * run.batch_size, run.batch_size, run.batch_stages))


def with_steps(run: Run, steps: int) -> Run:
    """Returns the run with other steps, and the stages of its masking where they were in proportion."""
    objective: Any = run.objective
    masking = getattr(objective, "masking", None)
    if isinstance(masking, Staged):
        firsts = [round(stage.first_step * steps / run.steps) for stage in masking.stages]
        stages = [dataclasses.replace(s, first_step=f) for s, f in zip(masking.stages, firsts, strict=True)]
        objective = dataclasses.replace(objective, masking=dataclasses.replace(masking, stages=tuple(stages)))
    return dataclasses.replace(run, objective=objective, steps=steps)


def _parsed(commands: Commands, words: list[str], arm: Arm) -> Any:
    """Parses the command of an arm; ValueError with the message that the parser prints."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            return commands.parse([*words, *arm.settings], arm.run)
    except SystemExit:
        lines = [line.strip(" │╭╮╰╯─-") or "" for line in printed.getvalue().splitlines()]
        body = lines[2:] if len(lines) > 2 and not lines[1] else lines  # below the title and its rule
        raise ValueError(" ".join(body[: body.index("")] if "" in body else body)) from None


def _session_problems(session: Any, base: Any) -> list[str]:
    """Lists the reasons why the held-out losses of an arm would not be comparable with those of the base arm."""
    if not isinstance(session, PretrainingSession) or not isinstance(base, PretrainingSession):
        return [] if type(session) is type(base) else ["it pretrains or fine-tunes, the base arm does not"]
    found = []
    if session.vocabulary.files() != base.vocabulary.files():
        found.append("its rows have another vocabulary than those of the base arm")
    if base.rows.length > session.run.encoder.positions:
        found.append(f"encoder.positions is less than {base.rows.length}, the length of the base arm's rows")
    return found


def plan(grid: Grid, words: list[str], workdir: SweepFolder, commands: Commands) -> tuple[list[Planned], Any]:
    """Opens every arm, so that all problems are found before the first one trains; also returns the base arm's session.

    ValueError lists the problems of all arms, among them settings that have changed since a run of the arm began.
    """
    plans, problems, base, budget = list[Planned](), list[str](), None, 0.0
    for arm in grid.arms:
        try:
            command = _parsed(commands, words, arm)
            named = commands.named([*words, *arm.settings]) | {"seed"}
            first, begun = workdir.opened(arm.name, grid.seeds[0], command.run.data.cache)
            resumed = first if begun else None
            run = dataclasses.replace(command.run, seed=grid.seeds[0])
            session: Any = open_session(run, named, resumed)
            # the first arm is the base: its FLOPs are the budget of the others
            pretrains, base = isinstance(session, PretrainingSession), base or session
            raise_problems(_session_problems(session, base))
            flops = step_flops(session) if pretrains else 0.0
            budget = budget or flops * session.run.batches
            if (
                grid.equal_flops
                and pretrains
                and (steps := equal_steps(session.run, budget / flops)) != session.run.steps
            ):
                run = with_steps(dataclasses.replace(run, steps=session.run.steps), steps)
                session, named = open_session(run, named, resumed), named | {"steps"}
        except ValueError as error:
            problems.append(f"  - arm {arm.name}: {error}")
            continue
        described = json.loads(json.dumps(description(session)))
        own, others = flat(described), flat(plans[0].described if plans else described)
        differ = sorted(n for n in own.keys() | others.keys() if own.get(n) != others.get(n))
        settings = {name: own.get(name) for name in differ if not name.startswith(MAY_CHANGE)}
        same = next((each.name for each in plans if each.settings == settings), "")
        problems += [f"  - arm {arm.name}: it has the settings of arm {same}"] if same else []
        command = dataclasses.replace(command, run=run)
        plans.append(Planned(arm.name, command, named, described, session.run.steps, flops, settings))
    if isinstance(base, PretrainingSession) and base.validation is None:
        problems.append("  - the rows have no held-out part, on which the arms are compared: prepare them with one")
    if grid.equal_flops and base is not None and not isinstance(base, PretrainingSession):
        problems.append("  - equal_flops: only pretraining counts FLOPs; leave it away")
    if not problems:
        problems = [p for each in plans for seed in grid.seeds for p in changed(each, seed, workdir)]
    raise_problems(problems, "this sweep cannot run:")
    return plans, base


def changed(arm: Planned, seed: int, workdir: SweepFolder) -> list[str]:
    """Lists what differs between a run that has begun and the arm, as one problem; empty for none."""
    folder, _ = workdir.opened(arm.name, seed, arm.command.run.data.cache)
    if not (folder / "run.json").is_file():
        return []
    stored = redacted(read_json(folder / "run.json", dict, RESTORE))
    if not (found := differences_in_paths(stored, {**arm.described, "seed": seed}, folder)):
        return []
    lines = "\n".join(["", *found])
    name = workdir.run(arm.name, seed)
    return [f"  - arm {arm.name}: {name} has other settings (there -> now); restore them, or remove it:{lines}"]


def training_seconds(folder: pathlib.Path) -> float:
    """Returns the seconds of all steps in metrics.jsonl, of all sittings; without evaluations and saves."""
    file, seconds, before = folder / "metrics.jsonl", 0.0, 0
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        if (record := record_of(line)) and "speed/step_ms" in record:
            seconds += record["speed/step_ms"] / 1000 * (record["step"] - before)
            before = record["step"]
    return round(seconds, 3)


def result(arm: Planned, seed: int, folder: pathlib.Path, held_out: AnyRows | None) -> dict[str, Any]:
    """Builds the record of a run that has ended well."""
    summary = read_json(folder / "summary.json", dict, RESTORE)
    found = single_token_loss(load_model(folder), held_out) if held_out is not None else None
    return {
        "arm": arm.name,
        "seed": seed,
        "settings": arm.settings,
        "steps": summary["step"],
        "flops": arm.flops * dataclasses.replace(arm.command.run, steps=summary["step"]).batches,
        "seconds": training_seconds(folder),
        "held_out": summary["eval"],
        "single_tokens": found._asdict() if found else None,
    }


def run_sweep(grid: Grid, words: list[str], workdir: SweepFolder, commands: Commands, dry_run: bool) -> int:
    """Runs what is missing of a sweep, all arms with the first seed before any with the second; returns the exit code.

    ValueError before the first run if an arm cannot run; a run that fails later is recorded, and repeated by the next call.
    """
    if jax.process_count() > 1:
        raise ValueError(
            f"--sweep runs in one process, and there are {jax.process_count()}: start one run for each arm"
        )
    plans, base = plan(grid, words, workdir, commands)
    if dry_run:
        for each in plans:
            given = {name.replace("/", "."): value for name, value in each.settings.items() if value is not None}
            differ = listed(f"{name} {value}" for name, value in given.items()) or "the base"
            print(visible(f"{each.name}: {each.steps:,} steps of {each.flops / 1e9:,.1f} GFLOP; {differ}"))
        return 0
    runs = [(each, seed) for seed in grid.seeds for each in plans]
    held_out = base.validation if isinstance(base, PretrainingSession) else None
    failed = list[str]()
    with workdir.sole():
        arms = {each.name: each.summary() for each in plans}
        workdir.write(SWEEP, {"seeds": grid.seeds, "equal_flops": grid.equal_flops, "arms": arms})
        for number, (arm, seed) in enumerate(runs, start=1):
            if workdir.finished(arm.name, seed):
                continue
            print(f"\nsweep: run {number} of {len(runs)}, arm {arm.name}, seed {seed}", flush=True)
            run = dataclasses.replace(arm.command.run, seed=seed)
            try:
                folder, _ = workdir.opened(arm.name, seed, run.data.cache)
                name = workdir.run(arm.name, seed)
                if code := commands.train(dataclasses.replace(arm.command, run=run, workdir=name), arm.named):
                    return code
                record = result(arm, seed, folder, held_out)
            except Exception as error:  # the other arms are worth their results, whatever ended this one
                message = commands.explain(error)[0] or f"{type(error).__name__}: {error}"
                failed.append(f"arm {arm.name}, seed {seed}: {message}")
                print(visible(f"sweep: {failed[-1]}"), file=sys.stderr)
                record = {"arm": arm.name, "seed": seed, "settings": arm.settings, "error": message}
            workdir.write(f"{arm.name}/{seed}/{RESULT}", record)
            if "error" not in record:
                workdir.remove_copy(folder)
            jax.clear_caches()
            gc.collect()
    print(f"\nsweep: {len(runs) - len(failed)} of {len(runs)} runs are finished: python -m spanjax.report {workdir}")
    if failed:
        print(visible("\n".join(["sweep: failed, the same command repeats them:", *failed])), file=sys.stderr)
    return SOME_FAILED if failed else 0
