"""The rows of global batch number `step`: a stateless function, so the data state of a run is one integer.

Epoch e is a keyed permutation of range(rows): a Feistel network over the next power of four (Luby and Rackoff 1988) in
which numbers outside the range walk on along their cycle until they are inside (Black and Rogaway 2002).

Shapes: B indices in the global batch, N rows, R rows of a batch that may be short.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from spanjax.data.feed.hashing import Purpose, Unsigned, fold

ROUNDS = 8

Order = Literal["uniform", "by_length", "streams", "both_ways"]
"""uniform: a batch is a uniform sample of rows (SpanBERT, appendix A). by_length: batches are made once, of rows of
similar length, and an epoch permutes the batches (what the released code does, D11); the batch of the longest rows is short
where the rows do not divide evenly. streams: each batch index reads consecutive rows, in stored order
(Transformer-XL). both_ways: the odd indices read theirs from the end (XLNet)."""

BY_LENGTH_VERSION = 2
"""Version of the order `by_length`, stored in run.json. 1 (spanjax 0.1) never read the remainder of rows // batch_size."""

Integers = npt.NDArray[np.int64]


def permuted(index_B: Integers, size: int, key_B: Unsigned) -> Integers:
    """Images of the indices under the permutation of range(size) with key `key_B`; every index may have its own key."""
    from spanjax.data.feed import kernels

    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    index_B = np.ascontiguousarray(index_B, np.int64)
    key_B = np.ascontiguousarray(np.broadcast_to(key_B, index_B.shape))
    return kernels.permuted(index_B, size, key_B, half_bits, ROUNDS)


def sorted_by_length(lengths_N: np.ndarray) -> Integers:
    """Row indices from the shortest row to the longest, ties in stored order; `by_length` cuts them into batches."""
    return np.argsort(lengths_N, kind="stable").astype(np.int64)


def global_rows(
    seed: int, step: int, batch_size: int, rows: int, sorted_N: Integers | None = None
) -> tuple[Integers, Integers]:
    """Row indices and epochs of global batch `step`: ([B], [B]), or ([R], [R]) of a short batch of R < B rows.

    Without `sorted_N` the batch is places step*B ... step*B+B-1 of the endless sequence of epochs, and may straddle
    epochs: with 4 rows and B = 6, steps 0 and 1 are each row three times, epochs 0 0 0 0 1 1 | 1 1 2 2 2 2. With
    `sorted_N` (from `sorted_by_length`) it is one of the ceil(N / B) batches of consecutive sorted rows, in an order
    permuted anew every epoch. The last of them, with the longest rows, has N mod B rows where B does not divide N: the
    result is then shorter than B. Time is that of one batch, at any step.
    """
    key = fold(seed, int(Purpose.ORDER))
    if sorted_N is None:
        place_B = np.int64(step) * batch_size + np.arange(batch_size, dtype=np.int64)
        epoch_B = place_B // rows
        return permuted(place_B % rows, rows, fold(key, epoch_B)), epoch_B
    batches = -(-rows // batch_size)
    epoch = np.array([step // batches], dtype=np.int64)
    batch_1 = permuted(np.array([step % batches], dtype=np.int64), batches, fold(key, epoch))
    index_R = sorted_N[batch_1[0] * batch_size :][:batch_size]
    return index_R, np.repeat(epoch, len(index_R))


def steps_per_epoch(order: Order, batch_size: int, rows: int) -> float:
    """Steps in which every row is read once; for streams, the steps until they are cut anew."""
    if order == "uniform":
        return rows / batch_size
    return -(-rows // batch_size) if order == "by_length" else rows // batch_size


def stream_rows(seed: int, step: int, batch_size: int, rows: int, both_ways: bool) -> tuple[Integers, Integers]:
    """Row indices and epochs of global batch `step` ([B], [B]) where every batch index reads N // B consecutive rows.

    Each epoch cuts the rows, as a circle, elsewhere, so that it skips other rows. ValueError where there are fewer rows than
    batch indices.
    """
    length = rows // batch_size
    if not length:
        raise ValueError(
            f"{rows} rows for {batch_size} streams: expected at least one row a stream; use a smaller batch"
        )
    epoch, at = divmod(step, length)
    first = int(fold(fold(seed, int(Purpose.ORDER)), epoch) % np.uint64(rows))
    place_B = np.arange(batch_size, dtype=np.int64)
    at_B = np.where(both_ways & (place_B % 2 == 1), length - 1 - at, at)
    return (first + place_B * length + at_B) % rows, np.full(batch_size, epoch, dtype=np.int64)
