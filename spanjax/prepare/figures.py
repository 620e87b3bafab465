"""Figures of `prepare stats`, for its tables, its drawing and its file."""

import dataclasses
import json
from typing import Any

from spanjax.data.inspect.masking_figures import MaskingFigures
from spanjax.data.inspect.pair_figures import PairFigures
from spanjax.data.inspect.row_figures import (
    Lengths,
    Totals,
)


@dataclasses.dataclass(frozen=True)
class Figures:
    """All results of `stats`; `as_json` is the file."""

    folder: str
    measured: str
    """Split on which lengths, masking and pairs were measured."""
    settings: dict[str, Any]
    """Masking, boundaries and pairing with the names of their classes, seed, epoch and step."""
    totals: dict[str, Totals]
    """Totals by split."""
    lengths: dict[str, Lengths]
    """documents, blocks (text tokens) and rows (used positions)."""
    masking: MaskingFigures
    pairs: PairFigures | None
    """None if the pairing makes no pairs."""

    def as_json(self) -> dict[str, Any]:
        """Dictionaries, lists, numbers and strings only."""
        return json.loads(json.dumps({**dataclasses.asdict(self), "masking": self._masking()}))

    def _masking(self) -> dict[str, Any]:
        tags = {name: shares._asdict() for name, shares in self.masking.tags.items()}
        return {**dataclasses.asdict(self.masking), "tags": tags}
