"""How the blocks of stored rows become the sequences that are trained on: one segment, or pairs of segments.

A pairing is applied when rows are fetched, on the NumPy side that both feeds share, so that every policy works on the same rows
in the same order. What it draws is a function of (seed, purpose, epoch, row index), as every draw.

Shapes: B rows, L positions, P pairs a row (as many as a row has blocks).
"""

import abc
import dataclasses
from typing import NamedTuple, Protocol

import numpy as np

from spanjax.data.rows import RowBatch


class Examples(NamedTuple):
    """Rows as sequences, before masking. A pair is [CLS] A [SEP] B [SEP], one segment number, types 0 and 1."""

    tokens_BL: np.ndarray  # int32
    segments_BL: np.ndarray  # int32, 0 padding, 1, 2, ... attention stays inside
    word_starts_BL: np.ndarray  # bool, False on specials and padding
    flags_BL: np.ndarray  # uint8, see `block`
    types_BL: np.ndarray  # int32, 0, or 1 on B and its [SEP]
    pair_position_BP: np.ndarray  # int32, where the [CLS] of a pair is; 0 where there is none
    pair_label_BP: np.ndarray  # int32, 1 where B is random or the segments are swapped
    pair_weight_BP: np.ndarray  # float32, 1 for a pair, else 0


class PairedRows(Protocol):
    """What pairing reads of rows."""

    @property
    def length(self) -> int: ...
    def __len__(self) -> int: ...
    def fetch(self, index_B: np.ndarray, /) -> RowBatch: ...
    def block_documents(self, row_M: np.ndarray, block_M: np.ndarray, /) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Pairing(abc.ABC):
    """Turns stored rows into sequences; a new pairing is one more frozen dataclass."""

    parts = 1
    """Into how many parts that are masked apart a block may be cut: what `slots_needed` counts with."""

    @abc.abstractmethod
    def examples(self, rows: PairedRows, index_B: np.ndarray, epoch_B: np.ndarray, seed: int, pairs: int) -> Examples:
        """The sequences of rows `index_B`, with room for `pairs` pairs a row.

        A row's sequences depend on (seed, epoch, index) alone, not on the rest of the batch.
        """


def unpaired(batch: RowBatch, pairs: int) -> Examples:
    """The rows as they are, every block a sequence of its own."""
    none = np.zeros((len(batch.tokens_BL), pairs), np.int32)
    return Examples(*batch, np.zeros_like(batch.tokens_BL), none, none, none.astype(np.float32))


@dataclasses.dataclass(frozen=True)
class Single(Pairing):
    """Every block is a sequence of its own: single-sequence training (SpanBERT, section 3.3)."""

    def examples(self, rows: PairedRows, index_B: np.ndarray, epoch_B: np.ndarray, seed: int, pairs: int) -> Examples:
        """See `Pairing.examples`; nothing is drawn."""
        del epoch_B, seed
        return unpaired(rows.fetch(index_B), pairs)
