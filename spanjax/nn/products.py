"""Products of bf16 arrays whose float32 results are summed, compared or passed through a softmax."""

import functools

import jax
import jax.numpy as jnp


def _product(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def _forward(equation: str, left: jax.Array, right: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _product(equation, left, right), (left, right)


def _backward(equation: str, kept: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    _, pull = jax.vjp(functools.partial(jnp.einsum, equation), *kept)
    return pull(cotangent.astype(kept[0].dtype))


float32_product = jax.custom_vjp(_product, nondiff_argnums=(0,))
"""(equation, left, right) -> `jnp.einsum` of two arrays of one type, summed and returned in float32.

Both products of its gradient read that type too: JAX's own would multiply float32 arrays, which takes a GPU several times as
long, and would keep the float32 cotangent.
"""
float32_product.defvjp(_forward, _backward)
