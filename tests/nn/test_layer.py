"""Dense layers read rows and positions as one axis; three of them are one product."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.nn.layer import Layer, Linear, joint_product
from tests.made import tiny_encoder

ROWS, LENGTH, SIZE, HEADS = 3, 20, 48, 4


def parts(bias: bool = True) -> tuple[Linear, ...]:
    """Query, key and value of a layer, with biases that are not zero."""
    drawn = nnx.initializers.normal(1.0)
    return tuple(Linear(SIZE, SIZE, use_bias=bias, bias_init=drawn, rngs=nnx.Rngs(number)) for number in range(3))


def hidden() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (ROWS, LENGTH, SIZE))


def transposed(function, *arguments) -> list[str]:
    """Lines of the compiled gradient that write an array of the size of all hidden states, or more, in another order."""
    program = jax.jit(jax.grad(function)).lower(*arguments).compile().as_text() or ""
    found = []
    for line in program.splitlines():
        shape = re.search(r"= f32\[([\d,]+)\]\S* (?:transpose|copy)\(", line)
        if shape and np.prod([int(size) for size in shape[1].split(",")]) >= ROWS * LENGTH * SIZE:
            found.append(line)
    return found


def gradient_of_kernel(layer: nnx.Linear, loss) -> jax.Array:
    """The gradient of `loss(layer's output)` for the hidden states of this file."""
    graph, state = nnx.split(layer)
    return jax.grad(lambda state: loss(nnx.merge(graph, state)(hidden())))(state)["kernel"][...]


def test_a_dense_layer_is_that_of_flax():
    ours, theirs = Linear(SIZE, 7, rngs=nnx.Rngs(0)), nnx.Linear(SIZE, 7, rngs=nnx.Rngs(0))
    for x in (hidden(), hidden()[0], hidden()[0, 0]):
        np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-5, atol=1e-6)
    of_ours, of_theirs = (gradient_of_kernel(layer, lambda made: jnp.sum(jnp.sin(made))) for layer in (ours, theirs))
    np.testing.assert_allclose(of_ours, of_theirs, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_kernel_transposes_no_hidden_states():
    for kind, copies in ((Linear, False), (nnx.Linear, True)):
        graph, state = nnx.split(kind(SIZE, SIZE, rngs=nnx.Rngs(0)))

        def loss(state, x, graph=graph):
            return jnp.sum(jnp.sin(nnx.merge(graph, state)(x)))

        # the day this fails for flax's layer, XLA does without the copy and ours can go
        assert bool(transposed(loss, state, hidden())) is copies


@pytest.mark.parametrize("bias", [True, False])
def test_a_joint_product_is_that_of_each_part(bias):
    together = joint_product(hidden(), parts(bias), HEADS)
    for part, found in zip(parts(bias), together, strict=True):
        expected = jnp.einsum("bld,de->ble", hidden(), part.kernel[...])
        if part.bias is not None:
            expected = expected + part.bias[...][None, None]
        np.testing.assert_allclose(found, expected.reshape(ROWS, LENGTH, HEADS, -1), rtol=1e-5, atol=1e-5)


def test_gradients_of_a_joint_product_are_those_of_each_part():
    graph, state = nnx.split(nnx.List(parts()))

    def loss(state, joint):
        made = tuple(nnx.merge(graph, state))
        found = joint_product(hidden(), made, HEADS) if joint else [part(hidden()) for part in made]
        return sum(jnp.sum(jnp.sin(each.reshape(ROWS, LENGTH, SIZE)) * number) for number, each in enumerate(found, 1))

    together, apart = (jax.tree.leaves(jax.grad(loss)(state, joint)) for joint in (True, False))
    assert len(together) == 6
    for found, expected in zip(together, apart, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_layers_of_every_encoder_are_flat_ones():
    from spanjax.nn.encoder import Encoder

    encoder = Encoder(tiny_encoder(), nnx.Rngs(0))
    dense = [node for _, node in nnx.iter_modules(encoder) if isinstance(node, nnx.Linear)]
    assert dense and all(isinstance(node, Linear) for node in dense)


def test_products_for_accelerators_are_those_for_a_cpu() -> None:
    """Three products for queries, keys and values, rows and positions as two axes: the same layer, forward and backward."""
    graph, state = nnx.split(Layer(tiny_encoder(hidden_size=SIZE, heads=HEADS), nnx.Rngs(0)))
    segments_BL = jnp.ones((ROWS, LENGTH), jnp.int32)

    def loss(state: nnx.State, on_accelerator: bool) -> jax.Array:
        layer = nnx.merge(graph, state)
        for _, node in nnx.iter_modules(layer):
            vars(node)["on_accelerator"] = on_accelerator
        return jnp.sum(jnp.sin(layer(hidden(), segments_BL, None, None, jnp.uint32(0), jnp.array(False))))

    (one, of_one), (other, of_other) = (jax.value_and_grad(loss)(state, each) for each in (False, True))
    assert float(one) == pytest.approx(float(other), rel=1e-5)
    for expected, got in zip(jax.tree.leaves(of_one), jax.tree.leaves(of_other), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
