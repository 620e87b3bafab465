"""Mesh, sharding rules by parameter name, and host arrays as global arrays. The only file that names PartitionSpec.

Mesh axes: `replica` (copies of everything, across slices), `data` (shards the rows, the fp32 master weights and the optimizer's
moments: ZeRO-1), `tensor` (shards kernels; partitioned automatically).
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

T = TypeVar("T")


def named_leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}, "c": 2} -> {"a/b": 1, "c": 2}, in the order of the tree."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= named_leaves(value, f"{prefix}/{key}" if prefix else str(key))
    return leaves


def map_named(function: Callable[[str, Any], T], tree: Any, prefix: str = "") -> Any:
    """Returns the same nested dict with every leaf replaced by function(name, leaf)."""
    if not isinstance(tree, Mapping):
        return function(prefix, tree)
    return {key: map_named(function, value, f"{prefix}/{key}" if prefix else str(key)) for key, value in tree.items()}


def first_match(rules: Sequence[tuple[str, T]], name: str) -> T:
    """Value of the first rule whose pattern is found in the name; a name that no rule covers is an error."""
    for pattern, value in rules:
        if re.search(pattern, name):
            return value
    raise ValueError(f"no rule covers the parameter {name!r}; add one to the table ({[p for p, _ in rules]})")


def matches_any(patterns: Sequence[str], name: str) -> bool:
    """Returns True if any pattern matches within the name."""
    return any(re.search(pattern, name) for pattern in patterns)


AXES = ("replica", "data", "tensor")
ROW_AXES = ("replica", "data")

TENSOR_RULES: tuple[tuple[str, int | None], ...] = (
    (r"layers/(query|key|value|position_query|position_key|feed_in|feed_gate)/(kernel|bias)$", -1),
    (r"layers/(output|feed_out)/kernel$", -2),
    (r"embeddings/token/embedding$", 0),
    (r"", None),
)
"""First matching pattern -> the dimension of the parameter that is split over `tensor`."""


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Shape of the device mesh; one of the three may be -1: all remaining devices."""

    replica: int = 1
    """Copies of the whole state (slices connected by a slow network)."""
    data: int = -1
    """Devices over which rows, master weights and moments are split."""
    tensor: int = 1
    """Devices over which single kernels are split; 1 for models of this size."""
    fsdp: bool = False
    """Gather the parameters of each layer when it runs, forward and backward, and not all of them before: less memory, more
    traffic. Master weights and moments are split over `data` either way."""

    def shape(self, devices: int) -> tuple[int, int, int]:
        """(replica, data, tensor) for this number of devices; ValueError if it does not divide evenly."""
        sizes = [self.replica, self.data, self.tensor]
        free, fixed = sizes.count(-1), int(np.prod([size for size in sizes if size != -1]))
        if any(size < 1 and size != -1 for size in sizes) or free > 1 or fixed < 1:
            raise ValueError(
                f"mesh replica={self.replica} data={self.data} tensor={self.tensor}: expected sizes of at least 1, and at most"
                " one -1"
            )
        if devices % fixed or (not free and fixed != devices):
            raise ValueError(
                f"mesh replica={self.replica} data={self.data} tensor={self.tensor} does not fit {devices} device(s):"
                " the product of the sizes must be the number of devices; set mesh.data=-1 to use all of them"
            )
        replica, data, tensor = (devices // fixed if size == -1 else size for size in sizes)
        return replica, data, tensor


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Builds the mesh (replica, data, tensor) over all devices, with automatic axes.

    Over several TPU slices, each gets a mesh of its own, joined on `replica`: only sums of gradients pass between slices.
    ValueError if the sizes do not divide evenly.
    """
    devices = devices if devices is not None else jax.devices()
    replica, data, tensor = config.shape(len(devices))
    slices: dict[int, list[Any]] = {}
    for device in devices:
        slices.setdefault(_slice_number(device), []).append(device)
    if replica % len(slices):
        raise ValueError(f"mesh.replica is {replica} over {len(slices)} TPU slices: use a multiple of their number")
    shape, kinds = (replica // len(slices), data, tensor), (AxisType.Auto,) * 3
    parts = [jax.make_mesh(shape, AXES, axis_types=kinds, devices=slices[number]) for number in sorted(slices)]
    return (
        parts[0] if len(parts) == 1 else Mesh(np.concatenate([each.devices for each in parts]), AXES, axis_types=kinds)
    )


def _slice_number(device: Any) -> int:
    """Returns the slice of a TPU; other platforms name their nodes so, and one mesh spans all of these."""
    return getattr(device, "slice_index", 0) or 0 if device.platform == "tpu" else 0


def row_shards(mesh: Mesh) -> int:
    """Number of shards of a batch's rows."""
    return mesh.shape["replica"] * mesh.shape["data"]


def _split_dimensions(name: str, shape: tuple[int, ...], mesh: Mesh) -> tuple[int | None, int | None]:
    """Returns the dimensions of a parameter split over (data, tensor); None if no dimension divides evenly."""
    tensor = first_match(TENSOR_RULES, name)
    if tensor is not None:
        tensor %= len(shape)
        if shape[tensor] % mesh.shape["tensor"]:
            tensor = None
    free = [d for d in range(len(shape)) if d != tensor and shape[d] % mesh.shape["data"] == 0]
    data = max(free, key=lambda d: (shape[d], -d)) if free else None
    return data, tensor


def data_dimension(name: str, shape: tuple[int, ...], mesh: Mesh) -> int | None:
    """Returns the dimension of a parameter that is split over `data`, or None for one that every device keeps whole."""
    return _split_dimensions(name, shape, mesh)[0]


def parameter_spec(name: str, shape: tuple[int, ...], mesh: Mesh, manual_only: bool = False) -> PartitionSpec:
    """PartitionSpec of a master parameter (and its moments); `manual_only` names the data axis alone."""
    data, tensor = _split_dimensions(name, shape, mesh)
    entries: list[str | None] = [None] * len(shape)
    if data is not None:
        entries[data] = "data"
    if tensor is not None and not manual_only:
        entries[tensor] = "tensor"
    return PartitionSpec(*entries)


def parameter_shardings(abstract: Any, mesh: Mesh) -> Any:
    """Returns a NamedSharding for every leaf of a tree of parameters, by its name."""
    return map_named(lambda name, leaf: NamedSharding(mesh, parameter_spec(name, leaf.shape, mesh)), abstract)


def sharding_of_moment(shape: tuple[int, ...], sharding: NamedSharding) -> NamedSharding:
    """Sharding of an optimizer's moment of a parameter with this sharding: the same, except along dimensions in which the moment
    has size 1, such as one number per output of a kernel."""
    axes = (axis if size > 1 else None for axis, size in zip(sharding.spec, shape, strict=True))
    return NamedSharding(sharding.mesh, PartitionSpec(*axes))


def placed(array: np.ndarray, sharding: Sharding) -> jax.Array:
    """Turns a host array, which every process has whole, into a global one; each device takes its part."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def replicated(mesh: Mesh) -> NamedSharding:
    """Sharding of a value that is the same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def manual_specs(abstract: Any, mesh: Mesh) -> tuple[Any, PartitionSpec, PartitionSpec]:
    """Specs inside the step's shard_map: of parameters, of batch arrays (rows split) and of replicated values."""
    parameters = map_named(lambda name, leaf: parameter_spec(name, leaf.shape, mesh, manual_only=True), abstract)
    return parameters, PartitionSpec(ROW_AXES), PartitionSpec()


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Sharding of the rows of a batch, split over the mesh."""
    return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def all_rows(rows: jax.Array) -> jax.Array:
    """Inside the step's shard_map: this device's rows [B, ...] -> those of all devices [R, ...]. Elsewhere they are all rows."""
    mapped = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in ROW_AXES if axis in mapped.manual_axes and mapped.shape[axis] > 1)
    return jax.lax.all_gather(rows, axes, tiled=True) if axes else rows


def to_global(batch: Mapping[str, Any], mesh: Mesh) -> dict[str, jax.Array]:
    """This process's rows of a batch -> global arrays with rows split over the mesh."""
    sharding = row_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, value) for name, value in batch.items()}
