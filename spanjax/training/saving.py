"""When checkpoints are saved, and what follows when one cannot be: training goes on and the save is tried again."""

import contextlib
import logging
from typing import Any

import jax

from spanjax.distributed import any_process
from spanjax.training.checkpoint import Checkpoints
from spanjax.training.nonfinite import NonFiniteError, all_finite
from spanjax.training.saved import SaveError
from spanjax.training.state import TrainState

log = logging.getLogger(__name__)


class Saving:
    """Saves every so many steps. Called at the same steps on every process, all of which agree on what failed."""

    def __init__(self, checkpoints: Checkpoints, meta: dict[str, Any], every: int, retry: int):
        self.checkpoints, self.meta, self.every, self.retry = checkpoints, meta, every, retry
        self.again: int | None = None
        self.newest = -1
        """The last step whose save has begun and is not known to have failed."""

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be saved after this step."""
        return step % self.every == 0 or step == self.again

    def settle(self, step: int) -> None:
        """Takes note of a save under way that has ended by now; does not wait for it."""
        if self.checkpoints.pending() and not any_process(self.checkpoints.busy(), "a save is under way"):
            self._finish(step)

    def save(self, state: TrainState, step: int, loss: float | None, ends: bool) -> None:
        """Starts a save. Where the run `ends` here it is waited for, and a failure is raised as SaveError.

        NonFiniteError where parameters are not finite: loss and gradient of the step were, its update was not.
        """
        if self.checkpoints.pending():
            self._finish(step)
        if not all_finite(state.params):
            raise NonFiniteError(
                f"step {step}: parameters are not finite, though the losses before were: no checkpoint of them is saved;"
                " lower optimizer.learning_rate or raise optimizer.epsilon, and run the same command to go on from the newest"
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
        """Saves the state of this step unless that was done, and waits for it; whether it is on the disk now.

        For a thread of a process that is about to end: it does not meet other processes.
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
            log.warning("%s; %s; training goes on, the next try is after step %d", error.what, error.newest, following)
