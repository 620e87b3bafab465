"""Train state: step, fp32 master weights, their moving average and optimizer moments, all sharded on the mesh.

The weights come from (1) the newest whole checkpoint in the work directory, from which the run resumes; (2) without one,
another model, if the run names one (`experiment/init_from.py`); (3) otherwise, and for parameters that model lacks, fresh
weights, sampled from the seed alone (the same on every mesh).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from spanjax.nn.config import EncoderConfig
from spanjax.objectives.base import Objective
from spanjax.sharding import named_leaves, parameter_shardings, replicated, row_sharding, sharding_of_moment


class TrainState(NamedTuple):
    """Contents of a checkpoint."""

    step: jax.Array
    """int32: batches done; also the number of the next one."""
    params: Any
    """Nested dict of fp32 master weights."""
    opt_state: Any
    """The optimizer's state, shaped by optax."""
    skipped: Any = np.int32(0)
    """int32: batches whose update was skipped, because loss or gradient was not finite."""
    skipped_in_a_row: Any = np.int32(0)
    """int32: consecutive ones of them up to the newest batch."""
    recurrent_state: Any = ()
    """Memory that rows of a batch pass to those of the next, by name, [rows of a global batch, ...]; often empty."""
    averaged: Any = ()
    """Exponential moving average of `params`, in the same form; () in a run without one."""

    @property
    def weights(self) -> Any:
        """Weights to evaluate and to use after training: the average, if the run keeps one."""
        return self.averaged or self.params


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    state: TrainState
    step: int
    interrupted: bool
    held_out: dict[str, float]
    best: tuple[int, float] | None = None
    """Step and value of the best evaluation, by `Session.selection_metric`."""


def abstract_module(objective: Objective, encoder: EncoderConfig) -> tuple[Any, Any]:
    """(graph definition, nested dict of ShapeDtypeStruct) of the objective's module, without computing anything."""
    module = nnx.eval_shape(lambda: objective.build(encoder, nnx.Rngs(0)))
    structure, state = nnx.split(module)
    return structure, nnx.to_pure_dict(state)


def state_factory(
    objective: Objective,
    encoder: EncoderConfig,
    optimizer: optax.GradientTransformation,
    seed: int,
    recurrent_state: Mapping[str, jax.ShapeDtypeStruct] | None = None,
    averages: bool = False,
) -> Callable[[], TrainState]:
    """Returns a function without arguments that builds the state of step 0, to be jitted or shape-evaluated.

    `recurrent_state` holds its shapes and types, for all rows of a batch. With `averages` it keeps a moving average.
    """

    def make() -> TrainState:
        module = objective.build(encoder, nnx.Rngs(jax.random.key(seed)))
        params = nnx.to_pure_dict(nnx.split(module)[1])
        zero = jnp.zeros((), jnp.int32)
        memory = {name: jnp.zeros(each.shape, each.dtype) for name, each in (recurrent_state or {}).items()}
        # buffers of its own: the step donates the state, and no buffer can be donated twice
        averaged = jax.tree.map(jnp.copy, params) if averages else ()
        return TrainState(zero, params, optimizer.init(params), zero, zero, memory or (), averaged)

    return make


def state_shardings(abstract: TrainState, optimizer: optax.GradientTransformation, mesh: Mesh) -> Any:
    """Returns a TrainState of shardings; moments and the moving average are sharded like their parameters, recurrent state like
    its rows."""
    shardings = parameter_shardings(abstract.params, mesh)
    whole = replicated(mesh)

    def masked(leaf: Any) -> bool:
        return isinstance(leaf, optax.MaskedNode)  # a parameter of which this part of the optimizer keeps nothing

    moments = optax.tree.map_params(
        optimizer,
        lambda leaf, sharding: leaf if masked(leaf) else sharding_of_moment(leaf.shape, sharding),
        abstract.opt_state,
        shardings,
        transform_non_params=lambda _: whole,
        is_leaf=masked,
    )
    memory = [row_sharding(mesh)] * len(abstract.recurrent_state)
    averaged = shardings if abstract.averaged else ()
    leaves = [whole, *jax.tree.leaves((shardings, moments)), whole, whole, *memory, *jax.tree.leaves(averaged)]
    return jax.tree.unflatten(jax.tree.structure(abstract), leaves)


def count_parameters(params: Any, encoder: EncoderConfig) -> int:
    """Counts the parameters of a model with its true vocabulary. Unused ones are not counted: rows that only pad the token
    table and biases, and with `norm_first` the first layer's first LayerNorm.
    """
    total = 0
    for name, leaf in named_leaves(params).items():
        size = 1
        for dimension in leaf.shape:
            size *= dimension
        if name.endswith("token/embedding") or (leaf.shape == (encoder.padded_vocab_size,) and name.endswith("/bias")):
            size = size // encoder.padded_vocab_size * encoder.vocab_size
        if encoder.norm_first and "/layers/attention_norm/" in name:
            size -= size // leaf.shape[0]
        total += size
    return total
