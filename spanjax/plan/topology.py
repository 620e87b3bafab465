"""Simulated accelerators: their figures, and the devices of a pod for ahead-of-time compilation.

A topology is written v5e:16x16 (a TPU slice), or h200:64 (GPUs, eight a node). Figures are of datasheets, not measured.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import math
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from spanjax.bounds import raise_problems
from spanjax.distributed.jax_internals import cudnn_answers
from spanjax.hardware import CHIPS, Chip
from spanjax.plan.cost import Transfer
from spanjax.plan.hlo import Collective
from spanjax.storage.shipped import XLA_FLAGS

PLUGINS = {"tpu": ("libtpu",), "cuda": ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")}
CUDNN, CAPABILITY = 91002, 9.0  # assumed for an H200: cuDNN 9.10.2, compute capability 9.0
EXTRAS = {"tpu": "plan-tpu", "cuda": "plan-gpu"}


# XLA must know these facts to generate code for an H200: limits of compute capability 9.0, and the figures of the card.
H200 = """
gpu_device_info {
  cuda_compute_capability { major: 9 } core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  l2_cache_size: 52428800 memory_bandwidth: 4800000000000 device_memory_size: 150754820096
}
platform_name: "CUDA" device_description_str: "NVIDIA H200" dnn_version_info { major: 9 minor: 10 }
"""


@dataclasses.dataclass(frozen=True)
class Topology:
    """Number and wiring of chips."""

    chip: Chip
    shape: tuple[int, ...]
    """Chips along every axis of a slice (TPU); nodes and GPUs a node."""
    slices: int

    @property
    def size(self) -> int:
        """Devices in all."""
        return math.prod(self.shape) * self.slices

    @property
    def domain(self) -> int:
        """Devices that talk over fast links: of a slice, or of a node."""
        return math.prod(self.shape) if self.chip.platform == "tpu" else self.shape[-1]

    @property
    def link(self) -> float:
        """Bytes/s out of a device to its slice or node, over all axes of the torus."""
        if self.chip.platform != "tpu":
            return self.chip.link
        return sum(self.chip.link * (1 if n >= self.chip.ring else 0.5) for n in self.shape if n > 1) or self.chip.link

    def seconds_of(self, one: Collective) -> float:
        """Models the seconds of one execution of a collective; none if it is over a single device."""
        return 0.0 if len(one.group) == 1 else self.seconds(one.kind, one.bytes, one.group, one.slices)

    def seconds(self, kind: str, amount: float, group: Sequence[int], slices: int = 1) -> float:
        """Models the seconds of a collective that moves `amount` bytes, by bandwidth alone.

        `group` holds the mesh indices of its devices (empty for all); those of a domain are consecutive. A transfer within
        domains comes first, then one across them of each device's share. `slices` above 1: across slices only.
        """
        passes = 2 if kind == "all-reduce" else 1
        if slices > 1:
            return passes * amount * (slices - 1) / slices / self.chip.network
        members = group or range(self.size)
        domains = len({place // self.domain for place in members})
        inside = max(1, len(members) // domains)
        near = passes * amount * (inside - 1) / inside / self.link
        return near + passes * amount / inside * (domains - 1) / domains / self.chip.network

    def __str__(self) -> str:
        if self.chip.platform != "tpu":
            return f"{self.chip.name}:{self.size}"
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}" + (f" x {self.slices}" if self.slices > 1 else "")


def parse(text: str, slices: int = 1) -> Topology:
    """Parses the name of a topology. ValueError with all problems."""
    name, _, sizes = text.partition(":")
    chip, problems = CHIPS.get(name), []
    if chip is None:
        known = ", ".join(CHIPS)
        problems.append(
            f"--topology {text!r}: no accelerator {name!r}: expected one of {known}, such as v5e:4x4 or h200:8"
        )
    shape = tuple(int(part) for part in sizes.split("x")) if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", sizes) else ()
    least, most = (1, 1) if chip and chip.platform == "cuda" else (2, 3)
    if chip and not least <= len(shape) <= most:
        expected = (
            f"a number of GPUs such as {name}:8" if chip.platform == "cuda" else f"chips along each axis: {name}:4x4"
        )
        problems.append(f"--topology {text!r}: {sizes!r} is no size: expected {expected}")
    if slices < 1:
        problems.append(f"--slices is {slices}: expected at least 1")
    if chip and chip.platform == "cuda" and slices > 1:
        problems.append(f"--slices is {slices}: only TPUs have slices; write more GPUs, such as {name}:{8 * slices}")
    number = math.prod(shape)
    if chip and chip.platform == "cuda" and number > chip.node and number % chip.node:
        problems.append(f"--topology {text!r}: {number} GPUs do not fill nodes of {chip.node}: use a multiple of it")
    raise_problems(problems)
    assert chip is not None
    if chip.platform == "cuda":  # `Topology.domain` reads the GPUs of a node from the last axis
        shape = (max(1, number // chip.node), min(number, chip.node))
    return Topology(chip, shape, slices)


def environment(platform: str) -> dict[str, str]:
    """Environment variables to set before jax is imported, so that it compiles for other devices but runs on the CPU."""
    if platform == "cuda":
        return {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
    quiet = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-8"}
    return {"JAX_PLATFORMS": "cpu", **quiet}


def missing(platform: str) -> str:
    """Returns the reason why jax cannot compile for this platform, with the remedy; empty if it can."""

    def there(module: str) -> bool:
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            return False

    if any(there(module) for module in PLUGINS[platform]):
        return ""
    what = "libtpu" if platform == "tpu" else "the CUDA plugin of jax"
    return f"{what} is not installed, which compiles for {platform}: pip install 'spanjax[{EXTRAS[platform]}]'"


def devices(topology: Topology) -> list[Any]:
    """Devices to compile for, slice after slice. ValueError if the compiler is missing or refuses the topology."""
    lacking = missing(topology.chip.platform)
    if lacking:
        raise ValueError(lacking)
    import jax
    from jax.experimental import topologies

    shape = "x".join(map(str, topology.shape))
    try:
        if topology.chip.platform == "cuda":
            found = topologies.get_topology_desc(platform="cuda", target_config=H200, topology=f"1x{shape}").devices
        else:
            options: dict[str, Any] = {"num_slices": topology.slices} if topology.slices > 1 else {}
            if topology.chip.name in ("v4", "v5p"):
                options["chip_config_name"] = "megacore"
            name = f"{topology.chip.name}:{shape}"
            found = topologies.get_topology_desc(name, platform="tpu", **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"--topology {topology}: the compiler refuses it: {error}") from None
    return sorted(found, key=lambda device: getattr(device, "slice_index", None) or 0)


def cudnn_answered(chip: Chip) -> contextlib.AbstractContextManager[None]:
    """Lets jax trace cuDNN's attention without cuDNN and without a GPU, by answering its queries for the H200."""
    return cudnn_answers(CUDNN, CAPABILITY) if chip.platform == "cuda" else contextlib.nullcontext()


def read_flags(path: pathlib.Path) -> dict[str, str]:
    """Name -> value of a file of XLA flags: one `--name=value` a line, # begins a comment. ValueError lists all problems."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ValueError(f"--flags {path}: {error.strerror or error}: expected a file of XLA flags") from None
    flags: dict[str, str] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        found = re.fullmatch(r"--(xla_\w+)=(\S+)", text)
        if text and not found:
            problems.append(f"{path}:{number}: {text!r} is no flag: expected --xla_name=value")
        elif found and found.group(1) in flags:
            problems.append(f"{path}:{number}: {found.group(1)} is set a second time: keep one")
        elif found:
            flags[found.group(1)] = found.group(2)
    raise_problems(problems)
    return flags


def flags_for(chip: Chip, path: str = "") -> dict[str, str | bool]:
    """Compiler flags for this chip, from a file; by default the project's own, if it exists, "none" for none."""
    own = XLA_FLAGS / f"{'gpu' if chip.platform == 'cuda' else 'tpu'}_{chip.name}.txt"
    flags = {} if path == "none" or not (path or own.is_file()) else read_flags(pathlib.Path(path or own))
    if chip.platform == "tpu":
        return {**flags}
    switches = {"true": True, "false": False}  # the GPU compiler takes no words for them
    return {name: switches.get(value, value) for name, value in flags.items()} | {"xla_gpu_autotune_level": "0"}


def moved(transfers: Sequence[Transfer], topology: Topology) -> list[dict[str, Any]]:
    """Sums transfers by kind, type and reach: count, bytes, modelled seconds and those hidden per step; the largest first."""
    rows: dict[tuple, dict[str, Any]] = {}
    for each in transfers:
        one = each.collective
        if len(one.group) == 1:
            continue  # CPU keeps sums over a single device
        across = one.slices > 1 or len({place // topology.domain for place in one.group or range(topology.size)}) > 1
        key = (one.kind, one.dtype, one.asynchronous, across, one.slices > 1)
        row = rows.setdefault(key, {"count": 0, "bytes": 0, "seconds": 0.0, "hidden": 0.0})
        row["count"] += one.count
        row["bytes"] += one.count * one.bytes
        row["seconds"] += each.seconds
        row["hidden"] += each.hidden
    names = ("kind", "dtype", "asynchronous", "across", "slices")
    listed = [{**dict(zip(names, key, strict=True)), **row} for key, row in rows.items()]
    return sorted(listed, key=lambda row: -row["bytes"])


def table(rows: Sequence[dict]) -> list[str]:
    """Formats the rows of `moved` as text."""
    reach = (" between slices", " between nodes", "")
    return [
        f"            {row['kind']:19s}{row['dtype']:5s}{row['count']:5d} x, {row['bytes'] / 1e6:9.3f} MB together,"
        f" {row['seconds'] * 1e3:8.3f} ms, {'a' * row['asynchronous']}synchronous, {row['hidden'] * 1e3:.3f} ms hidden"
        + reach[0 if row["slices"] else 1 if row["across"] else 2]
        for row in rows
    ]


def modelled(topology: Topology, rows: Sequence[dict], compute: float, flops: float, steps: int) -> dict[str, float]:
    """Seconds of a step and hours of the run, from the seconds of its kernels and the rows of `moved`.

    `flops` of all devices are those of the model. Transfers take the time that no kernel hides.
    """
    transfer, hidden = (sum(row[name] for row in rows) for name in ("seconds", "hidden"))
    step = compute + transfer - hidden
    return {
        "flops": flops,
        "mfu": flops / topology.size / topology.chip.flops / step,
        "compute_seconds": compute,
        "transfer_seconds": transfer,
        "hidden_seconds": hidden,
        "step_seconds": step,
        "efficiency": compute / step,
        "efficiency_all_hidden": compute / max(compute, transfer),
        "efficiency_none_hidden": compute / (compute + transfer),
        "hours": step * steps / 3600,
        "device_hours": step * steps / 3600 * topology.size,
    }


def compiler_version(platform: str) -> dict[str, str]:
    """Name and version of the installed compiler for the platform."""
    for package in ("libtpu",) if platform == "tpu" else ("jax-cuda13-plugin", "jax-cuda12-plugin"):
        try:
            return {package: importlib.metadata.version(package)}
        except importlib.metadata.PackageNotFoundError:
            continue
    return {}
