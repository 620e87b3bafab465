"""Builds the functions of a run with valid settings, for any objective: state, step, evaluation."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from spanjax.distributed.launchers import xla_flag
from spanjax.experiment.init_from import InitialWeights
from spanjax.experiment.trials import remembered, tried
from spanjax.nn import relative, residual_norm
from spanjax.nn.attention import (
    choose_backend,
    choose_for_distances,
    choose_local_backend,
    cudnn_packed,
    pallas_hopper,
    pallas_tpu,
    pallas_triton,
    platform_name,
)
from spanjax.nn.attention.request import CHUNKED_FROM, Request
from spanjax.nn.dropout import MASK_VERSION
from spanjax.run import Run
from spanjax.run_format import MASKS, describe, flat
from spanjax.sharding import make_mesh, map_named, placed, row_shards
from spanjax.tasks.base import Task
from spanjax.training.state import TrainState, abstract_module, state_factory, state_shardings
from spanjax.training.step import StepBuilder, mesh_platform

OWN = {"pallas_hopper": pallas_hopper, "pallas_tpu": pallas_tpu, "pallas_triton": pallas_triton}
"""The project's own kernels, which are tried before a run takes them."""
SCHEDULER = "--xla_cpu_enable_concurrency_optimized_scheduler"
SCHEDULER_OFF = f"{SCHEDULER}=false"
UNROLLED_UP_TO: Mapping[str, int] = {"cpu": 3, "gpu": 24}
"""Platform -> most layers that a run unrolls without being told to. For an H200, 12 compile in 2.5 times the CPU seconds of a
scan (docs/benchmarks.md), and 24 are the most that was compiled; a CPU's programs of more layers were not measured. For a
TPU the gain is only modelled (docs/plan.md)."""
TASK_UNROLLED_UP_TO = 6
"""The same for a task on a CPU, where one thread copies what a scan keeps for the backward pass. Measured with the 6 layers of
MiniLM (docs/benchmarks.md). Pretraining keeps the scan, whose losses round in their own way."""


@dataclasses.dataclass(frozen=True)
class CompiledRun:
    """Functions of a run of any objective; nothing is initialised or compiled yet."""

    run: Run
    """The run, with the settings filled in that files decide."""
    mesh: Mesh
    optimizer: optax.GradientTransformation
    builder: StepBuilder
    abstract: TrainState
    """Shapes, types and shardings of the state."""
    attention: str
    """Attention backend, and the reason for it."""
    layers: str
    """Unrolling of the layers, and the reason for it."""

    @property
    def shardings(self) -> TrainState:
        """Sharding of every leaf of the state."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract)

    def fresh_state(self, weights: InitialWeights | None = None) -> TrainState:
        """Builds the state of step 0 sharded; parameters that `weights` has are its own."""
        run = self.run
        memory, averages = dict(self.abstract.recurrent_state), run.optimizer.ema_decay > 0
        make = state_factory(run.objective, run.encoder, self.optimizer, run.seed, memory, averages)
        state = jax.jit(make, out_shardings=self.shardings)()
        if weights is None:
            return state

        def loaded(name: str, leaf: jax.Array) -> jax.Array:
            return placed(weights.leaves[name], leaf.sharding) if name in weights.leaves else leaf

        averaged = map_named(loaded, state.averaged) if averages else ()
        return state._replace(params=map_named(loaded, state.params), averaged=averaged)

    def train_step(self) -> Any:
        """Builds the jitted step, see `StepBuilder.train_step`."""
        schedule = self.run.optimizer.rate_schedule(self.run.steps)
        return self.builder.train_step(self.optimizer, schedule, self.shardings, self.run.optimizer.average())

    def check_data(self, seconds: float = 0.0) -> None:
        """Implements `training.loop.Session.check_data` for data that nothing checks."""

    def open_step(self, start: int) -> Any:
        """Returns the step for a run that begins at step `start`; its first call compiles."""
        del start
        return self.train_step()

    def resume_notes(self, workdir: str, stored: Mapping[str, Any]) -> list[str]:
        """Implements `training.loop.Session.resume_notes`: a note if a run with dropout resumes with other masks."""
        rates = [value for name, value in flat(describe(self.run)).items() if name.endswith("dropout")]
        if stored.get(MASKS, 1) == MASK_VERSION or not any(isinstance(rate, float) and rate > 0 for rate in rates):
            return []
        return [
            f"{workdir} was begun by an earlier spanjax, which hashed dropout masks in another way. From here on its masks are"
            " those of this version: others, of the same rates; to train with one kind from the first step on, use another"
            " --workdir"
        ]


def build(run: Run, length: int, mesh: Mesh) -> CompiledRun:
    """Builds the functions of a run for rows of at most this length."""
    assert run.steps > 0 and run.optimizer.warmup_steps >= 0, "the run has its defaults: run.with_defaults"
    backend, reason = attention_backend(run, mesh, length)
    local, local_reason = local_backend(run, mesh, length, backend)
    described = f"{backend} ({reason})" + f"; of local layers {local} ({local_reason})" * bool(run.encoder.local_window)
    # what a run leaves to its devices is decided here, so that everything after reads the values in use
    unroll, layers = layers_unrolled(run, mesh)
    norm, why = norm_backend(run, mesh)
    layers += f"; dropout, sum and LayerNorm by {norm} ({why})"
    chosen: dict[str, Any] = {"attention": backend, "local_backend": local, "unroll": unroll, "residual_norm": norm}
    run = dataclasses.replace(run, encoder=dataclasses.replace(run.encoder, **chosen))
    structure, params = abstract_module(run.objective, run.encoder)
    optimizer = run.optimizer.transformation(run.steps)
    row = run.objective.recurrent_state(run.encoder, length, jnp.dtype(run.compute_dtype))
    if row and run.batch_warmup:
        raise ValueError(
            f"batch_warmup {' '.join(run.batch_warmup)}: {type(run.objective).__name__} passes a state of batch_size rows to the"
            " next update, so that all updates have as many; leave batch_warmup out"
        )
    memory = {name: jax.ShapeDtypeStruct((run.batch_size, *each.shape), each.dtype) for name, each in row.items()}
    averages = run.optimizer.ema_decay > 0
    abstract = jax.eval_shape(state_factory(run.objective, run.encoder, optimizer, run.seed, memory, averages))
    shardings = state_shardings(abstract, optimizer, mesh)
    laid_out = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)
    builder = StepBuilder(
        objective=run.objective,
        structure=structure,
        abstract_params=params,
        mesh=mesh,
        compute_dtype=jnp.dtype(run.compute_dtype),
        microbatches=run.microbatches,
        seed=run.seed,
        fsdp=run.mesh.fsdp,
        layerwise=gathered_layerwise(run, mesh),
    )
    return CompiledRun(run, mesh, optimizer, builder, laid_out, described, layers)


def layers_unrolled(run: Run, mesh: Mesh) -> tuple[int, str]:
    """Chooses encoder.unroll where a run leaves it to its devices; also returns the reason."""
    encoder, platform = run.encoder, mesh_platform(mesh)
    if encoder.unroll:
        return encoder.unroll, f"{encoder.unroll} a turn of the scan (requested)"
    if run.mesh.fsdp:
        return 1, "in a scan (mesh.fsdp gathers one at a time)"
    if platform == "cpu" and encoder.remat != "none":
        return 1, "in a scan (remat frees memory on cpu only there)"
    tuned = platform == "cpu" and isinstance(run.objective, Task)
    if encoder.layers > (TASK_UNROLLED_UP_TO if tuned else UNROLLED_UP_TO.get(platform, 0)):
        return 1, f"in a scan (the default for {encoder.layers} layers on {platform})"
    return encoder.layers, f"unrolled (the fastest on {platform}; encoder.unroll=1 compiles faster)"


def gathered_layerwise(run: Run, mesh: Mesh) -> bool:
    """True if every layer gathers its parameters on its own (`StepBuilder.layerwise`), by the unrolling that `run` has now.

    Layers that share parameters would gather and scatter them once a layer.
    """
    encoder, platform = run.encoder, mesh_platform(mesh)
    # inside the body of a scan only a TPU's program puts transfers next to other work
    apart = platform == "tpu" or encoder.unroll >= encoder.layers
    return apart and encoder.layers == encoder.own_layers and run.microbatches == 1 and platform != "cpu"


def attention_backend(run: Run, mesh: Mesh, length: int) -> tuple[str, str]:
    """Chooses the attention backend for rows of this length on this mesh; ValueError if the requested one cannot run."""
    encoder, device = run.encoder, mesh.devices.flat[0]
    wanted = encoder.attention
    if mesh.shape["tensor"] > 1:
        if wanted not in ("auto", "xla"):
            raise ValueError(
                f"encoder.attention {wanted!r} cannot split its heads over mesh.tensor: use 'xla', or tensor=1"
            )
        return "xla", "the one that splits its heads over mesh.tensor"
    if encoder.disentangled:
        return "xla", "the one for distances"
    head_size, dtype = encoder.hidden_size // encoder.heads, jnp.dtype(run.compute_dtype)
    if encoder.relative_attention:
        return _for_distances(run, device, length, head_size, dtype)
    backend, reason = choose_backend(
        wanted,
        device.platform,
        length=length,
        head_size=head_size,
        dtype=dtype,
        dropout=encoder.attention_dropout,
        device_kind=device.device_kind,
        window=encoder.local_window,
    )
    if backend == "cudnn_packed" and device in jax.local_devices():  # and not one that is only planned for
        cudnn_packed.verify(length, head_size, dtype.name)
        reason += "; equal to xla on this device"
    if backend in OWN and device in jax.devices():
        # a TPU's memory scores of longer rows would fill
        other = "xla_chunked" if backend == "pallas_tpu" and length >= CHUNKED_FROM else "xla"
        timed = (length, head_size, dtype.name, encoder.local_window, encoder.attention_dropout, other)
        return _tried_own(backend, wanted, reason, timed)
    return backend, reason


def local_backend(run: Run, mesh: Mesh, length: int, backend: str) -> tuple[str, str]:
    """Chooses the backend of local layers where `backend` is that of the others; "auto" without local layers.

    ValueError if the requested one cannot run.
    """
    encoder, device = run.encoder, mesh.devices.flat[0]
    if not encoder.local_window:
        return "auto", "none are local"
    if encoder.local_backend != "auto":
        asked = dataclasses.replace(encoder, attention=encoder.local_backend)
        try:
            return attention_backend(dataclasses.replace(run, encoder=asked), mesh, length)
        except ValueError as error:
            raise ValueError(f"encoder.local_backend: {error}") from None
    if encoder.attention != "auto":  # who names one wants it everywhere
        return backend, "as the other layers"
    head_size, name = encoder.hidden_size // encoder.heads, jnp.dtype(run.compute_dtype).name
    platform, kind = platform_name(device.platform), device.device_kind
    local, reason = choose_local_backend(
        backend,
        Request(platform, length, head_size, name, encoder.attention_dropout, kind, encoder.local_window),
    )
    if local == backend or device not in jax.devices():
        return local, reason
    timed = (length, head_size, name, encoder.local_window, encoder.attention_dropout, backend)
    return _tried_own(local, "auto", reason, timed, "encoder.local_backend")


def _tried_own(
    name: str, wanted: str, reason: str, timed: tuple[Any, ...], setting: str = "encoder.attention"
) -> tuple[str, str]:
    """`tried` of a kernel of `OWN`; `timed` are the arguments of its `verify`, of which the last is what it replaces."""

    def trial() -> tuple[float, float]:
        return remembered(name, timed, lambda: OWN[name].verify(*timed))

    return tried(wanted, reason, trial, name, timed[-1], setting)


def _for_distances(run: Run, device: Any, length: int, head_size: int, dtype: Any) -> tuple[str, str]:
    """`attention_backend` of relative attention."""
    platform, rate = platform_name(device.platform), run.encoder.attention_dropout
    memory = run.objective.memory_length
    request = Request(platform, length, head_size, dtype, rate, device.device_kind)
    backend, reason = choose_for_distances(run.encoder.attention, request, memory)
    if backend == "xla" or device not in jax.devices():
        return backend, reason
    timed = (length, memory, head_size, dtype.name, rate)

    def trial() -> tuple[float, float]:
        return remembered("pallas_tpu_distances", timed, lambda: relative.verify(*timed))

    return tried(run.encoder.attention, reason, trial, backend)


def norm_backend(run: Run, mesh: Mesh) -> tuple[str, str]:
    """Chooses encoder.residual_norm for this mesh, with the reason; ValueError if the requested one cannot run."""
    encoder, device, dtype = run.encoder, mesh.devices.flat[0], jnp.dtype(run.compute_dtype)
    wanted, width = encoder.residual_norm, encoder.hidden_size
    if wanted == "xla":
        return "xla", "requested"
    problems = (
        "mesh.tensor splits its width" if mesh.shape["tensor"] > 1 else None,
        "layers of this kind do not use it" if encoder.norm_first or encoder.relative_attention else None,
        "encoder.remat would keep its results" if encoder.remat != "none" else None,
        residual_norm.supports(platform_name(device.platform), device.device_kind, width, dtype),
    )
    problem = "; ".join(filter(None, problems))
    if problem and wanted != "auto":
        raise ValueError(f"encoder.residual_norm {wanted!r} cannot be used: {problem}; take 'auto' or 'xla', which can")
    if problem:
        return "xla", f"not pallas: {problem}"
    reason = "requested" if wanted != "auto" else "one kernel each way"
    if device not in jax.devices():  # it is only planned for
        return "pallas", reason

    def trial() -> tuple[float, float]:
        return remembered("residual_norm", shape, lambda: residual_norm.verify(*shape))

    shape = (width, dtype.name, encoder.dropout, encoder.norm_epsilon)
    return tried(wanted, reason, trial, "pallas", setting="encoder.residual_norm")


def open_mesh(run: Run) -> tuple[Mesh | None, list[str]]:
    """Builds the mesh of a run; also returns problems with it, None with those of the mesh itself."""
    try:
        mesh = make_mesh(run.mesh)
    except ValueError as error:
        return None, [str(error)]
    return mesh, mesh_problems(run, mesh)


def mesh_problems(run: Run, mesh: Mesh) -> list[str]:
    """Returns problems that keep a batch from being split over this mesh, or its devices from running such a step."""
    found = batch_problems(run, row_shards(mesh))
    on_cpu = mesh.devices.flat[0].platform == "cpu" and mesh.shape["data"] > 1
    if run.mesh.fsdp and on_cpu and xla_flag(os.environ, SCHEDULER) != "false":
        found.append(
            f"mesh.fsdp on {mesh.devices.size} CPU devices aborts in XLA in most runs: leave it off (devices of one machine share"
            f" its memory, so it saves none), or set XLA_FLAGS={SCHEDULER_OFF}"
        )
    return found


def batch_problems(run: Run, shards: int) -> list[str]:
    """Returns problems that keep the rows of an update from being split over `shards` devices and this many processes."""
    processes, parts = jax.process_count(), shards * run.microbatches
    try:
        sizes = [run.batch_size, *(stage.rows for stage in run.batch_stages)]
    except ValueError:
        sizes = [run.batch_size]
    if min(*sizes, parts) < 1:
        return []  # `Run.problems` reports it
    for size in dict.fromkeys(sizes):
        name = f"batch_size {size}" if size == run.batch_size else f"batch_warmup's update of {size} rows"
        if size % parts:
            over = f"{shards} device(s) x {run.microbatches} microbatch(es)"
            return [f"{name} does not divide over {over}: use a multiple of {parts}"]
        if size % processes:
            return [f"{name} does not divide over {processes} processes: use a multiple of {processes}"]
    return []
