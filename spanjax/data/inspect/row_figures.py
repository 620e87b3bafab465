"""Figures of rows before masking: lengths of documents, blocks and rows.

Shapes: N rows, B rows of a batch, M blocks, D measured documents.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from spanjax.data.feed.hashing import fold
from spanjax.data.feed.order import permuted
from spanjax.data.feed.pairing import find_blocks
from spanjax.data.feed.rows import Rows

_TOGETHER = 256  # rows read at a time
_SLICE = 1 << 22  # blocks searched at a time
_PURPOSE = 1 << 32  # a key of its own, apart from those of `hashing.Purpose`


@dataclasses.dataclass(frozen=True)
class Lengths:
    """A histogram of lengths in tokens."""

    count: int
    """Number of lengths."""
    mean: float
    quantiles: tuple[float, ...]
    """Least, quartiles and largest."""
    edges: tuple[int, ...]
    """Bin i holds lengths above edges[i] and up to edges[i + 1]."""
    counts: tuple[int, ...]

    @classmethod
    def of(cls, lengths: np.ndarray, edges: tuple[int, ...]) -> "Lengths":
        """The histogram of at least one length."""
        counts = np.bincount(np.searchsorted(edges, lengths) - 1, minlength=len(edges) - 1)
        quantiles = tuple(float(q) for q in np.quantile(lengths, (0, 0.25, 0.5, 0.75, 1)))
        return cls(len(lengths), float(np.mean(lengths)), quantiles, edges, tuple(counts.tolist()))


def eighths(length: int) -> tuple[int, ...]:
    """Edges of eight bins for what has at most `length` tokens."""
    return tuple(round(length * part / 8) for part in range(9))


def doublings(largest: int) -> tuple[int, ...]:
    """Edges 0, 16, 32, ... up to the first that holds `largest`."""
    edges = [0, 16]
    while edges[-1] < largest:
        edges.append(2 * edges[-1])
    return tuple(edges)


def some_of(total: int, most: int, seed: int) -> np.ndarray:
    """`most` of the numbers 0 ... total-1 in a random order, or all of them where there are no more or `most` is 0."""
    count = min(total, most) if most else total
    return permuted(np.arange(count, dtype=np.int64), total, np.full(count, fold(seed, _PURPOSE)))


def block_lengths(rows: Rows, index_B: np.ndarray) -> np.ndarray:
    """Text tokens of every block of these rows."""
    return np.concatenate([find_blocks(rows.fetch(part)).tokens_M for part in parts(index_B)])


def parts(index_B: np.ndarray) -> Iterator[np.ndarray]:
    """Indices in parts that are read together."""
    for start in range(0, len(index_B), _TOGETHER):
        yield index_B[start : start + _TOGETHER]


def document_lengths(rows: Rows, most: int, seed: int) -> np.ndarray:
    """Text tokens of `most` documents (0: of all), those of all their blocks; documents without text do not occur."""
    blocks = rows.manifest.blocks
    slices = [(start, min(start + _SLICE, blocks)) for start in range(0, blocks, _SLICE)]
    total = 1 + max(int(rows.documents_of_blocks(*each).max()) for each in slices)
    chosen_D = some_of(total, most, seed)
    wanted = np.zeros(total, bool)
    wanted[chosen_D] = True
    block_M = np.concatenate([each[0] + np.flatnonzero(wanted[rows.documents_of_blocks(*each)]) for each in slices])
    end_N = np.cumsum(rows.blocks_N, dtype=np.int64)
    row_N = np.unique(np.searchsorted(end_N, block_M, side="right"))
    tokens_D = np.zeros(total, np.int64)
    for row_B in parts(row_N):
        found = find_blocks(rows.fetch(row_B))
        of_M = rows.block_documents(row_B[found.row_M], found.number_M)
        np.add.at(tokens_D, of_M, found.tokens_M)
    found_D = tokens_D[chosen_D]
    return found_D[found_D > 0]
