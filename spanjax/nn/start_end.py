"""Coreference from the first and last pieces of spans alone: bilinear scores, no vectors of spans (Kirstain et al., 2021).

A piece has four vectors: as the first and as the last piece of a mention, and the same of a span in a pair. A mention scores
linearly in its two vectors, and bilinearly in both; a pair bilinearly in the two of either span. All antecedents are scored, as
a product of two matrices. Unlike the published model, bilinear scores are divided by the root of their size, which gives them
the scale of the linear ones at the start, and crossing spans are dropped.

Shapes of one document: N pieces, D hidden size, W widths, M spans that are kept, J candidates for antecedents (the spans, and in
a window of a document those remembered before them), H size of a piece's vectors, G = 2 H.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.nn.config import EncoderConfig
from spanjax.nn.coreference_parts import CoreferenceConfig, CorefInputs, Resolver, Spans, dense, joined, product
from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.span_pruning import Kept


class PieceVectors(nnx.Module):
    """A dense layer, GELU, LayerNorm and dropout."""

    def __init__(self, size: int, config: CoreferenceConfig, rngs: nnx.Rngs):
        self.dense, self.rate = dense(size, config.hidden_size, config, rngs), config.dropout
        self.norm = nnx.LayerNorm(config.hidden_size, epsilon=1e-5, rngs=rngs)

    def __call__(self, hidden_ND: jax.Array, key: DropoutKey | None, site: int) -> jax.Array:
        """[N, D] -> [N, H]."""
        vector_NH = self.norm(jax.nn.gelu(product(hidden_ND, self.dense)))
        return dropout(vector_NH[None], self.rate, key, site)[0]


class StartEnd(Resolver):
    """Everything above the encoder."""

    def __init__(self, encoder: EncoderConfig, config: CoreferenceConfig, rngs: nnx.Rngs):
        size, hidden = encoder.hidden_size, config.hidden_size
        self.config, self.level_size, self.level_count = config, 2 * hidden, 1
        self.mention_first, self.mention_last = (PieceVectors(size, config, rngs) for _ in range(2))
        self.pair_first, self.pair_last = (PieceVectors(size, config, rngs) for _ in range(2))
        self.first_score, self.last_score = (dense(hidden, 1, config, rngs) for _ in range(2))
        self.mention_both, self.pair_both = (
            dense(hidden, hidden, config, rngs),
            dense(2 * hidden, 2 * hidden, config, rngs),
        )

    def _mention_parts(
        self, hidden_ND: jax.Array, key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Scores of every piece as a first and as a last one [N], and the two vectors whose products are scores [N, H]."""
        first_NH, last_NH = self.mention_first(hidden_ND, key, site), self.mention_last(hidden_ND, key, site + 1)
        scores = (product(first_NH, self.first_score)[:, 0], product(last_NH, self.last_score)[:, 0])
        both_NH = product(first_NH, self.mention_both) * self.config.hidden_size**-0.5
        return scores[0].astype(jnp.float32), scores[1].astype(jnp.float32), both_NH, last_NH

    def span_scores(self, hidden_ND: jax.Array, pieces: CorefInputs) -> jax.Array:
        """Implements `Resolver.span_scores`."""
        length, widths = len(hidden_ND), self.config.max_width
        first_N, last_N, both_NH, last_NH = self._mention_parts(hidden_ND, None, 0)
        last_N, last_NH = jnp.pad(last_N, (0, widths)), jnp.pad(last_NH, ((0, widths), (0, 0)))

        def wider(_: None, width: jax.Array) -> tuple[None, jax.Array]:
            own_N, own_NH = (jax.lax.dynamic_slice_in_dim(each, width, length) for each in (last_N, last_NH))
            return None, first_N + own_N + _products(both_NH, own_NH)

        score_WN = jax.lax.scan(wider, None, jnp.arange(widths))[1]
        return jnp.where(self.spans_of(pieces), score_WN.T, -jnp.inf)

    def describe(
        self, hidden_ND: jax.Array, kept: Kept, key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array]:
        """Implements `Resolver.describe`: [first; last] of a pair. Uses the first four sites, as pairs have no dropout."""
        first_N, last_N, both_NH, last_NH = self._mention_parts(hidden_ND, key, site)
        first_M, last_M, _ = kept
        mention_M = first_N[first_M] + last_N[last_M] + _products(both_NH[first_M], last_NH[last_M])
        first_NH, last_NH = self.pair_first(hidden_ND, key, site + 2), self.pair_last(hidden_ND, key, site + 3)
        return jnp.concatenate([first_NH[first_M], last_NH[last_M]], axis=1), mention_M

    def pair_scores(
        self, own: Spans, memory: Spans | None, genre: jax.Array, key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
        """Implements `Resolver.pair_scores`; every candidate is an antecedent, -inf where it does not precede the span."""
        other = joined(memory, own)
        own_MG = product(own.levels[0], self.pair_both) * self.level_size**-0.5
        score_MJ = jnp.einsum("ig,jg->ij", own_MG, other.levels[0], preferred_element_type=jnp.float32)
        score_MJ += own.mention_M[:, None] + other.mention_M[None]
        before_MJ = other.number_M[None] < own.number_M[:, None]
        score_MJ = jnp.where(before_MJ & own.real_M[:, None] & other.real_M[None], score_MJ, -jnp.inf)
        antecedent_MJ = jnp.broadcast_to(jnp.arange(score_MJ.shape[1])[None], score_MJ.shape)
        return antecedent_MJ, score_MJ, own.levels


def _products(one_XH: jax.Array, other_XH: jax.Array) -> jax.Array:
    return jnp.einsum("xh,xh->x", one_XH, other_XH, preferred_element_type=jnp.float32)
