"""Checkpoints: asynchronous, the last N and the best kept, verified, restored onto any mesh. The only file that imports orbax.

A step's folder holds `state` (step, parameters, moments), `meta` (JSON: resolved run, encoder, vocabulary, rows) and, once
the save is complete, `checksums.json`. A damaged checkpoint becomes `STEP.damaged` and the one before it is used.
"""

import contextlib
import json
import logging
import math
import os
import pathlib
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from spanjax.distributed import any_process, barrier, collective_call
from spanjax.training.checkpoint_files import (
    CHECKSUMS,
    UNCHECKED,
    CheckpointError,
    SaveError,
    agreed,
    damage,
    first_line,
    incomplete,
    large,
    no_room,
    own_share,
    quiet_orbax,
    read_meta,
    reason_of,
    remove_unfinished,
    silence_orbax,
    small,
    stored_losses,
    stored_meta,
    write_checksums,
    write_evaluation,
    write_shared_checksums,
)
from spanjax.training.mirror import Mirror
from spanjax.training.nonfinite import NonFiniteError, all_finite
from spanjax.training.state import TrainState

log = logging.getLogger(__name__)


class _Settling(threading.Thread):
    """Waits until a save is complete, writes its checksums, reads it back, and uploads it to the mirror."""

    def __init__(self, manager: ocp.CheckpointManager, folder: pathlib.Path, mirror: Mirror | None):
        super().__init__(name="spanjax-checkpoint")
        self.manager, self.folder, self.mirror = manager, folder, mirror
        self.error: Exception | None = None

    def run(self) -> None:
        """Implements `threading.Thread.run`; keeps an exception in `error`."""
        try:
            self.manager.wait_until_finished()
            if self.mirror is not None:  # every process has a folder of its own
                write_checksums(self.folder)
        except Exception as error:
            self.error = error
        try:
            if self.mirror is None:
                write_shared_checksums(self.folder, self.error)
            else:
                self.mirror.upload(int(self.folder.name), self.error)
        except Exception as error:
            self.error = error


class _Best(checkpoint_managers.PreservationPolicy):
    """Keeps the step with the least loss, the first of equals. Orbax's own policy forgets the losses before a resume."""

    def __init__(self, losses: Mapping[int, float]):
        self.losses = losses

    def should_preserve(
        self,
        checkpoints: Sequence[checkpoint_managers.PolicyCheckpointInfo],
        *,
        context: checkpoint_managers.PreservationContext,
    ) -> Sequence[bool]:
        """Implements `PreservationPolicy.should_preserve`."""
        known = [(self.losses[each.step], each.step) for each in checkpoints if each.step in self.losses]
        best = min(known)[1] if known else None
        return [each.step == best for each in checkpoints]


def _handlers(alone: ocp.options.MultiprocessingOptions | None) -> dict[str, Any]:
    """Returns the handlers of checkpoints, with `alone` those of a process that saves into a folder of its own."""
    # zstd makes noise in float32 a tenth smaller, for a third of the CPU time of a save and of a restore (benchmarks/restore.py)
    options: dict[str, Any] = {"use_compression": False}
    if alone is None:
        base = ocp.BasePyTreeCheckpointHandler(**options)
        return {"state": ocp.PyTreeCheckpointHandler(handler_impl=base), "meta": ocp.JsonCheckpointHandler()}
    # own ones: the array handler of Orbax has a store whose options every new checkpointer changes; and the arrays of the other
    # processes are missing here, which its validation would report
    arrays = ocp.type_handlers.create_type_handler_registry((jax.Array, ocp.type_handlers.ArrayHandler()))
    options |= {"multiprocessing_options": alone, "type_handler_registry": arrays}
    base = ocp.BasePyTreeCheckpointHandler(enable_post_merge_validation=False, **options)
    state = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone, type_handler_registry=arrays, handler_impl=base)
    return {"state": state, "meta": ocp.JsonCheckpointHandler(multiprocessing_options=alone)}


class Checkpoints:
    """The checkpoints of one work directory, and of the bucket behind it if it has a mirror."""

    def __init__(self, workdir: pathlib.Path, keep: int, mirror: Mirror | None = None):
        self.folder, self.mirror = workdir / "checkpoints", mirror
        self.where = self.folder if mirror is None else mirror.place
        self.first = jax.process_index() == 0 or mirror is not None
        """True for a process that writes into its folder what no other does: with a mirror each has a folder of its own."""
        self.settling: _Settling | None = None
        self.closed = False
        self.losses = stored_losses(workdir)
        self._evaluations: dict[int, Mapping[str, Any]] = {}  # of steps whose save may still be under way
        if mirror is not None:
            mirror.losses, mirror.keep = self.losses, keep
        policy = checkpoint_managers.AnyPreservationPolicy([checkpoint_managers.LatestN(n=keep), _Best(self.losses)])
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            step_prefix=None,
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
            create=False,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        silence_orbax()
        remove_unfinished(self.folder, self.first)
        alone = None
        if mirror is not None and jax.process_count() > 1:
            options.multiprocessing_options = alone = ocp.options.MultiprocessingOptions(primary_host=None)
            # else Orbax's threads learn of finished folders by keys that all processes share, while each makes folders of its
            # own: about one save in 300 failed on one process, and the other waited for it
            options.async_options = ocp.options.AsyncOptions(create_directories_asynchronously=False)
        self.manager = ocp.CheckpointManager(
            self.folder.absolute(), options=options, item_names=("state", "meta"), item_handlers=_handlers(alone)
        )

    def steps(self) -> list[int]:
        """Steps that have a finished checkpoint, oldest first; with a mirror, a committed one."""
        return sorted(self.manager.all_steps()) if self.mirror is None else self.mirror.steps()

    def meta(self, step: int) -> dict[str, Any]:
        """Returns the meta of a step's checkpoint; {} if there is none."""
        return stored_meta(self.folder.parent, step)

    def save(self, state: TrainState, step: int, meta: dict[str, Any], loss: float | None) -> None:
        """Starts writing a checkpoint; `loss` is the held-out loss by which the best one is kept, if known."""
        self.finish()
        if step in self.manager.all_steps():
            return
        failed: Exception | None = None
        try:
            remove_unfinished(self.folder, self.first)
        except OSError as error:  # a disk that is gone, no more open files
            failed = error
        if jax.process_count() > 1:
            # if one failed at the start of a save, the others would wait for it inside of Orbax
            self._agree(step, failed or (no_room(self.folder, state) if self.first else None))
        optional = TrainState._field_defaults
        kept = {name: each for name, each in state._asdict().items() if name not in optional or jax.tree.leaves(each)}
        fields = {_stored_name(name): each for name, each in kept.items()}
        items = ocp.args.Composite(state=ocp.args.PyTreeSave(fields), meta=ocp.args.JsonSave(meta))
        if loss is not None and math.isfinite(loss):
            self.losses[step] = float(loss)
        try:
            if failed is None:
                self.manager.save(step, args=items, force=True)
        except Exception as error:
            failed = error
        self._agree(step, failed)
        self.settling = _Settling(self.manager, self.folder / str(step), self.mirror)
        self.settling.start()

    def add_evaluation(self, step: int, found: Mapping[str, Any], loss: float | None) -> None:
        """Stores the results of an evaluation with the checkpoint of the same step, as soon as that is complete.

        They are part of its meta from then on. `loss` (lower is better) decides which checkpoint is the best.
        """
        if loss is not None and math.isfinite(loss):
            self.losses[step] = float(loss)
        self._evaluations[step] = found
        if not self.pending():
            self._write_evaluations()

    def _write_evaluations(self) -> None:
        for step, found in self._evaluations.items() if jax.process_index() == 0 else ():
            folder = self.folder / str(step)
            try:
                if folder.is_dir():
                    write_evaluation(folder, found)
            except OSError as error:
                log.warning(
                    "%s could not be written to: %s; a resumed run evaluates step %d again", folder, error, step
                )
        self._evaluations.clear()

    def wait(self) -> bool:
        """Waits for this process's part of the save under way; True if it worked. May be called from another thread."""
        if (settling := self.settling) is None:
            return True
        settling.join()
        return settling.error is None

    def pending(self) -> bool:
        """Returns True if a save was started that `finish` was not called for; the same on all processes."""
        return self.settling is not None

    def busy(self) -> bool:
        """Returns True while this process is still writing."""
        return self.settling is not None and self.settling.is_alive()

    def finish(self) -> None:
        """Waits until the save under way is complete, has its checksums and was read back.

        SaveError, on all processes, if one of them failed; nothing is left of that save then.
        """
        if self.settling is not None:
            settling, self.settling = self.settling, None
            settling.join()
            self._agree(int(settling.folder.name), settling.error)
            self._write_evaluations()

    def _agree(self, step: int, error: Exception | None) -> None:
        reason = agreed("checkpoint is saved", None if error is None else reason_of(error))
        if reason is None:
            return
        with contextlib.suppress(Exception):
            self.manager.wait_until_finished()  # raises the error once more, in this thread
        if self.first:
            shutil.rmtree(self.folder / str(step), ignore_errors=True)
        with contextlib.suppress(OSError):  # the next save tries again
            remove_unfinished(self.folder, self.first)
        barrier("what a failed save has left is removed")
        with contextlib.suppress(OSError):
            self.manager.reload()
        self.check_lease()
        raise SaveError(self.where, step, reason, [whole for whole in self.steps() if whole != step]) from error

    def check_lease(self) -> None:
        """Raises FencedError if the work directory is in a bucket and another run has taken it over."""
        if self.mirror is not None:
            self.mirror.check()

    def close(self) -> None:
        """Finishes the save under way and releases the folder; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self.finish()
        remove_unfinished(self.folder, self.first)
        self.manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Closes it. After an error, a SaveError does not replace that first error."""
        if error is None:
            self.close()
        elif jax.process_count() == 1:
            with contextlib.suppress(SaveError):
                self.close()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Waits for this process's part of the save under way; unlike `close`, without a rendezvous of the processes."""
        self.closed = True
        self.wait()

    def restore_newest(self, abstract: TrainState) -> TrainState | None:
        """Restores the newest whole checkpoint, sharded as in `abstract` (shapes, types, shardings); None if there is none.

        Once a whole one was found, damaged ones become `STEP.damaged` and are logged. Those without checksums count as damaged
        if one with checksums can be read. Raises CheckpointError if there were some and none could be read; they stay unchanged
        then, so that no run starts again from step 0 unasked.
        """
        # newest first, but those without checksums last: a kill may have cut them short
        found, passed, unchecked = self.steps(), list[tuple[int, str]](), self._unchecked()
        for step in sorted(reversed(found), key=lambda step: step in unchecked):
            state, reason = None, self._fetched(step)
            if reason is None and self.mirror is None:  # of a fetched one the checksums were compared
                reason = damage(self.folder / str(step), small if self._alone() else own_share)
            reason = agreed(f"checkpoint {step} is whole", reason)
            if reason is None:
                state, reason = self._try_restore(step, abstract)
                reason = agreed(f"checkpoint {step} is restored", reason)
            if reason is None:
                known = {step, *dict(passed)}
                if self.mirror is not None:
                    self.mirror.restored()
                self._set_aside([*passed, *((s, UNCHECKED) for s in found if s > step and s not in known)])
                if step in unchecked and jax.process_index() == 0:
                    log.warning("checkpoint %d is %s; it was not checked, as no other could be read", step, UNCHECKED)
                return state
            passed.append((step, reason))
        if found:
            reasons = "".join(f"\n  {step}: {reason}" for step, reason in passed)
            raise CheckpointError(
                f"none of the checkpoints {found} in {self.where} could be read, all are damaged:{reasons}\n"
                "copy a good one there, or use another --workdir to start again"
            )
        return None

    def _fetched(self, step: int) -> str | None:
        """Fetches a checkpoint from the bucket, if there is one behind the folder; returns its damage as text."""
        if (mirror := self.mirror) is None:
            return None
        reason = collective_call(f"checkpoint {step} is fetched", lambda: mirror.fetch(step))
        self.manager.reload()
        return reason

    def _unchecked(self) -> set[int]:
        """Steps without checksums, as process 0 sees them; committed ones have some."""
        first = jax.process_index() == 0 and self.mirror is None
        steps = [s for s in self.steps() if first and not (self.folder / str(s) / CHECKSUMS).exists()]
        return {int(step) for step in (agreed("checksums are there", " ".join(map(str, steps))) or "").split()}

    def _try_restore(self, step: int, abstract: TrainState) -> tuple[TrainState | None, str | None]:
        """Restores one step; the state, or None and the damage as text."""
        checking = None
        with ThreadPoolExecutor(1) as pool:
            if self._alone():
                # meanwhile: of several processes the others would wait inside of Orbax for one that finds a damage
                checking = pool.submit(damage, self.folder / str(step), large)
            try:
                state, reason = self._restore(step, abstract), None
            except Exception as error:
                state, reason = None, f"{type(error).__name__}: {reason_of(error)}"
        reason = (checking.result() if checking else None) or reason
        return (state if reason is None else None), reason

    def _alone(self) -> bool:
        """True for a single process whose folder is no copy of a bucket."""
        return self.mirror is None and jax.process_count() == 1

    def _restore(self, step: int, abstract: TrainState) -> TrainState:
        """Restores one step; counters that an older checkpoint does not have begin at 0."""
        wanted, saved = abstract._asdict(), self._saved(step)
        absent = {name: wanted[name] for name in TrainState._field_defaults if _stored_name(name) not in saved}
        stored = {name: _stored_name(name) for name in wanted if name not in absent}
        abstracts = {stored[name]: wanted[name] for name in stored}
        items = ocp.args.PyTreeRestore(abstracts, ocp.checkpoint_utils.construct_restore_args(abstracts))
        found = self.manager.restore(step, args=ocp.args.Composite(state=items))["state"]

        def zero(leaf: Any) -> jax.Array:
            return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda _: np.zeros(leaf.shape, leaf.dtype))

        return TrainState(**{name: found[stored[name]] for name in stored}, **jax.tree.map(zero, absent))

    def _saved(self, step: int) -> Collection[str]:
        """Returns the names of the state's fields in a checkpoint."""
        with quiet_orbax(), ocp.PyTreeCheckpointer() as reader:
            return reader.metadata((self.folder / str(step) / "state").absolute()).item_metadata.tree.keys()

    def _set_aside(self, passed: list[tuple[int, str]]) -> None:
        if not passed:
            return
        if jax.process_index() == 0:
            for step, reason in passed:
                log.warning(
                    "checkpoint %d is damaged (%s): renamed %d.damaged, the one before is used", step, reason, step
                )
        if self.first:
            for step, _ in passed:
                target = self.folder / f"{step}.damaged"
                shutil.rmtree(target, ignore_errors=True)
                with contextlib.suppress(FileNotFoundError) if self.mirror else contextlib.nullcontext():
                    os.replace(self.folder / str(step), target)
        if self.mirror is not None and jax.process_index() == 0:
            self.mirror.set_aside([step for step, _ in passed])
        barrier("damaged checkpoints are set aside")
        self.manager.reload()


def _stored_name(field: str) -> str:
    """Returns the name of a field of the state in checkpoints, as version 0.1 wrote it."""
    return "carried" if field == "recurrent_state" else field


def read_weights(folder: pathlib.Path) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Reads step, parameters (nested dict of NumPy arrays) and meta of one step's folder, whatever mesh it was saved from.

    The parameters are their moving average, if the run keeps one. Does not read the moments. CheckpointError if files are damaged
    or missing.
    """
    if reason := damage(folder) or incomplete(folder):
        raise CheckpointError(f"{folder} is damaged ({reason}): take another step, or copy it again")
    state = (folder / "state").absolute()
    try:
        with quiet_orbax(), ocp.PyTreeCheckpointer() as reader:
            tree = reader.metadata(state).item_metadata.tree
            weights = "averaged" if "averaged" in tree else "params"
            wanted = {name: tree[name] for name in ("step", weights)}
            arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
            found = reader.restore(
                state, args=ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True)
            )
        meta = read_meta(folder)
    except Exception as error:
        raise CheckpointError(
            f"{folder} cannot be read ({first_line(error)}): take another step, or copy it again"
        ) from error
    return int(found["step"]), found[weights], meta


def write_weights(workdir: pathlib.Path, params: Any, meta: Mapping[str, Any], step: int = 0) -> None:
    """Writes a work directory with one checkpoint of weights without moments, which `read_weights` reads."""
    folder = workdir / "checkpoints" / str(step)
    (folder / "meta").mkdir(parents=True)
    with quiet_orbax(), ocp.PyTreeCheckpointer() as writer:
        writer.save((folder / "state").absolute(), {"step": np.int32(step), "params": params})
    (folder / "meta" / "metadata").write_text(json.dumps(meta))
    write_checksums(folder)


class Saving:
    """Saves every `every` steps. All processes call it at the same steps and agree on failures."""

    def __init__(self, checkpoints: Checkpoints, meta: dict[str, Any], every: int, retry: int):
        self.checkpoints, self.meta, self.every, self.retry = checkpoints, meta, every, retry
        self.again: int | None = None
        self.newest = -1
        """The last step whose save has begun and is not known to have failed."""

    def due(self, step: int) -> bool:
        """Returns True if a checkpoint is due after this step."""
        return step % self.every == 0 or step == self.again

    def settle(self, step: int) -> None:
        """Finishes a save that has ended by now on all processes; waits for none that has not. FencedError as `check_lease`."""
        self.checkpoints.check_lease()
        if self.checkpoints.pending() and not any_process(self.checkpoints.busy(), "a save is under way"):
            self._finish(step)

    def save(self, state: TrainState, step: int, loss: float | None, ends: bool) -> None:
        """Starts a save. If the run `ends` here, waits for it and raises a failure as SaveError.

        NonFiniteError if parameters are not finite: loss and gradient of the step were, its update was not.
        """
        if self.checkpoints.pending():
            self._finish(step)
        if not all_finite(state.params):
            raise NonFiniteError(
                f"step {step}: parameters are not finite, though the losses before were: no checkpoint of them is saved;"
                " lower optimizer.learning_rate or raise optimizer.epsilon, and run the same command to resume from the newest"
                " checkpoint"
            )
        self.again = None
        try:
            self.checkpoints.save(state, step, self.meta, loss)
            self.newest = step
            if ends:
                self.checkpoints.finish()
        except SaveError as error:
            if ends:
                raise
            self._failed(step, error)

    def _finish(self, step: int) -> None:
        try:
            self.checkpoints.finish()
        except SaveError as error:
            self._failed(step, error)

    def complete(self, state: TrainState, step: int) -> bool:
        """Saves the state of this step unless that was done, and waits for it; True if it is on the disk now.

        For a thread of a process that is about to end; waits for no other process.
        """
        with contextlib.suppress(SaveError, NonFiniteError):
            if self.newest != step:
                self.save(state, step, None, ends=False)
            return self.newest == step and self.checkpoints.wait()
        return False

    def _failed(self, step: int, error: SaveError) -> None:
        self.newest, self.again = -1, step + self.retry
        following = min(self.again, (step // self.every + 1) * self.every)
        if jax.process_index() == 0:
            log.warning(
                "%s; %s; training continues, the next try is after step %d", error.what, error.newest, following
            )
