"""Mean and deviation of a figure over seeds."""

import dataclasses
import math
from collections.abc import Callable, Iterable


@dataclasses.dataclass(frozen=True)
class Spread:
    """A figure over the seeds of a group. `deviation` is that of a sample (n - 1); NaN for one value."""

    mean: float
    deviation: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """Builds the spread of the finite values; None if there are none."""
        known = tuple(value for value in values if math.isfinite(value))
        if not known:
            return None
        mean = math.fsum(known) / len(known)
        square = math.fsum((value - mean) ** 2 for value in known)
        return cls(mean, math.sqrt(square / (len(known) - 1)) if len(known) > 1 else math.nan, known)

    def words(self, show: Callable[[float], str]) -> str:
        """'84.3 ± 0.5 (3)': mean, deviation where there is one, number of runs."""
        spread = "" if math.isnan(self.deviation) else f" ± {show(self.deviation)}"
        return f"{show(self.mean)}{spread} ({len(self.values)})"
