"""When checkpoints are saved, and what follows when one cannot be: training goes on and the save is tried again."""

import logging
from typing import Any

import jax

from spanjax.distributed import any_process
from spanjax.training.checkpoint import Checkpoints
from spanjax.training.saved import SaveError
from spanjax.training.state import TrainState

log = logging.getLogger(__name__)


class Saving:
    """Saves every so many steps. Called at the same steps on every process, all of which agree on what failed."""

    def __init__(self, checkpoints: Checkpoints, meta: dict[str, Any], every: int, retry: int):
        self.checkpoints, self.meta, self.every, self.retry = checkpoints, meta, every, retry
        self.again: int | None = None

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be saved after this step."""
        return step % self.every == 0 or step == self.again

    def settle(self, step: int) -> None:
        """Takes note of a save under way that has ended by now; does not wait for it."""
        if self.checkpoints.pending() and not any_process(self.checkpoints.busy(), "a save is under way"):
            self._finish(step)

    def save(self, state: TrainState, step: int, loss: float | None, ends: bool) -> None:
        """Starts a save. Where the run `ends` here it is waited for, and a failure is raised as SaveError."""
        if self.checkpoints.pending():
            self._finish(step)
        self.again = None
        try:
            self.checkpoints.save(state, step, self.meta, loss)
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

    def _failed(self, step: int, error: SaveError) -> None:
        self.again = step + self.retry
        following = min(self.again, (step // self.every + 1) * self.every)
        if jax.process_index() == 0:
            log.warning("%s; %s; training goes on, the next try is after step %d", error.what, error.newest, following)
