"""Metrics of the steps since the last log record, kept in checkpoints so that a resumed run logs the same records."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from spanjax.mean import Mean
from spanjax.training.metrics import memory_values, utilisation

KEY = "window"  # in the meta of a checkpoint
Stored = dict[str, Any]


class Window:
    """Losses, speed and batch statistics since the last log record."""

    def __init__(self, meta: Mapping[str, Any] | None = None) -> None:
        """`meta` of a checkpoint holds the steps that were not logged when it was saved; 0.1 stored none."""
        self.before: Stored = dict((meta or {}).get(KEY, {"names": [], "shown": [], "statistics": []}))
        """As `meta` gives them; they were trained by an earlier process and do not count for speed."""
        self.shown: list[dict[str, Any]] = []
        self.statistics: list[dict[str, float]] = []
        self.flops = 0.0

    def meta(self) -> dict[str, Any]:
        """The steps so far, as entries of the meta of a checkpoint. Floats keep their bits: JSON writes all their digits."""
        if not self.shown and not self.before["shown"]:
            return {}
        fetched = jax.device_get(self.shown)
        named = [_named(entry) for entry in fetched]
        shown = [[each.item() for each in entry.values()] for entry in named]
        statistics = self.statistics[: len(shown)]  # the batch of the next step is here already
        return {
            KEY: {
                "names": list(named[-1]) if named else self.before["names"],
                "shown": [*self.before["shown"], *shown],
                "statistics": [*self.before["statistics"], *statistics],
            }
        }

    def all_shown(self, fetched: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Metrics of every step of the window: those that a checkpoint held, with the types of `fetched`, and `fetched`."""
        newest = _named(fetched[-1])
        if list(newest) != self.before["names"]:  # none, or stored by a version with other metrics
            return fetched
        structure = jax.tree.structure(fetched[-1])
        types = [each.dtype for each in newest.values()]
        return [
            *(structure.unflatten(map(np.asarray, entry, types)) for entry in self.before["shown"]),
            *fetched,
        ]

    def record(self, shown: list[dict[str, Any]], left: int, seconds: float) -> dict[str, float]:
        """The window's numbers summed up: `shown` as `all_shown` gives them, steps that are left, seconds that it took.

        Losses and norm are those of the steps whose update was not left out; without any, they are not there.
        """
        own = len(self.statistics)
        values: dict[str, float] = {}
        done = [entry for entry in shown if not entry["skipped"]]
        for name in shown[0]["means"] if done else ():
            means = [Mean(*entry["means"][name]) for entry in done]
            values[f"train/{name}"] = Mean(sum(m.total for m in means), sum(m.count for m in means)).value()
        if done:
            values["train/gradient_norm"] = float(np.mean([entry["gradient_norm"] for entry in done]))
        values["train/learning_rate"] = float(shown[-1]["learning_rate"])
        values["train/skipped"] = float(len(shown) - len(done))
        statistics = [*self.before["statistics"], *self.statistics] if len(shown) > own else self.statistics
        for name in self.statistics[0]:
            values[f"data/{name}"] = float(np.mean([entry[name] for entry in statistics]))
        tokens = sum(entry["tokens"] for entry in self.statistics) * jax.process_count()
        values["speed/tokens_per_s"] = tokens / seconds
        values["speed/steps_per_s"] = own / seconds
        values["speed/step_ms"] = 1000 * seconds / own
        values["speed/model_tflops"] = self.flops * jax.process_count() / seconds / 1e12
        values |= utilisation(values["speed/model_tflops"])
        values["speed/eta_s"] = left * seconds / own
        return values | memory_values()


def _named(entry: dict[str, Any]) -> dict[str, np.ndarray]:
    """Metrics of one step by the paths of their names, in the order of `jax.tree.leaves`."""
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(entry)}
