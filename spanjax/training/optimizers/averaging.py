"""Exponential moving average of the fp32 master weights (Polyak & Juditsky, 1992).

The average is part of the train state: it is sharded, saved and restored with the weights, and a skipped update leaves it
unchanged.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Average = Callable[[Any, Any, jax.Array], Any]
"""(average, parameters after an update, number of updates before it) -> the new average."""


def moving_average(decay: float, warmup: bool) -> Average:
    """Builds average <- d * average + (1 - d) * parameters with d = `decay`, with `warmup` at most (1 + n) / (10 + n)."""

    def update(average: Any, params: Any, count: jax.Array) -> Any:
        # 1 - d directly: the float32 difference of 1 and 0.9999 would lose three of its digits
        share = jnp.float32(1 - decay)
        if warmup:
            share = jnp.maximum(share, 9 / (10 + count.astype(jnp.float32)))
        return jax.tree.map(lambda mean, new: mean + share * (new - mean), average, params)

    return update
