"""Heads of pretraining. Those of tokens end in a vector per slot that the tied token table decodes, so that their logits are
one product. Tasks share the pooler and the prediction head.

Shapes: B rows, L positions, K slots, T terms, S slots of all rows, P pairs a row, D hidden size, E width of the token table
(D but in ALBERT), C the offset embedding and two hidden states, V padded vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.nn.config import EncoderConfig
from spanjax.nn.layer import float32_outputs, inner_linear, layer_norm, linear, lookup, normal
from spanjax.nn.pointwise import ACTIVATIONS


class PredictionHead(nnx.Module):
    """Dense layer, activation and LayerNorm: the layers of the masked token head, and those before ModernBERT's classifiers."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs, width: int = 0):
        """`width` is that of the outputs; 0 takes the hidden size."""
        width = width or config.hidden_size
        self.dense = inner_linear(config.hidden_size, width, config, rngs)
        self.norm = layer_norm(width, config, rngs)
        self.activation = config.activation

    def __call__(self, hidden_D: jax.Array) -> jax.Array:
        """Hidden states [..., D] -> vectors [..., width]."""
        return self.norm(ACTIVATIONS[self.activation](self.dense(hidden_D)))


class TokenHead(PredictionHead):
    """BERT's masked token head: `PredictionHead`; decoded by the token table with a bias of its own."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs, config.embedding_width)
        self.bias = nnx.Param(jnp.zeros(config.padded_vocab_size, jnp.float32))


class QueryStart(nnx.Module):
    """Initial vector of XLNet's query stream at every slot."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.start = nnx.Param(normal(config)(rngs.params(), (config.hidden_size,), jnp.float32))


class QueryHead(nnx.Module):
    """Decoder bias of XLNet's query stream, which is decoded without a further layer."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        del rngs
        self.bias = nnx.Param(jnp.zeros(config.padded_vocab_size, jnp.float32))


class BoundaryHead(nnx.Module):
    """The span boundary objective's f(x_left, x_right, p_offset): two dense layers, activation and LayerNorm (SpanBERT 3.2)."""

    def __init__(self, config: EncoderConfig, position_size: int, offsets: int, rngs: nnx.Rngs):
        size, last = config.hidden_size, config.embedding_width
        config = dataclasses.replace(config, biases=True)
        self.position = nnx.Embed(offsets, position_size, embedding_init=normal(config), rngs=rngs)
        self.dense1 = linear(2 * size + position_size, size, config, rngs)
        self.norm1 = layer_norm(size, config, rngs)
        self.dense2 = linear(size, last, config, rngs)
        self.norm2 = layer_norm(last, config, rngs)
        self.bias = nnx.Param(jnp.zeros(config.padded_vocab_size, jnp.float32))
        self.activation = config.activation

    def __call__(self, left_BKD: jax.Array, right_BKD: jax.Array, offset_BK: jax.Array) -> jax.Array:
        """Hidden states of the two boundary tokens and the offset inside the span -> vectors to decode [B, K, E]."""
        activation = ACTIVATIONS[self.activation]
        joined_BKC = jnp.concatenate([left_BKD, right_BKD, lookup(self.position, offset_BK)], axis=-1)
        return self.norm2(activation(self.dense2(self.norm1(activation(self.dense1(joined_BKC))))))


class Pooler(nnx.Module):
    """BERT's pooler: a dense layer and tanh over the hidden state of [CLS]."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.dense = linear(config.hidden_size, config.hidden_size, config, rngs)

    def __call__(self, hidden_BPD: jax.Array) -> jax.Array:
        """[B, P, D] -> [B, P, D]."""
        return jnp.tanh(self.dense(hidden_BPD))


class PairHead(nnx.Module):
    """Two classes of a pair of segments: the pooler and a linear classifier (next sentence prediction of BERT)."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.pooler = Pooler(config, rngs)
        self.seq_relationship = linear(config.hidden_size, 2, config, rngs)

    def __call__(self, hidden_BPD: jax.Array) -> jax.Array:
        """Hidden states of the [CLS] of pairs [B, P, D] -> scores of labels 0 and 1, float32 [B, P, 2]."""
        return float32_outputs(self.seq_relationship, self.pooler(hidden_BPD))


class DetectionHead(nnx.Module):
    """ELECTRA's score of whether a token was replaced: a dense layer with activation, and a product to one number."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.dense = linear(config.hidden_size, config.hidden_size, config, rngs)
        self.score = linear(config.hidden_size, 1, config, rngs)
        self.activation = config.activation

    def __call__(self, hidden_BLD: jax.Array) -> jax.Array:
        """[B, L, D] -> log-odds, float32 [B, L]."""
        inner_BLD = ACTIVATIONS[self.activation](self.dense(hidden_BLD))
        kernel_D, bias = self.score.kernel[...][:, 0], self.score.bias[...][0]  # pyright: ignore[reportOptionalSubscript]
        return jnp.einsum("bld,d->bl", inner_BLD, kernel_D, preferred_element_type=jnp.float32) + bias.astype(
            jnp.float32
        )


def row_mean(hidden_BLD: jax.Array, real_BL: jax.Array) -> jax.Array:
    """Mean over the positions of a row that are no padding, summed in float32: [B, L, D], bool [B, L] -> [B, D]; 0 for an empty
    row."""
    sum_BD = jnp.sum(jnp.where(real_BL[..., None], hidden_BLD, 0), axis=1, dtype=jnp.float32)
    count_B1 = jnp.maximum(jnp.sum(real_BL, axis=1, keepdims=True), 1)
    return (sum_BD / count_B1).astype(hidden_BLD.dtype)


def gather_positions(hidden_BLD: jax.Array, position_BK: jax.Array) -> jax.Array:
    """hidden_BLD[b, position_BK[b, k]] as [B, K, D]."""
    return jnp.take_along_axis(hidden_BLD, position_BK[:, :, None], axis=1)


def decode(vectors_E: jax.Array, table_VE: jax.Array) -> jax.Array:
    """Scores of every piece, float32 [..., V], of vectors [..., E] by the transposed token table."""
    return jnp.einsum("...e,ve->...v", vectors_E, table_VE, preferred_element_type=jnp.float32)


def cross_entropy(logits_V: jax.Array, target: jax.Array) -> jax.Array:
    """-log softmax(logits)[target] in nats over the last axis: [..., V], int [...] -> [...]."""
    return jax.nn.logsumexp(logits_V, axis=-1) - jnp.take_along_axis(logits_V, target[..., None], axis=-1)[..., 0]


@jax.custom_vjp
def decoded_loss(
    vectors_TSE: jax.Array, table_VE: jax.Array, bias_TV: jax.Array, target_TS: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(cross-entropy in nats of every target, True if no piece scores above it), [T, S] each, of vectors decoded by the table.

    One product for all terms, one pass over the scores forward and one backward: the gradient is written out, and its
    one-hot part updates single rows. JAX's own gradient scatters into a zero array of the size of the scores.
    """
    return _decoded_forward(vectors_TSE, table_VE, bias_TV, target_TS)[0]


def _decoded_forward(vectors_TSE: jax.Array, table_VE: jax.Array, bias_TV: jax.Array, target_TS: jax.Array) -> tuple:
    bias_T1V = bias_TV.astype(jnp.float32)[:, None]
    raw_TSV = _written(decode(vectors_TSE, table_VE))
    # a TPU adds biases on the way out of the product; a GPU would write the scores a second time
    kept_TSV = jax.lax.platform_dependent(raw_TSV, cuda=lambda raw: raw, default=lambda raw: raw + bias_T1V)
    logits_TSV = _with_bias(kept_TSV, bias_T1V)
    top_TS = jnp.max(logits_TSV, axis=-1)
    norm_TS = top_TS + jnp.log(jnp.sum(jnp.exp(logits_TSV - top_TS[..., None]), axis=-1))
    hit_TS = jnp.take_along_axis(kept_TSV, target_TS[..., None], axis=-1)[..., 0]
    hit_TS = _with_bias(hit_TS, jnp.take_along_axis(bias_T1V[:, 0], target_TS, axis=1))
    return (norm_TS - hit_TS, hit_TS >= top_TS), (vectors_TSE, table_VE, bias_TV, target_TS, kept_TSV, norm_TS)


def _with_bias(kept: jax.Array, bias: jax.Array) -> jax.Array:
    """Scores with biases, which those that a GPU keeps are without."""
    return jax.lax.platform_dependent(kept, cuda=lambda kept: kept + bias, default=lambda kept: kept)


def _written(x_TSV: jax.Array) -> jax.Array:
    """An array in memory. A GPU's compiler would write it once more, transposed, for the sake of sums along one axis."""

    def flat(x_TSV: jax.Array) -> jax.Array:
        return jax.lax.optimization_barrier(x_TSV.reshape(-1, x_TSV.shape[-1])).reshape(x_TSV.shape)

    return jax.lax.platform_dependent(x_TSV, cuda=flat, default=lambda x_TSV: x_TSV)


def _decoded_backward(kept: tuple, cotangents: tuple[jax.Array, jax.Array]) -> tuple:
    vectors_TSE, table_VE, bias_TV, target_TS, kept_TSV, norm_TS = kept
    to_loss_TS, logits_TSV = cotangents[0], _with_bias(kept_TSV, bias_TV.astype(jnp.float32)[:, None])
    shares_TSV = (jnp.exp(logits_TSV - norm_TS[..., None]) * to_loss_TS[..., None]).astype(vectors_TSE.dtype)
    shares_TSV, hits_TSE = _written(shares_TSV), to_loss_TS[..., None].astype(vectors_TSE.dtype)
    # the sum over terms and slots as one axis: see layer.Linear
    flat_XV, flat_XE = shares_TSV.reshape(-1, len(table_VE)), vectors_TSE.reshape(-1, table_VE.shape[1])
    to_vectors_TSE = (flat_XV @ table_VE).reshape(vectors_TSE.shape) - hits_TSE * table_VE[target_TS]
    to_table_VE = jnp.einsum("xv,xe->ve", flat_XV, flat_XE)
    to_table_VE = to_table_VE.at[target_TS].add((-hits_TSE * vectors_TSE).astype(to_table_VE.dtype))
    # a sum, not a product with ones: for that a GPU would write the shares once more, transposed
    to_bias_TV = jnp.sum(shares_TSV, axis=1, dtype=jnp.float32)
    to_bias_TV = to_bias_TV.at[jnp.arange(len(target_TS))[:, None], target_TS].add(-to_loss_TS)
    return to_vectors_TSE, to_table_VE, to_bias_TV.astype(bias_TV.dtype), None


decoded_loss.defvjp(_decoded_forward, _decoded_backward)
