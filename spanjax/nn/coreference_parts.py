"""Parts of the coreference model: settings, inputs and outputs, scorers, buckets of distances, the loss.

Shapes of one document: N pieces, M spans that are kept, A antecedents of each, F size of feature embeddings, H size of hidden
layers.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.bounds import AtLeast0, AtLeast1, DropRate, Share

DEVIATION = 0.02  # of all initial weights above the encoder
PART = 128  # spans whose vectors and pairs are made together
BUCKETS = 10  # of distances: 0 to 4 each, 5 to 7, 8 to 15, 16 to 31, 32 to 63, 64 and more


@dataclasses.dataclass(frozen=True)
class CoreferenceConfig:
    """Sizes of the model; by default those of the paper's models."""

    max_width: AtLeast1 = 30
    """Most pieces of a mention."""
    spans_per_piece: Share = 0.4
    """Spans that are kept, for each piece of the document."""
    max_spans: AtLeast1 = 3900
    """Most spans that are kept."""
    antecedents: AtLeast1 = 50
    """Candidates for the antecedent of each span that reach the fine scores."""
    hidden_size: AtLeast1 = 3000
    """Size of the hidden layers of mention and pair scores."""
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


class Resolved(NamedTuple):
    """The spans that are kept, sorted, and the scores of their antecedents."""

    first_M: jax.Array
    last_M: jax.Array
    real_M: jax.Array
    mention_M: jax.Array
    """Mention scores, float32."""
    antecedent_MA: jax.Array
    """Index of the span that each antecedent is."""
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


def antecedent_loss(found: Resolved, cluster_M: jax.Array) -> jax.Array:
    """-log of the probability of all right antecedents, summed over spans, in nats: float32.

    `cluster_M` is the gold cluster of each span, 0 for none. Where no antecedent is right, none is the right one.
    """
    other_MA = cluster_M[found.antecedent_MA]
    right_MA = (other_MA == cluster_M[:, None]) & (cluster_M > 0)[:, None] & ~jnp.isneginf(found.score_MA)
    none_M = jnp.where(right_MA.any(axis=1), -jnp.inf, 0.0)
    right = jnp.concatenate([none_M[:, None], jnp.where(right_MA, found.score_MA, -jnp.inf)], axis=1)
    return jnp.sum(jnp.where(found.real_M, log_total(found.score_MA) - jax.nn.logsumexp(right, axis=1), 0.0))
