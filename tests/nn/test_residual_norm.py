"""The kernel of dropout, sum and LayerNorm in jax's interpreter, against the formula."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.nn import residual_norm
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, step_key
from spanjax.nn.layer import Layer, Linear

ROWS, LENGTH = 3, 8
KEY = DropoutKey(step_key(0, jnp.int32(1)), jnp.arange(ROWS) + 5, again=True)
interpreted = functools.partial(residual_norm.fused, interpret=True)


def with_gradients(function: Callable, width: int, rate: float, dtype: str, length: int = LENGTH) -> list[np.ndarray]:
    """The result and the gradients of hidden states, product, bias, scale and shift."""
    generator = np.random.default_rng(0)
    shapes = (*[(ROWS, length, width)] * 2, *[(width,)] * 3, (ROWS, length, width))
    *inputs, change = (jnp.asarray(generator.standard_normal(shape), dtype) for shape in shapes)
    options: dict[str, Any] = {"rate": rate, "epsilon": 1e-12, "key": KEY if rate else None, "site": 7}
    output, backward = jax.vjp(functools.partial(function, **options), *inputs)
    return [np.asarray(each, np.float32) for each in (output, *backward(change))]


@pytest.mark.parametrize("width", [128, 384])
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_it_equals_the_formula(width: int, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # three programs of the backward pass, with two tiles each
    monkeypatch.setattr(residual_norm, "PROGRAMS", 3)
    got = with_gradients(interpreted, width, rate, "float32")
    for one, right in zip(got, with_gradients(residual_norm.plain, width, rate, "float32"), strict=True):
        np.testing.assert_allclose(one, right, rtol=0, atol=1e-6 * np.abs(right).max())


def test_masks_are_those_of_dropout() -> None:
    _, _, got, *_ = with_gradients(interpreted, 128, 0.25, "float32")
    _, _, right, *_ = with_gradients(residual_norm.plain, 128, 0.25, "float32")
    np.testing.assert_array_equal(got == 0, right == 0)
    assert 0.2 < (got == 0).mean() < 0.3


def test_bfloat16_is_rounded_once() -> None:
    """Closer to the formula in float32 than the formula in bfloat16, which rounds after the bias, the dropout and the sum."""
    right = with_gradients(residual_norm.plain, 128, 0.25, "float32")
    worst = []
    for function in (interpreted, residual_norm.plain):
        got = with_gradients(function, 128, 0.25, "bfloat16")
        worst.append([np.abs(a - b).max() / np.abs(b).max() for a, b in zip(got, right, strict=True)])
    assert max(worst[0]) < 0.02
    assert np.mean(worst[0]) <= np.mean(worst[1])


def test_lines_that_do_not_fill_tiles_take_the_formula() -> None:
    got = with_gradients(interpreted, 128, 0.25, "float32", length=7)
    for one, right in zip(got, with_gradients(residual_norm.plain, 128, 0.25, "float32", length=7), strict=True):
        np.testing.assert_array_equal(one, right)


@pytest.mark.parametrize("biases", [True, False])
def test_a_layer_is_the_same_with_it(biases: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_norm, "fused", interpreted)
    config = EncoderConfig(hidden_size=128, heads=2, intermediate_size=256, vocab_size=16, biases=biases, positions=8)
    results = []
    for backend, on_accelerator in (("xla", False), ("pallas", True)):
        settings = dataclasses.replace(config, residual_norm=backend, attention_dropout=0.0)
        layer = Layer(settings, nnx.Rngs(0))
        for _, node in nnx.iter_modules(layer):
            if isinstance(node, Linear | Layer):
                node.on_accelerator = on_accelerator
            if isinstance(node, Layer):
                node.on_gpu = on_accelerator
        structure, state = nnx.split(layer)
        hidden = jnp.asarray(np.random.default_rng(1).standard_normal((ROWS, LENGTH, 128)), jnp.float32)
        # no two parameters alike, or a scale could be mistaken for another
        state = jax.tree.map(
            lambda leaf: leaf + 0.1 * jnp.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape) / leaf.size, state
        )

        def loss(state: Any, hidden: jax.Array, structure: Any = structure) -> jax.Array:
            segments = jnp.ones(hidden.shape[:2], jnp.int32)
            made = nnx.merge(structure, state)(hidden, segments, None, KEY, jnp.uint32(1), jnp.bool_(True))
            return jnp.sum(jnp.sin(made))

        results.append(jax.tree.leaves(jax.value_and_grad(loss, argnums=(0, 1))(state, hidden)))
    for got, right in zip(results[1], results[0], strict=True):
        # the gradient of the bias of keys is zero, up to rounding
        np.testing.assert_allclose(got, right, rtol=0, atol=1e-5 * max(0.1, float(jnp.abs(right).max())))


def test_the_comparison_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_norm, "ROWS", 2)
    monkeypatch.setattr(residual_norm, "LENGTH", 8)
    residual_norm.verify.cache_clear()
    assert min(residual_norm.verify(128, "bfloat16", 0.25, 1e-12, interpret=True)) > 0

    def elsewhere(*arrays: Any, interpret: bool, **options: Any) -> jax.Array:
        return residual_norm.plain(*arrays, **{**options, "site": 4})

    residual_norm.verify.cache_clear()
    monkeypatch.setattr(residual_norm, "fused", elsewhere)
    with pytest.raises(ValueError, match="encoder.residual_norm 'pallas' computes something else.*: output differ by"):
        residual_norm.verify(128, "bfloat16", 0.25, 1e-12, interpret=True)
    residual_norm.verify.cache_clear()


@pytest.mark.parametrize(
    ("platform", "kind", "width", "dtype", "reason"),
    [
        ("gpu", "NVIDIA H200", 768, "bfloat16", None),
        ("gpu", "NVIDIA A100-SXM4-80GB", 1024, "float32", None),
        ("tpu", "TPU v5e", 768, "bfloat16", "it runs on gpu"),
        ("gpu", "Tesla V100-SXM2-16GB", 768, "bfloat16", "compute capability 8.0"),
        ("gpu", "AMD Instinct MI300X", 768, "bfloat16", "an NVIDIA GPU of compute capability 8.0"),
        ("gpu", "NVIDIA H200", 312, "bfloat16", "multiple of 128, not 312"),
        ("gpu", "NVIDIA H200", 768, "float64", "not float64"),
        (
            "gpu",
            "Tesla V100-SXM2-16GB",
            312,
            "bfloat16",
            "not Tesla V100-SXM2-16GB; its width is a multiple of 128, not 312",
        ),
    ],
)
def test_what_it_cannot_compute(platform: str, kind: str, width: int, dtype: str, reason: str | None) -> None:
    problem = residual_norm.supports(platform, kind, width, dtype)
    assert problem is None if reason is None else reason in (problem or "")


def test_another_platform_is_the_only_reason() -> None:
    assert residual_norm.supports("tpu", "TPU v5e", 312, "float64") == "it runs on gpu, and these devices are tpu"
