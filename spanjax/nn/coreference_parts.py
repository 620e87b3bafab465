"""Parts of the coreference heads: settings, inputs and outputs, scorers, buckets of distances, the loss, and code that both heads
share: the choice of spans, and windows of a long document with a memory of the spans before them.

Shapes of one document or window: N pieces, W widths, M spans that are kept, K spans that are remembered, J = K + M, A antecedents
of each, F size of feature embeddings, H size of hidden layers, G size of a span's vector, D hidden size.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.bounds import AtLeast0, AtLeast1, DropRate, Share
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.span_pruning import Kept, keep_all, keep_best

DEVIATION = 0.02  # of all initial weights above the encoder
PART = 128  # spans whose vectors and pairs are made together
SURE = 1e6  # added to the score of a span that must be kept
BUCKETS = 10  # of distances: 0 to 4 each, 5 to 7, 8 to 15, 16 to 31, 32 to 63, 64 and more


@dataclasses.dataclass(frozen=True)
class CoreferenceConfig:
    """Sizes of the model; by default those of the paper's models."""

    head: Literal["coarse_to_fine", "start_end"] = "coarse_to_fine"
    """Scores above the encoder: the published ones, or bilinear ones of first and last pieces, without vectors of spans (Kirstain
    et al., 2021), which take less time and memory and use no distances, speakers or genres."""
    max_width: AtLeast1 = 30
    """Most pieces of a mention."""
    spans_per_piece: Share = 0.4
    """Spans that are kept, for each piece of the document."""
    max_spans: AtLeast1 = 3900
    """Most spans that are kept."""
    antecedents: AtLeast1 = 50
    """Candidates for the antecedent of each span that reach the fine scores; start_end scores all."""
    hidden_size: AtLeast1 = 3000
    """Size of the hidden layers of mention and pair scores; of start_end, of the vectors of first and last pieces."""
    feature_size: AtLeast1 = 20
    """Size of the embeddings of width, distance, speaker and genre."""
    dropout: DropRate = 0.3
    """Dropout of hidden layers, features and coarse scores, in [0, 1)."""
    refinements: AtLeast0 = 1
    """Times that antecedents refine the vectors of spans before the last fine score. The published coref_depth of 2 refines
    twice and uses the first alone (D20)."""
    words_only: bool = True
    """Spans begin and end with words; False: anywhere in them, as published."""
    dropout_per_refinement: bool = False
    """Sample new dropout masks of pairs for the fine scores after each refinement, as released; False: the same masks."""
    width_dropout: Literal["span", "width"] = "span"
    """Dropout of the width prior's hidden layer: one mask for each span, or one for all spans of a width, as released."""
    initializer: Literal["normal", "truncated_normal"] = "normal"
    """Distribution of initial weights, standard deviation 0.02; truncated_normal: cut off at twice that, as released."""


class CorefInputs(NamedTuple):
    """Inputs for a document's pieces other than their hidden states."""

    sentence_N: jax.Array
    """Number of the sentence from 1; 0 behind the last piece."""
    word_N: jax.Array
    speaker_N: jax.Array
    """0 for an unknown speaker."""
    segment_N: jax.Array
    genre: jax.Array


class Given(NamedTuple):
    """Mentions that a document brings with it."""

    mention_NW: jax.Array
    """bool: spans that begin at a piece with a width."""
    only: jax.Array
    """bool: these are the spans of the document, and no others; False: the document brings none."""


class Spans(NamedTuple):
    """Spans with all that scores of pairs need. Those of a memory are older than those of a window."""

    real_M: jax.Array
    mention_M: jax.Array
    number_M: jax.Array
    """Spans of the document before this one."""
    speaker_M: jax.Array
    segment_M: jax.Array
    cluster_M: jax.Array
    """Gold cluster, 0 for none."""
    levels: tuple[jax.Array, ...]
    """Vectors [M, G]: of the span, then as its antecedents refined them once, twice, ..."""


class Resolved(NamedTuple):
    """The spans that are kept, sorted, and the scores of their antecedents."""

    first_M: jax.Array
    last_M: jax.Array
    real_M: jax.Array
    mention_M: jax.Array
    """Mention scores, float32."""
    antecedent_MA: jax.Array
    """Index of the span that each antecedent is, among remembered and own spans where there is a memory."""
    score_MA: jax.Array
    """Scores of the antecedents, float32; -inf where there is none. No antecedent has the score 0."""


def initializer(config: CoreferenceConfig) -> nnx.Initializer:
    """Returns the initialiser of every kernel and table above the encoder."""
    return getattr(nnx.initializers, config.initializer)(DEVIATION)


def dense(inputs: int, outputs: int, config: CoreferenceConfig, rngs: nnx.Rngs) -> nnx.Linear:
    """Builds a dense layer with bias; kernel [inputs, outputs]."""
    return nnx.Linear(inputs, outputs, kernel_init=initializer(config), rngs=rngs)


class Scorer(nnx.Module):
    """A hidden layer and one score."""

    def __init__(self, inputs: int, config: CoreferenceConfig, rngs: nnx.Rngs):
        self.hidden = dense(inputs, config.hidden_size, config, rngs)
        self.score = dense(config.hidden_size, 1, config, rngs)

    def rows(self, start: int, size: int) -> jax.Array:
        """The part of the hidden layer's kernel that reads inputs `start` to `start + size`: [size, H]."""
        return self.hidden.kernel[...][start : start + size]

    @property
    def bias(self) -> jax.Array:
        """Bias of the hidden layer, [H]."""
        return self.hidden.bias[...]  # pyright: ignore[reportOptionalSubscript]

    def of(self, sum_H: jax.Array) -> jax.Array:
        """The score of a hidden layer before its ReLU: [..., H] -> float32 [...]."""
        return self.of_hidden(jax.nn.relu(sum_H))

    def of_hidden(self, hidden_H: jax.Array) -> jax.Array:
        """The score of a hidden layer behind its ReLU and dropout."""
        kernel_H, bias_1 = self.score.kernel[...][:, 0], self.score.bias[...]  # pyright: ignore[reportOptionalSubscript]
        score = jnp.einsum("...h,h->...", hidden_H, kernel_H, preferred_element_type=jnp.float32)
        return score + bias_1.astype(jnp.float32)[0]


def product(x: jax.Array, layer: nnx.Linear) -> jax.Array:
    """A dense layer over [M, inputs]."""
    return x @ layer.kernel[...] + layer.bias[...][None]  # pyright: ignore[reportOptionalSubscript]


def in_parts(function: Any, rows: Any, size: int) -> Any:
    """Applies `function` to `size` rows of arrays at a time. The last part is padded with zeros, so that one program serves all
    parts, and cut off again."""
    count = len(jax.tree.leaves(rows)[0])
    if count <= size:
        return function(rows)
    parts = -(-count // size)

    def split(x: jax.Array) -> jax.Array:
        spare = ((0, parts * size - count), *((0, 0),) * (x.ndim - 1))
        return jnp.pad(x, spare).reshape(parts, size, *x.shape[1:])

    found = jax.lax.map(function, jax.tree.map(split, rows))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], found)


def by_parts(function: Any, rows: Any) -> Any:
    """`function` of one row over all rows, PART of them at a time."""
    return in_parts(jax.vmap(function), rows, PART)


def distance_bucket(distance: jax.Array) -> jax.Array:
    """Numbers of BUCKETS of distances from 0 on; negative ones are in the first."""
    edges = jnp.array([8, 16, 32, 64])
    far = 5 + jnp.sum(distance[..., None] >= edges.reshape((1,) * distance.ndim + (-1,)), axis=-1)
    return jnp.where(distance < 5, jnp.maximum(distance, 0), far)


def log_total(score_A: jax.Array) -> jax.Array:
    """Log of the sum of the exponentials of antecedents' scores [..., A] and of the 0 of having none: float32 [...]."""
    return jax.nn.logsumexp(
        jnp.concatenate([jnp.zeros((*score_A.shape[:-1], 1), jnp.float32), score_A], axis=-1), axis=-1
    )


def antecedent_loss(found: Resolved, cluster_M: jax.Array, cluster_J: jax.Array | None = None) -> jax.Array:
    """-log of the probability of all right antecedents, summed over spans, in nats: float32.

    `cluster_M` is the gold cluster of each span, 0 for none; `cluster_J` that of each candidate, by default the spans themselves.
    Where no antecedent is right, none is the right one.
    """
    other_MA = (cluster_M if cluster_J is None else cluster_J)[found.antecedent_MA]
    right_MA = (other_MA == cluster_M[:, None]) & (cluster_M > 0)[:, None] & ~jnp.isneginf(found.score_MA)
    none_M = jnp.where(right_MA.any(axis=1), -jnp.inf, 0.0)
    right = jnp.concatenate([none_M[:, None], jnp.where(right_MA, found.score_MA, -jnp.inf)], axis=1)
    return jnp.sum(jnp.where(found.real_M, log_total(found.score_MA) - jax.nn.logsumexp(right, axis=1), 0.0))


def joined(memory: Any, own: Any) -> Any:
    """Arrays of remembered spans with those of a window's spans behind them; the latter alone without a memory."""
    return own if memory is None else jax.tree.map(lambda *both: jnp.concatenate(both), memory, own)


class Resolver(nnx.Module):
    """A coreference head: scores spans, keeps the best, and scores pairs of these."""

    config: CoreferenceConfig
    level_size: int
    """G."""
    level_count: int

    def span_scores(self, hidden_ND: jax.Array, pieces: CorefInputs) -> jax.Array:
        """Mention scores of all spans, float32 [N, W], without dropout; -inf for entries that are no span."""
        raise NotImplementedError

    def describe(
        self, hidden_ND: jax.Array, kept: Kept, key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array]:
        """(vectors of spans [M, G], their mention scores [M]); uses the first three dropout sites."""
        raise NotImplementedError

    def pair_scores(
        self, own: Spans, memory: Spans | None, genre: jax.Array, key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
        """(antecedents [M, A], their scores, all levels of the spans); `own` has the first level alone. Sites from 3 on."""
        raise NotImplementedError

    def __call__(
        self,
        hidden_ND: jax.Array,
        pieces: CorefInputs,
        key: DropoutKey | None,
        site: int,
        sure_NW: jax.Array | None = None,
        given: Given | None = None,
    ) -> Resolved:
        """Spans and antecedents of one document; those of `sure_NW` (bool) are kept before all others, whatever their scores.

        `key` has one row; 8 dropout sites from `site` on are used, with `dropout_per_refinement` two more for each refinement.
        """
        kept = self._select(hidden_ND, pieces, sure_NW, given)
        own = self._described(hidden_ND, kept, pieces, key, site)
        antecedent_MA, score_MA, _ = self.pair_scores(own, None, pieces.genre, key, site)
        return Resolved(*kept, own.mention_M, antecedent_MA, score_MA)

    def no_memory(self, size: int) -> Spans:
        """A memory of `size` spans that holds none; predictions are made in float32."""
        number, level = jnp.zeros(size, jnp.int32), jnp.zeros((size, self.level_size), jnp.float32)
        mention = jnp.zeros(size, jnp.float32)
        return Spans(number > 0, mention, number, number, number, number, (level,) * self.level_count)

    def with_memory(
        self,
        hidden_ND: jax.Array,
        pieces: CorefInputs,
        cluster_NW: jax.Array,
        memory: Spans,
        before: jax.Array,
        given: Given | None = None,
    ) -> tuple[Resolved, Spans, Spans]:
        """(spans and antecedents of a window, without dropout; its remembered and own spans, J; the memory for the next window).

        `before` is the number of spans of all windows before. The newest spans are at the end of a memory.
        """
        kept = self._select(hidden_ND, pieces, None, given)
        own = self._described(hidden_ND, kept, pieces, None, 0)
        cluster_M = cluster_NW[kept.first_M, kept.last_M - kept.first_M] * kept.real_M
        own = own._replace(number_M=own.number_M + before, cluster_M=cluster_M)
        antecedent_MA, score_MA, levels = self.pair_scores(own, memory, pieces.genre, None, 0)
        every = joined(memory, own._replace(levels=levels))
        # real spans come first among the window's, so the newest of all end behind K + count
        size, count = len(memory.real_M), jnp.sum(kept.real_M)
        newest = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, count, size), every)
        return Resolved(*kept, own.mention_M, antecedent_MA, score_MA), every, newest

    def _described(
        self, hidden_ND: jax.Array, kept: Kept, pieces: CorefInputs, key: DropoutKey | None, site: int
    ) -> Spans:
        vector_MG, mention_M = self.describe(hidden_ND, kept, key, site)
        number_M = jnp.arange(len(kept.first_M))
        speaker_M, segment_M = pieces.speaker_N[kept.first_M], pieces.segment_N[kept.first_M]
        return Spans(kept.real_M, mention_M, number_M, speaker_M, segment_M, jnp.zeros_like(number_M), (vector_MG,))

    def _select(
        self, hidden_ND: jax.Array, pieces: CorefInputs, sure_NW: jax.Array | None, given: Given | None
    ) -> Kept:
        config, length = self.config, hidden_ND.shape[0]
        most = min(config.max_spans, int(config.spans_per_piece * length) + 1)
        budget = jnp.floor(config.spans_per_piece * jnp.sum(pieces.sentence_N > 0)).astype(jnp.int32)
        score_NW = self.span_scores(jax.lax.stop_gradient(hidden_ND), pieces)
        if sure_NW is not None:
            score_NW = jnp.where(sure_NW, score_NW + SURE, score_NW)
        kept = keep_best(score_NW, jnp.clip(budget, 1, config.max_spans), most)
        if given is None:
            return kept
        # mentions of a user's may cross each other or a sentence end
        mentions = keep_all(jnp.where(given.mention_NW, jnp.maximum(score_NW, -SURE), -jnp.inf), most)
        return Kept(*(jnp.where(given.only, *both) for both in zip(mentions, kept, strict=True)))

    def spans_of(self, pieces: CorefInputs) -> jax.Array:
        """bool[N, W]: True for valid spans: inside of one sentence and, with `words_only`, of whole words."""
        length, widths = pieces.sentence_N.shape[0], self.config.max_width
        last_NW = jnp.arange(length)[:, None] + jnp.arange(widths)[None]
        inside_NW = last_NW < length
        last_NW = jnp.minimum(last_NW, length - 1)
        same_NW = pieces.sentence_N[last_NW] == pieces.sentence_N[:, None]
        span_NW = inside_NW & same_NW & (pieces.sentence_N > 0)[:, None]
        if not self.config.words_only:
            return span_NW
        word_N = jnp.where(pieces.sentence_N > 0, pieces.word_N, -1)
        begins_N = word_N != jnp.pad(word_N[:-1], (1, 0), constant_values=-2)
        ends_N = word_N != jnp.pad(word_N[1:], (0, 1), constant_values=-2)
        return span_NW & begins_N[:, None] & ends_N[last_NW]
