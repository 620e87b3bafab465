"""Coreference above the kinds of encoders that the stack loads."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from spanjax.nn.dropout import DropoutKey
from spanjax.tasks.base import LOSS
from tests.made import tiny_encoder
from tests.tasks.coref.test_coref import MODEL, TASK, VOCABULARY, batch_of, longest, packed

KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"types": 1, "position_offset": 2},
    "albert": {"num_layer_groups": 1, "embedding_size": 8},
    "xlnet": {"relative_attention": True, "types": 0, "embedding_size": 0},
    "modernbert": {"rope_theta": 10_000.0, "norm_first": True, "gated_mlp": True, "types": 0, "biases": False},
    "deberta-v2": {"disentangled_attention": "both", "max_distance": 8, "shared_projections": True, "types": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_encoder_trains_and_predicts(kind):
    encoder = tiny_encoder(vocab_size=VOCABULARY.size, layers=2, positions=32, **KINDS[kind])
    for head in ("coarse_to_fine", "start_end"):
        task = dataclasses.replace(TASK, model=dataclasses.replace(MODEL, head=head))
        structure, state = nnx.split(task.build(encoder, nnx.Rngs(0)))
        _, together = packed(longest(), task)
        batch = batch_of(together, [0, 2], together.length_of(np.array([0, 2])))

        def loss(state: Any, task: Any = task, structure: Any = structure, batch: Any = batch) -> jax.Array:
            key = DropoutKey(jax.numpy.uint32(3), batch["row_B"])
            return task.measure(nnx.merge(structure, state), batch, key)[LOSS].total

        value, gradient = jax.jit(jax.value_and_grad(loss))(state)
        leaves = nnx.to_pure_dict(gradient)["encoder"]
        assert np.isfinite(float(value)) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(leaves))
        assert sum(float(np.abs(leaf).sum()) for leaf in jax.tree.leaves(leaves)) > 0
        assert int(jax.jit(task.outputs)(nnx.merge(structure, state), batch)["real_BM"].sum()) > 0
