"""From masked places to a batch: replacement, prediction slots and span boundaries. Shared by every masking policy.

Shapes: B rows, L positions, K slots a row, V vocabulary; X masked tokens of the whole batch in the order of the rows.
"""

from typing import NamedTuple

import numpy as np

from spanjax.data.feed.hashing import Unsigned
from spanjax.data.feed.masking import Boundaries, Integers, Replacement
from spanjax.data.vocab.base import Specials


class LaidOut(NamedTuple):
    """Masked rows: model input and prediction slots."""

    tokens_BL: np.ndarray  # int32, the ids that the model sees
    slots: dict[str, np.ndarray]  # the `slot_` fields of the batch contract, slots sorted by position


class Layout(NamedTuple):
    """`Replacement` and `Boundaries` as plain numbers for the kernels."""

    mask: float  # probability of [MASK]
    random: float  # of a random token
    by_span: bool  # one draw a span
    mask_id: int
    edges: bool  # whether [CLS] and [SEP] may be boundaries
    max_offset: int
    cls: int
    sep: int


def lay_out(
    tokens_BL: np.ndarray,
    segments_BL: np.ndarray,
    place_X: Integers,
    replacement: Replacement,
    boundaries: Boundaries,
    specials: Specials,
    cumulative_V: Integers,
    keys: tuple[Unsigned, Unsigned],
    slots: int,
) -> LaidOut:
    """Replaces the tokens at the places (row * L + position, rising) and writes them into `slots` slots a row.

    A span is a maximal run of masked tokens in a block (D4). `keys` are the rows' keys for the kind of replacement and for
    random tokens: one draw at the span's first position (or at every position) decides the kind; each random token is sampled
    at its own position from the counts whose running sum is `cumulative_V`, so an id with count zero never occurs.
    AssertionError where a row has more masked tokens than slots.
    """
    from spanjax.data.feed import kernels

    # exact types and C order: numba compiles the kernel again for every other signature
    layout = Layout(
        float(replacement.mask),
        float(replacement.random),
        replacement.unit == "span",
        int(specials.mask),
        boundaries.specials,
        boundaries.max_offset,
        int(specials.cls),
        int(specials.sep),
    )
    arrays = (np.ascontiguousarray(array, np.int32) for array in (tokens_BL, segments_BL))
    seen_BL, made, most = kernels.lay_out(*arrays, place_X, layout, cumulative_V, *keys, slots)
    assert most <= slots, f"a row has {most} masked tokens, more than its {slots} slots"
    return LaidOut(seen_BL, {f"slot_{name}": array for name, array in made._asdict().items()})


def restarted_positions(segments_BL: np.ndarray) -> np.ndarray:
    """Positions that begin at 0 in every segment: segments 1 1 1 2 2 0 have positions 0 1 2 0 1 0."""
    from spanjax.data.feed import kernels

    return kernels.restarted_positions(np.ascontiguousarray(segments_BL, np.int32))
