"""The step benchmark: what is a target, what a left-out peer does, and all of it at a tiny size."""

import json
import math
import pathlib
import sys
from typing import Any

import pytest

from benchmarks import step, timing
from benchmarks.torch_peer import LossesDiffer, same_losses

SECONDS = {
    **{"spanjax": [1.0, 1.2, 1.1], "spanjax, dropout 0": [1.1] * 3, "spanjax, rows from disk": [1.1] * 3},
    **{step.SHIPPED: [3.3] * 3, step.MASKED: [2.2] * 3, step.PRODUCTS: [0.77] * 3},
}


def test_ratios_are_of_medians_and_a_peer_that_is_left_out_misses() -> None:
    text = {"spanjax": {"median": 800.0}, step.SHIPPED: {"median": 200.0}}
    found = {target.name: target for target in step.targets_of(SECONDS, text)}
    values = [(round(target.value, 6), target.met) for name, target in found.items() if "keras" not in name]
    assert values == [(0.7, True), (3.0, True), (2.0, True), (1.0, True), (1.0, True), (4.0, True)]
    left_out = [target for name, target in found.items() if "keras" in name]
    assert len(left_out) == 2 and not any(target.met for target in left_out)


def test_products_are_those_of_the_compiled_program() -> None:
    """Of a program with a loop, a batched product and two plain ones: shapes, counts and operations."""
    import jax
    import jax.numpy as jnp

    def compute(left: jax.Array, right: jax.Array) -> jax.Array:
        turned = jax.lax.fori_loop(0, 5, lambda _, x: jnp.tanh(jnp.einsum("bij,bjk->bik", x, x)), left)
        return turned.reshape(48, 16) @ right @ right.T

    shapes = jnp.ones((3, 16, 16)), jnp.ones((16, 8))
    found = step.products_of(jax.jit(compute).lower(*shapes).compile().as_text() or "")
    flops = 0.0
    for (left, right, dims), times in found.items():
        flops += 2 * times * math.prod(left) * math.prod(right) / depth(left, dims)
    assert flops == 5 * 2 * 3 * 16**3 + 2 * (2 * 48 * 16 * 8)
    assert sorted(found.values()) == [1, 1, 5]
    step.all_products(found)()


def depth(left: tuple[int, ...], dims: Any) -> int:
    """Size of what a product contracts and batches: both sides count it, the operations once."""
    (contracted, _), (batched, _) = dims
    return math.prod(left[axis] for axis in (*contracted, *batched))


def test_losses_that_differ_stop_everything() -> None:
    with pytest.raises(LossesDiffer, match="mlm 1.000000 here, 1.100000 there"):
        same_losses({"mlm": 1.0}, {"mlm": 1.1}, 1e-3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_tiny_model(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(timing, "pin", lambda cores: None)
    file = tmp_path / "step.json"
    arguments = ["--layers=1", "--width=64", "--batch=4", "--repeats=5", f"--json={file}"]
    monkeypatch.setattr(sys, "argv", ["benchmarks.step", *arguments])
    assert step.main() == 0
    said, found = capsys.readouterr().out, json.loads(file.read_text())
    assert {*SECONDS} <= {*found["figures"]["seconds"]}
    assert all(value > 0 for values in found["figures"]["seconds"].values() for value in values)
    assert "equal to 0.0001" in said and "% of the step" in said
