"""Opens the session of any run and its outputs, and describes it for run.json and for checkpoints."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Collection
from typing import Any

import jax

from spanjax import __version__
from spanjax.bounds import raise_problems
from spanjax.experiment.branch import is_branch, origin_of
from spanjax.experiment.finetune import open_task_session
from spanjax.experiment.pretrain import open_pretraining_session
from spanjax.json_files import read_json
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import MASK_VERSION
from spanjax.pretrained.model import stored_vocabulary
from spanjax.run import Run, overridden
from spanjax.run_format import MASKS, MODEL_TYPE, STARTED_IN, describe, kind_of, restored
from spanjax.tasks.base import Task
from spanjax.training.checkpoint import Checkpoints
from spanjax.training.loop import Outputs, Session
from spanjax.training.metrics import JsonLines, ResilientWriter, TensorBoard, Terminal, Writer
from spanjax.training.redaction import redacted
from spanjax.training.trackers import Trackers


def open_session(requested: Run, named: Collection[str] = (), resumed: pathlib.Path | None = None) -> Session:
    """Opens the session of a run: of a task's examples, or of prepared rows.

    ValueError that lists all problems, also if a requested setting would not take effect; `named` are the settings that the
    command line names, `resumed` is the work directory of a run that has a checkpoint.
    """
    if isinstance(requested.objective, Task):
        session = open_task_session(requested)
    else:
        # a branch has the encoder of its run, as if it resumed that: its weights are those of the checkpoint
        origin = resumed or (origin_of(requested) if is_branch(requested) else None)
        stored, family = _stored_encoder(origin) if origin and requested.init_from else (None, "")
        session = open_pretraining_session(requested, named, stored, family)
        if requested.init_from:
            # sizes of a config file give way to those of the weights, with a note; named ones were compared
            requested = dataclasses.replace(requested, encoder=session.run.encoder)
    raise_problems(overridden(requested, session.run, named))
    return session


def _stored_encoder(workdir: pathlib.Path) -> tuple[EncoderConfig | None, str]:
    """Returns the encoder in a work directory's run.json, and the family of its initial weights as in `MODEL_TYPE`; None and ""
    if it cannot be read, which `open_workdir` reports."""
    try:
        found = read_json(workdir / "run.json")
        return restored(found["encoder"], EncoderConfig), str(found.get(MODEL_TYPE, ""))
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return None, ""


def description(session: Session) -> dict[str, Any]:
    """Returns the content of run.json, without secrets: the settings, and what identifies the training data."""
    described = describe(session.run)
    return redacted({"kind": kind_of(described), **described, **session.identity(), MASKS: MASK_VERSION})


def checkpoint_meta(session: Session) -> dict[str, Any]:
    """Returns the meta of a run's checkpoints as JSON values: run, data, hardware, vocabulary."""
    device = session.mesh.devices.flat[0]
    hardware = {
        "devices": f"{session.mesh.devices.size} x {device.device_kind}",
        "processes": jax.process_count(),
        "jax": jax.__version__,
    }
    run = {"spanjax": __version__, "run": description(session), STARTED_IN: str(pathlib.Path.cwd()), **session.about()}
    return {**run, "hardware": hardware, "vocabulary": stored_vocabulary(session.vocabulary)}


def open_outputs(
    session: Session,
    workdir: pathlib.Path,
    checkpoints: Checkpoints,
    begin: int,
    terminal: Terminal,
    resources: contextlib.ExitStack,
) -> Outputs:
    """Opens the writers of process 0 for the records after step `begin`; `resources` closes them. Others have none."""
    meta, writers = checkpoint_meta(session), list[Writer]()
    if jax.process_index():
        return Outputs(workdir, checkpoints, meta, writers, terminal)

    # each is registered at once, so that a later one that fails leaves none open
    def add(writer: Any) -> Any:
        resources.callback(writer.close)
        writers.append(writer)
        return writer

    add(ResilientWriter("metrics.jsonl", functools.partial(JsonLines, workdir / "metrics.jsonl"), begin))
    try:
        add(ResilientWriter("tensorboard", functools.partial(TensorBoard, workdir / "tensorboard"), begin))
    except ModuleNotFoundError:
        terminal.note("tensorboardX is not installed: metrics.jsonl holds the same numbers")
    run = session.run
    trackers = add(Trackers(run.tracking, workdir, begin, run.steps, meta["run"], terminal.note))
    return Outputs(workdir, checkpoints, {**meta, **trackers.meta()}, [*writers, terminal], terminal)
