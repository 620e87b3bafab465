"""What evaluations found, kept with every checkpoint: a run that goes on knows for how long it has not got better, a model that
is used what its scores were.
"""

import math
from collections.abc import Mapping
from typing import Any

KEY, VALUES = "judged", "evaluated"  # in the meta of a checkpoint


class Judged:
    """(step, value) of every evaluation, oldest first; less is better."""

    def __init__(self, meta: Mapping[str, Any], start: int, patience: int):
        """What the meta of the checkpoint of step `start` says; `patience` as in `Cadence`."""
        self.found: list[tuple[int, float]] = [(int(s), float(v)) for s, v in meta.get(KEY, []) if s <= start]
        self.patience = patience
        self.newest: tuple[int, dict[str, float]] = (-1, {})

    def add(self, step: int, value: float | None, values: Mapping[str, float]) -> None:
        """Takes note of an evaluation and its numbers, where it gave a value to judge by."""
        if value is not None and (not self.found or self.found[-1][0] < step):
            self.found.append((step, value))
            self.newest = step, {name: float(each) for name, each in values.items() if math.isfinite(each)}

    def knows(self, step: int) -> bool:
        """Whether the evaluation of this step has taken place."""
        return self.value(step) is not None

    def value(self, step: int) -> float | None:
        """The value of the evaluation of a step; None where there was none."""
        return dict(self.found).get(step)

    @property
    def best(self) -> tuple[int, float] | None:
        """(step, value) of the first of the best evaluations."""
        return min(self.found, key=lambda pair: pair[1], default=None)

    @property
    def over(self) -> bool:
        """Whether so many evaluations in a row as `patience` says were no better than the best before them."""
        if not self.patience or not self.found:
            return False
        values = [value for _, value in self.found]
        return len(values) - 1 - values.index(min(values)) >= self.patience

    def meta(self, step: int) -> dict[str, Any]:
        """What the checkpoint of a step says of it: all evaluations so far, and the finite numbers of one at this very step."""
        found: dict[str, Any] = {KEY: [list(pair) for pair in self.found]} if self.found else {}
        return {**found, VALUES: self.newest[1]} if self.newest[0] == step else found


def stored_values(meta: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of the evaluation at the step of a checkpoint, by its meta; {} where none took place."""
    found = meta.get(VALUES)
    numbers = found.items() if isinstance(found, Mapping) else ()
    return {name: float(each) for name, each in numbers if isinstance(each, int | float)}
