"""Checkpoints: asynchronous, the last N and the best kept, verified, restored onto any mesh. The only file that imports orbax.

A step's folder holds `state` (step, parameters, moments), `meta` (JSON: resolved run, encoder, vocabulary, rows) and, once
the save is complete, `checksums.json`. A damaged checkpoint is moved to `damaged/` and the one before it is used.
"""

import contextlib
import json
import logging
import os
import pathlib
import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from spanjax.distributed import barrier, gather
from spanjax.training.state import TrainState

log = logging.getLogger(__name__)
CHECKSUMS = "checksums.json"


class CheckpointError(ValueError):
    """A checkpoint that could not be written or read; the message says what to do."""


def _crc(path: pathlib.Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            value = zlib.crc32(chunk, value)
    return value


def _contents(folder: pathlib.Path) -> dict[str, list[int]]:
    """Relative name -> [bytes, crc32] of every file of a step."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(CHECKSUMS))
    return {str(p.relative_to(folder)): [p.stat().st_size, _crc(p)] for p in files}


def damage(folder: pathlib.Path) -> str | None:
    """What is wrong with a step's files compared with its checksums; None when they agree or none were written."""
    path = folder / CHECKSUMS
    if not path.exists():
        return None
    try:
        expected = json.loads(path.read_text())
    except ValueError:
        return f"{CHECKSUMS} is not JSON"
    actual = _contents(folder)
    missing = sorted(expected.keys() - actual.keys())
    changed = sorted(name for name in expected.keys() & actual.keys() if expected[name] != actual[name])
    return f"missing files {missing[:3]}, changed files {changed[:3]}" if missing or changed else None


class Checkpoints:
    """The checkpoints of one work directory."""

    def __init__(self, workdir: pathlib.Path, keep: int):
        self.workdir = workdir
        self.folder = workdir / "checkpoints"
        self.unverified: list[int] = []
        best = checkpoint_managers.BestN(
            get_metric_fn=lambda metrics: metrics["loss"], reverse=True, n=1, keep_checkpoints_without_metrics=False
        )
        policy = checkpoint_managers.AnyPreservationPolicy([checkpoint_managers.LatestN(n=keep), best])
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            step_prefix=None,
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
            create=True,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.manager = ocp.CheckpointManager(
            self.folder.absolute(), options=options, item_names=("state", "meta"), item_handlers=None
        )

    def steps(self) -> list[int]:
        """Steps that have a finished checkpoint, oldest first."""
        return sorted(self.manager.all_steps())

    def save(self, state: TrainState, step: int, meta: dict[str, Any], loss: float | None) -> None:
        """Starts writing a checkpoint; `loss` is the held-out loss by which the best one is kept, where it is known."""
        if step in self.manager.all_steps():
            return
        self.finish()
        items = ocp.args.Composite(state=ocp.args.StandardSave(state._asdict()), meta=ocp.args.JsonSave(meta))
        metrics = None if loss is None else {"loss": float(loss)}
        try:
            self.manager.save(step, args=items, metrics=metrics, force=True)
        except Exception as error:
            raise self._failed(step, error) from error
        self.unverified.append(step)

    def finish(self) -> None:
        """Waits until the save under way is complete and writes its checksums."""
        try:
            self.manager.wait_until_finished()
            if jax.process_index() == 0:
                for step in self.unverified:
                    _write_checksums(self.folder / str(step))
        except Exception as error:
            raise self._failed(self.unverified[-1] if self.unverified else None, error) from error
        self.unverified.clear()

    def close(self) -> None:
        """Finishes the save under way and lets go of the folder."""
        self.finish()
        self.manager.close()

    def restore_newest(self, abstract: TrainState) -> TrainState | None:
        """The newest whole checkpoint, laid out as `abstract` says (shapes, types, shardings); None where there is none.

        Damaged ones are moved to `damaged/` and said. Raises CheckpointError when there were some and none could be read.
        """
        found = self.steps()
        for step in reversed(found):
            state, reason = None, _agreed(f"checkpoint {step} is whole", damage(self.folder / str(step)))
            if reason is None:
                try:
                    state = self._restore(step, abstract)
                except Exception as error:
                    reason = f"{type(error).__name__}: {_first_line(error)}"
                reason = _agreed(f"checkpoint {step} is restored", reason)
            if reason is None:
                return state
            self._set_aside(step, reason)
        if found:
            raise CheckpointError(
                f"none of the checkpoints {found} in {self.folder} could be read; they are now in {self.workdir / 'damaged'}:"
                " move a good one back, or use another --workdir to start again"
            )
        return None

    def _restore(self, step: int, abstract: TrainState) -> TrainState:
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract._asdict()))
        return TrainState(**self.manager.restore(step, args=items)["state"])

    def _set_aside(self, step: int, reason: str) -> None:
        log.warning("checkpoint %d is damaged (%s): set aside in %s", step, reason, self.workdir / "damaged")
        if jax.process_index() == 0:
            target = self.workdir / "damaged" / str(step)
            target.parent.mkdir(exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(self.folder / str(step), target)
        barrier(f"set aside checkpoint {step}")
        self.manager.reload()

    def _failed(self, step: int | None, error: Exception) -> CheckpointError:
        whole = [s for s in self.steps() if s != step]
        again = f"continues from step {whole[-1]}" if whole else "starts again from step 0"
        return CheckpointError(
            f"the checkpoint of step {step} could not be written to {self.folder}: {_first_line(error)};"
            f" free some space (or mend the folder) and run the same command: it {again}"
        )


def _agreed(name: str, reason: str | None) -> str | None:
    """What is wrong with a checkpoint on any process: all of them take it, or none."""
    return next(filter(None, gather(name, reason or "")), None)


def has_checkpoints(workdir: pathlib.Path) -> bool:
    """Whether a run in this work directory would go on from a checkpoint."""
    folder = workdir / "checkpoints"
    return folder.is_dir() and any(p.name.isdigit() for p in folder.iterdir())


def whole_step(workdir: pathlib.Path) -> tuple[int, list[str]]:
    """The newest step of a work directory with a whole checkpoint, and what was passed over, in words; nothing is moved.

    CheckpointError where there is none.
    """
    folder, said = workdir / "checkpoints", []
    steps = sorted((int(p.name) for p in folder.iterdir() if p.name.isdigit()), reverse=True) if folder.is_dir() else []
    unfinished = [p.name for p in folder.iterdir() if "tmp" in p.name] if folder.is_dir() else []
    said += [f"{name} was never finished: passed over" for name in sorted(unfinished)]
    for step in steps:
        reason = damage(folder / str(step)) or _incomplete(folder / str(step))
        if reason is None:
            return step, said
        said.append(f"checkpoint {step} is damaged ({reason}): passed over")
    raise CheckpointError("\n".join([f"{workdir}: no whole checkpoint in {folder}", *said]))


def _incomplete(folder: pathlib.Path) -> str | None:
    missing = [name for name in ("state", "meta/metadata") if not (folder / name).exists()]
    return f"without {' and '.join(missing)}" if missing else None


def stored_meta(workdir: pathlib.Path, step: int) -> dict[str, Any]:
    """The meta of one checkpoint of a work directory; {} where it cannot be read."""
    try:
        return json.loads((workdir / "checkpoints" / str(step) / "meta" / "metadata").read_text())
    except (OSError, ValueError):
        return {}


def read_weights(folder: pathlib.Path) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Step, parameters (nested dict of NumPy arrays) and meta of one step's folder, whatever mesh it was saved from.

    The moments are not read. CheckpointError where files are damaged or missing.
    """
    if reason := damage(folder) or _incomplete(folder):
        raise CheckpointError(f"{folder} is damaged ({reason}): take another step, or copy it again")
    state = (folder / "state").absolute()
    try:
        with _quiet(), ocp.PyTreeCheckpointer() as reader:
            tree = reader.metadata(state).item_metadata.tree
            wanted = {name: tree[name] for name in ("step", "params")}
            arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
            found = reader.restore(
                state, args=ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True)
            )
        meta = json.loads((folder / "meta" / "metadata").read_text())
    except Exception as error:
        raise CheckpointError(
            f"{folder} cannot be read ({_first_line(error)}): take another step, or copy it again"
        ) from error
    return int(found["step"]), found["params"], meta


def write_weights(workdir: pathlib.Path, params: Any, meta: Mapping[str, Any], step: int = 0) -> None:
    """A work directory with one checkpoint of weights without moments, which `read_weights` reads."""
    folder = workdir / "checkpoints" / str(step)
    (folder / "meta").mkdir(parents=True)
    with _quiet(), ocp.PyTreeCheckpointer() as writer:
        writer.save((folder / "state").absolute(), {"step": np.int32(step), "params": params})
    (folder / "meta" / "metadata").write_text(json.dumps(meta))
    _write_checksums(folder)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax warns of files that a manager writes and a single save does not."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _write_checksums(folder: pathlib.Path) -> None:
    if not folder.exists():
        return
    temporary = folder / f"{CHECKSUMS}.tmp"
    temporary.write_text(json.dumps(_contents(folder)))
    os.replace(temporary, folder / CHECKSUMS)
