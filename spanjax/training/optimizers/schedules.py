"""Learning rate as a function of the update: linear warm-up, a stable phase, and a decay in one of several forms."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from spanjax.bounds import AtLeast0, Derived0, Probability

WarmupForm = Literal["from_one", "from_zero", "from_zero_exclusive"]
DecayForm = Literal["linear", "cosine", "sqrt", "none"]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Learning rate after warm-up: stable at the peak if the decay begins later, then a decay that ends with the run.

    With a stable phase it is warm-up-stable-decay (WSD; Hu et al., 2024, arXiv 2404.06395). The rate is a function of the number
    of the update alone, so that a run whose decay begins at update n equals one without decay up to there.
    """

    decay: DecayForm = "linear"
    """Form of the decay, with t from 0 at its first update to 1 at the end of the run: 1 - t; cosine: (1 + cos(pi t)) / 2
    (Loshchilov & Hutter, 2017); sqrt: 1 - sqrt(t) (Haegele et al., 2024, arXiv 2405.18392). none: the rate stays at its peak."""
    decay_steps: AtLeast0 = 0
    """Last updates of the run, over which the rate decays; 0: all since optimizer.decay_from."""
    decay_share: Probability = 0.0
    """The same as a share of the run's steps; 0: not set."""
    decay_from: Derived0 = -1
    """First update of the decay, counted from 0; -1: not set. Together with init_from it begins a decay branch: the run continues
    the checkpoint of this step of the run in init_from, with its moments, step and data order."""
    floor: Probability = 0.0
    """Share of the peak at which the decay ends."""

    @property
    def placed(self) -> dict[str, float]:
        """Settings that say where the decay begins, by their names."""
        given = {"decay_steps": self.decay_steps, "decay_share": self.decay_share, "decay_from": self.decay_from}
        return {name: value for name, value in given.items() if value != getattr(Schedule, name)}

    def first_update(self, steps: int, default: int) -> int:
        """Returns the number of the first update of the decay in a run of `steps` updates; `steps` if there is no decay."""
        if self.decay == "none":
            return steps
        if self.decay_from >= 0:
            return self.decay_from
        length = self.decay_steps or round(self.decay_share * steps)
        return steps - length if self.placed else default

    def factor(self, left: jax.Array) -> jax.Array:
        """Returns rate / peak where `left`, 1 - t, of the decay remains."""
        if self.decay in ("linear", "none"):
            found = left
        elif self.decay == "cosine":
            found = 0.5 * (1.0 + jnp.cos(jnp.pi * (1.0 - left)))
        else:
            found = 1.0 - jnp.sqrt(1.0 - left)
        return 1.0 - (1.0 - self.floor) * (1.0 - found) if self.floor else found

    def problems(self) -> list[str]:
        """Returns a message for every combination of these values that makes no sense, apart from bounds."""
        found, names = [], [f"optimizer.schedule.{name} {value:g}" for name, value in self.placed.items()]
        if len(names) > 1:
            found.append(f"{' and '.join(names)} both set the first update of the decay: keep one")
        names += [f"optimizer.schedule.floor {self.floor:g}"] if self.floor else []
        if self.decay == "none" and names:
            found.append(
                f"optimizer.schedule.decay is none, which {' and '.join(names)} cannot change: choose linear, cosine or sqrt"
                " (--optimizer.schedule.decay), or drop the others"
            )
        return found


def warmup_decay(
    peak: float,
    steps: int,
    warmup_steps: int,
    warmup_form: WarmupForm,
    start: int,
    peak_every: int,
    schedule: Schedule,
) -> optax.Schedule:
    """Builds the schedule: update count (0-based) -> learning rate, float32; `start` is the first update of the decay, for the
    rest see the settings of `Optimizer`."""

    def rate(count: Any) -> Any:
        number = jnp.asarray(count, jnp.float32) + 1.0
        before = number if warmup_form == "from_one" else number - 1.0
        warming = before < warmup_steps if warmup_form == "from_zero_exclusive" else before <= warmup_steps
        # 1 up to update `start`, in every form and computed from the count: a stable run and its branches have the same rates
        decay = schedule.factor(jnp.clip((steps - number + 1.0) / max(steps - start, 1), 0.0, 1.0))
        # without warm-up, update 0 of the forms that count from 0 is the first of the decay and not one of rate 0
        factor = jnp.where(warming, before / max(warmup_steps, 1), decay) if warmup_steps else decay
        if peak_every:
            # fairseq's end of an epoch resets the rate to peak * warm-up factor: a peak only once warm-up is over
            peaks = (jnp.asarray(count) % peak_every == 0) & ((number == 1.0) | ~warming)
            factor = jnp.where(peaks, 1.0, factor)
        return peak * factor

    return rate
