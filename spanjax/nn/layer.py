"""One layer of the encoder and its parts.

Shapes: B rows, L positions, D hidden size, N heads, H width of a head, I inner width of the feed-forward part.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.nn import residual_norm
from spanjax.nn.attention import attention
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.pointwise import ACTIVATIONS, LayerNorm
from spanjax.nn.products import shared_products

RotaryAngles = tuple[jax.Array, jax.Array]
"""Cosine and sine of the angle of every position and number of a head, float32 [B, L, 1, H] each."""
PositionInput = RotaryAngles | jax.Array | None
"""Rotary angles, or the embeddings of distances of a `DisentangledLayer`; None where the embeddings tell positions."""


def normal(config: EncoderConfig) -> nnx.Initializer:
    """The initialiser of every kernel and table."""
    return nnx.initializers.normal(config.initializer_std)


class Linear(nnx.Linear):
    """A dense layer that reads rows and positions as one axis: [..., inputs] -> [..., outputs]; kernel [inputs, outputs].

    The gradient of the kernel sums over that axis. Where it would sum over two, XLA for CPUs writes one operand
    transposed first, which doubles the time of that product. A TPU copies for the sake of one axis instead.
    """

    on_accelerator = False
    """The step sets it for GPUs and TPUs."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        if self.on_accelerator:
            return super().__call__(inputs)
        return super().__call__(inputs.reshape(-1, self.in_features)).reshape(*inputs.shape[:-1], self.out_features)


def linear(inputs: int, outputs: int, config: EncoderConfig, rngs: nnx.Rngs) -> Linear:
    """A dense layer with bias; kernel [inputs, outputs]."""
    return Linear(inputs, outputs, kernel_init=normal(config), rngs=rngs)


def inner_linear(inputs: int, outputs: int, config: EncoderConfig, rngs: nnx.Rngs) -> Linear:
    """A dense layer with a bias where the encoder has any."""
    return Linear(inputs, outputs, use_bias=config.biases, kernel_init=normal(config), rngs=rngs)


def float32_outputs(layer: nnx.Linear, x: jax.Array) -> jax.Array:
    """The outputs of a dense layer in float32, whatever the type of x: [..., inputs] -> [..., outputs]."""
    kernel, bias = layer.kernel[...], layer.bias[...]  # pyright: ignore[reportOptionalSubscript]
    products = jnp.einsum("...d,dc->...c", x, kernel, preferred_element_type=jnp.float32)
    return products + jnp.expand_dims(bias.astype(jnp.float32), tuple(range(x.ndim - 1)))


def layer_norm(size: int, config: EncoderConfig, rngs: nnx.Rngs) -> LayerNorm:
    """LayerNorm over the last axis."""
    return LayerNorm(size, epsilon=config.norm_epsilon, use_bias=config.biases, rngs=rngs)


def lookup(table: nnx.Embed, ids: jax.Array) -> jax.Array:
    """Rows of a table, in the type the table has now (nnx.Embed itself keeps the type of its initialisation)."""
    return jnp.take(table.embedding[...], ids, axis=0)


def rotary_angles(positions_BL: jax.Array, head_size: int, base: float) -> RotaryAngles:
    """Angles of rotary position embeddings (Su et al., 2021): position * base ** (-2i / H), numbers i and i + H/2 of a head."""
    rates_H = base ** (-jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)
    angle_BLH = positions_BL.astype(jnp.float32)[..., None] * rates_H[None, None]
    angle_BL1H = jnp.concatenate([angle_BLH, angle_BLH], axis=-1)[:, :, None]
    return jnp.cos(angle_BL1H), jnp.sin(angle_BL1H)


def apply_rotary(x_BLNH: jax.Array, angles: RotaryAngles) -> jax.Array:
    """Rotates every pair of numbers (i, i + H/2) of a head by the angle of its position, in the type of x."""
    left, right = jnp.split(x_BLNH.astype(jnp.float32), 2, axis=-1)
    return (x_BLNH * angles[0] + jnp.concatenate([-right, left], axis=-1) * angles[1]).astype(x_BLNH.dtype)


class Layer(nnx.Module):
    """One transformer layer, LayerNorms after its parts or before."""

    on_accelerator = False
    """The step sets it for GPUs and TPUs."""
    on_gpu = False
    """The step sets it for GPUs."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        size = config.hidden_size
        self.query, self.key, self.value, self.output = (inner_linear(size, size, config, rngs) for _ in range(4))
        self.attention_norm = layer_norm(size, config, rngs)
        self.feed_in = inner_linear(size, config.intermediate_size, config, rngs)
        if config.gated_mlp:
            self.feed_gate = inner_linear(size, config.intermediate_size, config, rngs)
        self.feed_out = inner_linear(config.intermediate_size, size, config, rngs)
        self.feed_norm = layer_norm(size, config, rngs)
        self.heads, self.rate, self.attention_rate = config.heads, config.dropout, config.attention_dropout
        self.activation, self.gated_mlp, self.norm_first = config.activation, config.gated_mlp, config.norm_first
        self.backend = "xla" if config.attention == "auto" else config.attention
        self.local_backend = self.backend if config.local_backend == "auto" else config.local_backend
        self.blocks = config.attention_blocks
        self.fused_norm = config.residual_norm == "pallas"

    def __call__(
        self,
        hidden_BLD: jax.Array,
        segments_BL: jax.Array,
        positions: PositionInput,
        key: DropoutKey | None,
        site: jax.Array,
        first: jax.Array,
        window: int = 0,
        causal: bool = False,
    ) -> jax.Array:
        """[B, L, D] -> [B, L, D]; uses dropout sites `site`, `site + 1` and `site + 2`. `first`: is it the first layer?

        `window` is that of a local layer; with `causal` a position attends to no later one.
        """
        if self.norm_first:
            read_BLD = jnp.where(first, hidden_BLD, self.attention_norm(hidden_BLD))
            _, mixed_BLD = self._attended(read_BLD, segments_BL, positions, key, site, window, causal)
            hidden_BLD = hidden_BLD + dropout(self.output(mixed_BLD), self.rate, key, site + 1)
            inner_BLI = self._inner(self.feed_norm(hidden_BLD))
            return hidden_BLD + dropout(self.feed_out(inner_BLI), self.rate, key, site + 2)
        hidden_BLD, mixed_BLD = self._attended(hidden_BLD, segments_BL, positions, key, site, window, causal)
        hidden_BLD = self._added(hidden_BLD, mixed_BLD, self.output, self.attention_norm, key, site + 1)
        return self._added(hidden_BLD, self._inner(hidden_BLD), self.feed_out, self.feed_norm, key, site + 2)

    def _added(
        self,
        hidden_BLD: jax.Array,
        x: jax.Array,
        part: Linear,
        norm: LayerNorm,
        key: DropoutKey | None,
        site: jax.Array,
    ) -> jax.Array:
        """LayerNorm of hidden states plus what a dense layer makes of x, with dropout."""
        if not self.fused_norm:
            return norm(hidden_BLD + dropout(part(x), self.rate, key, site))
        product_BLD, zeros_D = x @ part.kernel[...], jnp.zeros(hidden_BLD.shape[-1], x.dtype)
        vectors = (zeros_D if vector is None else vector[...] for vector in (part.bias, norm.scale, norm.bias))
        options = {"rate": self.rate, "epsilon": norm.epsilon, "key": key, "site": site}
        return residual_norm.fused(hidden_BLD, product_BLD, *vectors, **options)

    def _attended(
        self,
        hidden_BLD: jax.Array,
        segments_BL: jax.Array,
        positions: PositionInput,
        key: DropoutKey | None,
        site: jax.Array,
        window: int,
        causal: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Hidden states, to which the output of attention is added, and values mixed by it, [B, L, D] each."""
        parts = (self.query, self.key, self.value)
        if not self.on_accelerator:
            heads = joint_product(hidden_BLD, parts, self.heads)
        else:  # each as attention reads it: nothing is split, nor are gradients joined
            if self.on_gpu:
                hidden_BLD, *made = shared_products(hidden_BLD, [part.kernel[...] for part in parts])
                made = [_biased(each, part) for each, part in zip(made, parts, strict=True)]
            else:  # a TPU's compiler copies more for the sake of the chain (docs/plan.md)
                made = [part(hidden_BLD) for part in parts]
            heads = [each.reshape(*hidden_BLD.shape[:2], self.heads, -1) for each in made]
        query_BLNH, key_BLNH, value_BLNH = heads
        mixed_BLNH = self._mixed(query_BLNH, key_BLNH, value_BLNH, segments_BL, positions, key, site, window, causal)
        return hidden_BLD, mixed_BLNH.reshape(hidden_BLD.shape)

    def _mixed(
        self,
        query_BLNH: jax.Array,
        key_BLNH: jax.Array,
        value_BLNH: jax.Array,
        segments_BL: jax.Array,
        positions: PositionInput,
        key: DropoutKey | None,
        site: jax.Array,
        window: int,
        causal: bool,
    ) -> jax.Array:
        """Values mixed by attention, [B, L, N, H]."""
        # angles are a tuple; a table of distances is for the layer that adds its scores
        if isinstance(positions, tuple):
            query_BLNH, key_BLNH = apply_rotary(query_BLNH, positions), apply_rotary(key_BLNH, positions)
        return attention(
            query_BLNH,
            key_BLNH,
            value_BLNH,
            segments_BL,
            rate=self.attention_rate,
            dropout_key=key,
            site=site,
            backend=self.local_backend if window else self.backend,
            window=window,
            causal=causal,
            blocks=self.blocks,
        )

    def _inner(self, hidden_BLD: jax.Array) -> jax.Array:
        """Activations of the feed-forward part, [B, L, I]."""
        inner_BLI = ACTIVATIONS[self.activation](self.feed_in(hidden_BLD))
        return inner_BLI * self.feed_gate(hidden_BLD) if self.gated_mlp else inner_BLI


def _biased(product_BLD: jax.Array, part: Linear) -> jax.Array:
    """The product with a dense layer's kernel, plus its bias if it has one."""
    return product_BLD if part.bias is None else product_BLD + part.bias[...].astype(product_BLD.dtype)[None, None]


def joint_product(hidden_BLD: jax.Array, parts: tuple[Linear, ...], heads: int) -> list[jax.Array]:
    """Outputs of dense layers of equal shape on the same hidden states, by one product: [B, L, N, H] each.

    The joint kernel is ordered by head first, so that a mesh with a `tensor` axis splits it between heads.
    """
    size, count = hidden_BLD.shape[-1], len(parts)
    by_head = [part.kernel[...].reshape(size, heads, -1) for part in parts]
    made_XE = hidden_BLD.reshape(-1, size) @ jnp.stack(by_head, axis=2).reshape(size, -1)
    if parts[0].bias is not None:
        biases = [part.bias[...].reshape(heads, -1) for part in parts]  # pyright: ignore[reportOptionalSubscript]
        made_XE = made_XE + jnp.stack(biases, axis=1).reshape(1, -1)
    made_BLNCH = made_XE.reshape(*hidden_BLD.shape[:2], heads, count, -1)
    return [made_BLNCH[:, :, :, number] for number in range(count)]
