"""A loss term: the length of a masked span, from the tokens on its two sides.

Shapes: B rows, K slots, L positions, D hidden size, C classes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.bounds import AtLeast1, NotNegative
from spanjax.nn.config import EncoderConfig
from spanjax.nn.heads import cross_entropy, gather_positions
from spanjax.nn.layer import linear
from spanjax.objectives.base import Mean
from spanjax.objectives.loss_terms import Term


@dataclasses.dataclass(frozen=True)
class SpanLength(Term):
    """Classifies every masked span by its number of tokens; the last class holds all longer ones."""

    weight: NotNegative = 0.1
    """Weight in the sum of losses."""
    extra_count: NotNegative = 0.0
    """Added to the number of spans that the loss is divided by."""
    classes: AtLeast1 = 10
    """Lengths that are told apart."""

    name, description = "length", "lengths of spans"

    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """One dense layer."""
        return linear(2 * encoder.hidden_size, self.classes, encoder, rngs)

    def target_weights(self, batch: Mapping[str, jax.Array]) -> jax.Array:
        """1 at the first token of every span that has a neighbour on both sides: float32 [B, K]."""
        return batch["slot_boundary_weight_BK"] * (batch["slot_offset_BK"] == 0)

    def measure(self, head: Any, hidden_BLD: jax.Array, batch: Mapping[str, jax.Array]) -> dict[str, Mean]:
        """Cross-entropy in nats and accuracy over the spans."""
        left_BK, right_BK, weight_BK = batch["slot_left_BK"], batch["slot_right_BK"], self.target_weights(batch)
        around = [gather_positions(hidden_BLD, place_BK) for place_BK in (left_BK, right_BK)]
        logits_BKC = head(jnp.concatenate(around, axis=-1)).astype(jnp.float32)
        class_BK = jnp.clip(right_BK - left_BK - 2, 0, self.classes - 1)
        loss_BK, correct_BK = cross_entropy(logits_BKC, class_BK), jnp.argmax(logits_BKC, axis=-1) == class_BK
        spans = jnp.sum(weight_BK)
        return {
            "length/loss": Mean(jnp.sum(loss_BK * weight_BK), spans),
            "length/accuracy": Mean(jnp.sum(correct_BK * weight_BK), spans),
        }
