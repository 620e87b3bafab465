"""Examples of a task as rows of tokens: kept without padding, put together into batches of a few lengths.

Shapes: N rows, B rows of a batch, T tokens of a row, L positions of a batch. Fields of a batch are named by their shape.
"""

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spanjax.data.feed.hashing import Purpose, fold
from spanjax.data.feed.order import permuted

LENGTHS = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
PROGRAM = 2048
"""Padded tokens that a further length must save. Measured with MiniLM on one core: a training step takes 1.8 ms a token, its
program 14 s to compile (7,800 tokens) and 2 s to load from the compilation cache (1,100 tokens): most are loaded."""
PACKED = 1000  # rows that are packed together
POOL = 50  # batches whose rows are sorted by length together
Batch = dict[str, np.ndarray]


def lengths_up_to(most: int) -> tuple[int, ...]:
    """LENGTHS below `most`, and `most`."""
    return (*(length for length in LENGTHS if length < most), most)


def finer_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """Ascending lengths, and below the last one the multiples of 4 up to 64, of 8 up to 128, and of 16."""
    between = (*range(4, 64, 4), *range(64, 128, 8), *range(128, lengths[-1], 16))
    return (*sorted({*lengths, *(length for length in between if length < lengths[-1])}),)


class Row(NamedTuple):
    """One input of the model."""

    tokens_T: np.ndarray
    """int32, specials included."""
    types_T: np.ndarray
    """int32, 0 and 1 in two segments."""
    example: int
    """The example that it is of: an example can have several rows (windows)."""
    fields: Mapping[str, Any]
    """Further fields by their names in the batch: one number a row (`label_B`), one value a token (`tag_BL`, `cluster_BLW`), or
    an array of one shape for all rows (`piece_BSP`). Arrays of integers become int32, all others float32. A row of several
    blocks has its own `segments_BL` and `positions_BL`."""
    notes: Any = None
    """Further data of the row for the task's predictions; in no batch."""


class TaskRows:
    """The rows of a file's examples."""

    def __init__(self, rows: Iterable[Row], pad: int, lengths: Callable[[int], tuple[int, ...]]):
        """`pad` is the id of padding, `lengths` those of batches for rows whose longest is this long, see `Task.lengths`.

        Rows are packed as they come.
        """
        self.pad = pad
        parts: dict[str, list[np.ndarray]] = {"tokens_BL": [], "types_BL": []}
        sizes, examples, coming = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], iter(rows)
        while some := list(itertools.islice(coming, PACKED)):
            sizes.append(np.array([len(row.tokens_T) for row in some], np.int64))
            examples.append(np.array([row.example for row in some], np.int64))
            fields = [{"tokens_BL": row.tokens_T, "types_BL": row.types_T, **row.fields} for row in some]
            for name in fields[0]:
                parts.setdefault(name, []).append(_column(name, [each[name] for each in fields]))
        self.lengths_N, self.example_N = np.concatenate(sizes), np.concatenate(examples)
        self.buckets = self._lengths = lengths(int(self.lengths_N.max(initial=1)))
        assert self.lengths_N.max(initial=1) <= self.buckets[-1]
        self._start_N = np.concatenate([[0], np.cumsum(self.lengths_N)])
        self._columns: dict[str, np.ndarray] = {}
        for name in list(parts):  # one at a time: the parts of a column are freed when it is made
            self._columns[name] = np.concatenate(parts.pop(name) or [np.zeros(0, np.int32)])

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.lengths_N)

    def row(self, number: int) -> Row:
        """One row as it was given, except for its notes, which are not kept."""
        inside = slice(self._start_N[number], self._start_N[number + 1])
        values = {name: col[inside if is_of_tokens(name) else number] for name, col in self._columns.items()}
        return Row(values.pop("tokens_BL"), values.pop("types_BL"), int(self.example_N[number]), values)

    @property
    def fingerprint(self) -> str:
        """Hex digest of all rows with their fields: equal if and only if training sees the same data."""
        digest = hashlib.sha256(self.lengths_N.tobytes())
        for name, column in sorted(self._columns.items()):
            digest.update(f"{name} {column.dtype} {column.shape}".encode())
            digest.update(column.tobytes())
        return digest.hexdigest()

    def use_few_lengths(
        self, batch_size: int, steps: int | None = None, compiled: set[int] | None = None, finer: bool = False
    ) -> None:
        """Keeps the lengths that are worth a program in `steps` batches, by default in one pass over the rows.

        Lengths in `compiled` have a program already; the chosen ones are added. With `finer` the choice includes
        those of `finer_lengths`. It is a function of the rows' lengths and of these arguments. It changes how far a batch is
        padded, never which rows it holds.
        """
        # rows of a batch are about equally long, in training as in evaluation
        longest_S = np.sort(self.lengths_N)[::-1][::batch_size]
        tokens = batch_size if steps is None else batch_size * steps / max(1, len(longest_S))
        compiled = set() if compiled is None else compiled
        candidates = finer_lengths(self._lengths) if finer else self._lengths
        self.buckets = few_lengths(longest_S, candidates, tokens, compiled)
        compiled.update(self.buckets)

    def length_of(self, index_B: np.ndarray) -> int:
        """The length of a batch of these rows (-1: an empty one): that of the longest, rounded up to one of few lengths."""
        longest = int(self.lengths_N[index_B[index_B >= 0]].max(initial=1))
        return next(length for length in self.buckets if length >= longest)

    def batch(self, index_B: np.ndarray, place_B: np.ndarray, length: int) -> Batch:
        """The rows of these numbers (-1: an empty row, of weight 0) at these places of a global batch, padded to `length`."""
        here_B = index_B >= 0
        lengths_B = np.where(here_B, self.lengths_N[index_B], 0)
        inside_BL = np.arange(length) < lengths_B[:, None]
        positions_BL = np.where(inside_BL, np.arange(length), 0)
        source_BL = np.where(inside_BL, self._start_N[index_B][:, None] + positions_BL, 0)
        made: Batch = {
            "segments_BL": inside_BL.astype(np.int32),
            "positions_BL": positions_BL.astype(np.int32),
            "row_B": place_B.astype(np.int32),
            "weight_B": here_B.astype(np.float32),
        }
        for name, column in self._columns.items():
            if is_of_tokens(name):
                values = column[source_BL]
                values[~inside_BL] = self.pad if name == "tokens_BL" else 0
            else:
                values = column[index_B]
                values[~here_B] = 0
            made[name] = values
        return made


def few_lengths(
    longest_S: np.ndarray, lengths: Sequence[int], rows: float, compiled: Collection[int] = ()
) -> tuple[int, ...]:
    """The subset of `lengths` (ascending) with the fewest padded tokens; each that is not in `compiled` counts PROGRAM more.

    int64[S] are the longest rows of S batches, each of which has `rows` rows in all. Every batch fits into the last length.
    """
    fitting = [int((longest_S <= length).sum()) for length in lengths]
    needed = next(i for i, count in enumerate(fitting) if count == len(longest_S))
    # best[i]: the least cost of the batches that fit into lengths[i], and its lengths, of which lengths[i] is the longest
    best: list[tuple[float, tuple[int, ...]]] = []
    for i, length in enumerate(lengths):
        program = 0 if length in compiled else PROGRAM
        shorter = [(0.0, (), 0), *((*best[j], fitting[j]) for j in range(i))]
        costs = [
            (cost + program + (fitting[i] - below) * rows * length, (*chosen, length))
            for cost, chosen, below in shorter
        ]
        best.append(min(costs, key=lambda each: (each[0], len(each[1]))))
    # a longer one than needed pays where it has a program already
    return min(best[needed:], key=lambda each: each[0])[1]


def is_of_tokens(name: str) -> bool:
    """True if a field has a value for each token: its shape begins with BL."""
    return name.rpartition("_")[2].startswith("BL")


def _column(name: str, values: Sequence[Any]) -> np.ndarray:
    joined = np.concatenate(values) if is_of_tokens(name) else np.stack([np.asarray(value) for value in values])
    return joined.astype(np.int32 if joined.dtype.kind in "iub" else np.float32)


def batches_of_epoch(rows: int, batch_size: int) -> int:
    """Batches in which every row comes once."""
    return -(-rows // batch_size)


def rows_of_step(rows: TaskRows, seed: int, step: int, batch_size: int) -> np.ndarray:
    """int64[B]: the rows of global batch `step`, -1 for a place that stays empty; a function of these numbers alone.

    Every epoch is a keyed permutation of the rows. The rows of POOL batches are sorted by length together, and these batches
    come in a random order: rows of a batch are about equally long, and an epoch holds every row once.
    """
    epoch, number = divmod(step, batches_of_epoch(len(rows), batch_size))
    key, index_X = _pool(rows, seed, epoch, number // POOL, batch_size)
    parts = batches_of_epoch(len(index_X), batch_size)
    part = int(permuted(np.array([number % POOL]), parts, fold(key, 1 + number // POOL))[0])
    return _filled(index_X[part * batch_size : (part + 1) * batch_size], batch_size)


def _pool(rows: TaskRows, seed: int, epoch: int, pool: int, batch_size: int) -> tuple[Any, np.ndarray]:
    """(key of an epoch, rows of one of its pools from the shortest to the longest)."""
    count, first = len(rows), pool * POOL * batch_size
    key = fold(fold(seed, int(Purpose.ORDER)), epoch)
    index_X = permuted(np.arange(first, min(first + POOL * batch_size, count)), count, key)
    return key, index_X[np.argsort(rows.lengths_N[index_X], kind="stable")]


def lengths_of_steps(rows: TaskRows, seed: int, steps: range, batch_size: int) -> set[int]:
    """The padded lengths of the batches of these steps, and of the other steps of their pools."""
    epoch_size, found = batches_of_epoch(len(rows), batch_size), set[int]()
    pools = {(step // epoch_size, step % epoch_size // POOL) for step in steps}
    for epoch, pool in sorted(pools):
        index_X = _pool(rows, seed, epoch, pool, batch_size)[1]
        lasts = [*range(batch_size - 1, len(index_X), batch_size), len(index_X) - 1]
        found |= {rows.length_of(index_X[[last]]) for last in lasts}
        if len(found) == len(rows.buckets):
            break
    return found


def rows_in_order(rows: TaskRows, batch_size: int) -> Iterator[np.ndarray]:
    """int64[B] of all rows once, from the shortest to the longest, -1 for places of the last batch that stay empty."""
    order_N = np.argsort(rows.lengths_N, kind="stable")
    for first in range(0, len(rows), batch_size):
        yield _filled(order_N[first : first + batch_size], batch_size)


def rows_by_positions(rows: TaskRows, batch_size: int, most: int, multiple: int = 1) -> Iterator[np.ndarray]:
    """int64[B] of all rows once, from the longest to the shortest, B up to `batch_size` and a multiple of `multiple`.

    A batch holds as many rows as `most` positions allow, and the least number otherwise. B depends on the padded length alone,
    except in the last batch: the next power of two, so that few rows need no program of many. -1 for its empty places.
    """
    order_N = np.argsort(-rows.lengths_N, kind="stable")
    first = 0
    while first < len(order_N):
        allowed = min(batch_size, most // rows.length_of(order_N[[first]]))
        size = max(1, allowed // multiple) * multiple
        some = order_N[first : first + size]
        if len(some) < size:
            size = min(size, -(-(1 << (len(some) - 1).bit_length()) // multiple) * multiple)
        yield _filled(some, size)
        first += len(some)


def _filled(index_X: np.ndarray, batch_size: int) -> np.ndarray:
    index_B = np.full(batch_size, -1, np.int64)
    index_B[: len(index_X)] = index_X
    return index_B


def host_share(rows: TaskRows, index_B: np.ndarray, host: int, hosts: int, length: int = 0) -> Batch:
    """One host's part of a global batch, padded to the length of the whole batch, or to `length`."""
    part = len(index_B) // hosts
    mine = slice(host * part, (host + 1) * part)
    return rows.batch(index_B[mine], np.arange(len(index_B))[mine], length or rows.length_of(index_B))
