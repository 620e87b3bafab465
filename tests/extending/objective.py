"""An objective: masked language modelling with smoothed targets.

Shapes: B rows, K slots, L positions, D hidden size, V padded vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.bounds import Bounds
from spanjax.data.feed.masking import GeometricSpans, MaskingPolicy
from spanjax.data.feed.pairing import Pairing, Single
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.encoder import Encoder
from spanjax.nn.heads import TokenHead, cross_entropy, decode, gather_positions
from spanjax.objectives.base import FillHead, Mean, Pretraining


class Smoother(nnx.Module):
    """The encoder and a token head."""

    def __init__(self, encoder: EncoderConfig, rngs: nnx.Rngs):
        self.encoder = Encoder(encoder, rngs)
        self.smooth = TokenHead(encoder, rngs)
        self.vocab_size = encoder.vocab_size


@dataclasses.dataclass(frozen=True)
class SmoothedPrediction(Pretraining):
    """Predict masked tokens; the other tokens of the vocabulary share a part of each target's probability."""

    masking: MaskingPolicy = GeometricSpans()
    """Masking policy: the tokens to mask and their replacements."""
    pairing: Pairing = Single()
    """Kind of sequences."""
    smoothing: Annotated[float, Bounds(0, 1, below=True)] = 0.1
    """Probability that is taken from the target."""

    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """A Smoother."""
        return Smoother(encoder, rngs)

    def loss_weights(self) -> dict[str, float]:
        """One loss."""
        return {"smooth/loss": 1.0}

    def counts(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The number of masked tokens."""
        return {"smooth/loss": jnp.sum(batch["slot_weight_BK"])}

    def measure(self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None) -> dict[str, Mean]:
        """The loss in nats, and the accuracy."""
        logits_BKV = self.logits(module, self.hidden(module, batch, key), batch)[:, 0, :, : module.vocab_size]
        target_BK, weight_BK = batch["slot_target_BK"], batch["slot_weight_BK"]
        uniform_BK = jax.nn.logsumexp(logits_BKV, axis=-1) - jnp.mean(logits_BKV, axis=-1)
        loss_BK = (1 - self.smoothing) * cross_entropy(logits_BKV, target_BK) + self.smoothing * uniform_BK
        right_BK = jnp.argmax(logits_BKV, axis=-1) == target_BK
        return {
            "smooth/loss": Mean(jnp.sum(loss_BK * weight_BK), jnp.sum(weight_BK)),
            "smooth/accuracy": Mean(jnp.sum(right_BK * weight_BK), jnp.sum(weight_BK)),
        }

    @property
    def fill_heads(self) -> tuple[FillHead, ...]:
        """The token head: for `predict fill-mask` and the examples of the report."""
        return (FillHead("smooth"),)

    def logits(self, module: Any, hidden_BLD: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
        """Scores at every slot: float32 [B, 1, K, V]; rows that only pad the vocabulary score -1e9."""
        vectors_BKD = module.smooth(gather_positions(hidden_BLD, batch["slot_position_BK"]))
        bias_V = module.smooth.bias[...].astype(jnp.float32)
        bias_V = jnp.where(jnp.arange(len(bias_V)) < module.vocab_size, bias_V, -1e9)
        return (decode(vectors_BKD, module.encoder.token_table()) + bias_V[None, None])[:, None]
