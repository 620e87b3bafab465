"""Learning-rate schedules: linear warm-up and linear decay, in the forms of the paper and of released code (D9)."""

from typing import Any, Literal

import jax.numpy as jnp
import optax

WarmupForm = Literal["from_one", "from_zero", "from_zero_exclusive"]
DecayFrom = Literal["warmup", "start"]


def warmup_linear_decay(
    peak: float,
    steps: int,
    warmup_steps: int,
    warmup_form: WarmupForm = "from_one",
    decay_from: DecayFrom = "warmup",
    peak_every: int = 0,
) -> optax.Schedule:
    """Builds the schedule: update count (0-based) -> learning rate, float32; see the settings of `Optimizer`."""

    def rate(count: Any) -> Any:
        number = jnp.asarray(count, jnp.float32) + 1.0
        before = number if warmup_form == "from_one" else number - 1.0
        warming = before < warmup_steps if warmup_form == "from_zero_exclusive" else before <= warmup_steps
        start = warmup_steps if decay_from == "warmup" else 0
        decay = jnp.clip((steps - number + 1.0) / max(steps - start, 1), 0.0, 1.0)
        # without warm-up, update 0 of the forms that count from 0 is the first of the decay and not one of rate 0
        factor = jnp.where(warming, before / max(warmup_steps, 1), decay) if warmup_steps else decay
        if peak_every:
            # fairseq's end of an epoch resets the rate to peak * warm-up factor: a peak only once warm-up is over
            peaks = (jnp.asarray(count) % peak_every == 0) & ((number == 1.0) | ~warming)
            factor = jnp.where(peaks, 1.0, factor)
        return peak * factor

    return rate
