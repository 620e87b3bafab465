"""The only metric type: a total and a count, so that microbatches, devices, hosts and batches add up exactly."""

from typing import Any, NamedTuple


class Mean(NamedTuple):
    """A mean kept as its two sums; both are scalars (Python, NumPy or jax)."""

    total: Any
    count: Any

    def merge(self, other: "Mean") -> "Mean":
        """The mean over both sets of values."""
        return Mean(self.total + other.total, self.count + other.count)

    def value(self) -> float:
        """total / count as a Python float; NaN where nothing was counted."""
        count = float(self.count)
        return float(self.total) / count if count else float("nan")
