"""Activations and LayerNorm against the formulas as they stand, and what they keep for the backward pass."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.ad_checkpoint import print_saved_residuals

from spanjax.nn.pointwise import ACTIVATIONS, LayerNorm, normalise

EPSILON = 1e-12
PLAIN = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


def plain_norm(x: jax.Array, scale_D: jax.Array, bias_D: jax.Array) -> jax.Array:
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + EPSILON) * scale_D[None, None] + bias_D[None, None]


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_activations_and_their_derivatives(name: str) -> None:
    x = jnp.linspace(-6, 6, 1201)
    np.testing.assert_allclose(ACTIVATIONS[name](x), PLAIN[name](x), atol=2e-6)
    ours, plain = (jax.vmap(jax.grad(function))(x) for function in (ACTIVATIONS[name], PLAIN[name]))
    np.testing.assert_allclose(ours, plain, atol=2e-6)
    assert ACTIVATIONS[name](x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_layer_norm_and_its_gradients() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    x, weight = 3 + 2 * jax.random.normal(keys[0], (2, 5, 16)), jax.random.normal(keys[1], (2, 5, 16))
    scale_D, bias_D = jax.random.normal(keys[2], (16,)), jax.random.normal(keys[3], (16,))

    def total(norm: Callable, *arguments: jax.Array) -> jax.Array:
        return jnp.sum(norm(*arguments) * weight)

    def ours(*arguments: jax.Array) -> jax.Array:
        return normalise(*arguments, EPSILON)

    np.testing.assert_allclose(ours(x, scale_D, bias_D), plain_norm(x, scale_D, bias_D), atol=1e-5)
    found, expected = (jax.grad(total, argnums=(1, 2, 3))(norm, x, scale_D, bias_D) for norm in (ours, plain_norm))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_the_module_has_the_parameters_of_flax() -> None:
    module = LayerNorm(8, epsilon=1e-5, rngs=nnx.Rngs(0))
    reference = nnx.LayerNorm(8, epsilon=1e-5, use_fast_variance=False, rngs=nnx.Rngs(0))
    assert jax.tree.structure(nnx.state(module)) == jax.tree.structure(nnx.state(reference))
    x = jax.random.normal(jax.random.key(1), (3, 8))
    np.testing.assert_allclose(module(x), reference(x), atol=1e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "norm"])
def test_only_the_input_is_kept_in_bfloat16(name: str, capsys: pytest.CaptureFixture) -> None:
    one_D = jnp.ones(16, jnp.bfloat16)

    def function(x: jax.Array) -> jax.Array:
        x = x * 2  # not an argument, which would be kept anyway
        return jnp.sum(normalise(x, one_D, one_D, EPSILON) if name == "norm" else ACTIVATIONS[name](x))

    print_saved_residuals(function, jnp.ones((4, 8, 16), jnp.bfloat16))
    kept = re.findall(r"^(\w+)\[4,8,16\]", capsys.readouterr().out, re.MULTILINE)
    assert kept and set(kept) == {"bf16"} and len(kept) == 1
