"""Products whose gradients are of the type and in the order that matrix libraries are fast with."""

import functools
from collections.abc import Sequence

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


def _shared(x: jax.Array, kernels: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    return x, *(x @ kernel for kernel in kernels)


def _shared_backward(kept: tuple, cotangents: Sequence[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
    (x, kernels), (total, *changes) = kept, cotangents
    others = tuple(range(x.ndim - 1))
    to_kernels = [jnp.tensordot(x, change, (others, others)) for change in changes]
    for change, kernel in zip(changes, kernels, strict=True):
        # XLA lets a product of a GPU add the second operand of a sum; the first may not have added one already
        total = change @ kernel.T + total
    return total, to_kernels


shared_products = jax.custom_vjp(_shared)
"""(x [..., D], kernels [D, E] each) -> x and its product with every kernel.

The gradient of x is a chain: each product adds to the sum of those before, as a matrix library does on its way, and the first to
the gradient of the returned x, which the caller uses from there on. JAX's own would add two sums.
"""
shared_products.defvjp(lambda x, kernels: (_shared(x, kernels), (x, kernels)), _shared_backward)
