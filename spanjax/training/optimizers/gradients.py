"""Gradient transformations before the moments: clipping, and the released sample-size normalisation."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from spanjax.sharding import map_named

ENCODER = "encoder/"
STACKED = "/layers/"  # in the names of parameters with a leading axis of layers


def parameter_groups(params: Any) -> Any:
    """Returns a tree of the group of every parameter: "encoder", or "heads" for all above it."""
    return map_named(lambda name, _: "encoder" if name.startswith(ENCODER) else "heads", params)


def norms_of_parameters(name: str, leaf: jax.Array) -> jax.Array:
    """L2 norm of a parameter with its axes kept as 1: of each layer's own tensor if layers are stacked, else of the whole."""
    axes = tuple(range(1 if STACKED in name else 0, leaf.ndim))
    return jnp.sqrt(jnp.sum(leaf * leaf, axis=axes, keepdims=True))


def clip_per_parameter(most: float) -> optax.GradientTransformation:
    """Clips the gradient of every parameter to a norm of its own, as BertAdam does (pytorch-pretrained-BERT 0.6)."""

    def clipped(name: str, gradient: jax.Array) -> jax.Array:
        norm = norms_of_parameters(name, gradient)
        return jnp.where(norm > most, gradient / jnp.where(norm > most, norm, 1.0) * most, gradient)

    return optax.stateless(lambda updates, _: map_named(clipped, updates))


def scale_by_sample_size(scale: float, workers: int) -> optax.GradientTransformationExtraArgs:
    """Multiplies gradients by scale * workers / targets; the step passes `targets` of the whole batch (D7).

    A batch without targets counts as one of a single target. The state is that of `optax.scale`.
    """

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del params
        factor = scale * workers / jnp.maximum(extra["targets"], 1.0)
        return jax.tree.map(lambda gradient: gradient * factor, updates), state

    return optax.GradientTransformationExtraArgs(optax.scale(scale).init, update)
