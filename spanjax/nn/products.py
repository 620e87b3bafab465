"""Products of bf16 arrays whose float32 results are summed, compared or passed through a softmax."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_product(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """`jnp.einsum` of two arrays of one type, summed and returned in float32.

    Both products of its gradient read that type too: JAX's own would multiply float32 arrays, which takes a GPU eight times as
    long, and would keep the float32 cotangent.
    """
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def _forward(equation: str, left: jax.Array, right: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return float32_product(equation, left, right), (left, right)


def _backward(equation: str, kept: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    _, pull = jax.vjp(functools.partial(jnp.einsum, equation), *kept)
    return pull(cotangent.astype(kept[0].dtype))


float32_product.defvjp(_forward, _backward)
