"""Permutation language modelling (XLNet, Yang et al., 2019): targets are predicted one after the other in a random order.

The masking policy chooses the targets; the rest is context, which all targets see. A target also sees the targets before it in a
factorisation order, which the step samples from hashes of (seed, step, row, position): the same on any number of devices. With a
memory, rows are read as streams, and each sees hidden states of the row before it in its stream.
Shapes: B rows, K slots, L positions, N layers, M positions of the memory, D hidden size, V padded vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.bounds import AtLeast0
from spanjax.data.feed.masking import MaskingPolicy, Ngrams, Replacement
from spanjax.data.feed.pairing import FullSentences, Pairing, Single
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import SITES, DropoutKey, random_bits
from spanjax.nn.encoder import Encoder
from spanjax.nn.heads import QueryHead, QueryStart
from spanjax.nn.two_streams import CONTEXT, Memory, context_of, remembered, two_streams
from spanjax.objectives.base import Batch, FillHead, Mean, Pretraining, type_problems
from spanjax.objectives.loss_terms import TokenTerm
from spanjax.objectives.tied_decoder import slot_index, tied_table, token_logits, token_means

ORDERS = SITES["draws"].start  # the site from which orders are sampled
BLOCK_BITS, DRAWN_BITS = 8, 23
STATES, USED = "memory_states", "memory_used"


@dataclasses.dataclass(frozen=True)
class PermutedTokens(TokenTerm):
    """The query stream's hidden states at the slots, decoded without a further layer."""

    name, description = "plm", "the bias of permuted tokens"

    def head(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """A QueryHead."""
        return QueryHead(encoder, rngs)

    def vectors(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """The hidden states unchanged: the query stream is at the slots already."""
        return hidden_BLD

    def flops_per_slot(self, encoder: EncoderConfig) -> float:
        """Products of the query stream in all layers: queries, outputs, feed-forward parts."""
        return 6 * encoder.layers * encoder.hidden_size * (2 * encoder.hidden_size + 2 * encoder.intermediate_size)


TERM = PermutedTokens()


class Permuter(nnx.Module):
    """The encoder, and the initial vector and the head of the query stream."""

    def __init__(self, encoder: EncoderConfig, rngs: nnx.Rngs):
        self.encoder = Encoder(encoder, rngs)
        self.query = QueryStart(encoder, rngs)
        self.plm = TERM.head(encoder, rngs)
        self.vocab_size = encoder.vocab_size


@dataclasses.dataclass(frozen=True)
class PermutedPrediction(Pretraining):
    """Predict a sixth of the text in a random order. The defaults are XLNet without a memory: n-grams of up to 5 words."""

    masking: MaskingPolicy = Ngrams(
        rate=1 / 6, max_words=5, replacement=Replacement(mask=0.0, random=0.0, unit="token")
    )
    """Masking policy that chooses the targets. Nothing is replaced: the content stream reads all tokens."""
    pairing: Pairing = Single()
    """Kind of sequences; the label of pairs is not read."""
    block: AtLeast0 = 0
    """Positions of a row that are permuted among each other, before those of the next block: 256 of 512 in XLNet; 0 permutes
    whole rows."""
    memory: AtLeast0 = 0
    """Visible positions of the previous row (384 in XLNet); more than 0 reads rows as streams, one per batch index."""
    both_ways: bool = True
    """Every other batch index reads its stream backwards, with the following row as memory (XLNet's bidirectional data)."""

    @property
    def parts(self) -> Mapping[str, str]:
        """Start and end of the query stream."""
        return {"query": "the start of the query stream", **TERM.parts}

    @property
    def fill_heads(self) -> tuple[FillHead, ...]:
        """The one term."""
        return (TERM.fill_head,)

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Settings that do not go together."""
        found = super().problems(encoder)
        if not encoder.relative_attention:
            found.append("encoder.relative_attention is False: expected True, both streams attend by distances")
        found += [
            f"objective.masking {type(each).__name__} has {each.replacement}: expected mask=0 and random=0, attention hides"
            for each in self.masking.policies
            if each.replacement.mask or each.replacement.random
        ]
        if self.memory > 0 and not isinstance(self.pairing, FullSentences):
            name = type(self.pairing).__name__
            found.append(
                f"objective.pairing {name} with objective.memory {self.memory}: expected FullSentences(), whole rows"
            )
        return found + type_problems(self.pairing, encoder)

    @property
    def required_order(self) -> str:
        """Streams of consecutive rows where there is a memory."""
        return ("both_ways" if self.both_ways else "streams") if self.memory else ""

    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> Permuter:
        """A Permuter."""
        return Permuter(encoder, rngs)

    def loss_weights(self) -> dict[str, float]:
        """{"plm/loss": 1.0}."""
        return {"plm/loss": 1.0}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of targets."""
        return {"plm/loss": jnp.sum(batch["slot_weight_BK"])}

    def baseline_losses(self, unigram_entropy: float) -> dict[str, tuple[float, str]]:
        """The unigram entropy."""
        return {"plm/loss": TERM.baseline(unigram_entropy)}

    @property
    def memory_length(self) -> int:
        """Positions of the memory."""
        return self.memory

    def recurrent_state(self, encoder: EncoderConfig, length: int, dtype: Any) -> dict[str, jax.ShapeDtypeStruct]:
        """The memory of a row."""
        if not self.memory:
            return {}
        states = jax.ShapeDtypeStruct((encoder.layers, self.memory, encoder.hidden_size), dtype)
        return {STATES: states, USED: jax.ShapeDtypeStruct((self.memory,), jnp.dtype(jnp.int32))}

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """Cross-entropy in nats and accuracy over the targets; without a memory where the batch has none."""
        return self.losses_with_state(module, batch, key)[0]

    def losses_with_state(
        self, module: Any, batch: Batch, key: DropoutKey | None
    ) -> tuple[dict[str, Mean], dict[str, jax.Array]]:
        """Implements `measure`, and returns the memory for the next rows."""
        memory = self._memory(batch)
        slots_BKD, read_NBLD = self._streams(module, batch, self.ranks(batch, key), memory, key)
        means = token_means((TERM,), module, *tied_table(module), slots_BKD, batch)
        if memory is None:
            return means, {}
        kept = remembered(read_NBLD, batch["segments_BL"], memory)
        return means, {STATES: kept.states_BNMD, USED: kept.used_BM}

    def ranks(self, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Ranks of targets in the factorisation order, int32 [B, L]; CONTEXT for the rest. Those of an evaluation do not
        depend on the step.
        """
        rows, length = batch["tokens_BL"].shape
        bits_BL = random_bits(key or DropoutKey(jnp.uint32(0), batch["row_B"]), ORDERS, (rows, length))
        rank_BL = (bits_BL >> (32 - DRAWN_BITS)).astype(jnp.int32)
        if self.block:
            block_L = jnp.arange(length) // self.block
            block_BL = jnp.where(self._backward(batch)[:, None], block_L[-1] - block_L[None], block_L[None])
            rank_BL += jnp.minimum(block_BL, 2**BLOCK_BITS - 1).astype(jnp.int32) << DRAWN_BITS
        return jnp.where(_targets(batch), rank_BL, CONTEXT)

    def hidden(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """The query stream at every slot, [B, K, D], from the context alone: no target is seen."""
        return self._streams(module, batch, jnp.where(_targets(batch), 0, CONTEXT), None, key)[0]

    def logits(self, module: Any, hidden_BKD: jax.Array, batch: Batch) -> jax.Array:
        """Scores at every slot by the token table: float32 [B, 1, K, V]."""
        return token_logits((TERM,), module, *tied_table(module), hidden_BKD, batch)

    def flops(self, encoder: EncoderConfig, tokens: float, pairs: float, slots: float) -> float:
        """Matrix products of both streams, without the memory's keys, and of the decoder."""
        seen = pairs / max(tokens, 1.0)  # from a slot; its scores by distance are computed at every position
        attended = 6 * encoder.layers * encoder.hidden_size * (2 * seen * slots + pairs)
        return float(encoder.flops(tokens, pairs) + TERM.flops(encoder, slots) + attended)

    def _streams(
        self, module: Any, batch: Batch, rank_BL: jax.Array, memory: Memory | None, key: DropoutKey | None
    ) -> tuple[jax.Array, jax.Array]:
        start_D = module.query.start[...]
        context = context_of(batch["segments_BL"], batch["types_BL"], rank_BL, batch["slot_position_BK"], memory)
        return two_streams(module.encoder, start_D, batch["tokens_BL"], context, memory, key)

    def _backward(self, batch: Batch) -> jax.Array:
        """Rows that are read backwards: those at odd batch indices."""
        return (batch["row_B"] % 2 == 1) if self.memory and self.both_ways else jnp.zeros_like(batch["row_B"], bool)

    def _memory(self, batch: Batch) -> Memory | None:
        return Memory(batch[STATES], batch[USED], self._backward(batch)) if STATES in batch else None


def _targets(batch: Batch) -> jax.Array:
    """Mask of the targets, bool [B, L]."""
    return jnp.zeros(batch["tokens_BL"].shape, bool).at[slot_index(batch)].set(True, mode="drop")
