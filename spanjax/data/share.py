"""One host's part of every global batch: which rows, from which epoch, at which place. Both feeds read through it.

Shapes: B rows of this host, L positions.
"""

import itertools
from collections.abc import Iterable

import numpy as np

from spanjax.data.batch import FeedSpec, RowKeys
from spanjax.data.masking import refuse
from spanjax.data.order import global_rows, sorted_by_length
from spanjax.data.rows import RowBatch, Rows, slots_needed


class HostShare:
    """Reads the rows of host `host` of `hosts`: places host * B/hosts ... of each global batch.

    Held-out rows come in stored order, once, as epoch 0; the last batch is filled up with empty rows, in which every
    segment and every weight is 0.
    """

    def __init__(self, rows: Rows, spec: FeedSpec, host: int = 0, hosts: int = 1, held_out: bool = False):
        refuse(
            "feed",
            {
                f"hosts is {hosts}: expected at least 1": hosts < 1,
                f"host is {host}: expected 0 ... hosts - 1 = {hosts - 1}": not 0 <= host < max(1, hosts),
                f"batch_size {spec.batch_size} is not divisible by {hosts} hosts: use a multiple": hosts > 0
                and spec.batch_size % hosts > 0,
                "there are no rows: prepare some text first": len(rows) == 0,
                f"order 'by_length' needs at least one full batch, got {len(rows)} rows for batches of "
                f"{spec.batch_size}: use order 'uniform' or a smaller batch": spec.order == "by_length"
                and not held_out
                and 0 < len(rows) < spec.batch_size,
            },
        )
        self.rows, self.spec, self.held_out = rows, spec, held_out
        self.size = spec.batch_size // hosts
        self.slots = slots_needed(rows.manifest, spec.masking.rate)
        self._place_B = host * self.size + np.arange(self.size, dtype=np.int64)
        by_length = spec.order == "by_length" and not held_out
        self._sorted_N = sorted_by_length(rows.lengths_N) if by_length else None

    def steps(self, start: int) -> Iterable[int]:
        """start, start + 1, ...: without end, or up to the last held-out batch."""
        if start < 0:
            raise ValueError(f"start_step is {start}: expected at least 0")
        if self.held_out:
            return range(start, -(-len(self.rows) // self.spec.batch_size))
        return itertools.count(start)

    def read(self, step: int) -> tuple[RowBatch, RowKeys]:
        """This host's rows of global batch `step`."""
        size, count = self.spec.batch_size, len(self.rows)
        if self.held_out:
            index_B = step * size + self._place_B
            rows = blank_rows(
                self.rows.fetch(np.minimum(index_B, count - 1)), index_B < count, self.rows.vocabulary.specials.pad
            )
            return rows, RowKeys(np.zeros_like(index_B), index_B, self._place_B)
        index_B, epoch_B = global_rows(self.spec.seed, step, size, count, self._sorted_N)
        index_B, epoch_B = index_B[self._place_B], epoch_B[self._place_B]
        return self.rows.fetch(index_B), RowKeys(epoch_B, index_B, self._place_B)


def blank_rows(rows: RowBatch, keep_B: np.ndarray, pad: int) -> RowBatch:
    """The rows with those that are not kept emptied: padding only."""
    keep_B1 = keep_B[:, None]
    return RowBatch(
        tokens_BL=np.where(keep_B1, rows.tokens_BL, pad).astype(rows.tokens_BL.dtype),
        segments_BL=np.where(keep_B1, rows.segments_BL, 0).astype(rows.segments_BL.dtype),
        word_starts_BL=rows.word_starts_BL & keep_B1,
    )
