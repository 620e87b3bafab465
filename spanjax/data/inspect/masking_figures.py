"""Figures of masking, measured on batches: budget, spans, replacement, boundaries, tags; and proposals of a policy.

A measured span is a maximal run of masked tokens: adjacent and overlapping proposals are one (D4), and the last proposal of a
block is cut by the budget. So measured lengths differ from proposed ones, in both directions.

A block is a maximal run of text between special tokens; a place is row * L + position.
Shapes: B rows, L positions; X masked tokens, W words, M blocks, P proposals of the batch, in the order of the rows.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spanjax.data.feed.batch import Batch, FeedSpec, RowKeys
from spanjax.data.feed.hashing import Purpose, row_keys
from spanjax.data.feed.masking import Integers, MaskingPolicy, SpanPolicy, TextRows
from spanjax.data.feed.pairing import UnmaskedRows, ragged
from spanjax.data.shards.packing import layer_tags
from spanjax.data.vocab.base import Specials

KINDS = ("mask", "random", "kept")


class Text(NamedTuple):
    """The words and blocks of a batch."""

    first_W: Integers  # place of a word's first piece
    first_M: Integers  # place of a block's first token
    tokens_M: Integers
    row_M: Integers


class Spans(NamedTuple):
    """The masked tokens of a batch. A span is a maximal run of masked tokens in a block (D4)."""

    row_X: Integers
    position_X: Integers
    first_X: Integers  # position of the first token of the span
    last_X: Integers  # position of its last token


def find_words(rows: TextRows, specials: Specials) -> Text:
    """The words and blocks of a batch; the first token of a block begins a word.

    [CLS] un ##able to [SEP] [CLS] go [SEP] has first_W 1 3 6, first_M 1 6, tokens_M 3 1.
    """
    segments_BL = rows.segments_BL
    text_BL = (segments_BL > 0) & (rows.tokens_BL != specials.cls) & (rows.tokens_BL != specials.sep)
    joined_BL = text_BL[:, 1:] & text_BL[:, :-1] & (segments_BL[:, 1:] == segments_BL[:, :-1])
    begins_BL, ends_BL = text_BL.copy(), text_BL.copy()
    begins_BL[:, 1:] &= ~joined_BL
    ends_BL[:, :-1] &= ~joined_BL
    first_M = np.flatnonzero(begins_BL)
    return Text(
        first_W=np.flatnonzero(begins_BL | (text_BL & rows.word_starts_BL)),
        first_M=first_M,
        tokens_M=np.flatnonzero(ends_BL) + 1 - first_M,
        row_M=first_M // rows.tokens_BL.shape[1],
    )


def find_spans(place_X: Integers, segments_BL: np.ndarray) -> Spans:
    """The spans of masked tokens at these places, rising.

    A row whose tokens 2 3 and 5 are masked has position_X 2 3 5, first_X 2 2 5, last_X 3 3 5.
    """
    length = segments_BL.shape[1]
    row_X = place_X // length
    position_X = place_X - row_X * length
    segment_X = segments_BL.ravel()[place_X]
    begins_X = np.ones(len(row_X), dtype=bool)
    begins_X[1:] = (np.diff(place_X) != 1) | (np.diff(segment_X) != 0) | (np.diff(row_X) != 0)
    first = np.flatnonzero(begins_X)
    size = np.diff(first, append=len(row_X))
    first_X = np.repeat(position_X[first], size)
    return Spans(row_X, position_X, first_X, first_X + np.repeat(size - 1, size))


@dataclasses.dataclass(frozen=True)
class TagShares:
    """Overlap of a layer of tags with the mask."""

    text: float  # share of text tokens inside its spans
    masked: float  # share of masked tokens inside them


@dataclasses.dataclass(frozen=True)
class MaskingFigures:
    """Figures of the measured rows."""

    rows: int
    text_tokens: int
    """Tokens that may be masked."""
    masked_tokens: int
    masked_share: float
    """Masked tokens of all text tokens."""
    budget_share: float
    """Sum of the budgets, ceil(rate * tokens) of every block, over all text tokens."""
    slots: int
    """Prediction slots a row."""
    slots_used: float
    """Mean share of slots that are used."""
    most_slots_used: int
    """Used slots of the row with most."""
    spans: int
    spans_per_row: float
    tokens_per_span: float
    words_per_span: float
    """Words that a span touches."""
    seen_tokens: dict[str, float]
    """Share of masked tokens that the model sees as [MASK], as another token, or unchanged (a random draw may hit the token
    itself)."""
    seen_spans: dict[str, float]
    """The same for spans, by their first token."""
    edge_share: float
    """Share of spans that begin or end a block."""
    boundary_share: float
    """SBO slots over MLM slots: share of masked tokens that have boundaries."""
    beyond_share: float
    """Share of masked tokens whose offset is max_offset or more."""
    offsets: tuple[int, ...]
    """[i]: masked tokens at offset i of their span, boundaries or not."""
    span_tokens: tuple[int, ...]
    """[l]: spans of l tokens."""
    span_words: tuple[int, ...]
    """[l]: spans that touch l words."""
    proposed_words: tuple[float, ...] | None
    """[l]: probability that the policy proposes l words, or tokens where `every_token`; None where it proposes nothing."""
    proposed_drawn: bool
    """True if `proposed_words` is sampled from these rows' tags; else it is the closed form."""
    every_token: bool
    """True if the policy takes every token for a word."""
    tags: dict[str, TagShares]
    """By layer."""

    @property
    def measured_lengths(self) -> tuple[int, ...]:
        """Spans by their length in the policy's unit: words, or tokens."""
        return self.span_tokens if self.every_token else self.span_words


def span_mean(counts: Sequence[float]) -> float:
    """The mean of a histogram whose indices are the values."""
    values = np.asarray(counts, np.float64)
    return float(values @ np.arange(len(values)) / max(values.sum(), 1e-300))


def span_shares(counts: Sequence[float], longest: int) -> list[float]:
    """Shares of lengths 1 ... `longest`, and of all that are longer; of rows without spans 0, not NaN."""
    padded = np.zeros(max(len(counts), longest + 2))
    padded[: len(counts)] = counts
    shares = padded / max(padded.sum(), 1e-300)
    return [*shares[1 : longest + 1].tolist(), float(shares[longest + 1 :].sum())]


class MaskingCounts:
    """Accumulates `MaskingFigures`, batch by batch."""

    def __init__(self, spec: FeedSpec, specials: Specials, layers: tuple[str, ...]):
        self._spec, self._specials, self._layers = spec, specials, layers
        self._sums: collections.Counter[str] = collections.Counter()
        self._policy = spec.masking
        self._tags = np.zeros((len(layers), 2), np.int64)  # text and masked tokens inside
        names = ("words", "tokens", "offsets", "proposed")
        self._histograms = {name: np.zeros(0, np.int64) for name in names}
        self._slots = self._most = 0

    def add(self, examples: UnmaskedRows, batch: Batch, keys: RowKeys) -> None:
        """One batch, as it was before masking and after."""
        used_BK = batch["slot_weight_BK"] > 0
        row_X, slot_X = np.nonzero(used_BK)
        length = examples.tokens_BL.shape[1]
        place_X = row_X * length + batch["slot_position_BK"][row_X, slot_X].astype(np.int64)
        rows = TextRows(examples.tokens_BL, examples.segments_BL, examples.word_starts_BL, None)
        text = find_words(rows, self._specials)
        self._slots, self._most = used_BK.shape[1], max(self._most, int(used_BK.sum(axis=1).max(initial=0)))
        self._sums.update(
            rows=len(used_BK),
            text=int(text.tokens_M.sum()),
            masked=len(place_X),
            budget=int(np.ceil(keys.rate_B[text.row_M] * text.tokens_M).sum()),
            bounded=int((batch["slot_boundary_weight_BK"] > 0).sum()),
        )
        self._add_spans(examples, batch, place_X, text.first_W)
        self._add_tags(examples, place_X, np.repeat(text.first_M, text.tokens_M) + ragged(text.tokens_M)[1])
        self._policy = policy = keys.policy or self._spec.masking.at(None)
        if policy.tag and isinstance(policy, SpanPolicy):
            layer = self._layers.index(policy.tag)
            tags_BL = layer_tags(examples.flags_BL, layer)
            drawn = drawn_lengths(policy, rows._replace(tags_BL=tags_BL), self._specials, self._spec.seed, keys)
            self._count("proposed", drawn)

    def _count(self, name: str, values: np.ndarray) -> None:
        before = self._histograms[name]
        found = np.bincount(values, minlength=len(before)).astype(np.int64)
        found[: len(before)] += before
        self._histograms[name] = found

    def _add_spans(self, examples: UnmaskedRows, batch: Batch, place_X: np.ndarray, first_W: np.ndarray) -> None:
        spans = find_spans(place_X, examples.segments_BL)
        base_X, tokens = place_X - spans.position_X, examples.tokens_BL.ravel()
        begins_X = spans.first_X == spans.position_X
        first, last = (base_X + spans.first_X)[begins_X], (base_X + spans.last_X)[begins_X]
        word_first, word_last = (np.searchsorted(first_W, place, side="right") for place in (first, last))
        special = np.isin(tokens, (self._specials.cls, self._specials.sep))
        self._count("tokens", last - first + 1)
        self._count("words", word_last - word_first + 1)
        self._count("offsets", spans.position_X - spans.first_X)
        seen_X = batch["tokens_BL"].ravel()[place_X]
        same_X = np.where(seen_X == tokens[place_X], 2, 1)
        kind_X = np.where(seen_X == self._specials.mask, 0, same_X)
        self._sums["spans"] += len(first)
        self._sums["edge"] += int((special[first - 1] | special[last + 1]).sum())
        self._sums["beyond"] += int((spans.position_X - spans.first_X >= self._spec.boundaries.max_offset).sum())
        for number, name in enumerate(KINDS):
            self._sums[f"tokens {name}"] += int((kind_X == number).sum())
            self._sums[f"spans {name}"] += int((kind_X[begins_X] == number).sum())

    def _add_tags(self, examples: UnmaskedRows, place_X: np.ndarray, text_places: np.ndarray) -> None:
        for layer in range(len(self._layers)):
            inside = layer_tags(examples.flags_BL, layer).ravel() > 0
            self._tags[layer] += [int(inside[text_places].sum()), int(inside[place_X].sum())]

    def figures(self) -> MaskingFigures:
        """The figures of all added batches."""
        sums, policy = self._sums, self._policy
        # shares of rows without text, masked tokens or spans are 0
        text, masked, spans = (max(1, sums[name]) for name in ("text", "masked", "spans"))
        histograms = {name: tuple(counts.tolist()) for name, counts in self._histograms.items()}
        return MaskingFigures(
            rows=sums["rows"],
            text_tokens=sums["text"],
            masked_tokens=sums["masked"],
            masked_share=sums["masked"] / text,
            budget_share=sums["budget"] / text,
            slots=self._slots,
            slots_used=sums["masked"] / max(1, sums["rows"] * self._slots),
            most_slots_used=self._most,
            spans=sums["spans"],
            spans_per_row=sums["spans"] / max(1, sums["rows"]),
            tokens_per_span=sums["masked"] / spans,
            words_per_span=span_mean(histograms["words"]),
            seen_tokens={name: sums[f"tokens {name}"] / masked for name in KINDS},
            seen_spans={name: sums[f"spans {name}"] / spans for name in KINDS},
            edge_share=sums["edge"] / spans,
            boundary_share=sums["bounded"] / masked,
            beyond_share=sums["beyond"] / masked,
            offsets=histograms["offsets"],
            span_tokens=histograms["tokens"],
            span_words=histograms["words"],
            proposed_words=_proposed(policy, histograms["proposed"]),
            proposed_drawn=bool(policy.tag),
            every_token=bool(getattr(policy, "every_token", False)),
            tags={
                name: TagShares(inside / text, both / masked)
                for name, (inside, both) in zip(self._layers, self._tags.tolist(), strict=True)
            },
        )


def _proposed(policy: MaskingPolicy, drawn: tuple[int, ...]) -> tuple[float, ...] | None:
    if not isinstance(policy, SpanPolicy):
        return None
    if policy.tag:
        return tuple(count / max(1, sum(drawn)) for count in drawn)
    return (0.0, *policy.length_distribution().tolist())


def drawn_lengths(policy: SpanPolicy, rows: TextRows, specials: Specials, seed: int, keys: RowKeys) -> np.ndarray:
    """Words of the policy's first proposals in every block, as many as its budget has tokens: [P], cut at the block's end."""
    text = find_words(rows, specials)
    budget_M = np.ceil(keys.rate_B[text.row_M] * text.tokens_M).astype(np.int64)
    rounds = int(budget_M.max(initial=0))
    key_B = row_keys(seed, Purpose.MASK, keys.epoch_B, keys.index_B)
    return policy.proposals(rows, specials, key_B, rounds)[1][np.arange(rounds) < budget_M[:, None]]
