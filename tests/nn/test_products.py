"""Products with float32 results, and gradients that multiply in the type of the operands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.nn.products import float32_product, shared_products

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


def test_products_of_one_array_have_the_gradients_of_jax() -> None:
    keys = jax.random.split(jax.random.key(1), 8)
    x, *changes = (jax.random.normal(key, (2, 3, 4)) for key in keys[:4])
    kernels = [jax.random.normal(key, (4, 4)) for key in keys[4:6]]

    def plain(x: jax.Array, kernels: list[jax.Array]) -> tuple[jax.Array, ...]:
        return x, *(x @ kernel for kernel in kernels)

    expected, pull_expected = jax.vjp(plain, x, kernels)
    got, pull = jax.vjp(shared_products, x, kernels)
    trees = (got, pull(tuple(changes))), (expected, pull_expected(tuple(changes)))
    for one, other in zip(*map(jax.tree.leaves, trees), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_shared_array_is_one_chain() -> None:
    """Every sum adds a product to the sum so far: no two products are added, and none is added to two things."""
    x, kernels = jnp.ones((2, 3, 4)), [jnp.ones((4, 4))] * 3
    _, pull = jax.vjp(shared_products, x, kernels)
    equations = jax.make_jaxpr(pull)((x,) * 4).eqns
    products = {str(each.outvars[0]) for each in equations if each.primitive.name == "dot_general"}
    sums = [each for each in equations if "add" in each.primitive.name]
    assert len(sums) == 3 and all(str(each.invars[0]) in products for each in sums)
    assert not any(str(each.invars[1]) in products for each in sums)
