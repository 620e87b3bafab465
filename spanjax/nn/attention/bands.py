"""Rows cut into chunks of queries, each next to the keys that a window reaches: attention of linear cost for local layers.

Shapes: B rows, L positions, X chunks of all rows, Q queries of a chunk, K keys that they may see, H width of a head.
"""

import dataclasses

import jax
import jax.numpy as jnp

from spanjax.nn.attention.request import TILE
from spanjax.nn.attention.xla import in_reach, visible

_NO_QUERY, _NO_KEY = -1, -2  # segments of positions outside of the row: unequal, and none of a row's


@dataclasses.dataclass(frozen=True)
class Bands:
    """The cut of rows of one length; rows that it would not shorten stay whole (X = B, Q = K = L)."""

    length: int
    window: int
    """Positions on each side; 0: no window."""
    causal: bool = False
    """Hide the keys after a query."""

    @property
    def chunk(self) -> int:
        """Queries of a chunk; as many as the window, so that at most half of the computed pairs lie outside of it."""
        return max(TILE, self.window)

    @property
    def count(self) -> int:
        """Chunks of a row."""
        return -(-self.length // self.chunk)

    @property
    def cut(self) -> bool:
        """True if rows are cut."""
        return self.window > 0 and self.chunk + 2 * self.window < self.length

    def queries(self, x_BL: jax.Array, fill: int = 0) -> jax.Array:
        """[B, L, ...] -> [X, Q, ...]; `fill` stands behind the end of the row."""
        return self._chunks(x_BL, fill).reshape(-1, self.chunk, *x_BL.shape[2:]) if self.cut else x_BL

    def keys(self, x_BL: jax.Array, fill: int = 0) -> jax.Array:
        """[B, L, ...] -> [X, K, ...]: every chunk between the nearest positions of its neighbours."""
        if not self.cut:
            return x_BL
        x_BCQ = self._chunks(x_BL, fill)
        outside_B1Q = jnp.full_like(x_BCQ[:, :1], fill)
        before_BCQ = jnp.concatenate([outside_B1Q, x_BCQ[:, :-1]], axis=1)
        after_BCQ = jnp.concatenate([x_BCQ[:, 1:], outside_B1Q], axis=1)
        near = (before_BCQ[:, :, self.chunk - self.window :], x_BCQ, after_BCQ[:, :, : self.window])
        return jnp.concatenate(near, axis=2).reshape(-1, self.chunk + 2 * self.window, *x_BL.shape[2:])

    def _chunks(self, x_BL: jax.Array, fill: int) -> jax.Array:
        rest = [(0, 0)] * (x_BL.ndim - 2)
        padded = jnp.pad(x_BL, [(0, 0), (0, self.count * self.chunk - self.length), *rest], constant_values=fill)
        return padded.reshape(len(x_BL), self.count, self.chunk, *x_BL.shape[2:])

    def rows(self, x_XQ: jax.Array) -> jax.Array:
        """[X, Q, ...] -> [B, L, ...], the inverse of `queries`."""
        if not self.cut:
            return x_XQ
        return x_XQ.reshape(-1, self.count * self.chunk, *x_XQ.shape[2:])[:, : self.length]

    def summed(self, x_XHK: jax.Array) -> jax.Array:
        """[X, H, K] -> [B, H, L]: the transpose of `keys`, which sums what chunks have for the same key."""
        if not self.cut:
            return x_XHK
        x_XKH = jnp.swapaxes(x_XHK, 1, 2)
        keys = jax.ShapeDtypeStruct((len(x_XKH) // self.count, self.length, x_XKH.shape[2]), x_XKH.dtype)
        return jnp.swapaxes(jax.linear_transpose(self.keys, keys)(x_XKH)[0], 1, 2)

    def seen(self, segments_BL: jax.Array) -> jax.Array:
        """[X, Q, K]: True where a query may see a key."""
        if not self.cut:
            return visible(segments_BL, self.window, self.causal)
        query_XQ, key_XK = self.queries(segments_BL, _NO_QUERY), self.keys(segments_BL, _NO_KEY)
        apart_QK = jnp.arange(self.chunk)[:, None] + self.window - jnp.arange(key_XK.shape[1])[None]
        return (query_XQ[:, :, None] == key_XK[:, None, :]) & in_reach(apart_QK, self.window, self.causal)[None]
