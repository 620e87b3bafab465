"""A request for attention, and the checks with which a fused kernel refuses it."""

import dataclasses
from typing import Any

import jax.numpy as jnp

KEPT = "attention"
"""Name of what attention returns and saves, for the remat policies of the encoder."""
WINDOW = "attention_window_"
"""Begin of the name that programs give to a layer of local attention, by which `spanjax.plan` knows its window."""
CHUNKED_FROM = 256  # positions; at 128 xla and xla_chunked take as long
TILE = 128  # positions; the kernels' blocks are multiples of it
OLD_GPUS = ("P100", "P40", "P4", "V100", "T4", "TITAN", "RTX 20", "Quadro RTX")  # before compute capability 8.0
HOPPER = ("H100", "H200", "H20", "GH200", "H800")  # compute capability 9.0
NEW_GPUS = (*HOPPER, "B100", "B200", "B300", "GB200", "GB300")  # 9.0 and later


@dataclasses.dataclass(frozen=True)
class Request:
    """Properties of an attention call that decide which backends support it."""

    platform: str
    """Platform of the mesh's devices: cpu, gpu or tpu."""
    length: int
    """Positions in a row."""
    head_size: int
    """Width of a head."""
    dtype: Any
    """Type of queries, keys and values."""
    dropout: float
    """Rate on the probabilities."""
    device_kind: str = ""
    """The name of the device; empty where it is not known."""
    window: int = 0
    """Positions on each side that a token of a local layer attends to; 0 without such layers."""

    def other_platform(self, platform: str) -> tuple[bool, str]:
        """A check: the devices are of another platform than the kernel's."""
        return self.platform != platform, f"it runs on {platform}, and these devices are {self.platform}"

    def drops(self) -> tuple[bool, str]:
        """A check: there is something to drop."""
        return self.dropout > 0, f"it cannot drop attention probabilities, and attention dropout is {self.dropout}"

    def other_type(self, *types: Any) -> tuple[bool, str]:
        """A check: the kernel computes in none of these types."""
        names = [jnp.dtype(each).name for each in types]
        name = jnp.dtype(self.dtype).name
        return name not in names, f"it computes in {' or '.join(names)}, not {name}"

    def uneven_length(self) -> tuple[bool, str]:
        """A check: the length is no multiple of the kernels' tile."""
        return self.length < TILE or self.length % TILE != 0, f"its length is a multiple of {TILE}, not {self.length}"

    def not_nvidia(self) -> tuple[bool, str]:
        """`not_nvidia` of the request's device."""
        return not_nvidia(self.device_kind)


def not_nvidia(device_kind: str) -> tuple[bool, str]:
    """A check: no NVIDIA GPU of compute capability 8.0 or later."""
    other = device_kind.startswith(("AMD", "Radeon", "Instinct")) or is_one_of(device_kind, OLD_GPUS)
    return other, f"it needs an NVIDIA GPU of compute capability 8.0 or later, not {device_kind}"


def reasons(platform: tuple[bool, str], *limits: tuple[bool, str]) -> str | None:
    """The reasons of all checks that hold, separated by semicolons; None where none does. On another platform that alone."""
    found = [reason for is_true, reason in ([platform] if platform[0] else limits) if is_true]
    return "; ".join(found) or None


def is_one_of(device_kind: str, names: tuple[str, ...]) -> bool:
    """True if the name of a device contains one of these names as words."""
    words = f" {device_kind.replace('-', ' ')} "
    return any(f" {name} " in words or (" " in name and name in words) for name in names)
