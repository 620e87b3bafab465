"""Loss terms of masked prediction: terms that predict a token at every slot, and terms on pairs of segments.

Shapes: B rows, K slots, P pairs a row, L positions, D hidden size.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.bounds import AtLeast1, NotNegative
from spanjax.data.feed.masking import Boundaries
from spanjax.nn.config import EncoderConfig
from spanjax.nn.heads import BoundaryHead, PairHead, TokenHead, cross_entropy, gather_positions
from spanjax.objectives.base import Batch, FillHead, Mean


class Term(abc.ABC):
    """A head and a loss on it, a mean over its targets. Final classes are frozen dataclasses; one that is no TokenTerm implements
    `measure`."""

    name: str
    """Short name in metrics and parameter paths."""
    label: str = ""
    """Label of the pairing (`Pairing.label`) that it reads; "" for none."""
    description: str = ""
    """Human-readable name of its targets."""
    weight: float
    """Weight in the sum of losses."""
    extra_count: float
    """Added to the number of targets that the loss is divided by."""

    @abc.abstractmethod
    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """The head's parameters."""

    @abc.abstractmethod
    def target_weights(self, batch: Batch) -> jax.Array:
        """1 where there is a target of this term, else 0: float32 [B, K] for tokens, [B, P] for pairs."""

    def measure(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> dict[str, Mean]:
        """ "NAME/loss" in nats over its targets, and further metrics."""
        raise NotImplementedError(f"{type(self).__name__} is no TokenTerm and has no measure")

    def flops(self, encoder: EncoderConfig, slots: float) -> float:
        """Multiply-add = 2, forward and backward, of a row with so many used slots."""
        del encoder, slots
        return 0.0

    def baseline(self, unigram_entropy: float) -> tuple[float, str] | None:
        """Loss (nats) of a model that sees no context, and a description; None: unknown."""
        del unigram_entropy
        return None

    @property
    def parts(self) -> Mapping[str, str]:
        """Its parts of the canonical tree (`torch_format.families`) -> human-readable description."""
        return {self.name: self.description}

    def of_parts(self, params: Mapping[str, Any], pair: str) -> Self | None:
        """This term with the settings of its head in a canonical tree, None without it; see `Pretraining.of_parts`."""
        del pair
        return self if self.parts.keys() <= params.keys() else None


@dataclasses.dataclass(frozen=True)
class TokenTerm(Term):
    """A head, with a `bias` over the vocabulary, that maps hidden states to one vector a slot, and the weights of slots."""

    weight: NotNegative = 1.0
    """Weight in the sum of losses."""
    extra_count: NotNegative = 0.0
    """Added to the number of targets that the loss is divided by; the released code of SpanBERT adds 1 to that of span
    boundaries (D6)."""

    @abc.abstractmethod
    def vectors(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """Vectors for the token table to decode, as wide as it is: [B, K, E]."""

    @abc.abstractmethod
    def flops_per_slot(self, encoder: EncoderConfig) -> float:
        """Multiply-add = 2, forward and backward, without the decoder."""

    def target_weights(self, batch: Batch) -> jax.Array:
        """Every used slot."""
        return batch["slot_weight_BK"]

    def flops(self, encoder: EncoderConfig, slots: float) -> float:
        """The head and the decoder."""
        return (self.flops_per_slot(encoder) + 6 * encoder.embedding_width * encoder.vocab_size) * slots

    def baseline(self, unigram_entropy: float) -> tuple[float, str]:
        """The unigram entropy."""
        return unigram_entropy, "unigram entropy of the held-out text"

    def boundaries(self) -> Boundaries | None:
        """Settings of span boundaries for the feed; None if it reads none."""
        return None

    @property
    def fill_head(self) -> FillHead:
        """Its head for filling masks."""
        return FillHead(self.name)


@dataclasses.dataclass(frozen=True)
class MaskedTokens(TokenTerm):
    """Masked language model: predict each masked piece from its own hidden state (SpanBERT 2, Devlin et al., 2019)."""

    name, description = "mlm", "masked tokens"

    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """A TokenHead."""
        return TokenHead(encoder, rngs)

    def vectors(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """The head over the hidden states of the masked positions."""
        return head(gather_positions(hidden_BLD, batch["slot_position_BK"]))

    def flops_per_slot(self, encoder: EncoderConfig) -> float:
        """The dense layer."""
        return 6 * encoder.hidden_size * encoder.embedding_width


@dataclasses.dataclass(frozen=True)
class SpanBoundary(TokenTerm):
    """Span boundary objective: predict each masked piece from the tokens around its span and its offset (SpanBERT 3.2)."""

    position_size: AtLeast1 = 200
    """Width of the offset embedding."""
    max_offset: AtLeast1 = 15
    """Rows of the offset table; tokens further inside a span have no boundary loss (D5)."""
    specials: bool = True
    """Allow [CLS] and [SEP] as a boundary (the paper: every masked token has the loss); False as released (D5)."""

    name, description = "sbo", "span boundaries"

    def of_parts(self, params: Mapping[str, Any], pair: str) -> Self | None:
        """The sizes of the head's table of offsets."""
        if self.name not in params:
            return None
        offsets, width = params[self.name]["position"]["embedding"].shape
        return dataclasses.replace(self, position_size=width, max_offset=offsets)

    @property
    def fill_head(self) -> FillHead:
        """The head of the two neighbours."""
        return FillHead(self.name, neighbours=True, reach=self.max_offset)

    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """A BoundaryHead."""
        return BoundaryHead(encoder, self.position_size, self.max_offset, rngs)

    def boundaries(self) -> Boundaries:
        """Settings of this term for the feed."""
        return Boundaries(specials=self.specials, max_offset=self.max_offset)

    def vectors(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """The head over the hidden states of the two boundary tokens, and nothing else of the row."""
        left_BKD = gather_positions(hidden_BLD, batch["slot_left_BK"])
        return head(left_BKD, gather_positions(hidden_BLD, batch["slot_right_BK"]), batch["slot_offset_BK"])

    def target_weights(self, batch: Batch) -> jax.Array:
        """Slots whose span has both boundaries and whose offset is in the table."""
        return batch["slot_boundary_weight_BK"]

    def flops_per_slot(self, encoder: EncoderConfig) -> float:
        """The two dense layers."""
        size = encoder.hidden_size
        return 6 * ((2 * size + self.position_size) * size + size * encoder.embedding_width)


@dataclasses.dataclass(frozen=True)
class SentencePair(Term):
    """Classify the pair from its [CLS]: next sentence prediction (BERT, section 3.1) or sentence order (ALBERT, section 3.1).

    The pairing defines the meaning of label 1; `name` is its `label`.
    """

    name: Literal["nsp", "sop"] = "nsp"
    """nsp: is B from another document? goes with NextSentence(). sop: are A and B swapped? goes with SentenceOrder()."""
    weight: NotNegative = 1.0
    """Weight in the sum of losses; 0 trains on pairs without the loss, and still measures it."""
    extra_count: NotNegative = 0.0
    """Added to the number of pairs that the loss is divided by."""

    @property
    def label(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name."""
        return self.name

    @property
    def parts(self) -> Mapping[str, str]:
        """The two layers of the head."""
        return {"pooler": "the pooler of [CLS]", "pair": "pairs of segments"}

    def of_parts(self, params: Mapping[str, Any], pair: str) -> Self | None:
        """The name of the loss."""
        found = super().of_parts(params, pair)
        return dataclasses.replace(self, name="sop" if pair == "sop" else "nsp") if found else None

    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """A PairHead."""
        return PairHead(encoder, rngs)

    def target_weights(self, batch: Batch) -> jax.Array:
        """Every pair; blocks that are too small for one have none."""
        return batch["pair_weight_BP"]

    def measure(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> dict[str, Mean]:
        """Cross-entropy in nats and accuracy over the pairs."""
        logits_BP2 = head(gather_positions(hidden_BLD, batch["pair_position_BP"]))
        label_BP, weight_BP = batch["pair_label_BP"], self.target_weights(batch)
        right_BP = (logits_BP2[..., 1] > logits_BP2[..., 0]) == (label_BP == 1)
        count = jnp.sum(weight_BP)
        return {
            f"{self.name}/loss": Mean(jnp.sum(cross_entropy(logits_BP2, label_BP) * weight_BP), count),
            f"{self.name}/accuracy": Mean(jnp.sum(right_BP * weight_BP), count),
        }

    def flops(self, encoder: EncoderConfig, slots: float) -> float:
        """Pooler and classifier of one pair."""
        return 6 * (encoder.hidden_size**2 + 2 * encoder.hidden_size)

    def baseline(self, unigram_entropy: float) -> tuple[float, str]:
        """The entropy of two equally probable labels."""
        return math.log(2), "a toss-up"


PAIR_NAMES = ("nsp", "sop")
"""Names of `SentencePair`, and of its head among the parameters of a run."""
_PAIR_PARTS = {"pooler": "pooler", "seq_relationship": "pair"}


def canonical(params: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a run's tree: its pair head, "nsp" or "sop", becomes "pooler" and "pair"."""
    tree = {name: part for name, part in params.items() if name not in PAIR_NAMES}
    for name in PAIR_NAMES:
        tree |= {_PAIR_PARTS[each]: part for each, part in params.get(name, {}).items()}
    return tree


def of_run(params: Mapping[str, Any], pair: str = "nsp") -> dict[str, Any]:
    """Converts a canonical tree to the names of a run. A pooler without its classifier goes into the pair head too."""
    tree = {name: part for name, part in params.items() if name not in _PAIR_PARTS.values()}
    head = {own: params[name] for own, name in _PAIR_PARTS.items() if name in params}
    return {**tree, pair: head} if head else tree
