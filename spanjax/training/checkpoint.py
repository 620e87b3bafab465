"""Checkpoints: asynchronous, the last N and the best kept, verified, restored onto any mesh. The only file that imports orbax.

A step's folder holds `state` (step, parameters, moments), `meta` (JSON: resolved run, encoder, vocabulary, rows) and, once
the save is complete, `checksums.json`. A damaged checkpoint is moved to `damaged/` and the one before it is used.
"""

import json
import logging
import os
import pathlib
import shutil
import zlib
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

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
                    self._write_checksums(self.folder / str(step))
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
            reason = damage(self.folder / str(step))
            if reason is None:
                try:
                    return self._restore(step, abstract)
                except Exception as error:
                    reason = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
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
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices(f"set aside checkpoint {step}")
        self.manager.reload()

    def _write_checksums(self, folder: pathlib.Path) -> None:
        if not folder.exists():
            return
        temporary = folder / f"{CHECKSUMS}.tmp"
        temporary.write_text(json.dumps(_contents(folder)))
        os.replace(temporary, folder / CHECKSUMS)

    def _failed(self, step: int | None, error: Exception) -> CheckpointError:
        whole = [s for s in self.steps() if s != step]
        again = f"continues from step {whole[-1]}" if whole else "starts again from step 0"
        return CheckpointError(
            f"the checkpoint of step {step} could not be written to {self.folder}: {str(error).splitlines()[0][:300]};"
            f" free some space (or mend the folder) and run the same command: it {again}"
        )


def read_meta(workdir: pathlib.Path, step: int) -> dict[str, Any]:
    """The JSON stored with a checkpoint: run, encoder, vocabulary, rows."""
    return json.loads((workdir / "checkpoints" / str(step) / "meta" / "metadata").read_text())
