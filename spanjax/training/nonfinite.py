"""Steps whose loss or gradient is not finite: their update is left out (`step.py`), and here it is said which ones they were."""

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

from spanjax.bounds import AtLeast0, NotNegative, range_problems

FILE = "nonfinite.jsonl"


@dataclasses.dataclass(frozen=True)
class Guard:
    """What happens when loss or gradient are not finite (the update is left out, the next batch follows) or nothing moves."""

    limit: AtLeast0 = 10
    """So many updates left out in a row stop the run; 0 never stops it. Seen when the next log is written."""

    stall_seconds: NotNegative = 300.0
    """A step that waits so long is told, with the process that holds it up; 0 never tells."""
    stall_exit_seconds: NotNegative = 1800.0
    """A wait for rows or devices that is so long ends the run with exit code 3, so that it is started again; 0 never ends it."""

    def problems(self) -> list[str]:
        """What is wrong with these values, in words; empty when nothing is."""
        return range_problems(self, "guard.")


class NonFiniteError(ValueError):
    """Too many updates in a row were left out, or one left parameters that are not finite; the message names the step."""


@jax.jit
def all_finite(params: Any) -> jax.Array:
    """Whether no number in a tree of arrays is NaN or infinite."""
    return functools.reduce(
        jnp.logical_and, (jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)), jnp.bool(True)
    )


def not_finite(shown: Mapping[str, Any]) -> list[str]:
    """Names of the numbers of a step that are not finite."""
    named = {name: mean[0] for name, mean in shown["means"].items()} | {"gradient_norm": shown["gradient_norm"]}
    return [name for name, value in named.items() if not np.isfinite(value)]


@dataclasses.dataclass(frozen=True)
class Watch:
    """Looks at the numbers of steps that the devices have done; every process sees the same and does the same."""

    guard: Guard = Guard()
    folder: pathlib.Path | None = None
    """Where `nonfinite.jsonl` grows; None on processes that do not write."""
    rows: Callable[[int], list[int]] = lambda batch: []
    """Number of a global batch -> indices of its rows."""

    def look(self, step: int, shown: Sequence[Mapping[str, Any]]) -> None:
        """Takes the numbers of the steps up to `step`; NonFiniteError where so many are left out in a row as the limit says."""
        first = step - len(shown) + 1
        skipped = [(first + place, entry) for place, entry in enumerate(shown) if entry["skipped"]]
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self._note(self.folder / FILE, skipped)
        for number, entry in skipped:
            if self.guard.limit and int(entry["skipped"]) >= self.guard.limit:
                raise NonFiniteError(
                    f"step {number}: {' and '.join(not_finite(entry))} not finite, {int(entry['skipped'])} updates in a row"
                    f" were left out (guard.limit is {self.guard.limit}); the work directory's {FILE} lists the batches and"
                    " their rows: look at them with `python -m spanjax.prepare show ROWS --first ROW`, lower"
                    " optimizer.learning_rate, or raise --guard.limit to go on from the newest checkpoint"
                )

    def _note(self, file: pathlib.Path, skipped: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        for number, entry in skipped:
            line = {"step": number, "batch": number - 1, "in_a_row": int(entry["skipped"])}
            line |= {"not_finite": not_finite(entry), "rows": self.rows(number - 1)}
            with file.open("a") as lines:
                lines.write(json.dumps(line) + "\n")
