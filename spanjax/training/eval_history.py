"""Evaluation history stored with each checkpoint, so that early stopping survives a restart and exported models keep their
scores.
"""

import math
from collections.abc import Mapping
from typing import Any

KEY, VALUES = "judged", "evaluated"  # in the meta of a checkpoint


class EvalHistory:
    """(step, value) of every evaluation, oldest first; lower is better."""

    def __init__(self, meta: Mapping[str, Any], start: int, patience: int):
        """Reads the meta of the checkpoint of step `start`; `patience` as in `Cadence`."""
        self.found: list[tuple[int, float]] = [(int(s), float(v)) for s, v in meta.get(KEY, []) if s <= start]
        self.patience = patience
        self.newest: tuple[int, dict[str, float]] = (-1, {})

    def add(self, step: int, value: float | None, values: Mapping[str, float]) -> None:
        """Records an evaluation and its metrics, if it gave a selection metric `value`."""
        if value is not None and (not self.found or self.found[-1][0] < step):
            self.found.append((step, value))
            self.newest = step, {name: float(each) for name, each in values.items() if math.isfinite(each)}

    def value(self, step: int) -> float | None:
        """Returns the value of the evaluation of a step; None if there was none."""
        return dict(self.found).get(step)

    @property
    def best(self) -> tuple[int, float] | None:
        """(step, value) of the first of the best evaluations."""
        return min(self.found, key=lambda pair: pair[1], default=None)

    @property
    def over(self) -> bool:
        """True if `patience` evaluations in a row were no better than the best before them."""
        if not self.patience or not self.found:
            return False
        values = [value for _, value in self.found]
        return len(values) - 1 - values.index(min(values)) >= self.patience

    def meta(self, step: int) -> dict[str, Any]:
        """Returns entries of a checkpoint's meta: all evaluations so far, and the finite metrics of one at this very step."""
        found: dict[str, Any] = {KEY: [list(pair) for pair in self.found]} if self.found else {}
        return {**found, VALUES: self.newest[1]} if self.newest[0] == step else found


def stored_values(meta: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of the evaluation at a checkpoint's step, from its meta; {} if none took place."""
    found = meta.get(VALUES)
    numbers = found.items() if isinstance(found, Mapping) else ()
    return {name: float(each) for name, each in numbers if isinstance(each, int | float)}
