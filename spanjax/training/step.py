"""The training step: gather, differentiate, reduce-scatter, update. One jitted function; the state is donated.

Inside `shard_map` over the row axes every device gathers the parameters (cast to the compute type once), runs its
microbatches, and reduce-scatters the gradient so that each device gets the part for the master weights that it holds (ZeRO-1).
The optimizer then works on shards. Losses are (total, count); totals are divided by the count over all microbatches, devices
and hosts.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from spanjax.nn.attention import platform_name
from spanjax.nn.dropout import DropoutKey, step_key
from spanjax.nn.encoder import LayerStack
from spanjax.nn.layer import Layer, Linear
from spanjax.objectives.base import Batch, Mean, Objective
from spanjax.sharding import AXES, ROW_AXES, data_dimension, manual_specs, map_named, named_leaves, replicated
from spanjax.training.optimizers.averaging import Average
from spanjax.training.state import TrainState

Means = dict[str, Mean]


def mesh_platform(mesh: Mesh) -> str:
    """Platform of the devices of a mesh: cpu, gpu or tpu."""
    return platform_name(mesh.devices.flat[0].platform)


class SeededStep(NamedTuple):
    """A jitted training step with the seed of the run as its last argument: one compiled program serves all seeds."""

    function: Any
    seed: np.uint32

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        """Runs one step, as `StepBuilder.train_step` describes it."""
        return self.function(state, batch, self.seed)

    def lower(self, state: Any, batch: Any) -> Any:
        """Lowers the step for arrays or their shapes, as `jax.jit` does; the program takes `seed` as its third argument."""
        return self.function.lower(state, batch, self.seed)


@dataclasses.dataclass(frozen=True)
class StepBuilder:
    """Builds the training and the evaluation step from everything that is fixed during a run."""

    objective: Objective
    structure: Any
    """Graph definition of the module."""
    abstract_params: Any
    mesh: Mesh
    compute_dtype: Any
    microbatches: int
    seed: int
    fsdp: bool = False
    """Gather the parameters of a layer when it runs, and again for the backward pass: no device holds those of all layers."""
    layerwise: bool = False
    """Gather those of every layer in transfers of their own, once, and scatter a layer's gradients as soon as they exist: both
    run next to other work. For one microbatch, and unrolled layers on GPUs; a TPU's scan does both in its body."""

    @property
    def reduce_dtype(self) -> Any:
        """Type in which gradients are summed: the compute type, but fp32 on CPU, where XLA aborts on a bf16 reduce-scatter."""
        return jnp.float32 if self._on_cpu else self.compute_dtype

    @property
    def _on_cpu(self) -> bool:
        return self._platform == "cpu"

    @property
    def _platform(self) -> str:
        return mesh_platform(self.mesh)

    def train_step(
        self,
        optimizer: optax.GradientTransformation,
        schedule: optax.Schedule,
        shardings: Any,
        average: Average | None = None,
    ) -> "SeededStep":
        """(state, global batch) -> (state after one update, {"means", "gradient_norm", "learning_rate", "skipped"}).

        A non-finite loss or gradient changes nothing, on all devices alike; only the batch number advances.
        "skipped" counts the consecutive skipped updates up to this one; 0 if this update was applied. `average` updates the
        moving average of a state that has one.
        """
        gradients = self._mapped(self._local_gradients, lambda specs, rows, whole: (specs, whole, rows))
        optimizer = optax.with_extra_args_support(optimizer)

        def step(state: TrainState, batch: Batch, seed: jax.Array) -> tuple[TrainState, dict[str, Any]]:
            before = (state.params, state.opt_state, state.recurrent_state, state.averaged)
            grads, (means, norm), handed_on = gradients(
                state.params, {**batch, **dict(state.recurrent_state)}, step_key(seed, state.step)
            )
            finite = self._finite(norm, means)
            # a count over all microbatches, devices and hosts: a whole number, so every split gives the same
            targets = means[next(iter(self.objective.loss_weights()))].count

            def updated() -> tuple[Any, Any, Any, Any]:
                updates, opt_state = optimizer.update(grads, state.opt_state, state.params, targets=targets, norm=norm)
                params = optax.apply_updates(state.params, updates)
                averaged = average(state.averaged, params, state.step - state.skipped) if average else ()
                return params, opt_state, handed_on or (), averaged

            params, opt_state, memory, averaged = self._if(finite, updated, before)
            row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
            skipped = state.skipped + jnp.where(finite, 0, 1)
            rate = schedule(state.step - state.skipped)
            metrics = {"means": means, "gradient_norm": norm, "learning_rate": rate, "skipped": row}
            return TrainState(state.step + 1, params, opt_state, skipped, row, memory, averaged), metrics

        whole = replicated(self.mesh)
        compiled = jax.jit(step, donate_argnums=0, out_shardings=(shardings, whole))
        return SeededStep(compiled, np.uint32(self.seed & 0xFFFFFFFF))

    def _if(self, finite: jax.Array, updated: Callable[[], Any], before: Any) -> Any:
        """Returns `updated()` where `finite` holds, `before` where it does not.

        A CPU would copy the whole state to choose between two; a GPU would wait for its host to take a branch.
        """
        if self._on_cpu:
            return jax.lax.cond(finite, updated, lambda: before)
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated(), before)

    def _finite(self, norm: jax.Array, means: Means) -> jax.Array:
        """True if the global norm of the gradient and every loss are finite; both are sums over all devices."""
        losses = [means[name].total for name in self.objective.loss_weights()]
        return jnp.isfinite(norm) & jnp.isfinite(jnp.stack(losses)).all()

    def eval_step(self) -> Callable[[Any, Batch], Means]:
        """(parameters, global batch) -> every mean of the objective over the batch, without dropout."""

        def local(params: Any, batch: Batch, _: jax.Array) -> Means:
            module = self._module(self._gather(params))
            return jax.lax.psum(self.objective.measure(module, batch, None), ROW_AXES)

        mapped = self._mapped(local, lambda specs, rows, whole: whole)
        return jax.jit(lambda params, batch: mapped(params, batch, jnp.uint32(0)))

    def predict_step(
        self, evaluated: Callable[[Any, Batch], tuple[Means, dict[str, jax.Array]]]
    ) -> Callable[[Any, Batch], tuple[Means, dict[str, jax.Array]]]:
        """(parameters, global batch) -> (means as from `eval_step`, outputs of all rows on every device).

        `evaluated` returns both for the rows of one device.
        """

        def local(params: Any, batch: Batch, _: jax.Array) -> tuple[Means, dict[str, jax.Array]]:
            module = self._module(self._gather(params))
            means, outputs = evaluated(module, batch)
            return jax.lax.psum(means, ROW_AXES), outputs

        mapped = self._mapped(local, lambda specs, rows, whole: (whole, rows))
        whole = replicated(self.mesh)
        return jax.jit(lambda params, batch: mapped(params, batch, jnp.uint32(0)), out_shardings=whole)

    def _mapped(self, function: Callable, results: Callable[[Any, Any, Any], Any]) -> Callable:
        """Maps `function` over all devices; `results` picks its output specs from those of parameters, rows and equal values."""
        specs, rows, whole = manual_specs(self.abstract_params, self.mesh)
        # Pallas kernels reject an axis that is left to the partitioner, even one of size 1
        manual = set(ROW_AXES) if self.mesh.shape["tensor"] > 1 else set(AXES)
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(specs, rows, whole),
            out_specs=results(specs, rows, whole),
            axis_names=manual,
            check_vma=False,
        )

    def _dimension(self, name: str) -> int | None:
        """Returns the dimension that is split over `data`; None for no collective: over one device it would only copy."""
        if self.mesh.shape["data"] == 1:
            return None
        return data_dimension(name, self._leaves[name].shape, self.mesh)

    @functools.cached_property
    def _leaves(self) -> dict[str, Any]:
        return named_leaves(self.abstract_params)

    def _late(self, name: str) -> bool:
        """True if a parameter is gathered by its layer; never one that is split over the layers themselves."""
        return (self.fsdp or self.layerwise) and "/layers/" in name and bool(self._dimension(name))

    def _sum(self, leaf: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        axes = tuple(axis for axis in axes if self.mesh.shape[axis] > 1)
        return jax.lax.psum(leaf, axes) if axes else leaf

    def _gather(self, params: Any) -> Any:
        """Shards of master weights -> whole parameters in the compute type; `_late` ones stay unchanged."""

        def gathered(name: str, leaf: jax.Array) -> jax.Array:
            if self._late(name):
                return leaf
            leaf, dimension = leaf.astype(self.compute_dtype), self._dimension(name)
            return leaf if dimension is None else jax.lax.all_gather(leaf, "data", axis=dimension, tiled=True)

        return map_named(gathered, params)

    def _fetch(self, layers: str, layer: Any) -> Any:
        """Gathers the parameters of one layer in the compute type; the gradient of this is a reduce-scatter."""

        def gathered(name: str, leaf: jax.Array) -> jax.Array:
            name = f"{layers}/{name}"
            if not self._late(name):
                return leaf
            dimension = self._dimension(name)
            assert dimension  # never the first, that of the layers
            leaf = leaf.astype(self.reduce_dtype)
            leaf = jax.lax.all_gather(leaf, "data", axis=dimension - 1, tiled=True)
            return leaf.astype(self.compute_dtype)

        return map_named(gathered, layer)

    def _module(self, params: Any) -> Any:
        """Builds the module from parameters of `_gather`."""
        module = nnx.merge(self.structure, params)
        for path, node in nnx.iter_modules(module):
            if isinstance(node, LayerStack) and (self.fsdp or self.layerwise):
                node.fetch = functools.partial(self._fetch, "/".join(map(str, (*path, "layers"))))
                node.fetch_again = self.fsdp
            if isinstance(node, Linear | Layer):
                node.on_accelerator = not self._on_cpu
            if isinstance(node, Layer):
                node.on_gpu = self._platform == "gpu"
        return module

    def _scatter(self, grads: Any) -> Any:
        """Whole gradients of this device's rows -> this device's part of the sum over all rows, fp32."""

        def scatter(name: str, leaf: jax.Array) -> jax.Array:
            if self._late(name):  # summed over `data` where it was gathered
                # fp32 since the gather casts master weights; replicas exchange the compute type, as for other parameters
                kept = leaf.astype(self.reduce_dtype) if self.mesh.shape["replica"] > 1 else leaf
                return self._sum(kept, ("replica",)).astype(jnp.float32)
            leaf, dimension = leaf.astype(self.reduce_dtype), self._dimension(name)
            if dimension is None:
                return self._sum(leaf, ROW_AXES).astype(jnp.float32)
            part = jax.lax.psum_scatter(leaf, "data", scatter_dimension=dimension, tiled=True)
            return self._sum(part, ("replica",)).astype(jnp.float32)

        return map_named(scatter, grads)

    def _norm(self, grads: Any) -> jax.Array:
        """Norm of the whole gradient from this device's parts: one sum over devices, where XLA would make one for every array."""
        squares = {name: jnp.sum(jnp.square(leaf)) for name, leaf in named_leaves(grads).items()}
        split = [square for name, square in squares.items() if self._dimension(name) is not None]
        whole = [square for name, square in squares.items() if self._dimension(name) is None]
        return jnp.sqrt(sum(whole) + (jax.lax.psum(sum(split), "data") if split else 0.0))

    def _local_gradients(
        self, params: Any, batch: Batch, key: jax.Array
    ) -> tuple[Any, tuple[Means, jax.Array], dict[str, jax.Array]]:
        whole = self._gather(params)
        weights, extra = self.objective.loss_weights(), self.objective.extra_counts()
        # counts cover the whole global batch, so that gradients of microbatches and devices add up to that of one mean
        counts = jax.lax.psum(self.objective.counts(batch), ROW_AXES)
        whole_counts = {name: counts[name] + extra[name] for name in weights}
        divisors = {name: jnp.where(count > 0, count, 1.0) for name, count in whole_counts.items()}

        def loss(whole: Any, rows: Batch) -> tuple[jax.Array, tuple[Means, dict[str, jax.Array]]]:
            module = self._module(whole)
            means, memory = self.objective.losses_with_state(
                module, rows, DropoutKey(key, rows["row_B"], again=self._platform == "gpu")
            )
            total = jnp.float32(0)
            for name, weight in weights.items():
                total += weight * means[name].total / divisors[name]
            return total, (means, memory)

        differentiate = jax.grad(loss, has_aux=True)
        if self.microbatches == 1:
            grads, (means, memory) = differentiate(whole, batch)
            grads = self._scatter(grads)
            return grads, (jax.lax.psum(means, ROW_AXES), self._norm(grads)), memory

        parts = {k: v.reshape(self.microbatches, -1, *v.shape[1:]) for k, v in batch.items()}

        def add(sums: tuple[Any, Means], rows: Batch) -> tuple[tuple[Any, Means], dict[str, jax.Array]]:
            grads, (means, memory) = differentiate(whole, rows)
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, (grads, means)), memory

        first, (first_means, _) = jax.eval_shape(differentiate, whole, {k: v[0] for k, v in parts.items()})
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (first, first_means))
        (grads, means), memory = jax.lax.scan(add, zeros, parts)
        memory = jax.tree.map(lambda each: each.reshape(-1, *each.shape[2:]), memory)
        grads = self._scatter(grads)
        return grads, (jax.lax.psum(means, ROW_AXES), self._norm(grads)), memory
