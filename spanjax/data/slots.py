"""From masked places to a batch: spans, replacement, prediction slots and span boundaries, in NumPy.

Shared by every masking policy. `masking_tf` has the same in a graph.

Shapes: B rows, L positions, K slots a row, V vocabulary; X masked tokens of the whole batch in the order of the rows.
"""

from typing import NamedTuple

import numpy as np

from spanjax.data.hashing import Unsigned, fold, uniform
from spanjax.data.replacement import Boundaries, Replacement
from spanjax.data.words import Integers, SpecialIds


class Masked(NamedTuple):
    """The masked tokens of a batch, laid flat. A span is a maximal run of masked tokens in a block (D4)."""

    row_X: Integers
    position_X: Integers
    first_X: Integers  # position of the first token of the span
    last_X: Integers  # position of its last token
    count_B: Integers  # masked tokens of every row


def find_spans(place_X: Integers, segments_BL: np.ndarray) -> Masked:
    """The spans of masked tokens at these places (row * L + position), rising.

    A row whose tokens 2 3 and 5 are masked has position_X 2 3 5, first_X 2 2 5, last_X 3 3 5, count_B 3.
    """
    rows, length = segments_BL.shape
    row_X = place_X // length
    position_X = place_X - row_X * length
    segment_X = segments_BL.ravel()[place_X]
    begins_X = np.ones(len(row_X), dtype=bool)
    begins_X[1:] = (np.diff(place_X) != 1) | (np.diff(segment_X) != 0) | (np.diff(row_X) != 0)
    first = np.flatnonzero(begins_X)
    size = np.diff(first, append=len(row_X))
    first_X = np.repeat(position_X[first], size)
    return Masked(row_X, position_X, first_X, first_X + np.repeat(size - 1, size), np.bincount(row_X, minlength=rows))


def replaced_tokens(
    tokens_BL: np.ndarray,
    masked: Masked,
    replacement: Replacement,
    mask_id: int,
    cumulative_V: Integers,
    keys: tuple[Unsigned, Unsigned],
) -> np.ndarray:
    """The ids the model sees [B, L]. `keys` are the rows' keys for the kind of replacement and for random tokens.

    One draw at the span's first position (or at every position) decides the kind; each random token is a draw at its
    own position from the counts whose running sum is `cumulative_V`, so an id with count zero never comes.
    """
    kind_B, random_B = keys
    place_X = masked.first_X if replacement.unit == "span" else masked.position_X
    kind_X = uniform(fold(kind_B[masked.row_X], place_X))
    seen_X = np.where(kind_X < replacement.mask, mask_id, tokens_BL[masked.row_X, masked.position_X])
    drawn = np.flatnonzero((kind_X >= replacement.mask) & (kind_X < replacement.mask + replacement.random))
    point = uniform(fold(random_B[masked.row_X[drawn]], masked.position_X[drawn])) * float(cumulative_V[-1])
    seen_X[drawn] = np.searchsorted(cumulative_V, np.floor(point).astype(np.int64), side="right")
    tokens_BL = tokens_BL.copy()
    tokens_BL[masked.row_X, masked.position_X] = seen_X
    return tokens_BL


def slot_arrays(
    tokens_BL: np.ndarray, masked: Masked, boundaries: Boundaries, specials: SpecialIds, slots: int
) -> dict[str, np.ndarray]:
    """The `slot_` fields of the batch contract, K = `slots` a row, sorted by position."""
    assert masked.count_B.max(initial=0) <= slots, "a row has more masked tokens than slots"
    left_X, right_X = masked.first_X - 1, masked.last_X + 1
    offset_X = masked.position_X - masked.first_X
    bounded_X = offset_X < boundaries.max_offset
    if not boundaries.specials:
        for side_X in (left_X, right_X):
            token_X = tokens_BL[masked.row_X, side_X]
            bounded_X &= (token_X != specials.cls) & (token_X != specials.sep)
    rows = len(tokens_BL)
    place_X = (
        np.arange(len(masked.row_X))
        + (np.arange(rows) * slots - np.cumsum(masked.count_B) + masked.count_B)[masked.row_X]
    )

    def placed(values_X: np.ndarray | float, dtype: type) -> np.ndarray:
        array_BK = np.zeros((rows, slots), dtype=dtype)
        array_BK.ravel()[place_X] = values_X
        return array_BK

    return {
        "slot_position_BK": placed(masked.position_X, np.int32),
        "slot_target_BK": placed(tokens_BL[masked.row_X, masked.position_X], np.int32),
        "slot_weight_BK": placed(1.0, np.float32),
        "slot_left_BK": placed(left_X * bounded_X, np.int32),
        "slot_right_BK": placed(right_X * bounded_X, np.int32),
        "slot_offset_BK": placed(offset_X * bounded_X, np.int32),
        "slot_boundary_weight_BK": placed(bounded_X, np.float32),
    }


def restarted_positions(segments_BL: np.ndarray) -> np.ndarray:
    """Positions that begin at 0 in every segment: segments 1 1 1 2 2 0 have positions 0 1 2 0 1 0."""
    begins_BL = np.ones(segments_BL.shape, dtype=bool)
    begins_BL[:, 1:] = segments_BL[:, 1:] != segments_BL[:, :-1]
    first = np.flatnonzero(begins_BL).astype(np.int32)
    place = np.arange(segments_BL.size, dtype=np.int32)
    place -= np.repeat(first, np.diff(first, append=np.int32(segments_BL.size)))
    return place.reshape(segments_BL.shape) * (segments_BL > 0)
