"""Non-finite handling: `step.py` skips the update of a step whose loss or gradient is not finite; this module reports it."""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spanjax.bounds import AtLeast0, NotNegative

FILE = "nonfinite.jsonl"


@dataclasses.dataclass(frozen=True)
class Guard:
    """Limits on skipped updates (loss or gradient not finite; the next batch follows) and on stalls."""

    limit: AtLeast0 = 10
    """Consecutive skipped updates that stop the run; 0 never stops it. Checked when the next log is written."""

    stall_seconds: NotNegative = 300.0
    """Seconds before a slow step is reported, naming the process that blocks it; 0 disables."""
    stall_exit_seconds: NotNegative = 1800.0
    """Seconds of waiting for rows or devices that end the run with exit code 3, so that it is restarted; 0 disables."""


class NonFiniteError(ValueError):
    """Too many updates in a row were skipped, or one left non-finite parameters; the message names the step."""


@jax.jit
def all_finite(params: Any) -> jax.Array:
    """Returns True if no number in a tree of arrays is NaN or infinite."""
    return functools.reduce(
        jnp.logical_and, (jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)), jnp.bool(True)
    )


def not_finite(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the names of a step's metrics that are not finite."""
    named = {name: mean[0] for name, mean in metrics["means"].items()} | {"gradient_norm": metrics["gradient_norm"]}
    return [name for name, value in named.items() if not np.isfinite(value)]


@dataclasses.dataclass(frozen=True)
class Watch:
    """Checks the metrics of steps that the devices have done; every process sees the same and does the same."""

    guard: Guard = Guard()
    folder: pathlib.Path | None = None
    """Folder of `nonfinite.jsonl`; None on processes that do not write."""
    rows: Callable[[int], list[int]] = lambda batch: []
    """Number of a global batch -> indices of its rows."""

    def look(self, step: int, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Takes the metrics of the steps up to `step`; NonFiniteError if `guard.limit` updates in a row were skipped."""
        first = step - len(metrics) + 1
        skipped = [(first + place, entry) for place, entry in enumerate(metrics) if entry["skipped"]]
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self._note(self.folder / FILE, skipped)
        for number, entry in skipped:
            if self.guard.limit and int(entry["skipped"]) >= self.guard.limit:
                raise NonFiniteError(
                    f"step {number}: {' and '.join(not_finite(entry))} not finite, {int(entry['skipped'])} updates in a row"
                    f" were skipped (guard.limit is {self.guard.limit}); the work directory's {FILE} lists the batches and"
                    " their rows: look at them with `python -m spanjax.prepare show ROWS --first ROW`, lower"
                    " optimizer.learning_rate, or raise --guard.limit to resume from the newest checkpoint"
                )

    def _note(self, file: pathlib.Path, skipped: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        for number, entry in skipped:
            line = {"step": number, "batch": number - 1, "in_a_row": int(entry["skipped"])}
            line |= {"not_finite": not_finite(entry), "rows": self.rows(number - 1)}
            with file.open("a") as lines:
                lines.write(json.dumps(line) + "\n")
