"""TPU slices by their shape (v5e:4x8), and their names in Google Cloud."""

import dataclasses
import math
import re

SHAPE = re.compile(r"(\w+):(\d+(?:x\d+)*)")


@dataclasses.dataclass(frozen=True)
class Generation:
    """Names of a generation of TPU."""

    prefix: str
    """Prefix of the accelerator type: v5litepod-32."""
    per_chip: int
    """Units per chip in the number of the type: TensorCores (2), or chips (1)."""
    node: str
    """Label cloud.google.com/gke-tpu-accelerator of its nodes."""
    runtime: str
    """Software version of a TPU VM."""
    axes: int
    """Numbers in its shape."""


GENERATIONS = {
    "v4": Generation("v4", 2, "tpu-v4-podslice", "tpu-ubuntu2204-base", 3),
    "v5e": Generation("v5litepod", 1, "tpu-v5-lite-podslice", "v2-alpha-tpuv5-lite", 2),
    "v5p": Generation("v5p", 2, "tpu-v5p-slice", "v2-alpha-tpuv5", 3),
    "v6e": Generation("v6e", 1, "tpu-v6e-slice", "v2-alpha-tpuv6e", 2),
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips of a generation, with their wiring."""

    generation: Generation
    topology: str

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return math.prod(int(part) for part in self.topology.split("x"))

    @property
    def accelerator_type(self) -> str:
        """Name of the slice for a TPU VM or xpk."""
        return f"{self.generation.prefix}-{self.chips * self.generation.per_chip}"


def read_slice(text: str) -> Slice:
    """Parses a slice like "v5e:4x8"; ValueError names the problem."""
    found = SHAPE.fullmatch(text)
    generation = GENERATIONS.get(found[1]) if found else None
    if not found or generation is None or found[2].count("x") + 1 != generation.axes or "0" in found[2].split("x"):
        raise ValueError(
            f"--topology is {text!r}: expected a TPU slice as v5e:4x8, v6e:16x16, v4:2x2x4 or v5p:4x4x8"
            f" ({', '.join(GENERATIONS)}; the numbers are chips along each axis)"
        )
    return Slice(generation, found[2])
