"""The BERT encoder: learned positions, post-LayerNorm layers, erf GELU (Devlin et al., 2019).

Layers are stacked on a leading axis and run by `lax.scan`; one parameter layout whatever the unrolling.
Shapes: B rows, L positions, D hidden size, N heads, H width of a head, V padded vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.nn.attention import attention
from spanjax.nn.dropout import DropoutKey, dropout

VOCABULARY_MULTIPLE = 128


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Size and constants of the encoder."""

    vocab_size: int = 0
    """Number of pieces; 0 takes the size of the vocabulary of the rows."""
    hidden_size: int = 768
    """Width of the hidden states."""
    layers: int = 12
    """Number of layers."""
    heads: int = 12
    """Attention heads; must divide hidden_size."""
    intermediate_size: int = 3072
    """Width inside the feed-forward part of a layer."""
    positions: int = 512
    """Rows of the position table: the longest block that can be encoded."""
    types: int = 2
    """Rows of the token type table."""
    dropout: float = 0.1
    """Dropout on the embeddings and on what attention and feed-forward add, in [0, 1)."""
    attention_dropout: float = 0.1
    """Dropout on attention probabilities, in [0, 1)."""
    norm_epsilon: float = 1e-12
    """Added to the variance in every LayerNorm."""
    initializer_std: float = 0.02
    """Standard deviation of the normal initialisation of every kernel and table (not truncated)."""
    unroll: int = 1
    """Layers unrolled in one turn of the scan over layers: 1 compiles fastest, `layers` runs fastest on CPU and GPU."""

    @property
    def padded_vocab_size(self) -> int:
        """vocab_size rounded up to a multiple of 128, as the tables are stored."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    def problems(self) -> list[str]:
        """What is wrong with these values, in words; empty when nothing is."""
        found = []
        sizes = ("hidden_size", "layers", "heads", "intermediate_size", "positions", "types", "unroll")
        found += [f"encoder.{n} is {getattr(self, n)}: expected at least 1" for n in sizes if getattr(self, n) < 1]
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                found.append(f"encoder.{name} is {getattr(self, name)}: expected at least 0 and less than 1")
        if self.heads > 0 and self.hidden_size % self.heads:
            found.append(
                f"encoder.hidden_size {self.hidden_size} is not a multiple of encoder.heads {self.heads}: change either"
            )
        return found


def normal(config: EncoderConfig) -> nnx.Initializer:
    """The initialiser of every kernel and table."""
    return nnx.initializers.normal(config.initializer_std)


def linear(inputs: int, outputs: int, config: EncoderConfig, rngs: nnx.Rngs) -> nnx.Linear:
    """A dense layer with bias; kernel [inputs, outputs]."""
    return nnx.Linear(inputs, outputs, kernel_init=normal(config), rngs=rngs)


def layer_norm(size: int, config: EncoderConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """LayerNorm over the last axis with float32 statistics."""
    return nnx.LayerNorm(size, epsilon=config.norm_epsilon, use_fast_variance=False, rngs=rngs)


def lookup(table: nnx.Embed, ids: jax.Array) -> jax.Array:
    """Rows of a table, in the type the table has now (nnx.Embed itself keeps the type of its initialisation)."""
    return jnp.take(table.embedding[...], ids, axis=0)


def gelu(x: jax.Array) -> jax.Array:
    """GELU by the error function, as in the original BERT and SpanBERT (not the tanh approximation)."""
    return jax.nn.gelu(x, approximate=False)


class Embeddings(nnx.Module):
    """Sum of token, position and type embeddings, LayerNorm, dropout."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        size, init = config.hidden_size, normal(config)
        self.token = nnx.Embed(config.padded_vocab_size, size, embedding_init=init, rngs=rngs)
        self.position = nnx.Embed(config.positions, size, embedding_init=init, rngs=rngs)
        self.type = nnx.Embed(config.types, size, embedding_init=init, rngs=rngs)
        self.norm = layer_norm(size, config, rngs)
        self.rate = config.dropout

    def __call__(
        self, tokens_BL: jax.Array, positions_BL: jax.Array, types_BL: jax.Array, key: DropoutKey | None, site: int
    ) -> jax.Array:
        """[B, L] ids -> [B, L, D]."""
        hidden_BLD = lookup(self.token, tokens_BL) + lookup(self.position, positions_BL) + lookup(self.type, types_BL)
        return dropout(self.norm(hidden_BLD), self.rate, key, site)


class Layer(nnx.Module):
    """One post-LayerNorm transformer layer."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        size = config.hidden_size
        self.query, self.key, self.value, self.output = (linear(size, size, config, rngs) for _ in range(4))
        self.attention_norm = layer_norm(size, config, rngs)
        self.feed_in = linear(size, config.intermediate_size, config, rngs)
        self.feed_out = linear(config.intermediate_size, size, config, rngs)
        self.feed_norm = layer_norm(size, config, rngs)
        self.heads, self.rate, self.attention_rate = config.heads, config.dropout, config.attention_dropout

    def __call__(
        self, hidden_BLD: jax.Array, segments_BL: jax.Array, key: DropoutKey | None, site: jax.Array
    ) -> jax.Array:
        """[B, L, D] -> [B, L, D]; uses dropout sites `site`, `site + 1` and `site + 2`."""
        rows, length, size = hidden_BLD.shape
        split = (rows, length, self.heads, size // self.heads)
        mixed_BLNH = attention(
            self.query(hidden_BLD).reshape(split),
            self.key(hidden_BLD).reshape(split),
            self.value(hidden_BLD).reshape(split),
            segments_BL,
            rate=self.attention_rate,
            dropout_key=key,
            site=site,
        )
        added_BLD = dropout(self.output(mixed_BLNH.reshape(rows, length, size)), self.rate, key, site + 1)
        hidden_BLD = self.attention_norm(hidden_BLD + added_BLD)
        added_BLD = dropout(self.feed_out(gelu(self.feed_in(hidden_BLD))), self.rate, key, site + 2)
        return self.feed_norm(hidden_BLD + added_BLD)


class Encoder(nnx.Module):
    """Embeddings and a stack of layers; parameters of the layers carry a leading axis of size `layers`."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, rngs)
        keys = jax.random.split(rngs.params(), config.layers)
        structure, _ = nnx.split(nnx.eval_shape(lambda: Layer(config, nnx.Rngs(0))))
        self.layers = nnx.merge(structure, jax.vmap(lambda key: nnx.state(Layer(config, nnx.Rngs(key))))(keys))
        self.count, self.unroll = config.layers, min(config.unroll, config.layers)

    def __call__(
        self,
        tokens_BL: jax.Array,
        segments_BL: jax.Array,
        positions_BL: jax.Array,
        types_BL: jax.Array,
        key: DropoutKey | None = None,
    ) -> jax.Array:
        """[B, L] ids, blocks, positions and types -> hidden states [B, L, D] of the last layer.

        With `key` dropout is applied (training), without it is not (evaluation).
        """
        hidden_BLD = self.embeddings(tokens_BL, positions_BL, types_BL, key, site=0)
        structure, stacked = nnx.split(self.layers)
        sites = 1 + 3 * jnp.arange(self.count, dtype=jnp.uint32)

        def run_layer(hidden_BLD: jax.Array, layer_and_site: tuple) -> tuple[jax.Array, None]:
            layer, site = layer_and_site
            return nnx.merge(structure, layer)(hidden_BLD, segments_BL, key, site), None

        return jax.lax.scan(run_layer, hidden_BLD, (stacked, sites), unroll=self.unroll)[0]

    def token_table(self) -> jax.Array:
        """The token embedding [V, D], to be passed to heads that are tied to it."""
        return self.embeddings.token.embedding[...]
