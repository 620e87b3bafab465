"""Heads of pretraining. Those of tokens end in a vector per slot that the tied token table decodes, so that their logits are
one product.

Shapes: B rows, K slots, P pairs a row, D hidden size, E width of the token table (D but in ALBERT), C the offset embedding and
two hidden states, V padded vocabulary.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.nn.encoder import ACTIVATIONS, EncoderConfig, layer_norm, linear, lookup, normal


class TokenHead(nnx.Module):
    """BERT's masked token head: dense, activation, LayerNorm; decoded by the token table with a bias of its own."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.dense = linear(config.hidden_size, config.embedding_width, config, rngs)
        self.norm = layer_norm(config.embedding_width, config, rngs)
        self.bias = nnx.Param(jnp.zeros(config.padded_vocab_size, jnp.float32))
        self.activation = config.activation

    def __call__(self, hidden_BKD: jax.Array) -> jax.Array:
        """Hidden states at the masked positions [B, K, D] -> vectors to decode [B, K, E]."""
        return self.norm(ACTIVATIONS[self.activation](self.dense(hidden_BKD)))


class BoundaryHead(nnx.Module):
    """The span boundary objective's f(x_left, x_right, p_offset): two dense layers, activation and LayerNorm (SpanBERT 3.2)."""

    def __init__(self, config: EncoderConfig, position_size: int, offsets: int, rngs: nnx.Rngs):
        size, last = config.hidden_size, config.embedding_width
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
        kernel, bias = self.seq_relationship.kernel[...], self.seq_relationship.bias[...]  # pyright: ignore[reportOptionalSubscript]
        scores_BP2 = jnp.einsum("bpd,dc->bpc", self.pooler(hidden_BPD), kernel, preferred_element_type=jnp.float32)
        return scores_BP2 + bias.astype(jnp.float32)[None, None]


def gather_positions(hidden_BLD: jax.Array, position_BK: jax.Array) -> jax.Array:
    """hidden_BLD[b, position_BK[b, k]] as [B, K, D]."""
    return jnp.take_along_axis(hidden_BLD, position_BK[:, :, None], axis=1)


def decode(vectors_BKE: jax.Array, table_VE: jax.Array) -> jax.Array:
    """Scores of every piece, float32 [B, K, V], by the transposed token table."""
    return jnp.einsum("bke,ve->bkv", vectors_BKE, table_VE, preferred_element_type=jnp.float32)


@jax.custom_vjp
def cross_entropy(logits_V: jax.Array, target: jax.Array) -> jax.Array:
    """-log softmax(logits)[target] in nats over the last axis: [..., V], int [...] -> [...].

    The gradient is written out (softmax minus one-hot, one pass) because the derived one scatters into a zero array of the
    size of the logits.
    """
    return _cross_entropy_forward(logits_V, target)[0]


def _cross_entropy_forward(logits_V: jax.Array, target: jax.Array) -> tuple[jax.Array, tuple]:
    norm = jax.nn.logsumexp(logits_V, axis=-1)
    loss = norm - jnp.take_along_axis(logits_V, target[..., None], axis=-1)[..., 0]
    return loss, (logits_V, norm, target)


def _cross_entropy_backward(saved: tuple, cotangent: jax.Array) -> tuple[jax.Array, None]:
    logits_V, norm, target = saved
    pieces = jnp.arange(logits_V.shape[-1], dtype=target.dtype).reshape((1,) * target.ndim + (-1,))
    hit = (pieces == target[..., None]).astype(logits_V.dtype)
    return (jnp.exp(logits_V - norm[..., None]) - hit) * cotangent[..., None], None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)
