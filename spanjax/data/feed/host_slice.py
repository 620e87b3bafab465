"""One host's part of every global batch: rows, their epochs and their batch indices. Both feeds read through it.

Shapes: B rows of this host, R rows of the global batch that are not empty, L positions, P pairs a row.
"""

from typing import NamedTuple

import numpy as np

from spanjax.data.feed.batch import Batch, FeedSpec, RowFacts, RowKeys, build_batch
from spanjax.data.feed.masking import refuse
from spanjax.data.feed.mixture import MixedRows
from spanjax.data.feed.order import Integers, global_rows, sorted_by_length, stream_rows
from spanjax.data.feed.pairing import UnmaskedRows
from spanjax.data.feed.rows import Rows, slots_needed
from spanjax.data.feed.warmup import Part, part_of

AnyRows = Rows | MixedRows


class MaskedRows(NamedTuple):
    """Some rows as training sees them."""

    examples: UnmaskedRows  # before masking
    batch: Batch
    keys: RowKeys


class HostShare:
    """Reads the rows of host `host` of `hosts`: batch indices host * B/hosts ... of each global batch.

    In a batch-size warm-up a step has a part of a batch, of which a host has its share.
    Held-out rows are read in stored order, once, as epoch 0. A short batch (the last of held-out rows, one an epoch in the
    order by_length) is filled up with empty rows, in which every segment and every weight is 0.
    """

    def __init__(self, rows: AnyRows, spec: FeedSpec, host: int = 0, hosts: int = 1, held_out: bool = False):
        self.by_length = spec.order == "by_length" and not held_out
        self.streams = spec.order in ("streams", "both_ways") and not held_out
        tags = rows.manifest.tags
        missing = [tag for tag in spec.masking.tags if tag not in tags]
        # one error lists all problems, so every condition is computed and must survive the bad values of the others
        refuse(
            "feed",
            {
                f"hosts is {hosts}: expected at least 1": hosts < 1,
                f"host is {host}: expected 0 ... hosts - 1 = {hosts - 1}": not 0 <= host < max(1, hosts),
                f"batch_size {spec.batch_size} is not divisible by {hosts} hosts: use a multiple": hosts > 0
                and spec.batch_size % hosts > 0,
                "there are no rows: prepare some text first": len(rows) == 0,
                f"order {spec.order!r} needs at least one row a stream, got {len(rows)} rows for batches of {spec.batch_size}:"
                " use a smaller batch": self.streams and 0 < len(rows) < spec.batch_size,
                f"order {spec.order!r} does not exist for a mixture of rows: use order 'uniform', without a memory": (
                    self.by_length or self.streams
                )
                and isinstance(rows, MixedRows),
                **_warmup_problems(rows, spec, hosts, self.streams, self.by_length),
                f"masking reads the tags {', '.join(map(repr, missing))}, the rows have {list(tags) or 'none'}: prepare them"
                f" with --tags {' '.join(spec.masking.tags)}": bool(missing),
            },
        )
        self.rows, self.spec, self.held_out = rows, spec, held_out
        self.host, self.hosts = host, hosts
        self.size = spec.batch_size // hosts
        self.facts = RowFacts(
            specials=rows.vocabulary.specials,
            cumulative_V=np.cumsum(rows.unigram_V, dtype=np.int64),
            slots=slots_needed(rows.manifest, spec.masking.most, spec.pairing.parts),
            pairs=len(rows.manifest.text_tokens_by_blocks) - 1,
            layers=tuple(tags),
            unknown_count=rows.unknown_count,
        )
        self._sorted_N = sorted_by_length(rows.lengths_N) if self.by_length else None

    def steps(self, start: int) -> range:
        """start, start + 1, ...: without end (of 64 bits), or up to the last held-out batch."""
        if start < 0:
            raise ValueError(f"start_step is {start}: expected at least 0")
        end = -(-len(self.rows) // self.spec.batch_size) if self.held_out else np.iinfo(np.int64).max
        return range(start, int(end))

    @property
    def sizes_vary(self) -> bool:
        """True if the batches of some steps have fewer rows than those of others."""
        return bool(self.spec.warmup) and not self.held_out

    def part(self, step: int) -> Part:
        """The batch of a step, and the part of it that the step has: all of it but in a warm-up."""
        return part_of(step, self.spec.batch_size, self.spec.warmup if self.sizes_vary else ())

    def global_rows(self, step: int) -> tuple[Integers, Integers]:
        """Row indices and epochs of the rows of a step, of all hosts: ([R], [R]), R <= batch_size.

        R is less in a warm-up, and in a short batch, whose places from R on are empty rows.
        """
        batch, first, rows = self.part(step)
        index_R, epoch_R = self._whole_batch(batch)
        return index_R[first : first + rows], epoch_R[first : first + rows]

    def _whole_batch(self, step: int) -> tuple[Integers, Integers]:
        """Row indices and epochs of a global batch."""
        spec, rows = self.spec, self.rows
        if self.held_out:
            index_R = np.arange(step * spec.batch_size, min(len(rows), (step + 1) * spec.batch_size), dtype=np.int64)
            return index_R, np.zeros_like(index_R)
        if isinstance(rows, MixedRows):
            return rows.global_rows(spec.seed, step, spec.batch_size)
        if self.streams:
            return stream_rows(spec.seed, step, spec.batch_size, len(rows), spec.order == "both_ways")
        return global_rows(spec.seed, step, spec.batch_size, len(rows), self._sorted_N)

    def read(self, step: int) -> tuple[UnmaskedRows, RowKeys]:
        """This host's sequences of a step."""
        spec, part = self.spec, self.part(step)
        size = part.rows // self.hosts
        place_B = part.first + self.host * size + np.arange(size, dtype=np.int64)
        policy = spec.masking.at(None if self.held_out else step)
        rate_B = np.full(size, policy.rate if self.held_out else policy.rate_at(step))
        index_R, epoch_R = self._whole_batch(part.batch)
        # shapes are fixed: the empty places of a short batch read its last row, which is blanked once it is paired
        read_B = np.minimum(place_B, len(index_R) - 1)
        index_B, epoch_B = index_R[read_B], spec.masking.drawn_epoch(epoch_R[read_B])
        found = spec.pairing.examples(self.rows, index_B, epoch_B, spec.seed, self.facts.pairs)
        blanked = blank_rows(found, place_B < len(index_R), self.facts.specials.pad)
        return blanked, RowKeys(epoch_B, index_B, place_B, rate_B, policy)

    def masked(self, index_B: np.ndarray, epoch: int = 0, step: int = 0) -> MaskedRows:
        """These rows as training sees them in an epoch, with the masking rate of a step; as batch indices 0, 1, ..."""
        spec, policy = self.spec, self.spec.masking.at(step)
        epoch_B = spec.masking.drawn_epoch(np.full(len(index_B), epoch, np.int64))
        examples = spec.pairing.examples(self.rows, index_B, epoch_B, spec.seed, self.facts.pairs)
        rate_B = np.full(len(index_B), policy.rate_at(step))
        keys = RowKeys(epoch_B, index_B, np.arange(len(index_B)), rate_B, policy)
        return MaskedRows(examples, build_batch(examples, keys, spec, self.facts), keys)


def _warmup_problems(rows: AnyRows, spec: FeedSpec, hosts: int, streams: bool, by_length: bool) -> dict[str, bool]:
    """Possible problems of a batch-size warm-up with these rows and hosts -> True if one applies."""
    if not spec.warmup:
        return {}
    sizes, rest = [stage.rows for stage in spec.warmup], len(rows) % spec.batch_size
    odd = next((size for size in sizes if hosts > 0 and size % hosts), 0)
    return {
        f"batch_warmup has updates of {odd} rows, which is not divisible by {hosts} hosts: use a multiple": odd > 0,
        f"batch_warmup with order {spec.order!r}: the memory has a row for each of batch_size {spec.batch_size}, in every update;"
        " leave batch_warmup out, or set objective.memory 0": streams,
        "batch_warmup with data.stages: both count steps, but stages of a mixture those of whole batches; leave one out": (
            isinstance(rows, MixedRows) and bool(rows.stages)
        ),
        f"batch_warmup with order 'by_length': the last of {len(rows):,} rows are a batch of {rest}, of which an update of"
        f" {min(sizes)} rows would be empty; use order 'uniform', or a batch_size that divides the rows": (
            by_length and 0 < rest <= spec.batch_size - min(sizes)
        ),
    }


def blank_rows(rows: UnmaskedRows, keep_B: np.ndarray, pad: int) -> UnmaskedRows:
    """The rows with those that are not kept emptied: padding only, no pairs."""
    if keep_B.all():
        return rows
    blanked = [np.where(keep_B[:, None], array, np.zeros((), array.dtype)) for array in rows]
    tokens_BL = np.where(keep_B[:, None], rows.tokens_BL, pad).astype(rows.tokens_BL.dtype)
    return UnmaskedRows(*blanked)._replace(tokens_BL=tokens_BL)
