"""Coreference from coarse to fine (Lee et al., 2018) on independent segments (Joshi et al., 2019), SpanBERT section 4.1.

The first layers over a span [first piece; last piece; width; head] and over a pair [g_i; g_j; g_i * g_j; features] are linear, so
they are sums of parts: a term that depends on one piece or one span is computed once for it, not once for every span or pair.
Only the spans that are kept get vectors. Large intermediates exist for some hundreds of spans at a time,
forward and backward, so that memory grows with the pieces of a document and not with its spans or pairs.

Differences from the published model: spans are chosen by scores without dropout; the projection of heads has no bias, which a
softmax does not see.

Shapes of one document: N pieces, D hidden size, W widths, M spans that are kept, J candidates for antecedents (the spans, and in
a window of a document those remembered before them), A antecedents of each, F size of feature embeddings, H size of hidden
layers, G = 3 D + F size of a span's vector, C pieces of a chunk.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.nn.config import EncoderConfig
from spanjax.nn.coreference_parts import (
    BUCKETS,
    CoreferenceConfig,
    CorefInputs,
    Resolver,
    Scorer,
    Spans,
    by_parts,
    dense,
    distance_bucket,
    initializer,
    joined,
    product,
)
from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.span_pruning import Kept

CHUNK = 1024  # pieces whose spans are scored together


class Coreference(Resolver):
    """Everything above the encoder, as published."""

    def __init__(self, encoder: EncoderConfig, config: CoreferenceConfig, genres: int, segments: int, rngs: nnx.Rngs):
        """`genres`: number of known ones, one more stands for all others; distances of `segments` and more count as one less."""
        size, feature = encoder.hidden_size, config.feature_size
        span = 3 * size + feature
        self.config, self.size, self.segments = config, size, segments
        self.level_size, self.level_count = span, config.refinements + 1

        def table(rows: int) -> nnx.Embed:
            return nnx.Embed(rows, feature, embedding_init=initializer(config), rngs=rngs)

        self.head = nnx.Param(initializer(config)(rngs.params(), (size,), jnp.float32))
        self.width, self.width_prior = table(config.max_width), table(config.max_width)
        self.mention = Scorer(span, config, rngs)
        self.width_score = Scorer(feature, config, rngs)
        self.coarse = dense(span, span, config, rngs)
        self.coarse_distance, self.distance_prior = table(BUCKETS), dense(feature, 1, config, rngs)
        self.speaker, self.genre = table(2), table(genres + 1)
        self.distance, self.segment_distance = table(BUCKETS), table(segments)
        self.pair = Scorer(3 * span + 4 * feature, config, rngs)
        if config.refinements:
            self.gate = dense(2 * span, span, config, rngs)

    def _width_scores(self) -> jax.Array:
        """[W]: the prior of every width, without dropout."""
        table_WF = self.width_prior.embedding[...]
        return self.width_score.of(table_WF @ self.width_score.rows(0, table_WF.shape[1]) + self.width_score.bias[None])

    def span_scores(self, hidden_ND: jax.Array, pieces: CorefInputs) -> jax.Array:
        """Implements `Resolver.span_scores`."""
        size, widths, length = self.size, self.config.max_width, hidden_ND.shape[0]
        chunk = min(length, CHUNK)
        chunks = -(-length // chunk)
        padded_ND = jnp.pad(hidden_ND, ((0, chunks * chunk - length + widths), (0, 0)))
        kernels = [self.mention.rows(part * size, size) for part in range(3)]
        of_width_WH = self.width.embedding[...] @ self.mention.rows(3 * size, self.config.feature_size)
        prior_W = self._width_scores()

        def scored(start: jax.Array) -> jax.Array:
            some = jax.lax.dynamic_slice_in_dim(padded_ND, start, chunk + widths)
            weight = jnp.einsum("nd,d->n", some, self.head[...], preferred_element_type=jnp.float32)
            first_CH = some[:chunk] @ kernels[0] + self.mention.bias[None]
            last, head = some @ kernels[1], some @ kernels[2]

            # the softmax of the head runs along as spans widen (maximum, total, weighted sum): nothing of size [N, W, H] is made
            def wider(state: tuple, width: tuple) -> tuple[tuple, jax.Array]:
                top_C, total_C, sum_CH = state
                number, of_width_H, prior = width
                own_C = jax.lax.dynamic_slice_in_dim(weight, number, chunk)
                last_CH, head_CH = (jax.lax.dynamic_slice_in_dim(each, number, chunk) for each in (last, head))
                higher_C = jnp.maximum(top_C, own_C)
                old_C, new_C = jnp.exp(top_C - higher_C), jnp.exp(own_C - higher_C)
                total_C = total_C * old_C + new_C
                sum_CH = sum_CH * old_C[:, None] + new_C[:, None] * head_CH
                hidden_CH = first_CH + last_CH + sum_CH / total_C[:, None] + of_width_H[None]
                return (higher_C, total_C, sum_CH), self.mention.of(hidden_CH) + prior

            start_C = jnp.full(chunk, -jnp.inf, jnp.float32)
            state = (start_C, jnp.zeros(chunk, jnp.float32), jnp.zeros((chunk, last.shape[1]), jnp.float32))
            return jax.lax.scan(wider, state, (jnp.arange(widths), of_width_WH, prior_W))[1].T

        score_NW = jax.lax.map(scored, jnp.arange(chunks) * chunk).reshape(-1, widths)[:length]
        return jnp.where(self.spans_of(pieces), score_NW, -jnp.inf)

    def describe(
        self, hidden_ND: jax.Array, kept: Kept, key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array]:
        """Implements `Resolver.describe`."""
        vector_MG = self.vectors(hidden_ND, kept.first_M, kept.last_M, key, site)
        return vector_MG, self.mention_scores(vector_MG, kept.last_M - kept.first_M, key, site + 1)

    def vectors(
        self, hidden_ND: jax.Array, first_M: jax.Array, last_M: jax.Array, key: DropoutKey | None, site: int
    ) -> jax.Array:
        """[first; last; width; head] of spans, [M, G], where the head is a weighted sum of the span's pieces."""
        weight_N = jnp.einsum("nd,d->n", hidden_ND, self.head[...], preferred_element_type=jnp.float32)

        def head(span: tuple[jax.Array, jax.Array]) -> jax.Array:
            first, last = span
            place_W = first + jnp.arange(self.config.max_width)
            inside_W, place_W = place_W <= last, jnp.minimum(place_W, hidden_ND.shape[0] - 1)
            share_W = jax.nn.softmax(jnp.where(inside_W, weight_N[place_W], -jnp.inf))
            return share_W.astype(hidden_ND.dtype) @ hidden_ND[place_W]

        head_MD = by_parts(head, (first_M, last_M))
        width_MF = dropout(self.width.embedding[...][last_M - first_M][None], self.config.dropout, key, site)[0]
        return jnp.concatenate([hidden_ND[first_M], hidden_ND[last_M], head_MD, width_MF], axis=1)

    def mention_scores(self, vector_MG: jax.Array, width_M: jax.Array, key: DropoutKey | None, site: int) -> jax.Array:
        """Mention scores of spans from their vectors, float32 [M]; uses two dropout sites."""
        rate, whole_table = self.config.dropout, self.config.width_dropout == "width"
        table_WF = self.width_prior.embedding[...]
        hidden_MH = jax.nn.relu(product(vector_MG, self.mention.hidden))
        # rows of the prior are widths, gathered after dropout, or spans, gathered before it
        prior_RH = jax.nn.relu(product(table_WF if whole_table else table_WF[width_M], self.width_score.hidden))
        hidden_MH, prior_RH = (
            dropout(each[None], rate, key, site + number)[0] for number, each in enumerate((hidden_MH, prior_RH))
        )
        prior_MH = prior_RH[width_M] if whole_table else prior_RH
        return self.mention.of_hidden(hidden_MH) + self.width_score.of_hidden(prior_MH)

    def pair_scores(
        self, own: Spans, memory: Spans | None, genre: jax.Array, key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
        """Coarse plus fine scores, the fine ones from span vectors that their antecedents refined."""
        config, levels = self.config, list(own.levels)
        # vectors are joined level by level, as each is made
        bare = own._replace(levels=()), memory and memory._replace(levels=())
        other = joined(bare[1], bare[0])

        def candidates(level: int) -> jax.Array:
            return joined(memory and memory.levels[level], levels[level])

        antecedent_MA, score_MA = self._coarse(own, other, candidates(0), key, site + 3)
        features = self._features(own, other, antecedent_MA, genre)
        pairs = (antecedent_MA, score_MA, features)
        step = 2 if config.dropout_per_refinement else 0
        for number in range(config.refinements):
            place = site + 6 + step * number
            levels.append(self._pairs(levels[number], candidates(number), pairs, key, place, last=False)[1])
        place = site + 6 + step * config.refinements
        score_MA = self._pairs(levels[-1], candidates(-1), pairs, key, place, last=True)[0]
        return antecedent_MA, score_MA, tuple(levels)

    def _coarse(
        self, own: Spans, other: Spans, vector_JG: jax.Array, key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array]:
        """(the spans that are the best antecedents [M, A], their scores): both mention scores, a bilinear one, the distance's."""
        rate = self.config.dropout
        own_MG = dropout(product(own.levels[0], self.coarse)[None], rate, key, site)[0]
        other_JG = dropout(vector_JG[None], rate, key, site + 1)[0]
        features_TF = dropout(self.coarse_distance.embedding[...][None], rate, key, site + 2)[0]
        prior_T = product(features_TF, self.distance_prior)[:, 0].astype(jnp.float32)
        before_MJ = own.number_M[:, None] - other.number_M[None]
        score_MJ = jnp.einsum("ig,jg->ij", own_MG, other_JG, preferred_element_type=jnp.float32)
        score_MJ += own.mention_M[:, None] + other.mention_M[None] + prior_T[distance_bucket(before_MJ)]
        score_MJ = jnp.where((before_MJ > 0) & own.real_M[:, None] & other.real_M[None], score_MJ, -jnp.inf)
        score_MA, antecedent_MA = jax.lax.top_k(score_MJ, min(self.config.antecedents, len(vector_JG)))
        return antecedent_MA, score_MA

    def _features(self, own: Spans, other: Spans, antecedent_MA: jax.Array, genre: jax.Array) -> tuple[jax.Array, ...]:
        """Rows of the tables of features: same speaker, distances in spans and segments, each int32 [M, A]; the genre."""
        same_MA = (own.speaker_M[:, None] == other.speaker_M[antecedent_MA]).astype(jnp.int32)
        apart_MA = jnp.clip(own.segment_M[:, None] - other.segment_M[antecedent_MA], 0, self.segments - 1)
        return same_MA, distance_bucket(own.number_M[:, None] - other.number_M[antecedent_MA]), apart_MA, genre

    def _pairs(
        self,
        vector_MG: jax.Array,
        vector_JG: jax.Array,
        pairs: tuple[jax.Array, jax.Array, tuple[jax.Array, ...]],
        key: DropoutKey | None,
        site: int,
        last: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """(scores [M, A], refined vectors [M, G]) of pairs (antecedents, coarse scores, features); with `last` the vectors are
        returned unchanged. `vector_JG` are those of the candidates."""
        span, size, rate = vector_MG.shape[1], self.config.feature_size, self.config.dropout
        antecedent_MA, coarse_MA, (same_MA, distance_MA, apart_MA, genre) = pairs
        own_MH = vector_MG @ self.pair.rows(0, span) + self.pair.bias[None]
        other_JH = vector_JG @ self.pair.rows(span, span)
        product_GH, features_FH = self.pair.rows(2 * span, span), self.pair.rows(3 * span, 4 * size)
        tables = [each.embedding[...] for each in (self.speaker, self.distance, self.segment_distance)]
        genre_F = self.genre.embedding[...][genre]
        row_M = jnp.arange(vector_MG.shape[0], dtype=jnp.uint32)
        antecedents = antecedent_MA.shape[1]

        def drop(x: jax.Array, row: jax.Array, place: int) -> jax.Array:
            """One mask for each pair, wherever the span lies among others."""
            own = DropoutKey(key.key, key.row_B.astype(jnp.uint32) * jnp.uint32(1 << 16) + row) if key else None
            return dropout(x[None], rate, own, place)[0]

        def pair(given: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            row, vector_G, own_H, antecedent_A, coarse_A, *numbers = given
            other_AG = vector_JG[antecedent_A]
            known = [table[number] for table, number in zip(tables, numbers, strict=True)]
            known.append(jnp.broadcast_to(genre_F[None], (antecedents, size)))
            known_AF = drop(jnp.concatenate(known, axis=1), row, site)
            sum_AH = own_H[None] + other_JH[antecedent_A] + (other_AG * vector_G[None]) @ product_GH
            hidden_AH = drop(jax.nn.relu(sum_AH + known_AF @ features_FH), row, site + 1)
            score_A = coarse_A + self.pair.of_hidden(hidden_AH)
            return score_A, vector_G if last else self._refined(vector_G, other_AG, score_A)

        rows = (row_M, vector_MG, own_MH, antecedent_MA, coarse_MA, same_MA, distance_MA, apart_MA)
        # without remat the backward pass would keep arrays of [A, G] and [A, H] for every span
        return by_parts(jax.checkpoint(pair), rows)

    def _refined(self, vector_G: jax.Array, other_AG: jax.Array, score_A: jax.Array) -> jax.Array:
        """A span's vector gated with the mean of its antecedents' vectors; the span itself stands for none (Lee et al., 2018)."""
        share = jax.nn.softmax(jnp.concatenate([jnp.zeros(1, jnp.float32), score_A])).astype(vector_G.dtype)
        mean_G = share[0] * vector_G + share[1:] @ other_AG
        gate_G = jax.nn.sigmoid(product(jnp.concatenate([vector_G, mean_G])[None], self.gate)[0])
        return gate_G * mean_G + (1 - gate_G) * vector_G
