"""Masked prediction: BERT, BERT-1seq and SpanBERT as settings (masking policy, loss terms) of one objective.

Shapes: B rows, K slots, T terms, L positions, D hidden size, V padded vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.data.batch import FeedSpec
from spanjax.data.masking import GeometricSpans, MaskingPolicy
from spanjax.data.replacement import Boundaries
from spanjax.mean import Mean
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.encoder import Encoder, EncoderConfig
from spanjax.nn.heads import cross_entropy, decode
from spanjax.objectives.base import Objective
from spanjax.objectives.terms import MaskedTokens, SpanBoundary, TokenTerm


class MaskedPredictor(nnx.Module):
    """The encoder and one head for every term, under the term's name."""

    def __init__(self, encoder: EncoderConfig, terms: tuple[TokenTerm, ...], rngs: nnx.Rngs):
        self.encoder = Encoder(encoder, rngs)
        self.vocab_size = encoder.vocab_size
        for term in terms:
            setattr(self, term.name, term.head(encoder, rngs))


@dataclasses.dataclass(frozen=True)
class MaskedPrediction(Objective):
    """Mask a part of the text and predict it. The defaults are SpanBERT: geometric spans, MLM + SBO, single sequences."""

    masking: MaskingPolicy = dataclasses.field(default_factory=GeometricSpans)
    """Which tokens are masked and what replaces them."""
    terms: tuple[TokenTerm, ...] = (MaskedTokens(), SpanBoundary())
    """Loss terms; each is a mean over its own targets, and the weighted means are summed (D6)."""

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Duplicate or missing terms, negative weights, impossible head sizes."""
        found = [] if self.terms else ["objective.terms is empty: expected at least MaskedTokens()"]
        names = [term.name for term in self.terms]
        found += [f"objective.terms has {n!r} more than once: keep one" for n in sorted({*names}) if names.count(n) > 1]
        found += [f"objective {t.name} weight is {t.weight}: expected 0 or more" for t in self.terms if t.weight < 0]
        boundary = self.boundary_term()
        if boundary and min(boundary.position_size, boundary.max_offset) < 1:
            found.append(f"objective sbo position_size and max_offset must be at least 1, got {boundary}")
        return found

    def boundary_term(self) -> SpanBoundary | None:
        """The span boundary term, where there is one."""
        return next((term for term in self.terms if isinstance(term, SpanBoundary)), None)

    def feed_spec(self, *, seed: int, batch_size: int, order: str) -> FeedSpec:
        """Masked rows with the boundaries that the SBO term asks for."""
        term = self.boundary_term()
        boundaries = Boundaries(specials=term.specials, max_offset=term.max_offset) if term else Boundaries()
        return FeedSpec(seed=seed, batch_size=batch_size, masking=self.masking, boundaries=boundaries, order=order)  # pyright: ignore[reportArgumentType]

    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> MaskedPredictor:
        """A MaskedPredictor."""
        return MaskedPredictor(encoder, self.terms, rngs)

    def loss_weights(self) -> dict[str, float]:
        """{"mlm/loss": weight, ...}."""
        return {f"{term.name}/loss": term.weight for term in self.terms}

    def counts(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The number of targets of every term, without `extra_count`, which is added once to the global sum."""
        return {f"{term.name}/loss": jnp.sum(term.slot_weights(batch)) for term in self.terms}

    def extra_counts(self) -> dict[str, float]:
        """`extra_count` of every term."""
        return {f"{term.name}/loss": term.extra_count for term in self.terms}

    def hidden(self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None) -> jax.Array:
        """The encoder's hidden states of the rows, [B, L, D]."""
        inputs = (batch[name] for name in ("tokens_BL", "segments_BL", "positions_BL", "types_BL"))
        return module.encoder(*inputs, key)

    def logits(self, module: Any, hidden_BLD: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
        """Scores of every term at every slot by one product with the token table: float32 [B, T, K, V].

        Pieces that only pad the vocabulary to its stored size score -1e9.
        """
        heads = [getattr(module, term.name) for term in self.terms]
        vectors = [term.vectors(head, hidden_BLD, batch) for term, head in zip(self.terms, heads, strict=True)]
        slots = vectors[0].shape[1]
        logits_BSV = decode(jnp.concatenate(vectors, axis=1), module.encoder.token_table())
        bias_TV = jnp.stack([head.bias[...].astype(jnp.float32) for head in heads])
        bias_TV = jnp.where(jnp.arange(bias_TV.shape[1])[None] < module.vocab_size, bias_TV, jnp.float32(-1e9))
        logits_BTKV = logits_BSV.reshape(-1, len(heads), slots, logits_BSV.shape[-1])
        return logits_BTKV + bias_TV[None, :, None, :]

    def measure(self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None) -> dict[str, Mean]:
        """Cross-entropy in nats and accuracy of every term, over its targets."""
        logits_BTKV = self.logits(module, self.hidden(module, batch, key), batch)
        target_BTK = jnp.repeat(batch["slot_target_BK"][:, None], len(self.terms), axis=1)
        loss_BTK = cross_entropy(logits_BTKV, target_BTK)
        target_logit_BTK = jnp.take_along_axis(logits_BTKV, target_BTK[..., None], axis=-1)[..., 0]
        right_BTK = jax.lax.stop_gradient(target_logit_BTK >= jnp.max(logits_BTKV, axis=-1))
        means = {}
        for index, term in enumerate(self.terms):
            weights_BK = term.slot_weights(batch)
            count = jnp.sum(weights_BK)
            means[f"{term.name}/loss"] = Mean(jnp.sum(loss_BTK[:, index] * weights_BK), count)
            means[f"{term.name}/accuracy"] = Mean(jnp.sum(right_BTK[:, index] * weights_BK), count)
        return means

    def predict(self, module: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """{"mlm": int32 [B, K], "sbo": ...}."""
        best_BTK = jnp.argmax(self.logits(module, self.hidden(module, batch, None), batch), axis=-1).astype(jnp.int32)
        return {term.name: best_BTK[:, index] for index, term in enumerate(self.terms)}

    def flops_per_row(self, encoder: EncoderConfig, length: int, slots: int) -> float:
        """Matrix products of encoder, attention, heads and decoder over one row (PaLM-style count, no recomputation)."""
        size, layers = encoder.hidden_size, encoder.layers
        products = 6 * layers * (4 * size**2 + 2 * size * encoder.intermediate_size) * length
        attention = 12 * layers * size * length**2
        heads = sum(t.flops_per_slot(encoder) + 6 * size * encoder.vocab_size for t in self.terms) * slots
        return float(products + attention + heads)
