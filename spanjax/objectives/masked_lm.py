"""Masked prediction: BERT, RoBERTa, ALBERT's data and SpanBERT as settings (masking, pairing, loss terms) of one objective.

Shapes: B rows, K slots, T token terms, L positions, D hidden size, V padded vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.data.feed.masking import Boundaries, GeometricSpans, MaskingPolicy
from spanjax.data.feed.pairing import Pairing, Single
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.encoder import Encoder
from spanjax.objectives.base import Batch, FillHead, Mean, Pretraining, type_problems
from spanjax.objectives.loss_terms import MaskedTokens, SpanBoundary, Term, TokenTerm
from spanjax.objectives.tied_decoder import tied_table, token_logits, token_means


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
    def other_terms(self) -> tuple[Term, ...]:
        """The terms without a piece of the vocabulary, such as those on pairs of segments."""
        return tuple(term for term in self.terms if not isinstance(term, TokenTerm))

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Duplicate or missing terms, negative weights, impossible head sizes, terms that do not go with the pairing."""
        found = [] if self.token_terms else ["objective.terms has none on tokens: expected at least MaskedTokens()"]
        names = [term.name for term in self.terms]
        found += [f"objective.terms has {n!r} more than once: keep one" for n in sorted({*names}) if names.count(n) > 1]
        return super().problems(encoder) + found + self._pairing_problems(encoder)

    def _pairing_problems(self, encoder: EncoderConfig) -> list[str]:
        pairing, label = type(self.pairing).__name__, self.pairing.label
        names = {term.label for term in self.terms}
        found = []
        for name in sorted(names - {label, ""}):
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

    @property
    def boundaries(self) -> Boundaries:
        """The boundaries that a term requires, such as the span boundary objective."""
        return next((found for term in self.token_terms if (found := term.boundaries())), Boundaries())

    def setting_of(self, part: str) -> str:
        """The term of this name, by its index."""
        return next((f"terms.{index}" for index, term in enumerate(self.terms) if term.name == part), "")

    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> MaskedPredictor:
        """A MaskedPredictor."""
        return MaskedPredictor(encoder, self.terms, rngs)

    def loss_weights(self) -> dict[str, float]:
        """{"mlm/loss": weight, ...}."""
        return {f"{term.name}/loss": term.weight for term in self.terms}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of targets of every term, without `extra_count`, which is added once to the global sum."""
        return {f"{term.name}/loss": jnp.sum(term.target_weights(batch)) for term in self.terms}

    def extra_counts(self) -> dict[str, float]:
        """`extra_count` of every term."""
        return {f"{term.name}/loss": term.extra_count for term in self.terms}

    def baseline_losses(self, unigram_entropy: float) -> dict[str, tuple[float, str]]:
        """Baselines of the terms, those on tokens first."""
        found = {term.name: term.baseline(unigram_entropy) for term in (*self.token_terms, *self.other_terms)}
        return {f"{name}/loss": baseline for name, baseline in found.items() if baseline}

    @property
    def parts(self) -> Mapping[str, str]:
        """Parts of the terms."""
        return {name: text for term in self.terms for name, text in term.parts.items()}

    def of_parts(self, params: Mapping[str, Any], pair: str) -> Self | None:
        """The terms that find their heads; none in an encoder alone."""
        return dataclasses.replace(
            self, terms=tuple(filter(None, (term.of_parts(params, pair) for term in self.terms)))
        )

    @property
    def fill_heads(self) -> tuple[FillHead, ...]:
        """Heads of the token terms."""
        return tuple(term.fill_head for term in self.token_terms)

    def logits(self, module: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """Scores of every token term at every slot by one product with the token table: float32 [B, T, K, V].

        Pieces that only pad the vocabulary to its stored size score -1e9.
        """
        return token_logits(self.token_terms, module, *tied_table(module), hidden_BLD, batch)

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """Cross-entropy in nats and accuracy of every term, over its targets."""
        hidden_BLD = self.hidden(module, batch, key)
        means = token_means(self.token_terms, module, *tied_table(module), hidden_BLD, batch)
        for term in self.other_terms:
            means |= term.measure(getattr(module, term.name), hidden_BLD, batch)
        return means

    def flops(self, encoder: EncoderConfig, tokens: float, pairs: float, slots: float) -> float:
        """Matrix products of encoder, attention, heads and decoder (PaLM-style count, without remat)."""
        return float(encoder.flops(tokens, pairs) + sum(term.flops(encoder, slots) for term in self.terms))
