"""A short batch trains as its rows alone do: empty rows have no gradient, whatever device or microbatch they fill."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.data.feed.batch import build_batch
from spanjax.data.feed.host_slice import HostShare
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.base import Pretraining
from spanjax.objectives.electra import ReplacedDetection
from spanjax.objectives.loss_terms import MaskedTokens, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.objectives.xlnet import PermutedPrediction
from spanjax.sharding import MeshConfig, make_mesh, to_global
from spanjax.training.optimizers import AdamW
from spanjax.training.state import abstract_module, state_factory, state_shardings
from spanjax.training.step import StepBuilder
from tests.data.memory_rows import MemoryRows
from tests.made import tiny_encoder

ENCODER = tiny_encoder(vocab_size=200, hidden_size=32, heads=4, intermediate_size=64, positions=48, initializer_std=0.1)
OBJECTIVES: dict[str, tuple[Pretraining, EncoderConfig]] = {
    "spanbert": (MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(extra_count=1.0))), ENCODER),
    "electra": (ReplacedDetection(generator_size=0.5, boundary=SpanBoundary()), ENCODER),
    "xlnet": (PermutedPrediction(), dataclasses.replace(ENCODER, relative_attention=True)),
}
ROWS: Any = MemoryRows(21, 48, blocks=3)
# the update is about the gradient itself: no second moment hides a difference or blows it up
OPTIMIZER = AdamW(learning_rate=1.0, warmup_steps=1, beta1=0.0, beta2=0.0, epsilon=1.0, clip_norm=0.0, weight_decay=0.0)


def short_batch(objective: Pretraining) -> dict[str, Any]:
    """The batch of the 5 longest of 21 rows, filled up to 8."""
    share = HostShare(ROWS, objective.feed_spec(seed=1, batch_size=8, order="by_length"))
    step = next(step for step in range(3) if len(share.global_rows(step)[0]) == 5)
    return dict(build_batch(*share.read(step), share.spec, share.facts))


def trained(name: str, empty: bool, devices: int, microbatches: int) -> tuple[Any, dict[str, float]]:
    """Parameters after one update by the short batch, with its empty rows or without, and its means."""
    objective, encoder = OBJECTIVES[name]
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    structure, params = abstract_module(objective, encoder)
    builder = StepBuilder(objective, structure, params, mesh, jnp.float32, microbatches, seed=5)
    transform = OPTIMIZER.transformation(4)
    make = state_factory(objective, encoder, transform, seed=5)
    shardings = state_shardings(jax.eval_shape(make), transform, mesh)
    step = builder.train_step(transform, OPTIMIZER.rate_schedule(4), shardings)
    batch = {key: array if empty else array[:5] for key, array in short_batch(objective).items()}
    state, shown = step(jax.jit(make, out_shardings=shardings)(), to_global(batch, mesh))
    assert int(shown["skipped"]) == 0, "loss and gradient are finite"
    assert float(shown["learning_rate"]) == 1.0
    means = {key: mean.value() for key, mean in jax.device_get(shown["means"]).items()}
    return jax.device_get(state.params), {**means, "norm": float(shown["gradient_norm"])}


@pytest.mark.parametrize(
    ("name", "devices", "microbatches"),
    [
        ("spanbert", 4, 1),
        pytest.param("spanbert", 1, 4, marks=pytest.mark.slow),
        pytest.param("electra", 4, 1, marks=pytest.mark.slow),
        pytest.param("xlnet", 4, 1, marks=pytest.mark.slow),
    ],
)
def test_empty_rows_train_nothing(name: str, devices: int, microbatches: int) -> None:
    """Of four devices, and of four microbatches, the last has empty rows only."""
    expected, means = trained(name, empty=False, devices=1, microbatches=1)
    params, found = trained(name, True, devices, microbatches)
    assert found == pytest.approx(means, rel=1e-5) and means["norm"] > 0.1
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
