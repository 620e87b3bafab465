"""AdamW with warm-up and linear decay (Loshchilov & Hutter, 2019), and the oddities of the released code as settings."""

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
import optax

from spanjax.trees import map_named, matches_any


@dataclasses.dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, global-norm clipping, linear warm-up and linear decay to zero."""

    learning_rate: float = 1e-4
    """Peak learning rate."""
    warmup_steps: int = 10_000
    """Updates over which the rate grows linearly to its peak; update number n (from 1) has peak * n / warmup_steps."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled: each update also subtracts rate * weight_decay * parameter."""
    no_decay: tuple[str, ...] = ("bias$", "norm[12]?/")
    """Patterns of parameter names without weight decay; empty decays everything, as the released code does (D8)."""
    clip_norm: float = 1.0
    """Largest global norm of the gradient; 0 does not clip."""
    gradient_scale: float = 1.0
    """Gradients are multiplied by this before clipping; the released code amounts to about 1/614 (D7)."""
    decay_from: Literal["warmup", "start"] = "warmup"
    """Where the linear decay is measured from: the end of warm-up, or update 0 as released (D9)."""
    peak_every: int = 0
    """The first and every so-many-th update has the peak rate, as released (updates per epoch, D9); 0 never."""

    def problems(self) -> list[str]:
        """What is wrong with these values, in words; empty when nothing is."""
        found = []
        for name in ("learning_rate", "epsilon", "gradient_scale"):
            if getattr(self, name) <= 0:
                found.append(f"optimizer.{name} is {getattr(self, name)}: expected more than 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                found.append(f"optimizer.{name} is {getattr(self, name)}: expected at least 0 and less than 1")
        for name in ("warmup_steps", "weight_decay", "clip_norm", "peak_every"):
            if getattr(self, name) < 0:
                found.append(f"optimizer.{name} is {getattr(self, name)}: expected 0 or more")
        return found

    def schedule(self, steps: int) -> optax.Schedule:
        """Learning rate of update `count` (0-based) in a run of `steps` updates."""

        def rate(count: Any) -> Any:
            number = jnp.asarray(count, jnp.float32) + 1.0
            warmup = number / max(self.warmup_steps, 1)
            start = self.warmup_steps if self.decay_from == "warmup" else 0
            decay = jnp.clip((steps - number + 1.0) / max(steps - start, 1), 0.0, 1.0)
            factor = jnp.where(number <= self.warmup_steps, warmup, decay)
            if self.peak_every:
                factor = jnp.where(jnp.asarray(count) % self.peak_every == 0, 1.0, factor)
            return self.learning_rate * factor

        return rate

    def transformation(self, steps: int) -> optax.GradientTransformation:
        """The optax chain for a run of `steps` updates."""

        def decayed(params: Any) -> Any:
            return map_named(lambda name, _: not matches_any(self.no_decay, name), params)

        return optax.chain(
            optax.scale(self.gradient_scale),
            optax.clip_by_global_norm(self.clip_norm) if self.clip_norm else optax.identity(),
            optax.scale_by_adam(b1=self.beta1, b2=self.beta2, eps=self.epsilon),
            optax.add_decayed_weights(self.weight_decay, mask=decayed),
            optax.scale_by_learning_rate(self.schedule(steps)),
        )
