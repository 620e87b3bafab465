"""The positions that each position of a packed row can see, as intervals, for kernels that skip the others.

Shapes: B rows, L positions (Q and K where the two sides differ), T tiles of a row.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

GPU_TILE = 64
"""Positions of the tiles in which the project's kernels for GPUs skip keys."""


class Reach(NamedTuple):
    """First and last position, the last not included, that one side of attention meets on the other; int32."""

    first_BL: jax.Array
    behind_BL: jax.Array

    def tiles(self, size: int) -> jax.Array:
        """[B, T, 2]: for each tile of so many positions the first and the last tile that it meets; the last is not included."""
        rows = len(self.first_BL)
        first_BT = self.first_BL.reshape(rows, -1, size).min(axis=2) // size
        behind_BT = (self.behind_BL.reshape(rows, -1, size).max(axis=2) + size - 1) // size
        return jnp.stack([first_BT, behind_BT], axis=2)


def keys_met(window: int, tile: int) -> int:
    """Keys that a query of a local layer meets in whole tiles, those of the window on both sides of its own."""
    return tile * (2 * math.ceil(window / tile) + 1)


def reaches(segments_BL: jax.Array, window: int, causal: bool) -> tuple[Reach, Reach]:
    """(keys that a query sees, queries that see a key). Blocks are contiguous, so that both are intervals."""
    length = segments_BL.shape[1]
    place_L = jnp.arange(length, dtype=jnp.int32)
    changes_BL = segments_BL[:, 1:] != segments_BL[:, :-1]
    edge_B1 = jnp.ones_like(changes_BL, shape=(len(segments_BL), 1))
    begins_BL = jnp.concatenate([edge_B1, changes_BL], axis=1)
    ends_BL = jnp.concatenate([changes_BL, edge_B1], axis=1)
    # the last begin so far, and the next end: work that grows with the length, where a mask would with its square
    first_BL = jax.lax.cummax(jnp.where(begins_BL, place_L[None], 0), axis=1)
    behind_BL = jax.lax.cummin(jnp.where(ends_BL, place_L[None] + 1, length), axis=1, reverse=True)
    if window:
        first_BL = jnp.maximum(first_BL, place_L[None] - window)
        behind_BL = jnp.minimum(behind_BL, place_L[None] + window + 1)
    if not causal:
        return Reach(first_BL, behind_BL), Reach(first_BL, behind_BL)
    here_BL = jnp.broadcast_to(place_L[None], first_BL.shape)
    return Reach(first_BL, here_BL + 1), Reach(here_BL, behind_BL)
