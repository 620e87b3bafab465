"""The batch contract: names, shapes and types of what every feed yields, and how rows become a batch in NumPy.

Shapes: B rows, L positions, K slots a row, P pairs a row, V vocabulary.
"""

import dataclasses
import typing
from typing import Any, TypedDict

import numpy as np

from spanjax.bounds import MOST_ROWS
from spanjax.data.feed.hashing import Purpose, row_keys
from spanjax.data.feed.masking import (
    Boundaries,
    GeometricSpans,
    MaskingPolicy,
    Replacement,
    TextRows,
    refuse,
)
from spanjax.data.feed.order import Order
from spanjax.data.feed.pairing import Pairing, Single, UnmaskedRows
from spanjax.data.feed.slots import lay_out, restarted_positions
from spanjax.data.feed.warmup import BatchStage, warmup_problems
from spanjax.data.shards.packing import layer_tags
from spanjax.data.vocab.base import Specials


class Batch(TypedDict):
    """Fixed shapes always. NumPy arrays as they leave a feed, jax arrays in the step."""

    tokens_BL: Any
    """int32, ids after replacement."""
    segments_BL: Any
    """int32, 0 padding, 1, 2, ... the block of this row; attention stays inside a block."""
    positions_BL: Any
    """int32, restart at 0 in each block; 0 on padding."""
    types_BL: Any
    """int32, 0; 0 and 1 in the two segments of a pair."""
    row_B: Any
    """int32, index of the row in the global batch."""
    slot_position_BK: Any
    """int32, position of a masked token. Slots of a row are sorted by position; unused slots are 0 everywhere."""
    slot_target_BK: Any
    """int32, its original id."""
    slot_weight_BK: Any
    """float32, 1 for a used slot, else 0."""
    slot_left_BK: Any
    """int32, the position before the span; 0 where the boundary weight is 0."""
    slot_right_BK: Any
    """int32, the position after the span; 0 where the boundary weight is 0."""
    slot_offset_BK: Any
    """int32, 0-based index inside the span; 0 where the boundary weight is 0."""
    slot_boundary_weight_BK: Any
    """float32, 1 where the token has boundaries that may be used, else 0."""
    pair_position_BP: Any
    """int32, position of the [CLS] of a pair of segments; 0 where there is no pair."""
    pair_label_BP: Any
    """int32, 1 where the second segment is not what follows the first; see the pairing."""
    pair_weight_BP: Any
    """float32, 1 for a pair, else 0."""


def batch_spec(rows_per_batch: int, length: int, slots: int, pairs: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Name of every field -> its shape and type, in the order of `Batch`."""
    sizes = {"B": rows_per_batch, "L": length, "K": slots, "P": pairs}
    floats = {"slot_weight_BK", "slot_boundary_weight_BK", "pair_weight_BP"}
    return {
        name: (
            tuple(sizes[letter] for letter in name.rsplit("_", 1)[1]),
            np.dtype(np.float32 if name in floats else np.int32),
        )
        for name in Batch.__annotations__
    }


@dataclasses.dataclass(frozen=True)
class FeedSpec:
    """Settings that turn rows into batches: with the rows they decide the content of global batch number `step`."""

    seed: int
    """Seed that every draw of order and masks hashes."""
    batch_size: int
    """Rows of the global batch, over all hosts."""
    masking: MaskingPolicy = GeometricSpans()
    """Masking policy: the tokens to predict and their replacement."""
    boundaries: Boundaries = Boundaries()
    """Masked tokens with span boundaries."""
    order: Order = "uniform"
    """Order of the rows of an epoch."""
    pairing: Pairing = Single()
    """Type of the sequences: single blocks or pairs of segments."""
    warmup: tuple[BatchStage, ...] = ()
    """Stages in which an update has a part of the batch; held-out rows come in whole batches."""

    def __post_init__(self) -> None:
        refuse(
            "FeedSpec",
            {
                f"seed is {self.seed}: expected 0 ... 2**63 - 1": not 0 <= self.seed < 2**63,
                f"batch_size is {self.batch_size}: expected 1 to {MOST_ROWS:,} rows": not 1
                <= self.batch_size
                <= MOST_ROWS,
                f"order is {self.order!r}: expected one of {typing.get_args(Order)}": self.order
                not in typing.get_args(Order),
                **dict.fromkeys(warmup_problems(self.batch_size, self.warmup), True),
            },
        )


class RowKeys(typing.NamedTuple):
    """Origin and epoch of rows, which decide their draws."""

    epoch_B: np.ndarray
    index_B: np.ndarray
    row_B: np.ndarray  # index in the global batch
    rate_B: np.ndarray  # float64, share of text tokens to mask
    policy: MaskingPolicy | None = None  # of the step; None: that of held-out rows


class RowFacts(typing.NamedTuple):
    """Properties common to all rows of a folder, as far as a batch depends on them."""

    specials: Specials
    cumulative_V: np.ndarray  # int64, running sum of the counts that random tokens are sampled from
    slots: int
    pairs: int
    layers: tuple[str, ...]  # of tags
    unknown_count: int = 0  # count of [UNK], which `cumulative_V` skips

    def random_counts(self, replacement: Replacement) -> np.ndarray:
        """Running sum of the counts that the random tokens of `replacement` are sampled from: int64 [V]."""
        if not (replacement.unknown and self.unknown_count):
            return self.cumulative_V
        cumulative_V = self.cumulative_V.copy()
        cumulative_V[self.specials.unk :] += self.unknown_count
        return cumulative_V


def build_batch(rows: UnmaskedRows, keys: RowKeys, spec: FeedSpec, facts: RowFacts) -> Batch:
    """Masks rows and fills their slots. The result of a row is a function of (spec, epoch, index) and the row alone."""
    # a key for each purpose: another replacement leaves the choice of masked tokens unchanged
    mask_key, kind_key, random_key = (
        row_keys(spec.seed, purpose, keys.epoch_B, keys.index_B)
        for purpose in (Purpose.MASK, Purpose.REPLACE, Purpose.UNIGRAM)
    )
    policy = keys.policy or spec.masking.at(None)
    tags_BL = layer_tags(rows.flags_BL, facts.layers.index(policy.tag)) if policy.tag else None
    text = TextRows(rows.tokens_BL, rows.segments_BL, rows.word_starts_BL, tags_BL)
    place_X = policy.masked_places(text, facts.specials, mask_key, keys.rate_B)
    tokens_BL, slots = lay_out(
        rows.tokens_BL,
        rows.segments_BL,
        place_X,
        policy.replacement,
        spec.boundaries,
        facts.specials,
        facts.random_counts(policy.replacement),
        (kind_key, random_key),
        facts.slots,
    )
    return Batch(
        tokens_BL=tokens_BL,
        segments_BL=np.asarray(rows.segments_BL, dtype=np.int32),
        positions_BL=restarted_positions(rows.segments_BL),
        types_BL=np.asarray(rows.types_BL, dtype=np.int32),
        row_B=np.asarray(keys.row_B, dtype=np.int32),
        **slots,
        pair_position_BP=rows.pair_position_BP,
        pair_label_BP=rows.pair_label_BP,
        pair_weight_BP=rows.pair_weight_BP,
    )


def batch_sizes(batch: Batch) -> tuple[int, int, int]:
    """Tokens, pairs of tokens that attend to each other (the sum of the squared lengths of blocks), and used slots."""
    segments_BL = np.asarray(batch["segments_BL"])
    blocks = 1 + int(segments_BL.max(initial=0))
    place_BL = segments_BL + blocks * np.arange(len(segments_BL))[:, None]
    counts_BM = np.bincount(place_BL.ravel(), minlength=blocks * len(segments_BL)).reshape(-1, blocks)[:, 1:]
    return int(counts_BM.sum()), int((counts_BM.astype(np.int64) ** 2).sum()), int((batch["slot_weight_BK"] > 0).sum())


def batch_statistics(batch: Batch) -> dict[str, float]:
    """Figures of a NumPy batch for logs; those of text are right for single segments.

    fill: share of positions that are not padding, which an empty row is throughout. masked: masked tokens over text tokens
    ([CLS] and [SEP] of every block are not text). span_tokens: mean length of the spans. row_spans: mean number of spans of the
    rows that are not empty.
    """
    used_BK = batch["slot_weight_BK"] > 0
    segments_BL = batch["segments_BL"]
    blocks_B = segments_BL.max(axis=1, initial=0)
    text = (segments_BL > 0).sum() - 2 * blocks_B.sum()
    follows_BK = used_BK[:, 1:] & used_BK[:, :-1] & (np.diff(batch["slot_position_BK"], axis=1) == 1)
    masked = int(used_BK.sum())
    spans = masked - int(follows_BK.sum())
    return {
        "fill": float((segments_BL > 0).mean()),
        "masked": masked / max(1, int(text)),
        "span_tokens": masked / max(1, spans),
        "row_spans": spans / max(1, int((blocks_B > 0).sum())),
    }
