"""Which tokens are masked: policies, from BERT's single tokens to SpanBERT's geometric spans (Joshi et al. 2020, sections 3.1
and 6.1), batched in NumPy.

A policy answers one question, `masked_places`; all that follows from them (spans, replacement, slots) is in `slots`.
Every policy here proposes spans of words, round by round, and `sampling` takes them as far as the budget goes. The same
in a TensorFlow graph is `masking_tf`, equal bit for bit.

Shapes: B rows, L positions; W words, M blocks and T tagged spans of the batch, P proposals (see `words`, `sampling`).
"""

import abc
import dataclasses
import functools
from typing import Literal

import numpy as np
import numpy.typing as npt

from spanjax.data.hashing import Unsigned, fold, uniform
from spanjax.data.replacement import Replacement, refuse
from spanjax.data.sampling import draw_spans
from spanjax.data.words import (
    Integers,
    SpecialIds,
    Tagged,
    Text,
    TextRows,
    find_tagged,
    find_words,
    leading_places,
)

Distribution = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class MaskingPolicy(abc.ABC):
    """Chooses tokens to predict. A new policy is one more frozen dataclass with `masked_places`, and its twin in
    `masking_tf`."""

    rate: float = 0.15
    """Share of every block's text tokens that is masked, rounded up."""
    schedule: tuple[tuple[int, float], ...] = ()
    """A rate that changes: (step, rate) pairs, linear in between and constant outside; held-out rows keep `rate`."""
    replacement: Replacement = Replacement()
    """What is put in their place."""

    tag = ""
    """The layer of tags that the policy reads; empty where it reads none."""

    def __post_init__(self) -> None:
        refuse(type(self).__name__, self.problems())

    def problems(self) -> dict[str, bool]:
        """Everything that may be wrong with the settings -> whether it is."""
        steps = [step for step, _ in self.schedule]
        bad = [rate for rate in (self.rate, *(rate for _, rate in self.schedule)) if not 0 < rate <= 1]
        return {
            f"rates {bad} of rate and schedule: expected more than 0 and at most 1": bool(bad),
            f"schedule has the steps {steps}: expected 0 or more, rising": steps != sorted({*steps})
            or min(steps, default=0) < 0,
        }

    def rate_at(self, step: int) -> float:
        """The rate of training step `step`."""
        if not self.schedule:
            return self.rate
        steps, rates = zip(*self.schedule, strict=True)
        return float(np.interp(step, steps, rates))

    @property
    def most(self) -> float:
        """The highest rate that ever comes."""
        return max(self.rate, *(rate for _, rate in self.schedule)) if self.schedule else self.rate

    @abc.abstractmethod
    def masked_places(self, rows: TextRows, specials: SpecialIds, key_B: Unsigned, rate_B: Distribution) -> Integers:
        """The tokens to be predicted as places (row * L + position), rising: at most ceil(rate * n) of a block's n text
        tokens, never a special.

        The places in a row depend on that row, its key and its rate alone, not on the rest of the batch.
        """


@dataclasses.dataclass(frozen=True)
class SpanPolicy(MaskingPolicy):
    """Proposes spans of so many words at such words, until the budget is spent. See docs/design.md, "Span masking, exactly"."""

    starts: Literal["words", "pieces"] = "words"
    """A span starts at a uniformly drawn word, or at the word of a uniformly drawn piece (D2)."""
    cut: Literal["words", "exact"] = "words"
    """The last span ends before the word that is over the budget, or inside it, at the budget exactly (D3)."""

    every_token = False
    """Whether each token counts as a word."""

    def problems(self) -> dict[str, bool]:
        """Ranges of every setting."""
        return super().problems() | {
            f"starts is {self.starts!r}: expected 'words' or 'pieces'": self.starts not in ("words", "pieces"),
            f"cut is {self.cut!r}: expected 'words' or 'exact'": self.cut not in ("words", "exact"),
        }

    @abc.abstractmethod
    def length_distribution(self) -> Distribution:
        """Probability of 1, 2, ... words."""

    def length_steps(self) -> Distribution:
        """The distribution function at 1, 2, ... words; u in [0, 1) draws 1 + the number of steps that are <= u."""
        return self._steps

    @functools.cached_property
    def _steps(self) -> Distribution:
        steps = np.cumsum(self.length_distribution())
        steps[-1] = 1.0
        return steps

    @property
    def most_words(self) -> int:
        """Words that a proposal may have."""
        return len(self.length_distribution())

    @property
    def mean_words(self) -> float:
        """Mean words of a proposal, roughly: it decides how many are drawn at once, not what they are."""
        return float(self.length_distribution() @ np.arange(1, len(self.length_distribution()) + 1))

    def masked_places(self, rows: TextRows, specials: SpecialIds, key_B: Unsigned, rate_B: Distribution) -> Integers:
        """See `MaskingPolicy.masked_places`."""
        text = find_words(rows, specials, self.every_token)
        tagged = None if rows.tags_BL is None else find_tagged(rows.tags_BL, text)
        key_M = fold(key_B[text.row_M], text.number_M)
        budget_M = np.ceil(rate_B[text.row_M] * text.tokens_M).astype(np.int64)

        def propose(block_P: Integers, round_P: Integers) -> tuple[Integers, Integers]:
            return self.proposals(text, tagged, block_P, fold(key_M[block_P], round_P))

        masked_W = draw_spans(
            text,
            budget_M,
            propose,
            mean_words=self.mean_words,
            most_words=self.most_words,
            whole_words=self.cut == "words",
        )
        return leading_places(text.first_W, masked_W)

    def proposals(
        self, text: Text, tagged: Tagged | None, block_P: Integers, key_P: Unsigned
    ) -> tuple[Integers, Integers]:
        """First words (indices into W) and numbers of words (cut at the block's end) of rounds with these keys, both [P]."""
        del tagged
        first_P, u_P = text.first_word_M[block_P], uniform(fold(key_P, 1))
        if self.starts == "words":
            anchor_P = first_P + np.floor(u_P * text.words_M[block_P]).astype(np.int64)
        else:
            place_P = text.first_M[block_P] + np.floor(u_P * text.tokens_M[block_P]).astype(np.int64)
            anchor_P = np.searchsorted(text.first_W, place_P, side="right") - 1
        if len(self._steps) == 1:
            return anchor_P, np.ones_like(anchor_P)
        words_P = 1 + np.searchsorted(self._steps, uniform(fold(key_P, 0)), side="right")
        return anchor_P, np.minimum(words_P, first_P + text.words_M[block_P] - anchor_P)


@dataclasses.dataclass(frozen=True)
class Tokens(SpanPolicy):
    """Single tokens, drawn without replacement (BERT; "subword tokens" of SpanBERT's table 6)."""

    replacement: Replacement = Replacement(unit="token")
    """What is put in their place."""
    every_token = True

    def length_distribution(self) -> Distribution:
        """One token."""
        return np.ones(1)


@dataclasses.dataclass(frozen=True)
class WholeWords(SpanPolicy):
    """Single whole words (SpanBERT's table 6; whole-word masking of BERT)."""

    replacement: Replacement = Replacement(unit="token")
    """What is put in their place."""

    def length_distribution(self) -> Distribution:
        """One word."""
        return np.ones(1)


@dataclasses.dataclass(frozen=True)
class GeometricSpans(SpanPolicy):
    """Spans of whole words with geometric lengths (SpanBERT): the defaults are the paper, `as_released` is its code."""

    p: float = 0.2
    """Parameter of the geometric distribution of span lengths in words."""
    max_words: int = 10
    """The distribution is cut here and renormalised (D1)."""

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
        }

    def length_distribution(self) -> Distribution:
        """Probability of 1, 2, ... max_words words: p (1-p)^(i-1), renormalised; mean 3.797098 for p = .2 and 10
        words."""
        weights = self.p * (1 - self.p) ** np.arange(self.max_words)
        return weights / weights.sum()


@dataclasses.dataclass(frozen=True)
class Ngrams(SpanPolicy):
    """n consecutive words with probability proportional to 1/n (ALBERT, section 3.1; XLNet's spans have max_words 5)."""

    replacement: Replacement = Replacement(unit="token")
    """What is put in their place."""
    max_words: int = 3
    """The longest n-gram."""

    def problems(self) -> dict[str, bool]:
        """Ranges of every setting."""
        return super().problems() | {f"max_words is {self.max_words}: expected at least 1": self.max_words < 1}

    def length_distribution(self) -> Distribution:
        """1/n over the sum of 1/n."""
        weights = 1 / np.arange(1, self.max_words + 1)
        return weights / weights.sum()


@dataclasses.dataclass(frozen=True)
class TaggedSpans(SpanPolicy):
    """Tagged spans (named entities, noun phrases) half of the time, else whole words (SpanBERT 6.1, D17; the phrase and
    entity masking of ERNIE is the same with share 1)."""

    tag: str = "entities"
    """The layer of tags, as `prepare --tags` named it."""
    share: float = 0.5
    """Probability that a round proposes one of the block's tagged spans, uniformly drawn; a block without any proposes words."""
    longest: int = 10
    """Of longer tagged spans the first so many words are proposed."""

    def problems(self) -> dict[str, bool]:
        """Ranges of every setting."""
        return super().problems() | {
            "tag is empty: expected the name of a layer, 'entities' say": not self.tag,
            f"share is {self.share}: expected a probability from 0 to 1": not 0 <= self.share <= 1,
            f"longest is {self.longest}: expected at least 1 word": self.longest < 1,
        }

    def length_distribution(self) -> Distribution:
        """One word, where no tagged span is proposed."""
        return np.ones(1)

    @property
    def most_words(self) -> int:
        """See `SpanPolicy.most_words`."""
        return self.longest

    @property
    def mean_words(self) -> float:
        """A guess: tagged spans of two words."""
        return 1 + self.share

    def proposals(
        self, text: Text, tagged: Tagged | None, block_P: Integers, key_P: Unsigned
    ) -> tuple[Integers, Integers]:
        """See `SpanPolicy.proposals`."""
        assert tagged is not None
        anchor_P, words_P = super().proposals(text, None, block_P, key_P)
        tags_P = tagged.tags_M[block_P]
        chosen = np.flatnonzero((uniform(fold(key_P, 2)) < self.share) & (tags_P > 0))
        u = uniform(fold(key_P[chosen], 3))
        tag = tagged.first_tag_M[block_P[chosen]] + np.floor(u * tags_P[chosen]).astype(np.int64)
        anchor_P[chosen] = tagged.first_word_T[tag]
        words_P[chosen] = np.minimum(tagged.words_T[tag], self.longest)
        return anchor_P, words_P
