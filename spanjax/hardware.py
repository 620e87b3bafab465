"""Figures of accelerators, from data sheets and not measured: for planning a run, and for the utilisation of a live one."""

import dataclasses
import math
import re


@dataclasses.dataclass(frozen=True)
class Achievable:
    """Rates that good kernels reach on a device, for the model of a step (`spanjax.plan.cost`); docs/plan.md has the sources."""

    bandwidth: float
    """Bytes/s of device memory."""
    products: float
    """FLOP/s of large bf16 matrix products."""
    attention: tuple[float, float]
    """FLOP/s of a library's fused attention with heads of width 64, forward and backward."""
    launch: float
    """Seconds between two kernels."""
    lanes: int = 1
    """Width of a matrix unit: a product with a narrower side takes as long as one of this width."""
    integers: float = math.inf
    """Integer operations/s, for the project's own kernels."""
    on_chip: str = ""
    """Mark in the layout of arrays that a program keeps on the chip, so that device memory does not move them; empty for none."""

    def in_memory(self, types: str) -> str:
        """Returns the text of array types without those that are kept on the chip."""
        return (
            re.sub(rf"\w+\[[\d,]*\]\{{[^{{}}]*{re.escape(self.on_chip)}[^{{}}]*\}}", "", types)
            if self.on_chip
            else types
        )

    def in_memory_each(self, types: str) -> list[bool]:
        """For every array type in the text, in order, whether device memory holds it."""
        arrays = re.findall(r"\w+\[[\d,]*\](?:\{[^{}]*\})?", types)
        return [not self.on_chip or self.on_chip not in each for each in arrays]


@dataclasses.dataclass(frozen=True)
class Chip:
    """One accelerator; bandwidths are bytes/s out of one device, in one direction of a link."""

    name: str
    platform: str
    """"tpu" or "cuda", as XLA calls it."""
    flops: float
    """Dense bf16 FLOP/s."""
    memory: float
    """Bytes that a program may use."""
    memory_bandwidth: float
    """Bytes/s."""
    link: float
    """Both ways together along one axis of the torus (TPU), or one way to all devices of the node (GPU)."""
    network: float
    """To other slices or nodes, for each device."""
    achievable: Achievable
    ring: int = 1
    """TPU: from this many chips on, an axis of the torus closes to a ring; a shorter one has half of its bandwidth."""
    node: int = 1
    """GPU: devices a node."""


def _tpu(flops: float, bandwidth: float, lanes: int = 128) -> Achievable:
    """Assumptions about a TPU: 85 % of its products and all of its bandwidth; attention fills as many of the lanes of a matrix
    unit as a head is wide (64), and reaches 60 % of that. A core has four matrix units, whose clock follows from the rate,
    and does four integer operations on 1,024 numbers a clock."""
    attention = 0.6 * flops * 64 / lanes
    integers = flops / (8 * lanes**2) * 4096
    return Achievable(bandwidth, 0.85 * flops, (attention, attention), 0.0, lanes, integers, "S(1)")


_H200 = Achievable(
    4.1e12, 0.85 * 790e12, (335e12, 280e12), 2e-6, integers=64 * 132 * 1.98e9
)  # a clock, processors, clock

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "tpu", 275e12, 30.75 * 2**30, 1.228e12, 9e10, 6.25e9, _tpu(275e12, 1.228e12), ring=4),
        Chip("v5e", "tpu", 197e12, 15.75 * 2**30, 0.819e12, 9e10, 3.125e9, _tpu(197e12, 0.819e12), ring=16),
        Chip("v5p", "tpu", 459e12, 95.74 * 2**30, 2.765e12, 1.8e11, 6.25e9, _tpu(459e12, 2.765e12), ring=4),
        Chip("v6e", "tpu", 918e12, 31.25 * 2**30, 1.64e12, 1.8e11, 12.5e9, _tpu(918e12, 1.64e12, lanes=256), ring=16),
        Chip("h200", "cuda", 989e12, 143_771 * 2**20, 4.8e12, 4.5e11, 5e10, _H200, node=8),
    )
}
SOURCE = (
    "datasheet: by the makers (cloud.google.com/tpu/docs, nvidia.com), TPU links and networks by jax-ml.github.io/scaling-book"
    " (a v4's taken to be a v5p's); the memory of a TPU is the limit that its compiler names"
)

KINDS = {
    **{"TPU v4": CHIPS["v4"].flops, "TPU v5 lite": CHIPS["v5e"].flops, "TPU v5e": CHIPS["v5e"].flops},
    **{"TPU v5": CHIPS["v5p"].flops, "TPU v6": CHIPS["v6e"].flops},
    **{"NVIDIA A100": 312e12, "NVIDIA H100": 989e12, "NVIDIA H200": CHIPS["h200"].flops},
}
"""Dense bf16 FLOP/s of one device by the beginning of its kind, as jax names it."""


def peak_flops(kind: str) -> float | None:
    """Dense bf16 FLOP/s of a device of this kind; None for an unknown one."""
    return next((flops for name, flops in sorted(KINDS.items(), reverse=True) if kind.startswith(name)), None)
