"""Replaced token detection (ELECTRA, Clark et al., 2020): a small generator fills masked positions, and the encoder detects the
tokens that are not the original.

The step samples tokens from hashes of (seed, step, row, position): the same on any number of devices. A sample that
is the original token counts as original. No gradient flows through the samples: the detection loss reaches the encoder and the
embeddings that both share, and nothing else of the generator.
Shapes: B rows, K slots, L positions, E width of the token table, V padded vocabulary.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.bounds import NotNegative, Share
from spanjax.data.feed.masking import Boundaries, MaskingPolicy, Replacement, Tokens
from spanjax.data.feed.pairing import Pairing, Single
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import SITES, DropoutKey, gumbel
from spanjax.nn.encoder import Encoder, LayerStack
from spanjax.nn.heads import DetectionHead, TokenHead
from spanjax.nn.layer import linear
from spanjax.objectives.base import Batch, FillHead, Mean, Pretraining, type_problems
from spanjax.objectives.loss_terms import MaskedTokens, SpanBoundary
from spanjax.objectives.tied_decoder import slot_index, tied_table, token_logits, token_means

TERM = MaskedTokens()
GENERATOR_SITE, SAMPLES = SITES["generator"].start, SITES["draws"].start


def generator_encoder(encoder: EncoderConfig, hidden_size: int, layers: int, intermediate_size: int) -> EncoderConfig:
    """An encoder of these sizes above the embeddings of `encoder`, with heads as wide as its own."""
    width = encoder.embedding_width
    return dataclasses.replace(
        encoder,
        hidden_size=hidden_size,
        heads=max(1, hidden_size * encoder.heads // encoder.hidden_size),
        layers=layers,
        intermediate_size=intermediate_size,
        embedding_size=width if width != hidden_size else 0,
        num_layer_groups=0,
    )


class Generator(LayerStack):
    """Layers above the encoder's embeddings, narrower than its own, and a masked token head."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.widens = config.embedding_size > 0
        if self.widens:
            self.widen = linear(config.embedding_size, config.hidden_size, config, rngs)
        super().__init__(config, rngs)
        self.mlm = TokenHead(config, rngs)

    def __call__(self, embedded_BLE: jax.Array, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Hidden states of the last layer."""
        hidden = self.widen(embedded_BLE) if self.widens else embedded_BLE
        segments_BL, positions_BL, types_BL = (batch[name] for name in ("segments_BL", "positions_BL", "types_BL"))
        return self.run(hidden, segments_BL, positions_BL, types_BL, key, first_site=GENERATOR_SITE + 1)[0]


class Detector(nnx.Module):
    """The encoder (the discriminator) with its heads, and the generator."""

    def __init__(self, encoder: EncoderConfig, generator: EncoderConfig, boundary: SpanBoundary | None, rngs: nnx.Rngs):
        self.encoder = Encoder(encoder, rngs)
        self.rtd = DetectionHead(encoder, rngs)
        self.generator = Generator(generator, rngs)
        if boundary:
            self.sbo = boundary.head(encoder, rngs)
        self.vocab_size = encoder.vocab_size


@dataclasses.dataclass(frozen=True)
class ReplacedDetection(Pretraining):
    """Detect replaced tokens. The defaults are ELECTRA: single tokens, 85 % of them [MASK], detection weighs 50 times as much."""

    masking: MaskingPolicy = Tokens(replacement=Replacement(mask=0.85, random=0.0, unit="token"))
    """Masking policy: the tokens that the generator fills, and their replacement in its input; any policy, spans for example."""
    pairing: Pairing = Single()
    """Kind of sequences; the label of pairs is not read."""
    generator_size: Share = 0.25
    """Width of the generator's layers over that of the encoder's: 1/4 in ELECTRA small and large, 1/3 in base."""
    generator_depth: Share = 1.0
    """Layers of the generator over those of the encoder."""
    generator_weight: NotNegative = 1.0
    """Weight of the generator's masked language model."""
    detection_weight: NotNegative = 50.0
    """Weight of the detection."""
    boundary: SpanBoundary | None = None
    """The span boundary objective on the encoder, in addition to detection: predicts masked tokens from those around the span."""

    def generator(self, encoder: EncoderConfig) -> EncoderConfig:
        """Sizes of the generator."""
        return generator_encoder(
            encoder,
            hidden_size=round(self.generator_size * encoder.hidden_size),
            layers=max(1, round(self.generator_depth * encoder.layers)),
            intermediate_size=round(self.generator_size * encoder.intermediate_size),
        )

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Impossible sizes and weights."""
        found = super().problems(encoder)
        if encoder.disentangled:
            # the generator would have a width between the shared embeddings and their LayerNorm, as no class of DeBERTa has it
            found.append(
                f"encoder.disentangled_attention is {encoder.disentangled_attention!r}: expected 'none' with"
                " ReplacedDetection; train it with MaskedPrediction"
            )
        if not found and encoder.heads > 0:
            prefix = f"objective.generator_size {self.generator_size}: the generator's "
            found += [prefix + each for each in self.generator(encoder).problems()]
        return found + type_problems(self.pairing, encoder)

    @property
    def boundaries(self) -> Boundaries:
        """Boundaries of the span boundary term."""
        return self.boundary.boundaries() if self.boundary else Boundaries()

    def setting_of(self, part: str) -> str:
        """The span boundary term has settings of its own."""
        return "boundary" if part == SpanBoundary.name else ""

    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> Detector:
        """A Detector."""
        return Detector(encoder, self.generator(encoder), self.boundary, rngs)

    def loss_weights(self) -> dict[str, float]:
        """{"mlm/loss": weight of the generator, "rtd/loss": of detection, ...}."""
        weights = {"mlm/loss": self.generator_weight, "rtd/loss": self.detection_weight}
        return weights | ({"sbo/loss": self.boundary.weight} if self.boundary else {})

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Masked tokens for the generator, all tokens for detection."""
        counts = {"mlm/loss": jnp.sum(batch["slot_weight_BK"]), "rtd/loss": jnp.sum(_real(batch))}
        return counts | ({"sbo/loss": jnp.sum(self.boundary.target_weights(batch))} if self.boundary else {})

    def extra_counts(self) -> dict[str, float]:
        """0, except for the `extra_count` of the span boundary term."""
        return super().extra_counts() | ({"sbo/loss": self.boundary.extra_count} if self.boundary else {})

    def baseline_losses(self, unigram_entropy: float) -> dict[str, tuple[float, str]]:
        """The unigram entropy for predicted tokens, ln 2 for detection."""
        terms = (TERM, self.boundary) if self.boundary else (TERM,)
        predicted = {f"{term.name}/loss": term.baseline(unigram_entropy) for term in terms}
        return predicted | {"rtd/loss": (math.log(2), "a toss-up")}

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """Losses in nats, the generator's accuracy, and of detection accuracy, precision and recall over all tokens."""
        hidden_BLG = self._generated(module, batch, key)
        means = token_means((TERM,), module.generator, *tied_table(module), hidden_BLG, batch)
        corrupted_BL, replaced_BL = self._corrupted(module, hidden_BLG, batch, key)
        hidden_BLD = module.encoder(corrupted_BL, batch["segments_BL"], batch["positions_BL"], batch["types_BL"], key)
        means |= _detection(module.rtd(hidden_BLD), replaced_BL, _real(batch))
        if self.boundary:
            means |= token_means((self.boundary,), module, *tied_table(module), hidden_BLD, batch)
        return means

    def _generated(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Hidden states of the generator."""
        inputs = (batch[name] for name in ("tokens_BL", "positions_BL", "types_BL"))
        embedded_BLE = module.encoder.embeddings.narrow(*inputs, key, GENERATOR_SITE)
        return module.generator(embedded_BLE, batch, key)

    def _corrupted(
        self, module: Any, hidden_BLG: jax.Array, batch: Batch, key: DropoutKey | None
    ) -> tuple[jax.Array, jax.Array]:
        """(tokens with samples of the generator at all masked positions, True where not the original), [B, L] each.

        Samples of an evaluation do not depend on the step.
        """
        logits_BTKV = token_logits((TERM,), module.generator, *tied_table(module), hidden_BLG, batch)
        logits_BKV = jax.lax.stop_gradient(logits_BTKV[:, 0])
        drawn = key or DropoutKey(jnp.uint32(0), batch["row_B"])
        sampled_BK = jnp.argmax(logits_BKV + gumbel(drawn, SAMPLES, logits_BKV.shape), axis=-1)
        return corrupted(batch, sampled_BK.astype(jnp.int32))

    @property
    def fill_heads(self) -> tuple[FillHead, ...]:
        """The span boundary term; masks are filled by the generator, a model of its own (`pretrained.electra`)."""
        return (self.boundary.fill_head,) if self.boundary else ()

    def logits(self, module: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """Scores of the span boundary term at every slot: float32 [B, 1, K, V]."""
        assert self.boundary is not None, "without it there are no fill_heads"
        return token_logits((self.boundary,), module, *tied_table(module), hidden_BLD, batch)

    def predict(self, module: Any, batch: Batch) -> dict[str, jax.Array]:
        """{"mlm": the generator's best pieces, int32 [B, K], "sbo": those of the span boundary term where there is one}."""
        hidden_BLG = self._generated(module, batch, None)
        logits = token_logits((TERM,), module.generator, *tied_table(module), hidden_BLG, batch)
        best = {"mlm": jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32)}
        if self.boundary:
            corrupted_BL, _ = self._corrupted(module, hidden_BLG, batch, None)
            inputs = (batch[name] for name in ("segments_BL", "positions_BL", "types_BL"))
            hidden_BLD = module.encoder(corrupted_BL, *inputs)
            best["sbo"] = jnp.argmax(self.logits(module, hidden_BLD, batch)[:, 0], axis=-1).astype(jnp.int32)
        return best

    def flops(self, encoder: EncoderConfig, tokens: float, pairs: float, slots: float) -> float:
        """Matrix products of both, of the heads and of the decoder."""
        generator = self.generator(encoder)
        detection = 6 * (encoder.hidden_size**2 + encoder.hidden_size) * tokens
        filled = TERM.flops(generator, slots) + (self.boundary.flops(encoder, slots) if self.boundary else 0.0)
        return float(encoder.flops(tokens, pairs) + generator.flops(tokens, pairs) + detection + filled)


def corrupted(batch: Batch, sampled_BK: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(tokens with `sampled_BK` in the used slots and the original elsewhere, True where they differ from it), [B, L] each."""
    slots = slot_index(batch)
    original_BL = batch["tokens_BL"].at[slots].set(batch["slot_target_BK"], mode="drop")
    corrupted_BL = original_BL.at[slots].set(sampled_BK, mode="drop")
    return corrupted_BL, corrupted_BL != original_BL


def _detection(score_BL: jax.Array, replaced_BL: jax.Array, real_BL: jax.Array) -> dict[str, Mean]:
    said_BL = (score_BL > 0) & (real_BL > 0)
    loss_BL = jax.nn.softplus(score_BL) - jnp.where(replaced_BL, score_BL, 0.0)
    hits, tokens = jnp.sum((said_BL & replaced_BL).astype(jnp.float32)), jnp.sum(real_BL)
    return {
        "rtd/loss": Mean(jnp.sum(loss_BL * real_BL), tokens),
        "rtd/accuracy": Mean(jnp.sum((said_BL == replaced_BL) * real_BL), tokens),
        "rtd/precision": Mean(hits, jnp.sum(said_BL.astype(jnp.float32))),
        "rtd/recall": Mean(hits, jnp.sum(replaced_BL.astype(jnp.float32))),
    }


def _real(batch: Batch) -> jax.Array:
    """1 for tokens, 0 for padding: float32 [B, L]."""
    return (batch["segments_BL"] > 0).astype(jnp.float32)
