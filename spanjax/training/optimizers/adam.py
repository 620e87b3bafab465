"""Adam's direction in the forms of published code: where epsilon stands, and which parameters have bias correction.

All forms share the state of `optax.scale_by_adam`, so a checkpoint of one can be continued with another.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class AdamForm:
    """Form in which Adam computes a parameter's direction from its moments."""

    epsilon: float
    """Added to the root of the second moment."""
    bias_correction: bool
    """Divide both moments by 1 - beta^n."""
    epsilon_hat: bool
    """Add epsilon to the root of the uncorrected second moment."""


def scale_by_adam_form(beta1: float, beta2: float, form_of: Callable[[str], AdamForm]) -> optax.GradientTransformation:
    """Builds Adam (Kingma & Ba, 2015) with one form for each parameter, by its name (`encoder/layers/query/kernel`)."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        del params
        mu = optax.tree.update_moment(updates, state.mu, beta1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, beta2, 2)
        count = jnp.asarray(optax.safe_increment(state.count))
        correction1, correction2 = (_bias_correction(beta, count) for beta in (beta1, beta2))

        def direction(path: Any, m: jax.Array, v: jax.Array) -> jax.Array:
            form = form_of("/".join(str(entry.key) for entry in path))
            if not form.bias_correction:
                return m / (jnp.sqrt(v) + form.epsilon)
            if form.epsilon_hat:
                return jnp.sqrt(correction2) / correction1 * m / (jnp.sqrt(v) + form.epsilon)
            return m / correction1 / (jnp.sqrt(v / correction2) + form.epsilon)

        # by paths, as the leaves that `optax.partition` gives to another part are no leaves here
        directions = jax.tree_util.tree_map_with_path(direction, mu, nu)
        return directions, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1=beta1, b2=beta2).init, update)


def _bias_correction(beta: float, count: jax.Array) -> jax.Array:
    """Computes 1 - beta^count; float32 powers of 0.999 would lose five of its digits in the first updates."""
    return -jnp.expm1(count.astype(jnp.float32) * math.log(beta)) if beta else jnp.float32(1.0)


def decay_first(tail: optax.GradientTransformation, decay: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Builds `tail` (directions -> updates) with decoupled weight decay applied before the step instead of together with it.

    `decay` returns the decay of a tree of parameters, to be scaled as directions are. Only the rounding differs: parameters
    are rounded to float32 twice, after the decay and after the step, as in code that changes them in place (D8).
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        steps, after = tail.update(updates, state, params)
        decays, _ = tail.update(decay(params), state, params)
        # the difference of two close floats is exact, so that adding it gives the parameter rounded twice
        return jax.tree.map(lambda p, decay, step: (p + decay) + step - p, params, decays, steps), after

    return optax.GradientTransformation(tail.init, update)
