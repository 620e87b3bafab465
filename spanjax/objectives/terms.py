"""Loss terms of masked prediction that end in a piece of the vocabulary at every slot.

Shapes: B rows, K slots, L positions, D hidden size.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from spanjax.nn.encoder import EncoderConfig
from spanjax.nn.heads import BoundaryHead, TokenHead, gather_positions

Batch = Mapping[str, jax.Array]


class TokenTerm(abc.ABC):
    """A head that turns hidden states into one vector a slot, and which slots count. Final classes are frozen dataclasses."""

    name: str
    """Short name in metrics and parameter paths."""
    weight: float
    """Weight in the sum of losses."""
    extra_count: float
    """Added to the number of targets that the loss is divided by."""

    @abc.abstractmethod
    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """The head's parameters, with a `bias` over the vocabulary."""

    @abc.abstractmethod
    def vectors(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """What the token table decodes: [B, K, D]."""

    @abc.abstractmethod
    def slot_weights(self, batch: Batch) -> jax.Array:
        """1 where a slot is a target of this term, else 0: float32 [B, K]."""

    @abc.abstractmethod
    def flops_per_slot(self, encoder: EncoderConfig) -> float:
        """Multiply-add = 2, forward and backward, without the decoder."""


@dataclasses.dataclass(frozen=True)
class MaskedTokens(TokenTerm):
    """Masked language model: predict each masked piece from its own hidden state (SpanBERT 2, Devlin et al., 2019)."""

    weight: float = 1.0
    """Weight in the sum of losses."""
    extra_count: float = 0.0
    """Added to the number of targets that the loss is divided by."""

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Name in metrics and parameter paths."""
        return "mlm"

    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """A TokenHead."""
        return TokenHead(encoder, rngs)

    def vectors(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """The head over the hidden states of the masked positions."""
        return head(gather_positions(hidden_BLD, batch["slot_position_BK"]))

    def slot_weights(self, batch: Batch) -> jax.Array:
        """Every used slot."""
        return batch["slot_weight_BK"]

    def flops_per_slot(self, encoder: EncoderConfig) -> float:
        """The dense layer."""
        return 6 * encoder.hidden_size**2


@dataclasses.dataclass(frozen=True)
class SpanBoundary(TokenTerm):
    """Span boundary objective: predict each masked piece from the tokens around its span and its offset (SpanBERT 3.2)."""

    weight: float = 1.0
    """Weight in the sum of losses."""
    extra_count: float = 0.0
    """Added to the number of targets that the loss is divided by; the released code adds 1 (D6)."""
    position_size: int = 200
    """Width of the offset embedding."""
    max_offset: int = 15
    """Rows of the offset table; tokens further inside a span have no boundary loss (D5)."""
    specials: bool = True
    """Whether [CLS] and [SEP] may be a boundary (the paper: every masked token has the loss); False as released (D5)."""

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Name in metrics and parameter paths."""
        return "sbo"

    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """A BoundaryHead."""
        return BoundaryHead(encoder, self.position_size, self.max_offset, rngs)

    def vectors(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """The head over the hidden states of the two boundary tokens, and nothing else of the row."""
        left_BKD = gather_positions(hidden_BLD, batch["slot_left_BK"])
        return head(left_BKD, gather_positions(hidden_BLD, batch["slot_right_BK"]), batch["slot_offset_BK"])

    def slot_weights(self, batch: Batch) -> jax.Array:
        """Slots whose span has both boundaries and whose offset is in the table."""
        return batch["slot_boundary_weight_BK"]

    def flops_per_slot(self, encoder: EncoderConfig) -> float:
        """The two dense layers."""
        size = encoder.hidden_size
        return 6 * ((2 * size + self.position_size) * size + size**2)
