"""Activations and LayerNorm that keep nothing but their input, in the type it has, for the backward pass.

Both compute in float32 whatever the input. Derived by jax they would keep several float32 arrays of the size of the input,
which in bf16 is most of the memory of a layer (PERFORMANCE 1.3). Shapes: D the last axis.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx


def _keeping_input(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """An elementwise function, computed in float32 and returned in the type of its input."""

    @jax.custom_vjp
    def run(x: jax.Array) -> jax.Array:
        return function(x.astype(jnp.float32)).astype(x.dtype)

    def backward(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
        _, pull = jax.vjp(function, x.astype(jnp.float32))
        return (pull(cotangent.astype(jnp.float32))[0].astype(x.dtype),)

    run.defvjp(lambda x: (run(x), x), backward)
    return run


def _gelu(x: jax.Array) -> jax.Array:
    """x times the normal distribution function at x (Hendrycks & Gimpel, 2016), as BERT and PyTorch write it."""
    return 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": _keeping_input(_gelu),
    "gelu_tanh": _keeping_input(lambda x: jax.nn.gelu(x, approximate=True)),
    "relu": jax.nn.relu,
}


class LayerNorm(nnx.LayerNorm):
    """LayerNorm over the last axis with float32 statistics (Ba et al., 2016)."""

    def __call__(self, x: jax.Array) -> jax.Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        """[..., D] -> [..., D], in the type of x."""
        scale_D = self.scale[...]  # pyright: ignore[reportOptionalSubscript]
        bias_D = jnp.zeros_like(scale_D) if self.bias is None else self.bias[...]
        return normalise(x, scale_D, bias_D, self.epsilon)


def _statistics(x: jax.Array, epsilon: float) -> tuple[jax.Array, jax.Array]:
    """(mean, one over the standard deviation) along the last axis, float32 [..., 1]."""
    x = x.astype(jnp.float32)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    return mean, jax.lax.rsqrt(jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True) + epsilon)


def _normalise(x: jax.Array, scale_D: jax.Array, bias_D: jax.Array, epsilon: float) -> jax.Array:
    mean, inverse = _statistics(x, epsilon)
    unit = (x.astype(jnp.float32) - mean) * inverse
    return (unit * _along_last(scale_D, x.ndim) + _along_last(bias_D, x.ndim)).astype(x.dtype)


def _along_last(vector_D: jax.Array, axes: int) -> jax.Array:
    return vector_D.astype(jnp.float32).reshape((1,) * (axes - 1) + (-1,))


def _normalise_forward(
    x: jax.Array, scale_D: jax.Array, bias_D: jax.Array, epsilon: float
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _normalise(x, scale_D, bias_D, epsilon), (x, scale_D, bias_D)


def _normalise_backward(
    epsilon: float, kept: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale_D, bias_D = kept
    # behind the barrier the two are arrays as any other: a GPU would otherwise write the product with the cotangent in float32
    mean, inverse = jax.lax.platform_dependent(
        _statistics(x, epsilon), cuda=jax.lax.optimization_barrier, default=lambda statistics: statistics
    )
    unit = (x.astype(jnp.float32) - mean) * inverse
    cotangent = cotangent.astype(jnp.float32)
    others = tuple(range(x.ndim - 1))
    to_scale, to_bias = jnp.sum(cotangent * unit, axis=others), jnp.sum(cotangent, axis=others)
    to_unit = cotangent * _along_last(scale_D, x.ndim)
    mean = jnp.mean(to_unit, axis=-1, keepdims=True)
    to_x = inverse * (to_unit - mean - unit * jnp.mean(to_unit * unit, axis=-1, keepdims=True))
    return to_x.astype(x.dtype), to_scale.astype(scale_D.dtype), to_bias.astype(bias_D.dtype)


normalise = jax.custom_vjp(_normalise, nondiff_argnums=(3,))
"""(x [..., D], scale, bias, epsilon) -> LayerNorm of x, in its type."""
normalise.defvjp(_normalise_forward, _normalise_backward)
