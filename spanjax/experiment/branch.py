"""Decay branches: a run that continues a checkpoint of another run's stable phase, and decays from there.

One stable run serves decays of any number and length. The branch copies the checkpoint into its own work directory and resumes
from it, so it takes over parameters, moments, step, data order, masks and the evaluation history. The other run is only read.
"""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spanjax.cli import visible_name
from spanjax.json_files import read_json
from spanjax.run import Run
from spanjax.run_format import completed, differences_in_paths, restored
from spanjax.storage.inputs import local_checkpoint
from spanjax.storage.local import copy_files, flush
from spanjax.storage.objects import is_remote
from spanjax.training.checkpoint_files import CHECKSUMS, UNFINISHED, damage, incomplete, steps_of, write_checksums
from spanjax.training.mirror import Mirror
from spanjax.training.optimizers.schedules import Schedule
from spanjax.training.redaction import redacted

OWN = ("steps", "init_from", "optimizer.schedule.")
"""Settings in which a branch may differ from its run; the rates up to the branch must still be equal."""
SETTING = "--optimizer.schedule.decay-from"


class Branch(NamedTuple):
    """A checkpoint that a run begins with."""

    checkpoint: pathlib.Path
    """Folder of the checkpoint in the other run."""
    lines: tuple[str, ...]
    """Messages on the run that is continued."""

    def copy_into(self, workdir: pathlib.Path, mirror: Mirror | None = None) -> None:
        """Copies the checkpoint into a claimed work directory, as a whole or not at all. Only process 0 writes.

        Commits it to the bucket of a mirror too. ValueError if it cannot be copied.
        """
        if jax.process_index():
            return
        target = workdir / "checkpoints" / self.checkpoint.name
        # a kill leaves it, and the next start removes it
        unfinished = target.with_name(f"{target.name}{UNFINISHED}-branch")
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            copy_files(self.checkpoint, unfinished)
            meta = read_json(unfinished / "meta" / "metadata")
            meta.pop("tracking", None)  # the branch has curves of its own
            (unfinished / "meta" / "metadata").write_text(json.dumps(meta))
            (unfinished / CHECKSUMS).unlink(missing_ok=True)
            write_checksums(unfinished)
            os.rename(unfinished, target)
            flush(target.parent)
            if mirror is not None:
                mirror.adopt(int(target.name))
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise ValueError(
                f"{self.checkpoint} could not be copied to {target} ({error.strerror or error}): free some space, or look whether"
                " the checkpoint still exists, and run the same command again"
            ) from error


def is_branch(run: Run) -> bool:
    """True for a decay branch, which continues a checkpoint of the run in `init_from` instead of taking its weights alone."""
    return bool(run.init_from) and run.optimizer.schedule.decay_from >= 0


def origin_of(run: Run) -> pathlib.Path:
    """Returns the folder of the run that a branch continues; of one in a bucket, of a copy with that step alone.

    StorageError if a run in a bucket has no checkpoint of the step.
    """
    cache = run.data.files() if is_remote(run.init_from) else None
    return pathlib.Path(local_checkpoint(run.init_from, run.optimizer.schedule.decay_from, cache))


def branch_line(run: Run) -> str:
    """Describes the origin of a branch as text."""
    return visible_name(f"branch      of {run.init_from} at step {run.optimizer.schedule.decay_from:,}")


def open_branch(run: Run, description: Mapping[str, Any]) -> Branch:
    """Checks that a branch may continue the checkpoint that it names.

    `description` is that of its run.json. ValueError if the checkpoint is missing or damaged, or if the other run differs in a
    setting or in the learning rate of an update before the branch.
    """
    step = run.optimizer.schedule.decay_from
    origin = origin_of(run)
    what, steps = f"--init-from {run.init_from} {SETTING} {step}", steps_of(origin)
    if not (origin / "run.json").is_file() or not steps:
        raise ValueError(
            f"{what} begins a decay branch, and {origin} is no run directory with checkpoints: give that of a stable run; to"
            " take weights alone, plan the decay with --optimizer.schedule.decay-steps or --optimizer.schedule.decay-share"
        )
    if step not in steps:
        raise ValueError(
            f"{what}: {origin} has no checkpoint of step {step:,}, it has {', '.join(f'{each:,}' for each in steps)}: give one of"
            " these (a run keeps the newest --cadence.keep of them, and the best)"
        )
    checkpoint = origin / "checkpoints" / str(step)
    if reason := damage(checkpoint) or incomplete(checkpoint):
        raise ValueError(f"{what}: {checkpoint} is damaged ({reason}): give another step, or copy it again")
    # as a resume compares them: what may change there, mesh and cadence for one, may change here
    stored = redacted(read_json(origin / "run.json", dict, "restore it, or give another run"))
    found = differences_in_paths(stored, json.loads(json.dumps(description)), origin)
    if found := [line for line in found if not line.strip().startswith(OWN)]:
        raise ValueError(
            f"{what}: a branch has the settings of its run; what differs (there -> here):\n"
            + "\n".join(found)
            + f"\nuse the settings of {origin}, or plan a decay of its own with --optimizer.schedule.decay-steps"
        )
    _check_rates(run, stored, what)
    return Branch(checkpoint, (f"parameters, moments, step and data order of checkpoint {step:,}",))


def _check_rates(run: Run, stored: Mapping[str, Any], what: str) -> None:
    """Raises a ValueError if the other run had another learning rate in an update before the branch."""
    schedule = restored(completed(dict(stored))["optimizer"]["schedule"], Schedule)
    theirs = dataclasses.replace(run.optimizer, schedule=schedule).rate_schedule(int(stored["steps"]))
    count = jnp.arange(run.optimizer.schedule.decay_from)
    before, now = (np.asarray(jax.jit(each)(count)) for each in (theirs, run.optimizer.rate_schedule(run.steps)))
    if len(other := np.flatnonzero(before != now)):
        first = int(other[0])
        raise ValueError(
            f"{what}: the learning rate of update {first:,} was {before[first]:.4g} in that run, and a run whose decay begins at"
            f" {len(count):,} has {now[first]:.4g}: give a checkpoint of its stable phase, up to step {first:,}"
        )
