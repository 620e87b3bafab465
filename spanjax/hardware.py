"""Figures of accelerators, from data sheets and not measured: for planning a run, and for the utilisation of a live one."""

import dataclasses


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
    ring: int = 1
    """TPU: from this many chips on, an axis of the torus closes to a ring; a shorter one has half of its bandwidth."""
    node: int = 1
    """GPU: devices a node."""


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "tpu", 275e12, 30.75 * 2**30, 1.228e12, 9e10, 6.25e9, ring=4),
        Chip("v5e", "tpu", 197e12, 15.75 * 2**30, 0.819e12, 9e10, 3.125e9, ring=16),
        Chip("v5p", "tpu", 459e12, 95.74 * 2**30, 2.765e12, 1.8e11, 6.25e9, ring=4),
        Chip("v6e", "tpu", 918e12, 31.25 * 2**30, 1.64e12, 1.8e11, 12.5e9, ring=16),
        Chip("h200", "cuda", 989e12, 143_771 * 2**20, 4.8e12, 4.5e11, 5e10, node=8),
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
