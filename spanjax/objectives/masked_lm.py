"""Masked prediction: BERT, RoBERTa, ALBERT's data and SpanBERT as settings (masking, pairing, loss terms) of one objective.

Shapes: B rows, K slots, T token terms, L positions, D hidden size, V padded vocabulary.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.bounds import range_problems
from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.masking import Boundaries, GeometricSpans, MaskingPolicy
from spanjax.data.feed.pairing import Pairing, Single
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.encoder import Encoder
from spanjax.objectives.base import Mean, Pretraining, type_problems
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary, Term, TokenTerm
from spanjax.objectives.tied_decoder import token_logits, token_means


class MaskedPredictor(nnx.Module):
    """The encoder and one head for every term, under the term's name."""

    def __init__(self, encoder: EncoderConfig, terms: tuple[Term, ...], rngs: nnx.Rngs):
        self.encoder = Encoder(encoder, rngs)
        self.vocab_size = encoder.vocab_size
        for term in terms:
            setattr(self, term.name, term.head(encoder, rngs))


@dataclasses.dataclass(frozen=True)
class MaskedPrediction(Pretraining):
    """Mask a part of the text and predict it. The defaults are SpanBERT: geometric spans, MLM + SBO, single sequences."""

    masking: MaskingPolicy = dataclasses.field(default_factory=GeometricSpans)
    """Masking policy: the tokens to mask and their replacements."""
    pairing: Pairing = Single()
    """Kind of sequences: single blocks, whole rows, or pairs of segments."""
    terms: tuple[Term, ...] = (MaskedTokens(), SpanBoundary())
    """Loss terms; each is a mean over its own targets, and the weighted means are summed (D6)."""

    @property
    def token_terms(self) -> tuple[TokenTerm, ...]:
        """The terms that end in a piece of the vocabulary, in their order."""
        return tuple(term for term in self.terms if isinstance(term, TokenTerm))

    @property
    def pair_terms(self) -> tuple[SentencePair, ...]:
        """The terms on pairs of segments."""
        return tuple(term for term in self.terms if isinstance(term, SentencePair))

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Duplicate or missing terms, negative weights, impossible head sizes, terms that do not go with the pairing."""
        found = [] if self.token_terms else ["objective.terms has none on tokens: expected at least MaskedTokens()"]
        names = [term.name for term in self.terms]
        found += [f"objective.terms has {n!r} more than once: keep one" for n in sorted({*names}) if names.count(n) > 1]
        return range_problems(self, "objective.") + found + self._pairing_problems(encoder)

    def _pairing_problems(self, encoder: EncoderConfig) -> list[str]:
        pairing, label = type(self.pairing).__name__, self.pairing.label
        names = {term.name for term in self.pair_terms}
        found = []
        for name in sorted(names - {label}):
            fitting = {"nsp": "NextSentence()", "sop": "SentenceOrder()"}.get(name, "a pairing with that label")
            found.append(
                f"objective.terms has SentencePair({name!r}), but objective.pairing {pairing} has"
                f" {f'the label {label!r}' if label else 'no pairs'}: use {fitting}, or leave the term out"
            )
        if label and label not in names:
            found.append(
                f"objective.pairing {pairing} makes pairs with the label {label!r} that no term reads: add"
                f" SentencePair({label!r}) to objective.terms, with weight=0 to train without its loss"
            )
        return found + type_problems(self.pairing, encoder)

    def boundary_term(self) -> SpanBoundary | None:
        """The span boundary term, where there is one."""
        return next((term for term in self.terms if isinstance(term, SpanBoundary)), None)

    def feed_spec(self, *, seed: int, batch_size: int, order: str) -> FeedSpec:
        """Masked rows of the pairing, with the boundaries that the SBO term requires."""
        term = self.boundary_term()
        return FeedSpec(
            seed=seed,
            batch_size=batch_size,
            masking=self.masking,
            boundaries=term.boundaries() if term else Boundaries(),
            order=self.order_of(order),  # pyright: ignore[reportArgumentType]
            pairing=self.pairing,
        )

    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> MaskedPredictor:
        """A MaskedPredictor."""
        return MaskedPredictor(encoder, self.terms, rngs)

    def loss_weights(self) -> dict[str, float]:
        """{"mlm/loss": weight, ...}."""
        return {f"{term.name}/loss": term.weight for term in self.terms}

    def counts(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The number of targets of every term, without `extra_count`, which is added once to the global sum."""
        return {f"{term.name}/loss": jnp.sum(term.target_weights(batch)) for term in self.terms}

    def extra_counts(self) -> dict[str, float]:
        """`extra_count` of every term."""
        return {f"{term.name}/loss": term.extra_count for term in self.terms}

    def baseline_losses(self, unigram_entropy: float) -> dict[str, tuple[float, str]]:
        """The unigram entropy for tokens, ln 2 for pairs."""
        tokens = {
            f"{term.name}/loss": (unigram_entropy, "unigram entropy of the held-out text") for term in self.token_terms
        }
        return tokens | {f"{term.name}/loss": (math.log(2), "a toss-up") for term in self.pair_terms}

    def hidden(self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None) -> jax.Array:
        """The encoder's hidden states of the rows, [B, L, D]."""
        inputs = (batch[name] for name in ("tokens_BL", "segments_BL", "positions_BL", "types_BL"))
        return module.encoder(*inputs, key)

    def logits(self, module: Any, hidden_BLD: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
        """Scores of every token term at every slot by one product with the token table: float32 [B, T, K, V].

        Pieces that only pad the vocabulary to its stored size score -1e9.
        """
        return token_logits(self.token_terms, module, *_table(module), hidden_BLD, batch)

    def measure(self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None) -> dict[str, Mean]:
        """Cross-entropy in nats and accuracy of every term, over its targets."""
        hidden_BLD = self.hidden(module, batch, key)
        means = token_means(self.token_terms, module, *_table(module), hidden_BLD, batch)
        for term in self.pair_terms:
            means |= term.measure(getattr(module, term.name), hidden_BLD, batch)
        return means

    def predict(self, module: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """{"mlm": int32 [B, K], "sbo": ...} of the token terms."""
        best_BTK = jnp.argmax(self.logits(module, self.hidden(module, batch, None), batch), axis=-1).astype(jnp.int32)
        return {term.name: best_BTK[:, index] for index, term in enumerate(self.token_terms)}

    def flops(self, encoder: EncoderConfig, tokens: float, pairs: float, slots: float) -> float:
        """Matrix products of encoder, attention, heads and decoder (PaLM-style count, without remat)."""
        decoder = 6 * encoder.embedding_width * encoder.vocab_size
        heads = sum(term.flops_per_slot(encoder) + decoder for term in self.token_terms) * slots
        classified = sum(term.flops_per_pair(encoder) for term in self.pair_terms)
        return float(encoder.flops(tokens, pairs) + heads + classified)


def _table(module: MaskedPredictor) -> tuple[jax.Array, int]:
    """The token table and the number of its rows that are pieces."""
    return module.encoder.token_table(), module.vocab_size
