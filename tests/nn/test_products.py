"""Products with float32 results, and gradients that multiply in the type of the operands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.nn.products import float32_product

pytestmark = pytest.mark.unit
EQUATION = "bnqh,bnkh->bnqk"


def inputs(dtype: jnp.dtype) -> tuple[jax.Array, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    left, right = (jax.random.normal(key, (2, 3, 8, 4), dtype) for key in keys[:2])
    return left, right, jax.random.normal(keys[2], (2, 3, 8, 8))


def plain(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(EQUATION, left, right, preferred_element_type=jnp.float32)


def test_it_is_the_plain_product_in_float32() -> None:
    left, right, cotangent = inputs(jnp.dtype(jnp.float32))
    one, pull_one = jax.vjp(plain, left, right)
    other, pull_other = jax.vjp(lambda left, right: float32_product(EQUATION, left, right), left, right)
    for expected, got in zip((one, *pull_one(cotangent)), (other, *pull_other(cotangent)), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_gradients_of_bf16_multiply_bf16() -> None:
    left, right, cotangent = inputs(jnp.dtype(jnp.bfloat16))
    _, pull_one = jax.vjp(plain, left, right)
    made, pull = jax.vjp(lambda left, right: float32_product(EQUATION, left, right), left, right)
    assert made.dtype == jnp.float32
    for expected, got in zip(pull_one(cotangent), pull(cotangent), strict=True):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(got.astype(jnp.float32), expected.astype(jnp.float32), atol=0.05)
    products = [line for line in str(jax.make_jaxpr(pull)(cotangent)).splitlines() if "dot_general" in line]
    assert products and not any("f32" in line.split("=")[0] for line in products)
    assert any(
        "f32" in line.split("=")[0] for line in str(jax.make_jaxpr(pull_one)(cotangent)).splitlines() if "dot_" in line
    )
