"""The BERT encoder: learned positions, post-LayerNorm layers (Devlin et al., 2019). RoBERTa and ALBERT are settings of it.

Layers are stacked on a leading axis and run by `lax.scan`; one parameter layout whatever the unrolling.
Shapes: B rows, L positions, D hidden size, E width of the token table, N heads, H width of a head, V padded vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.nn.attention import attention
from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.pointwise import ACTIVATIONS, LayerNorm

VOCABULARY_MULTIPLE = 128
REMAT: dict[str, Any] = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}
_MOVES = {
    "all_gather",
    "convert_element_type",
    "concatenate",
    "stack",
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "transpose",
}


def _but_parameters(primitive: Any, *_: Any, **__: Any) -> bool:
    """Saves everything for the backward pass but what was only moved: parameters that were gathered are gathered anew."""
    return primitive.name not in _MOVES


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
    """The longest block that can be encoded."""
    position_offset: int = 0
    """Rows of the position table before that of position 0, which are never used: 2 in RoBERTa."""
    embedding_size: int = 0
    """Width of the embeddings, which a product widens to hidden_size (ALBERT); 0 takes hidden_size, without a product."""
    groups: int = 0
    """Sets of parameters that the layers share, each used by consecutive layers: 1 in ALBERT; 0 gives every layer its own."""
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """Of feed-forward parts and heads: GELU by the error function (BERT), its tanh approximation (ALBERT v2), or max(x, 0)."""
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
    attention: Literal["auto", "xla", "xla_chunked", "splash", "cudnn", "pallas_triton"] = "auto"
    """What computes attention; auto takes what is best for the devices of the mesh, and outside of a run xla."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass computes again to save memory: nothing, all but the products with parameters, or whole layers."""

    @property
    def padded_vocab_size(self) -> int:
        """vocab_size rounded up to a multiple of 128, as the tables are stored."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def embedding_width(self) -> int:
        """Width of the token table and of the vectors that it decodes."""
        return self.embedding_size or self.hidden_size

    @property
    def own_layers(self) -> int:
        """Layers with parameters of their own: the length of the stack."""
        return self.groups or self.layers

    def flops(self, tokens: float, pairs: float) -> float:
        """Operations (multiply-add = 2) of the matrix products of layers and attention, forward and backward, nothing computed
        twice, for so many tokens and pairs of tokens that attend to each other (PaLM-style count)."""
        size = self.hidden_size
        products = 6 * self.layers * (4 * size**2 + 2 * size * self.intermediate_size) * tokens
        return products + 6 * self.embedding_size * size * tokens + 12 * self.layers * size * pairs

    def problems(self) -> list[str]:
        """What is wrong with these values, in words; empty when nothing is."""
        found = []
        lowest = ("embedding_size", "groups", "position_offset")
        found += [f"encoder.{n} is {getattr(self, n)}: expected 0 or more" for n in lowest if getattr(self, n) < 0]
        if self.groups > 0 and self.layers % self.groups:
            found.append(
                f"encoder.layers {self.layers} is not a multiple of encoder.groups {self.groups}: change either"
            )
        if self.remat not in REMAT:
            found.append(f"encoder.remat is {self.remat!r}: expected one of {', '.join(REMAT)}")
        if self.activation not in ACTIVATIONS:
            found.append(f"encoder.activation is {self.activation!r}: expected one of {', '.join(ACTIVATIONS)}")
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


def layer_norm(size: int, config: EncoderConfig, rngs: nnx.Rngs) -> LayerNorm:
    """LayerNorm over the last axis."""
    return LayerNorm(size, epsilon=config.norm_epsilon, rngs=rngs)


def lookup(table: nnx.Embed, ids: jax.Array) -> jax.Array:
    """Rows of a table, in the type the table has now (nnx.Embed itself keeps the type of its initialisation)."""
    return jnp.take(table.embedding[...], ids, axis=0)


class Embeddings(nnx.Module):
    """Sum of token, position and type embeddings, LayerNorm, dropout; then, where it is narrower, widened (ALBERT)."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        size, init = config.embedding_width, normal(config)
        self.token = nnx.Embed(config.padded_vocab_size, size, embedding_init=init, rngs=rngs)
        self.position = nnx.Embed(config.position_offset + config.positions, size, embedding_init=init, rngs=rngs)
        self.type = nnx.Embed(config.types, size, embedding_init=init, rngs=rngs)
        self.norm = layer_norm(size, config, rngs)
        if config.embedding_size:
            self.widen = linear(size, config.hidden_size, config, rngs)
        self.rate, self.offset, self.widens = config.dropout, config.position_offset, config.embedding_size > 0

    def __call__(
        self, tokens_BL: jax.Array, positions_BL: jax.Array, types_BL: jax.Array, key: DropoutKey | None, site: int
    ) -> jax.Array:
        """[B, L] ids -> [B, L, D]."""
        embedded_BLE = self.narrow(tokens_BL, positions_BL, types_BL, key, site)
        return self.widen(embedded_BLE) if self.widens else embedded_BLE

    def narrow(
        self, tokens_BL: jax.Array, positions_BL: jax.Array, types_BL: jax.Array, key: DropoutKey | None, site: int
    ) -> jax.Array:
        """[B, L] ids -> [B, L, E], before they are widened."""
        places_BL = positions_BL + self.offset if self.offset else positions_BL
        sum_BLE = lookup(self.token, tokens_BL) + lookup(self.position, places_BL) + lookup(self.type, types_BL)
        return dropout(self.norm(sum_BLE), self.rate, key, site)


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
        self.activation = config.activation
        self.backend = "xla" if config.attention == "auto" else config.attention

    def __call__(
        self, hidden_BLD: jax.Array, segments_BL: jax.Array, key: DropoutKey | None, site: jax.Array
    ) -> jax.Array:
        """[B, L, D] -> [B, L, D]; uses dropout sites `site`, `site + 1` and `site + 2`."""
        rows, length, size = hidden_BLD.shape
        split = (rows, length, self.heads, size // self.heads)
        query_BLD, key_BLD, value_BLD = _together(hidden_BLD, (self.query, self.key, self.value))
        mixed_BLNH = attention(
            query_BLD.reshape(split),
            key_BLD.reshape(split),
            value_BLD.reshape(split),
            segments_BL,
            rate=self.attention_rate,
            dropout_key=key,
            site=site,
            backend=self.backend,
        )
        added_BLD = dropout(self.output(mixed_BLNH.reshape(rows, length, size)), self.rate, key, site + 1)
        hidden_BLD = self.attention_norm(hidden_BLD + added_BLD)
        added_BLD = dropout(
            self.feed_out(ACTIVATIONS[self.activation](self.feed_in(hidden_BLD))), self.rate, key, site + 2
        )
        return self.feed_norm(hidden_BLD + added_BLD)


def _together(hidden_BLD: jax.Array, parts: tuple[nnx.Linear, ...]) -> list[jax.Array]:
    """What these dense layers of equal shape make of the same hidden states, by one product."""
    kernel_DCE = jnp.stack([part.kernel[...] for part in parts], axis=1)
    bias_CE = jnp.stack([part.bias[...] for part in parts])  # pyright: ignore[reportOptionalSubscript]
    made_BLCE = jnp.einsum("bld,dce->blce", hidden_BLD, kernel_DCE) + bias_CE[None, None]
    return [made_BLCE[:, :, number] for number in range(len(parts))]


class LayerStack(nnx.Module):
    """Layers one after the other; their parameters carry a leading axis of size `own_layers`."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        keys = jax.random.split(rngs.params(), config.own_layers)
        structure, _ = nnx.split(nnx.eval_shape(lambda: Layer(config, nnx.Rngs(0))))
        self.layers = nnx.merge(structure, jax.vmap(lambda key: nnx.state(Layer(config, nnx.Rngs(key))))(keys))
        self.count, self.unroll = config.layers, min(config.unroll, config.layers)
        self.uses, self.remat = config.layers // config.own_layers, config.remat
        self.fetch: Callable[[Any], Any] | None = None  # what makes a layer's parameters whole where a device has parts

    def run(
        self,
        hidden_BLD: jax.Array,
        segments_BL: jax.Array,
        key: DropoutKey | None,
        first_site: int = 1,
        keep: bool = False,
    ) -> tuple[jax.Array, Any]:
        """(hidden states [B, L, D] of the last layer, with `keep` those after every layer, [layers, B, L, D]).

        Three dropout sites a layer are used, from `first_site` on.
        """
        structure, state = nnx.split(self.layers)
        stacked = nnx.to_pure_dict(state)
        sites = first_site + 3 * jnp.arange(self.count, dtype=jnp.uint32)

        def run_layer(hidden_BLD: jax.Array, layer_and_site: tuple) -> tuple[jax.Array, Any]:
            layer, site = layer_and_site
            if self.uses > 1:
                layer = jax.tree.map(lambda leaf: leaf[layer], stacked)
            layer = self.fetch(layer) if self.fetch else layer
            hidden_BLD = nnx.merge(structure, layer)(hidden_BLD, segments_BL, key, site)
            return hidden_BLD, hidden_BLD if keep else None

        policy = _but_parameters if self.fetch and self.remat == "none" else REMAT[self.remat]
        if policy:
            # where nothing is left of the scan, only its barrier keeps XLA from merging what is computed twice
            whole = self.unroll >= self.count
            run_layer = jax.checkpoint(run_layer, prevent_cse=whole, policy=policy)
        each = jnp.arange(self.count) // self.uses if self.uses > 1 else stacked
        return jax.lax.scan(run_layer, hidden_BLD, (each, sites), unroll=self.unroll)


class Encoder(LayerStack):
    """Embeddings and a stack of layers."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, rngs)
        super().__init__(config, rngs)

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
        return self.run(self.embeddings(tokens_BL, positions_BL, types_BL, key, site=0), segments_BL, key)[0]

    def every_state(
        self, tokens_BL: jax.Array, segments_BL: jax.Array, positions_BL: jax.Array, types_BL: jax.Array
    ) -> jax.Array:
        """Hidden states before the first layer and after each, without dropout: [layers + 1, B, L, D]."""
        first_BLD = self.embeddings(tokens_BL, positions_BL, types_BL, None, site=0)
        return jnp.concatenate([first_BLD[None], self.run(first_BLD, segments_BL, None, keep=True)[1]])

    def token_table(self) -> jax.Array:
        """The token embedding [V, E], to be passed to heads that are tied to it."""
        return self.embeddings.token.embedding[...]
