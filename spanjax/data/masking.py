"""Which tokens are masked: policies, and the geometric spans of SpanBERT (Joshi et al. 2020, section 3.1), batched in
NumPy.

A policy answers one question, `token_mask`; all that follows from the mask (spans, replacement, slots) is in `slots`.
The same functions in a TensorFlow graph are in `masking_tf`, equal bit for bit.

Shapes: B rows, L positions; W words and M blocks of the whole batch, laid flat in the order of the rows; A blocks that
are still drawing, R rounds, S words a span may have.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from spanjax.data.hashing import Unsigned, fold, uniform

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

ROUNDS_AT_ONCE = 16


class SpecialIds(Protocol):
    """The ids of `vocab.Specials` that masking needs."""

    @property
    def pad(self) -> int: ...
    @property
    def cls(self) -> int: ...
    @property
    def sep(self) -> int: ...
    @property
    def mask(self) -> int: ...


class TokenRows(Protocol):
    """What masking reads of a `rows.RowBatch`."""

    @property
    def tokens_BL(self) -> np.ndarray: ...
    @property
    def segments_BL(self) -> np.ndarray: ...
    @property
    def word_starts_BL(self) -> np.ndarray: ...


def refuse(what: str, problems: Mapping[str, bool]) -> None:
    """Raises one ValueError that lists every problem that is true."""
    found = [problem for problem, wrong in problems.items() if wrong]
    if found:
        raise ValueError(f"{what}: " + "; ".join(found))


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What stands in the place of a masked token: [MASK], a token drawn from the corpus unigram distribution, or itself
    (D13)."""

    mask: float = 0.8
    """Probability of [MASK]."""
    random: float = 0.1
    """Probability of a random token; the rest is kept."""
    unit: Literal["span", "token"] = "span"
    """Whether one draw decides for a whole span (SpanBERT) or for each token (BERT)."""

    def __post_init__(self) -> None:
        refuse(
            "Replacement",
            {
                f"mask is {self.mask}: expected a probability from 0 to 1": not 0 <= self.mask <= 1,
                f"random is {self.random}: expected a probability from 0 to 1": not 0 <= self.random <= 1,
                f"mask + random is {self.mask + self.random}: expected at most 1, lower one": self.mask + self.random
                > 1 + 1e-9,
                f"unit is {self.unit!r}: expected 'span' or 'token'": self.unit not in ("span", "token"),
            },
        )


@dataclasses.dataclass(frozen=True)
class Boundaries:
    """Which masked tokens have the two boundary tokens that the span boundary objective reads (D5)."""

    specials: bool = True
    """Whether [CLS] or [SEP] may be a boundary: the paper has every masked token in the loss, the released code drops
    spans at a block's edge."""
    max_offset: int = 15
    """Tokens at this offset and further inside their span have no boundary."""

    def __post_init__(self) -> None:
        refuse("Boundaries", {f"max_offset is {self.max_offset}: expected at least 1": self.max_offset < 1})


@dataclasses.dataclass(frozen=True)
class MaskingPolicy(abc.ABC):
    """Chooses tokens to predict. A new policy is one more frozen dataclass with a `token_mask`, and its twin in
    `masking_tf`."""

    rate: float = 0.15
    """Share of every block's text tokens that is masked, rounded up."""
    replacement: Replacement = Replacement()
    """What is put in their place."""

    def __post_init__(self) -> None:
        refuse(type(self).__name__, self.problems())

    def problems(self) -> dict[str, bool]:
        """Everything that may be wrong with the settings -> whether it is."""
        return {f"rate is {self.rate}: expected more than 0 and at most 1": not 0 < self.rate <= 1}

    @abc.abstractmethod
    def token_mask(self, rows: TokenRows, specials: SpecialIds, key_B: Unsigned) -> Booleans:
        """True where a token is to be predicted [B, L]: at most ceil(rate * n) of a block's n text tokens, never a
        special.

        The mask of a row depends on that row and its key alone, not on the rest of the batch.
        """


@dataclasses.dataclass(frozen=True)
class GeometricSpans(MaskingPolicy):
    """Spans of whole words with geometric lengths (SpanBERT): the defaults are the paper, `as_released` is its code."""

    p: float = 0.2
    """Parameter of the geometric distribution of span lengths in words."""
    max_words: int = 10
    """The distribution is cut here and renormalised (D1)."""
    starts: Literal["words", "pieces"] = "words"
    """A span starts at a uniformly drawn word, or at the word of a uniformly drawn piece (D2)."""
    cut: Literal["words", "exact"] = "words"
    """The last span ends before the word that is over the budget, or inside it, at the budget exactly (D3)."""

    @classmethod
    def as_released(cls) -> "GeometricSpans":
        """What facebookresearch/SpanBERT's code does (D2, D3); it goes with Boundaries(specials=False,
        max_offset=15)."""
        return cls(starts="pieces", cut="exact")

    def problems(self) -> dict[str, bool]:
        """Ranges of every setting."""
        return super().problems() | {
            f"p is {self.p}: expected more than 0 and less than 1": not 0 < self.p < 1,
            f"max_words is {self.max_words}: expected at least 1": self.max_words < 1,
            f"starts is {self.starts!r}: expected 'words' or 'pieces'": self.starts not in ("words", "pieces"),
            f"cut is {self.cut!r}: expected 'words' or 'exact'": self.cut not in ("words", "exact"),
        }

    def length_distribution(self) -> npt.NDArray[np.float64]:
        """Probability of 1, 2, ... max_words words: p (1-p)^(i-1), renormalised; mean 3.797098 for p = .2 and 10
        words."""
        weights = self.p * (1 - self.p) ** np.arange(self.max_words)
        return weights / weights.sum()

    def length_steps(self) -> npt.NDArray[np.float64]:
        """The distribution function at 1 ... max_words words; u in [0, 1) draws 1 + the number of steps that are <=
        u."""
        steps = np.cumsum(self.length_distribution())
        steps[-1] = 1.0
        return steps

    def token_mask(self, rows: TokenRows, specials: SpecialIds, key_B: Unsigned) -> Booleans:
        """See docs/design.md, "Span masking, exactly"."""
        text = find_words(rows, specials)
        masked_W = draw_spans(self, text, fold(key_B[text.row_M], text.number_M))
        return leading_pieces(text.first_W, masked_W, rows.tokens_BL.shape)


class Text(NamedTuple):
    """The words and blocks of a batch. A block is a maximal run of text; a place is row * L + position."""

    first_W: Integers  # place of a word's first piece
    pieces_W: Integers
    first_M: Integers  # place of a block's first token
    tokens_M: Integers
    first_word_M: Integers  # index into W
    words_M: Integers
    row_M: Integers
    number_M: Integers  # 0, 1, ... in each row


def find_words(rows: TokenRows, specials: SpecialIds) -> Text:
    """The words and blocks of a batch.

    [CLS] un ##able to [SEP] [CLS] go [SEP] has first_W 1 3 6, pieces_W 2 1 1, first_M 1 6, tokens_M 3 1, first_word_M 0
    2, words_M 2 1. What begins a block begins a word.
    """
    length = rows.tokens_BL.shape[1]
    segments_BL = rows.segments_BL
    text_BL = (segments_BL > 0) & (rows.tokens_BL != specials.cls) & (rows.tokens_BL != specials.sep)
    joined_BL = text_BL[:, 1:] & text_BL[:, :-1] & (segments_BL[:, 1:] == segments_BL[:, :-1])
    begins_BL, ends_BL = text_BL.copy(), text_BL.copy()
    begins_BL[:, 1:] &= ~joined_BL
    ends_BL[:, :-1] &= ~joined_BL
    first_W = np.flatnonzero(begins_BL | (text_BL & rows.word_starts_BL))
    first_M, end_M = np.flatnonzero(begins_BL), np.flatnonzero(ends_BL) + 1
    first_word_M = np.searchsorted(first_W, first_M)
    words_M = np.diff(first_word_M, append=len(first_W))
    last_word_M = first_word_M + words_M - 1
    pieces_W = np.diff(first_W, append=0)
    pieces_W[last_word_M] = end_M - first_W[last_word_M]
    row_M = first_M // length
    number_M = np.arange(len(row_M)) - np.searchsorted(row_M, row_M)
    return Text(first_W, pieces_W, first_M, end_M - first_M, first_word_M, words_M, row_M, number_M)


def draw_spans(policy: GeometricSpans, text: Text, key_M: Unsigned) -> Integers:
    """The number of leading masked pieces of every word [W].

    All blocks run their rounds together. What the rounds try does not depend on what was masked before, so it is drawn
    for several rounds at once; blocks that are finished are dropped in between.
    """
    free_W = np.concatenate([text.pieces_W, np.zeros(policy.max_words, dtype=np.int64)])
    left_M = np.ceil(policy.rate * text.tokens_M).astype(np.int64)
    limit_M = 16 + 4 * left_M
    block_A = np.flatnonzero(left_M > 0)
    round_ = 0
    while len(block_A):
        round_R = round_ + np.arange(ROUNDS_AT_ONCE)
        words_RA, anchor_RA = proposals(policy, text, key_M, block_A, round_R)
        words_RA = np.where(round_R[:, None] < limit_M[block_A], words_RA, 0)
        left_A = left_M[block_A]
        for words_A, anchor_A in zip(words_RA, anchor_RA, strict=True):
            left_A = mask_spans(policy, free_W, text.pieces_W[anchor_A], words_A, anchor_A, left_A)
            if not left_A.any():
                break
        left_M[block_A] = left_A
        round_ += ROUNDS_AT_ONCE
        block_A = block_A[(left_A > 0) & (round_ < limit_M[block_A])]
    return text.pieces_W - free_W[: len(text.pieces_W)]


def proposals(
    policy: GeometricSpans, text: Text, key_M: Unsigned, block_A: Integers, round_R: Integers
) -> tuple[Integers, Integers]:
    """The spans that rounds try: words (cut at the block's end) and first word as an index into W, both [R, A].

    Round j of a block draws with counters 2j (length) and 2j + 1 (anchor) of the block's key.
    """
    key_A, first_A, round_R1 = key_M[block_A], text.first_word_M[block_A], round_R[:, None]
    words_RA = 1 + np.searchsorted(policy.length_steps(), uniform(fold(key_A, 2 * round_R1)), side="right")
    u_RA = uniform(fold(key_A, 2 * round_R1 + 1))
    if policy.starts == "words":
        anchor_RA = first_A + np.floor(u_RA * text.words_M[block_A]).astype(np.int64)
    else:
        place_RA = text.first_M[block_A] + np.floor(u_RA * text.tokens_M[block_A]).astype(np.int64)
        anchor_RA = np.searchsorted(text.first_W, place_RA, side="right") - 1
    return np.minimum(words_RA, first_A + text.words_M[block_A] - anchor_RA), anchor_RA


def mask_spans(
    policy: GeometricSpans,
    free_W: Integers,
    whole_A: Integers,
    words_A: Integers,
    anchor_A: Integers,
    left_A: Integers,
) -> Integers:
    """One round: takes pieces from `free_W`, in place, and returns what is left of the budgets [A].

    `whole_A` is the size of the anchor word, of which nothing may be masked yet.
    """
    more_S = np.arange(policy.max_words)
    word_AS = anchor_A[:, None] + more_S
    free_AS = free_W[word_AS]
    tried_AS = (more_S < words_A[:, None]) & (free_AS[:, :1] == whole_A[:, None])
    cost_AS = np.where(tried_AS, free_AS, 0)
    over_AS = np.cumsum(cost_AS, axis=1) - left_A[:, None]
    whole = policy.cut == "words"
    taken_AS = np.where(over_AS <= 0, cost_AS, 0) if whole else np.clip(cost_AS - over_AS, 0, cost_AS)
    changed_AS = taken_AS > 0
    free_W[word_AS[changed_AS]] -= taken_AS[changed_AS]
    return left_A - taken_AS.sum(axis=1)


def leading_pieces(first_W: Integers, masked_W: Integers, shape: tuple[int, ...]) -> Booleans:
    """A token mask from the number of leading masked pieces of every word: words at 1 and 3 with 1 and 2 mask 1, 3,
    4."""
    word_X = np.flatnonzero(masked_W)
    edges = np.zeros(shape[0] * shape[1] + 1, dtype=np.int8)
    edges[first_W[word_X]] += 1
    edges[first_W[word_X] + masked_W[word_X]] -= 1
    return np.cumsum(edges, dtype=np.int8)[:-1].reshape(shape) > 0
