"""The positions that each position of a packed row can see, as intervals, for kernels that skip the others.

Shapes: B rows, L positions (Q and K where the two sides differ), T tiles of a row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from spanjax.nn.attention.xla import visible


class Reach(NamedTuple):
    """First and last position, the last not included, that one side of attention meets on the other; int32."""

    first_BL: jax.Array
    behind_BL: jax.Array

    def tiles(self, own: int, other: int) -> jax.Array:
        """[B, T, 2]: for each tile of `own` positions the tiles of `other` ones that it meets; the last is not included."""
        rows = len(self.first_BL)
        first_BT = self.first_BL.reshape(rows, -1, own).min(axis=2) // other
        behind_BT = (self.behind_BL.reshape(rows, -1, own).max(axis=2) + other - 1) // other
        return jnp.stack([first_BT, behind_BT], axis=2)


def reaches(segments_BL: jax.Array, window: int, causal: bool) -> tuple[Reach, Reach]:
    """(keys that a query sees, queries that see a key). Blocks are contiguous, so that both are intervals."""
    seen_BQK = visible(segments_BL, window, causal)
    place_L = jnp.arange(segments_BL.shape[1], dtype=jnp.int32)
    here_BQK, never = place_L[None, None], jnp.int32(segments_BL.shape[1])
    keys = Reach(
        jnp.where(seen_BQK, here_BQK, never).min(axis=2), jnp.where(seen_BQK, here_BQK + 1, jnp.int32(0)).max(axis=2)
    )
    here_BQK = place_L[None, :, None]
    queries = Reach(
        jnp.where(seen_BQK, here_BQK, never).min(axis=1), jnp.where(seen_BQK, here_BQK + 1, jnp.int32(0)).max(axis=1)
    )
    return keys, queries
