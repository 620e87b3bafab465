"""Records a window of steps with jax.profiler."""

import dataclasses

import jax

from spanjax.bounds import AtLeast0
from spanjax.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Profile:
    """Window of steps that jax.profiler records into the folder `profile` of the work directory."""

    start: AtLeast0 = 20
    """First step of the window, counted from where this process starts: compilation and warm-up are before it."""
    steps: AtLeast0 = 0
    """Length of the window; 0 records nothing."""


class Recording:
    """Records the window of a Profile. Waits for the steps before both of its ends, so that it holds whole steps."""

    def __init__(self, profile: Profile, folder: str):
        self.profile, self.folder, self.running = profile, folder, False

    def before(self, done: int, state: TrainState) -> None:
        """Starts or ends the recording before a step; `done` counts the steps of this process."""
        if self.profile.steps and done == self.profile.start:
            jax.block_until_ready(state)
            jax.profiler.start_trace(self.folder)
            self.running = True
        elif self.running and done == self.profile.start + self.profile.steps:
            self.close(state)

    def close(self, state: TrainState) -> None:
        """Ends a recording that is running."""
        if self.running:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            self.running = False
