"""Next-token prediction with causal attention: a stage before masked prediction (Gisserot-Boukhlef et al., 2025).

Encoder and head are those of masked prediction under the same names, so that `--init-from` passes all weights to its run.
Shapes: B rows, K slots, L positions, D hidden size, E width of the token table.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.data.feed.masking import EveryToken, MaskingPolicy
from spanjax.data.feed.pairing import Pairing, Single
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.heads import gather_positions
from spanjax.objectives.base import Batch, Mean, Pretraining, type_problems
from spanjax.objectives.loss_terms import MaskedTokens
from spanjax.objectives.masked_lm import MaskedPredictor
from spanjax.objectives.tied_decoder import tied_table, token_means


@dataclasses.dataclass(frozen=True)
class NextTokens(MaskedTokens):
    """The token of every slot, from the hidden state of the position before it."""

    def vectors(self, head: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """The head of masked tokens, one position earlier."""
        # a block begins with [CLS], which is no slot, so the position before a used slot is in its block
        return head(gather_positions(hidden_BLD, jnp.maximum(batch["slot_position_BK"] - 1, 0)))


TERM = NextTokens()
METRICS = "clm"  # in names of metrics; among the parameters the head is "mlm"


@dataclasses.dataclass(frozen=True)
class CausalPrediction(Pretraining):
    """Predict every token of the text from those before it in its block.

    The encoder attends in both directions wherever else it is used, so its run is a start for masked prediction and no model
    to fill masks with.
    """

    masking: MaskingPolicy = EveryToken()
    """Masking policy that chooses the targets, by default all tokens of the text. Nothing is replaced."""
    pairing: Pairing = Single()
    """Kind of sequences; the label of pairs is not read."""

    @property
    def parts(self) -> Mapping[str, str]:
        """The head of masked tokens."""
        return TERM.parts

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Replaced tokens, types that the pairing needs."""
        found = [
            f"objective.masking {type(each).__name__} has {each.replacement}: expected mask=0 and random=0, the next tokens are"
            " read unchanged; set both to 0"
            for each in self.masking.policies
            if each.replacement.mask or each.replacement.random
        ]
        return super().problems(encoder) + found + type_problems(self.pairing, encoder)

    def has_pieces(self, name: str) -> bool:
        """The bias of the head."""
        return name == f"{TERM.name}/bias"

    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> MaskedPredictor:
        """A MaskedPredictor with the head of masked tokens."""
        return MaskedPredictor(encoder, (TERM,), rngs)

    def loss_weights(self) -> dict[str, float]:
        """{"clm/loss": 1.0}."""
        return {f"{METRICS}/loss": 1.0}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of targets."""
        return {f"{METRICS}/loss": jnp.sum(TERM.target_weights(batch))}

    def baseline_losses(self, unigram_entropy: float) -> dict[str, tuple[float, str]]:
        """The unigram entropy."""
        return {f"{METRICS}/loss": TERM.baseline(unigram_entropy)}

    def hidden(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Hidden states [B, L, D] of which each has read its block up to its own position."""
        inputs = (batch[name] for name in ("tokens_BL", "segments_BL", "positions_BL", "types_BL"))
        return module.encoder(*inputs, key, causal=True)

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """Cross-entropy in nats and accuracy over the targets."""
        means = token_means((TERM,), module, *tied_table(module), self.hidden(module, batch, key), batch)
        return {name.replace(TERM.name, METRICS, 1): mean for name, mean in means.items()}

    def flops(self, encoder: EncoderConfig, tokens: float, pairs: float, slots: float) -> float:
        """Matrix products of encoder, head and decoder; of the pairs of a block half attend to each other."""
        return float(encoder.flops(tokens, (pairs + tokens) / 2) + TERM.flops(encoder, slots))
