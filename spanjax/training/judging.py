"""What evaluations found, kept with every checkpoint: a run that goes on knows for how long it has not got better."""

from collections.abc import Mapping, Sequence
from typing import Any

KEY = "judged"  # in the meta of a checkpoint


class Judged:
    """(step, value) of every evaluation, oldest first; less is better."""

    def __init__(self, meta: Mapping[str, Any], start: int, patience: int):
        """What the meta of the checkpoint of step `start` says; `patience` as in `Cadence`."""
        self.found: list[tuple[int, float]] = [(int(s), float(v)) for s, v in meta.get(KEY, []) if s <= start]
        self.patience = patience

    def add(self, step: int, value: float | None) -> None:
        """Takes note of an evaluation, where it gave a value."""
        if value is not None and (not self.found or self.found[-1][0] < step):
            self.found.append((step, value))

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

    def meta(self) -> dict[str, Sequence[Any]]:
        """What a checkpoint says of it."""
        return {KEY: [list(pair) for pair in self.found]} if self.found else {}
