"""Parts of batches of documents: excerpts that training takes, windows of long documents, and the states of segments.

Shapes: B documents, L positions of a row, G positions of a segment, N pieces in order (padded to L), X segments of all rows,
D hidden size.
"""

from typing import Any

import jax
import jax.numpy as jnp

from spanjax.nn.coreference_parts import in_parts
from spanjax.nn.dropout import DropoutKey, hash32
from spanjax.objectives.base import Batch

FLAT = ("sentence_BL", "word_BL", "speaker_BL", "place_BL", "cluster_BLW")
"""Fields of pieces in order; `place_BL` is the position of a piece in the row."""
ENCODED = 64  # segments that the encoder reads at a time without dropout
CUT = 0x5EC0DE


def read_segments(
    module: Any, tokens_BL: jax.Array, pad_B: jax.Array, segment: int, key: DropoutKey | None
) -> jax.Array:
    """Hidden states [B, L, D] of rows of segments, each segment read on its own; `pad_B` is the id of padding."""
    rows, length = tokens_BL.shape
    count = length // segment
    tokens_XG = tokens_BL.reshape(-1, segment)
    inside_XG = (tokens_XG != jnp.repeat(pad_B, count)[:, None]).astype(jnp.int32)
    positions_XG = jnp.arange(segment, dtype=jnp.int32)[None] * inside_XG

    def encoded(given: tuple[jax.Array, ...], key: DropoutKey | None) -> jax.Array:
        tokens_XG, inside_XG, positions_XG = given
        return module.encoder(tokens_XG, inside_XG, positions_XG, jnp.zeros_like(tokens_XG), key)

    given = (tokens_XG, inside_XG, positions_XG)
    if key is None:
        return in_parts(lambda part: encoded(part, None), given, ENCODED).reshape(rows, length, -1)
    row_BX = (key.row_B.astype(jnp.uint32)[:, None] << 16) + jnp.arange(count, dtype=jnp.uint32)[None]
    return encoded(given, DropoutKey(key.key, row_BX.reshape(-1))).reshape(rows, length, -1)


def cut(batch: Batch, segment: int, most: int, key: DropoutKey | None) -> Batch:
    """In training (with `key`) `most` consecutive segments of each document, sampled by its number and the step."""
    size = most * segment
    if key is None or batch["tokens_BL"].shape[1] <= size:
        return batch

    def one(row: dict[str, jax.Array], number: jax.Array) -> dict[str, jax.Array]:
        segments = jnp.max(jnp.where(row["sentence_BL"] > 0, row["place_BL"], 0)) // segment + 1
        drawn = hash32(key.key ^ hash32(number.astype(jnp.uint32) ^ jnp.uint32(CUT)))
        choices = jnp.maximum(segments - most + 1, 1).astype(jnp.uint32)
        return excerpt(row, (drawn % choices).astype(jnp.int32) * segment, size, segment)[0]

    return jax.vmap(one)(dict(batch), batch["row_B"])


def excerpt(
    row: dict[str, jax.Array], first: jax.Array, size: int, segment: int
) -> tuple[dict[str, jax.Array], jax.Array]:
    """(the fields of a document's positions `first` to `first + size`, which begins a segment; the number of pieces before)."""

    def slide(array: jax.Array, start: jax.Array, size: int) -> jax.Array:
        # dynamic_slice moves a start near the end back so that the slice fits, which would shift the positions: pad first
        spare = jnp.pad(array, ((0, size), *((0, 0),) * (array.ndim - 1)))
        return jax.lax.dynamic_slice_in_dim(spare, start, size)

    begin = jnp.sum((row["sentence_BL"] > 0) & (row["place_BL"] < first))
    made = dict(row) | {name: slide(row[name], begin, size) for name in FLAT}
    place_N = made["place_BL"] - first
    inside_N = (made["sentence_BL"] > 0) & (place_N < size)
    made["sentence_BL"] = jnp.where(inside_N, made["sentence_BL"], 0)
    made["place_BL"] = jnp.where(inside_N, place_N, 0)
    made["tokens_BL"] = slide(row["tokens_BL"], first, size)
    if "shifted_BL" in row:
        place_N = slide(row["shifted_place_BL"], begin, size)
        before = place_N[0] // segment * segment
        made["shifted_BL"] = slide(row["shifted_BL"], before, size + 2 * segment)
        made["shifted_place_BL"] = jnp.where(inside_N, place_N - before, 0)
    return made, begin
