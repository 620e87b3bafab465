"""Masking policies, from BERT's single tokens to SpanBERT's geometric spans (Joshi et al. 2020, sections 3.1 and 6.1).

A policy chooses tokens, `masked_places`; everything after that (spans, replacement, slots) is in `slots`. Each span policy
defines a span-length distribution; `kernels` samples spans of words in rounds until the masking budget is used up.

Shapes: B rows, L positions; M blocks of the batch, R rounds.
"""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from spanjax.bounds import AtLeast0, AtLeast1, Bounds, Probability, range_problems
from spanjax.data.feed.hashing import Unsigned
from spanjax.data.shards.packing import MAX_LENGTH
from spanjax.data.vocab.base import Specials

Integers = npt.NDArray[np.int64]


class TextRows(NamedTuple):
    """The fields of rows that masking reads."""

    tokens_BL: np.ndarray
    segments_BL: np.ndarray
    word_starts_BL: np.ndarray
    tags_BL: np.ndarray | None  # uint8, the layer of tags that the policy reads: 0, 1 begins, 2 continues


def refuse(what: str, problems: Mapping[str, bool], settings: Any = None) -> None:
    """Raises one ValueError that lists every problem that is true, and numbers of `settings` that are out of their bounds."""
    found = [problem for problem, wrong in problems.items() if wrong]
    found += range_problems(settings) if settings is not None else []
    if found:
        raise ValueError(f"{what}: " + "; ".join(found))


@dataclasses.dataclass(frozen=True)
class Replacement:
    """Replacement of a masked token: [MASK], a token sampled from the corpus unigram distribution, or itself (D13)."""

    mask: Probability = 0.8
    """Probability of [MASK]."""
    random: Probability = 0.1
    """Probability of a random token; the rest is kept."""
    unit: Literal["span", "token"] = "span"
    """Unit of one draw: a whole span (SpanBERT) or each token (BERT)."""
    unknown: bool = False
    """Sample [UNK] among the random tokens, as often as the text has it: as released (D13). False never samples it."""

    def __post_init__(self) -> None:
        refuse(
            "Replacement",
            {
                f"mask + random is {self.mask + self.random}: expected at most 1, lower one": self.mask + self.random
                > 1 + 1e-9,
                f"unit is {self.unit!r}: expected 'span' or 'token'": self.unit not in ("span", "token"),
                "unknown is True and random 0: expected random tokens, raise random or leave unknown out": self.unknown
                and not self.random,
            },
            self,
        )


@dataclasses.dataclass(frozen=True)
class Boundaries:
    """Masked tokens with the two boundary tokens that the span boundary objective reads (D5)."""

    specials: bool = True
    """Allow [CLS] or [SEP] as a boundary: the paper has every masked token in the loss, the released code drops spans at
    a block's edge."""
    max_offset: AtLeast1 = 15
    """Tokens at this offset and further inside their span have no boundary."""

    def __post_init__(self) -> None:
        refuse("Boundaries", {}, self)


Distribution = npt.NDArray[np.float64]
MostWords = Annotated[int, Bounds(1, MAX_LENGTH)]
"""Words of a span: at most the positions of the longest row."""


@dataclasses.dataclass(frozen=True)
class MaskingPolicy(abc.ABC):
    """Chooses tokens to predict. A new policy is one more frozen dataclass with `masked_places`."""

    rate: float = 0.15
    """Share of every block's text tokens that is masked, rounded up."""
    schedule: tuple[tuple[int, float], ...] = ()
    """A rate that changes: (step, rate) pairs, linear in between and constant outside; held-out rows keep `rate`."""
    replacement: Replacement = Replacement()
    """Replacement of the masked tokens."""
    copies: AtLeast0 = dataclasses.field(default=0, kw_only=True)
    """Maskings (and pairs) of every row that the epochs repeat in turn: 10 in BERT's files. 0 samples new ones every epoch."""

    tag = ""
    """The layer of tags that the policy reads; empty where it reads none."""

    def __post_init__(self) -> None:
        refuse(type(self).__name__, self.problems(), self)

    def problems(self) -> dict[str, bool]:
        """Possible problems of the settings, apart from bounds of numbers -> True if one applies."""
        steps = [step for step, _ in self.schedule]
        bad = [rate for rate in (self.rate, *(rate for _, rate in self.schedule)) if not 0 < rate <= 1]
        return {
            f"rates {bad} of rate and schedule: expected more than 0 and at most 1": bool(bad),
            f"schedule has the steps {steps}: expected 0 or more, rising": steps != sorted({*steps})
            or min(steps, default=0) < 0,
        }

    def at(self, step: int | None) -> "MaskingPolicy":
        """The policy that masks in training step `step`; of held-out rows (None)."""
        del step
        return self

    @property
    def policies(self) -> tuple["MaskingPolicy", ...]:
        """All policies that ever mask: this one, or all that `at` returns."""
        return (self,)

    @property
    def tags(self) -> tuple[str, ...]:
        """All layers of tags that are ever read."""
        return (self.tag,) if self.tag else ()

    def drawn_epoch(self, epoch_B: Integers) -> Integers:
        """The epochs whose draws are repeated in these epochs."""
        return epoch_B % self.copies if self.copies else epoch_B

    def rate_at(self, step: int) -> float:
        """The rate of training step `step`."""
        if not self.schedule:
            return self.rate
        steps, rates = zip(*self.schedule, strict=True)
        return float(np.interp(step, steps, rates))

    @property
    def most(self) -> float:
        """Highest rate of any step."""
        return max(self.rate, *(rate for _, rate in self.schedule)) if self.schedule else self.rate

    @abc.abstractmethod
    def masked_places(self, rows: TextRows, specials: Specials, key_B: Unsigned, rate_B: Distribution) -> Integers:
        """The tokens to be predicted as places (row * L + position), rising: at most ceil(rate * n) of a block's n text
        tokens, never a special.

        The places in a row depend on that row, its key and its rate alone, not on the rest of the batch.
        """


class SamplerRows(NamedTuple):
    """The fields of rows that the kernels read: C-contiguous arrays of exactly these types."""

    tokens_BL: np.ndarray  # int32
    segments_BL: np.ndarray  # int32
    word_starts_BL: np.ndarray  # bool
    tags_BL: np.ndarray  # uint8; without rows where no tags are read
    cls: int
    sep: int


class SpanSampler(NamedTuple):
    """Span sampler: settings by which a round proposes and cuts a span. See `SpanPolicy`."""

    steps_S: np.ndarray  # float64, distribution function of the number of words
    by_piece: bool  # a span starts at the word of a uniformly sampled subword
    exact: bool  # the last span ends inside a word, at the budget
    every_token: bool  # each token counts as a word
    share: float  # of rounds that propose a tagged span
    longest: int  # words of a tagged span


@dataclasses.dataclass(frozen=True)
class SpanPolicy(MaskingPolicy):
    """Samples spans of words until the masking budget is used up. See docs/design.md, "Span masking algorithm"."""

    starts: Literal["words", "pieces"] = "words"
    """A span starts at a uniformly sampled word, or at the word of a uniformly sampled subword (D2)."""
    cut: Literal["words", "exact"] = "words"
    """The last span ends before the word that is over the budget, or inside it, at the budget exactly (D3)."""

    every_token = False
    """True if each token counts as a word."""

    @property
    def tagged(self) -> tuple[float, int]:
        """Share of rounds that propose one of the block's tagged spans, and the most words of one."""
        return 0.0, 0

    def problems(self) -> dict[str, bool]:
        """Adds the choices of this policy."""
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

    def masked_places(self, rows: TextRows, specials: Specials, key_B: Unsigned, rate_B: Distribution) -> Integers:
        """Implements `MaskingPolicy.masked_places`."""
        from spanjax.data.feed import kernels

        return np.flatnonzero(kernels.masked_tokens(*self._sampler(rows, specials), key_B, rate_B))

    def proposals(self, rows: TextRows, specials: Specials, key_B: Unsigned, rounds: int) -> tuple[Integers, Integers]:
        """First words, counted from 0 in their block, and numbers of words (cut at the block's end) that rounds 0 ...
        rounds-1 of every block propose, whatever is masked: [M, R] each."""
        from spanjax.data.feed import kernels

        return kernels.proposals(*self._sampler(rows, specials), key_B, rounds)

    def _sampler(self, rows: TextRows, specials: Specials) -> tuple[SamplerRows, SpanSampler]:
        """First arguments of the kernels."""
        tags_BL = rows.tags_BL if self.tag and rows.tags_BL is not None else np.zeros((0, 0))
        text = SamplerRows(
            np.ascontiguousarray(rows.tokens_BL, np.int32),
            np.ascontiguousarray(rows.segments_BL, np.int32),
            np.ascontiguousarray(rows.word_starts_BL, bool),
            np.ascontiguousarray(tags_BL, np.uint8),
            int(specials.cls),
            int(specials.sep),
        )
        by_piece, exact = self.starts == "pieces", self.cut == "exact"
        return text, SpanSampler(self._steps, by_piece, exact, self.every_token, *self.tagged)


@dataclasses.dataclass(frozen=True)
class Tokens(SpanPolicy):
    """Single tokens, sampled without replacement (BERT; "subword tokens" of SpanBERT's table 6)."""

    replacement: Replacement = Replacement(unit="token")
    """Replacement of the masked tokens."""
    every_token = True

    def length_distribution(self) -> Distribution:
        """One token."""
        return np.ones(1)


@dataclasses.dataclass(frozen=True)
class WholeWords(SpanPolicy):
    """Single whole words (SpanBERT's table 6; whole-word masking of BERT)."""

    replacement: Replacement = Replacement(unit="token")
    """Replacement of the masked tokens."""

    def length_distribution(self) -> Distribution:
        """One word."""
        return np.ones(1)


@dataclasses.dataclass(frozen=True)
class GeometricSpans(SpanPolicy):
    """Spans of whole words with geometric lengths (SpanBERT): the defaults are the paper, `as_released` is its code."""

    p: Annotated[float, Bounds(0, 1, above=True, below=True)] = 0.2
    """Parameter of the geometric distribution of a span's number of words."""
    max_words: MostWords = 10
    """The distribution is cut here and renormalised (D1)."""

    @classmethod
    def as_released(cls) -> "GeometricSpans":
        """Masking of facebookresearch/SpanBERT's code (D2, D3, D13), which goes with Boundaries(specials=False,
        max_offset=15)."""
        return cls(starts="pieces", cut="exact", replacement=Replacement(unknown=True))

    def length_distribution(self) -> Distribution:
        """Probability of 1, 2, ... max_words words: p (1-p)^(i-1), renormalised; mean 3.797098 for p = .2 and 10
        words."""
        weights = self.p * (1 - self.p) ** np.arange(self.max_words)
        return weights / weights.sum()


@dataclasses.dataclass(frozen=True)
class Ngrams(SpanPolicy):
    """n consecutive words with probability proportional to 1/n (ALBERT, section 3.1; XLNet's spans have max_words 5)."""

    replacement: Replacement = Replacement(unit="token")
    """Replacement of the masked tokens."""
    max_words: MostWords = 3
    """The longest n-gram."""

    def length_distribution(self) -> Distribution:
        """1/n over the sum of 1/n."""
        weights = 1 / np.arange(1, self.max_words + 1)
        return weights / weights.sum()


@dataclasses.dataclass(frozen=True)
class TaggedSpans(SpanPolicy):
    """Tagged spans (named entities, noun phrases) half of the time, else whole words (SpanBERT 6.1, D17; the phrase and
    entity masking of ERNIE is the same with share 1).

    The scheme of the released code is TaggedSpans(starts="pieces", cut="exact", fallback="geometric",
    replacement=Replacement(unknown=True)).
    """

    tag: str = "entities"
    """The layer of tags, as `prepare --tags` named it."""
    share: Probability = 0.5
    """Probability that a round proposes one of the block's tagged spans, uniformly sampled; else, and in a block without any,
    it proposes the `fallback`."""
    longest: MostWords = 10
    """Most words of a tagged span: of a longer one the first are proposed."""
    fallback: Literal["words", "geometric"] = "words"
    """Proposal of a round without a tagged span: one word (the paper), or a span of 1 to 10 words of the distribution of
    `GeometricSpans`, as released with the published arguments (D17)."""

    def problems(self) -> dict[str, bool]:
        """Adds the choices of this policy."""
        return super().problems() | {
            "tag is empty: expected the name of a layer, 'entities' say": not self.tag,
            f"fallback is {self.fallback!r}: expected 'words' or 'geometric'": self.fallback
            not in ("words", "geometric"),
        }

    def length_distribution(self) -> Distribution:
        """Distribution of the `fallback`."""
        return np.ones(1) if self.fallback == "words" else GeometricSpans().length_distribution()

    @property
    def tagged(self) -> tuple[float, int]:
        """Implements `SpanPolicy.tagged`."""
        return float(self.share), self.longest


@dataclasses.dataclass(frozen=True)
class EveryToken(MaskingPolicy):
    """Every text token, unchanged: the targets of next-token prediction."""

    rate: float = 1.0
    """1 alone."""
    replacement: Replacement = Replacement(mask=0.0, random=0.0, unit="token")
    """By default none."""

    def problems(self) -> dict[str, bool]:
        """Rates other than 1."""
        return super().problems() | {
            f"rate is {self.rate} and schedule {self.schedule}: expected 1 and none, every token is a target; use Tokens for"
            " less": self.rate != 1 or bool(self.schedule)
        }

    def masked_places(self, rows: TextRows, specials: Specials, key_B: Unsigned, rate_B: Distribution) -> Integers:
        """Implements `MaskingPolicy.masked_places`."""
        del key_B, rate_B
        special_BL = (rows.tokens_BL == specials.cls) | (rows.tokens_BL == specials.sep)
        return np.flatnonzero((rows.segments_BL > 0) & ~special_BL)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A policy and when it begins."""

    first_step: int = 0
    """The first step of the stage."""
    policy: MaskingPolicy = WholeWords()
    """Policy from that step on, with its own rate and replacement."""


@dataclasses.dataclass(frozen=True)
class Staged(MaskingPolicy):
    """Stages in turn; the last masks held-out rows. `rate`, `schedule` and `replacement` belong to the stages and are
    refused here; `copies` counts for all stages and is refused there."""

    stages: tuple[Stage, ...] = (Stage(),)
    """The first begins at step 0."""

    def problems(self) -> dict[str, bool]:
        """Stages that are missing or out of order; settings that nothing reads."""
        steps = [stage.first_step for stage in self.stages]
        return super().problems() | {
            f"stages begin at the steps {steps}: expected at least one, 0 first, rising": not steps
            or steps[0] != 0
            or steps != sorted({*steps}),
            "a stage of stages: expected a plain policy": any(
                isinstance(stage.policy, Staged) for stage in self.stages
            ),
            "rate, schedule or replacement beside the stages: give them to the policies of the stages": (
                self.rate,
                self.schedule,
                self.replacement,
            )
            != (MaskingPolicy.rate, MaskingPolicy.schedule, MaskingPolicy.replacement),
            "copies in a stage: give them to Staged, which counts them over all stages": any(
                each.copies for each in self.policies
            ),
        }

    @property
    def policies(self) -> tuple[MaskingPolicy, ...]:
        """Implements `MaskingPolicy.policies`."""
        return tuple(stage.policy for stage in self.stages)

    def at(self, step: int | None) -> MaskingPolicy:
        """Implements `MaskingPolicy.at`."""
        begun = [stage.policy for stage in self.stages if step is None or stage.first_step <= step]
        return begun[-1]

    @property
    def tags(self) -> tuple[str, ...]:
        """Implements `MaskingPolicy.tags`."""
        return tuple(dict.fromkeys(tag for each in self.policies for tag in each.tags))

    @property
    def most(self) -> float:
        """Implements `MaskingPolicy.most`."""
        return max(each.most for each in self.policies)

    def rate_at(self, step: int) -> float:
        """Implements `MaskingPolicy.rate_at`."""
        return self.at(step).rate_at(step)

    def masked_places(self, rows: TextRows, specials: Specials, key_B: Unsigned, rate_B: Distribution) -> Integers:
        """Masks with the last stage; batches are masked by the stage of their step, see `at`."""
        return self.at(None).masked_places(rows, specials, key_B, rate_B)
