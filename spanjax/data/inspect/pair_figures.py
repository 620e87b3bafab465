"""Figures of the pairs that a pairing makes of stored blocks: foreign segments, and the share of the text in the pairs.

Shapes: B rows; M blocks of the batch.
"""

import dataclasses

import numpy as np

from spanjax.data.feed.hashing import Purpose, fold, row_keys, uniform
from spanjax.data.feed.pairing import (
    SMALLEST,
    Blocks,
    Draw,
    PairedRows,
    Pairing,
    TwoSegments,
    UnmaskedRows,
    find_blocks,
)
from spanjax.data.vocab.base import Specials


@dataclasses.dataclass(frozen=True)
class PairFigures:
    """Figures of the measured pairs; shares are of pairs unless noted."""

    label: str
    """nsp or sop."""
    pairs: int
    unpaired_blocks: int
    """Blocks that are too short for a pair."""
    label_share: float
    """Share with label 1."""
    foreign_share: float
    """Share whose second segment is from elsewhere."""
    first_tokens: float
    """Mean text tokens of the first segment."""
    second_tokens: float
    """Mean text tokens of the second segment."""
    kept_text: float
    """Share of the stored text that is in the sequences; the rest was cut, or skipped for a foreign segment."""
    foreign_text: float
    """Share of the sequences' text that is foreign."""


def foreign_pairs(
    rows: PairedRows, pairing: Pairing, index_B: np.ndarray, epoch_B: np.ndarray, seed: int
) -> tuple[Blocks, np.ndarray]:
    """The stored blocks of rows, and True for those that the pairing gives a second segment from elsewhere: bool [M]."""
    batch = rows.fetch(index_B)
    blocks = find_blocks(batch)
    if not isinstance(pairing, TwoSegments):
        return blocks, np.zeros(len(blocks.row_M), bool)
    pair_M = blocks.tokens_M >= SMALLEST
    key_M = fold(row_keys(seed, Purpose.PAIR, epoch_B, index_B)[blocks.row_M], blocks.number_M)
    cut = pairing.cut(batch, blocks, pair_M, key_M)
    return blocks, pairing.choices(uniform(fold(key_M, Draw.LABEL)), cut.alone_M)[0] & pair_M


class PairCounts:
    """Accumulates `PairFigures`, batch by batch."""

    def __init__(self, label: str):
        self.label = label
        self._sums = np.zeros(9, np.int64)

    def add(self, examples: UnmaskedRows, blocks: Blocks, foreign_M: np.ndarray, specials: Specials) -> None:
        """One batch: its sequences and the result of `foreign_pairs` for its rows."""
        tokens_BL, most = examples.tokens_BL, int(blocks.number_M.max(initial=0)) + 1
        text_BL = (examples.segments_BL > 0) & (tokens_BL != specials.cls) & (tokens_BL != specials.sep)
        row_X, position_X = np.nonzero(text_BL)
        of_X = (row_X * most + examples.segments_BL[row_X, position_X]) * 2 + examples.types_BL[row_X, position_X]
        counts = np.bincount(of_X, minlength=len(tokens_BL) * most * 2).reshape(-1, 2)
        first_M, second_M = counts[blocks.row_M * most + blocks.number_M].T
        slot = (blocks.row_M, blocks.number_M - 1)
        pair_M, label_M = examples.pair_weight_BP[slot] > 0, examples.pair_label_BP[slot] > 0
        theirs = int(second_M[foreign_M].sum())
        self._sums += [
            int(pair_M.sum()), int((~pair_M).sum()), int((label_M & pair_M).sum()), int(foreign_M.sum()),
            int(first_M[pair_M].sum()), int(second_M[pair_M].sum()), int(blocks.tokens_M.sum()),
            int(first_M.sum() + second_M.sum()), theirs,
        ]  # fmt: skip

    def figures(self) -> PairFigures:
        """The figures of all added batches."""
        pairs, unpaired, labels, foreign, first, second, stored, kept, theirs = self._sums.tolist()
        some = max(1, pairs)
        return PairFigures(
            label=self.label,
            pairs=pairs,
            unpaired_blocks=unpaired,
            label_share=labels / some,
            foreign_share=foreign / some,
            first_tokens=first / some,
            second_tokens=second / some,
            kept_text=(kept - theirs) / max(1, stored),
            foreign_text=theirs / max(1, kept),
        )
