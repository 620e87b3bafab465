"""What is logged about the steps since the last log."""

from typing import Any

import jax
import numpy as np

from spanjax.mean import Mean
from spanjax.training.metrics import memory_values, utilisation


class Window:
    """Losses, speed and batch statistics since the last log."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []
        self.statistics: list[dict[str, float]] = []
        self.flops = 0.0

    def record(self, shown: list[dict[str, Any]], left: int, seconds: float) -> dict[str, float]:
        """The window's numbers summed up: `shown` as fetched from the devices, steps that are left, seconds that it took.

        Losses and norm are those of the steps whose update was not left out; without any, they are not there.
        """
        values: dict[str, float] = {}
        done = [entry for entry in shown if not entry["skipped"]]
        for name in shown[0]["means"] if done else ():
            means = [Mean(*entry["means"][name]) for entry in done]
            values[f"train/{name}"] = Mean(sum(m.total for m in means), sum(m.count for m in means)).value()
        if done:
            values["train/gradient_norm"] = float(np.mean([entry["gradient_norm"] for entry in done]))
        values["train/learning_rate"] = float(shown[-1]["learning_rate"])
        values["train/skipped"] = float(len(shown) - len(done))
        for name in self.statistics[0]:
            values[f"data/{name}"] = float(np.mean([entry[name] for entry in self.statistics]))
        tokens = sum(entry["tokens"] for entry in self.statistics) * jax.process_count()
        values["speed/tokens_per_s"] = tokens / seconds
        values["speed/steps_per_s"] = len(shown) / seconds
        values["speed/step_ms"] = 1000 * seconds / len(shown)
        values["speed/model_tflops"] = self.flops * jax.process_count() / seconds / 1e12
        values |= utilisation(values["speed/model_tflops"])
        values["speed/eta_s"] = left * seconds / len(shown)
        return values | memory_values()
