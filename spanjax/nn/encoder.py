"""The encoder: embeddings and a stack of layers (Devlin et al., 2019). RoBERTa, ALBERT, XLNet, DeBERTa and
a modern recipe are settings of it.

Layers are stacked on a leading axis and run by `lax.scan`; one parameter layout whatever the unrolling.
Shapes: B rows, L positions, D hidden size, E width of the token table, V padded vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.nn.attention import KEPT
from spanjax.nn.config import EncoderConfig
from spanjax.nn.disentangled import DisentangledLayer, DistanceTable
from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.layer import Layer, Linear, PositionInput, layer_norm, lookup, normal, rotary_angles
from spanjax.nn.relative import RelativeContext, RelativeLayer, full_context

Carry = TypeVar("Carry")
Apply = Callable[[Any, Any, jax.Array, Any], tuple[Any, Any]]
"""(layer, carry, first dropout site, the layer's part of given arrays) -> (carry, result of the layer)."""
RunLayer = Callable[[Any, tuple], tuple[Any, Any]]


def _library_results(primitive: Any, *arrays: Any, **settings: Any) -> bool:
    """Saves what libraries compute: products with parameters, and the results of attention with its log-sums."""
    products = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    named = primitive.name == "name" and settings["name"] == KEPT
    return named or primitive.name in _KERNELS or products(primitive, *arrays, **settings)


_KERNELS = {"pallas_call", "dot_product_attention_fwd", "dot_product_attention_fwd_wrapper"}
_POLICIES: dict[str, Any] = {
    "none": None,
    "elementwise": _library_results,
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


def _split(tree: Any, sizes: Sequence[int]) -> list[Any]:
    """Cuts every leaf along its first axis; the gradient is one concatenation, where slices would add up whole arrays."""
    leaves, structure = jax.tree.flatten(tree)
    parts = [jax.lax.split(leaf, sizes) for leaf in leaves]
    return [structure.unflatten([part[number] for part in parts]) for number in range(len(sizes))]


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _but_parameters(primitive: Any, *_: Any, **__: Any) -> bool:
    """Saves everything for the backward pass except results of mere moves, so that it gathers sharded parameters again."""
    return primitive.name not in _MOVES


class Embeddings(nnx.Module):
    """Sum of the token, position and type embeddings in use, LayerNorm, dropout; then widened if narrower than the layers."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        size, init = config.embedding_width, normal(config)
        self.token = nnx.Embed(config.padded_vocab_size, size, embedding_init=init, rngs=rngs)
        self.placed = not (config.rope_theta or config.relative_attention or config.disentangled)
        self.typed, self.normed = config.types > 0 and not config.relative_attention, not config.relative_attention
        if self.placed:
            self.position = nnx.Embed(config.position_offset + config.positions, size, embedding_init=init, rngs=rngs)
        if self.typed:
            self.type = nnx.Embed(config.types, size, embedding_init=init, rngs=rngs)
        # DeBERTa widens the sum before its LayerNorm, without a bias
        self.widens_first = config.embedding_size > 0 and config.disentangled
        self.widens = config.embedding_size > 0 and not config.disentangled
        if self.normed:
            self.norm = layer_norm(config.hidden_size if self.widens_first else size, config, rngs)
        if config.embedding_size:
            bias, init = not config.disentangled, normal(config)
            self.widen = Linear(size, config.hidden_size, use_bias=bias, kernel_init=init, rngs=rngs)
        self.rate, self.offset = config.dropout, config.position_offset

    def __call__(
        self, tokens_BL: jax.Array, positions_BL: jax.Array, types_BL: jax.Array, key: DropoutKey | None, site: int
    ) -> jax.Array:
        """[B, L] ids -> [B, L, D]."""
        embedded_BLE = self.narrow(tokens_BL, positions_BL, types_BL, key, site)
        return self.widen(embedded_BLE) if self.widens else embedded_BLE

    def narrow(
        self, tokens_BL: jax.Array, positions_BL: jax.Array, types_BL: jax.Array, key: DropoutKey | None, site: int
    ) -> jax.Array:
        """[B, L] ids -> [B, L, E], before they are widened; with disentangled attention after that, [B, L, D]."""
        sum_BLE = lookup(self.token, tokens_BL)
        if self.placed:
            sum_BLE = sum_BLE + lookup(self.position, positions_BL + self.offset if self.offset else positions_BL)
        if self.typed:
            sum_BLE = sum_BLE + lookup(self.type, types_BL)
        if self.widens_first:
            sum_BLE = self.widen(sum_BLE)
        return dropout(self.norm(sum_BLE) if self.normed else sum_BLE, self.rate, key, site)


SITES, SITES_OF_RELATIVE, SITES_OF_DISENTANGLED = 3, 8, 4  # dropout sites of a layer


class LayerStack(nnx.Module):
    """Layers one after the other; their parameters carry a leading axis of size `own_layers`."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        keys = jax.random.split(rngs.params(), config.own_layers)
        kind, self.sites = Layer, SITES
        if config.relative_attention:
            kind, self.sites = RelativeLayer, SITES_OF_RELATIVE
        elif config.disentangled:
            kind, self.sites = DisentangledLayer, SITES_OF_DISENTANGLED
        structure, _ = nnx.split(nnx.eval_shape(lambda: kind(config, nnx.Rngs(0))))
        self.layers = nnx.merge(structure, jax.vmap(lambda key: nnx.state(kind(config, nnx.Rngs(key))))(keys))
        self.count, self.unroll = config.layers, min(max(1, config.unroll), config.layers)
        self.uses, self.remat = config.layers // config.own_layers, config.remat
        self.rope_theta, self.head_size = config.rope_theta, config.hidden_size // config.heads
        self.window, self.local_rope_theta = config.local_window, config.local_rope_theta
        self.period = config.global_every if config.local_window else 1  # layers until the kinds of layers repeat
        self.relative_attention, self.normed = config.relative_attention, config.norm_first
        self.distances = DistanceTable(config, rngs) if config.disentangled else None
        if self.normed:
            self.final_norm = layer_norm(config.hidden_size, config, rngs)
        self.fetch: Callable[[Any], Any] | None = None  # gathers a layer's parameters where they are sharded
        self.fetch_again = True  # for the backward pass

    def run(
        self,
        hidden_BLD: jax.Array,
        segments_BL: jax.Array,
        positions_BL: jax.Array,
        types_BL: jax.Array,
        key: DropoutKey | None,
        first_site: int = 1,
        keep: bool = False,
        causal: bool = False,
    ) -> tuple[jax.Array, Any]:
        """(hidden states [B, L, D] of the last layer, with `keep` those after every layer, [layers, B, L, D]).

        With `causal` a position attends to no later one. Where LayerNorms come first, one more ends the last layer. `sites`
        dropout sites a layer are used, from `first_site` on.
        """
        read: RelativeContext | PositionInput = None
        if self.relative_attention:
            read = full_context(segments_BL, types_BL, causal)
        elif self.distances is not None:
            read = self.distances()
        elif self.rope_theta:
            read = rotary_angles(positions_BL, self.head_size, self.rope_theta)

        def applying(read: RelativeContext | PositionInput, window: int) -> Apply:
            # one function serves all layers of a kind inside of the scan: only the traced site tells that a layer is the first
            def apply(layer: Any, hidden_BLD: jax.Array, site: jax.Array, _: Any) -> tuple[jax.Array, Any]:
                hidden_BLD = layer(hidden_BLD, segments_BL, read, key, site, site == first_site, window, causal)
                return hidden_BLD, hidden_BLD if keep else None

            return apply

        local = None
        if self.period > 1:
            local_read = rotary_angles(positions_BL, self.head_size, self.local_rope_theta) if self.rope_theta else None
            local = applying(local_read, self.window)
        last_BLD, states = self.scanned(applying(read, 0), hidden_BLD, first_site, local=local)
        if self.normed:
            last_BLD = self.final_norm(last_BLD)
            states = states.at[-1].set(last_BLD) if keep else states
        return last_BLD, states

    def scanned(
        self,
        apply: Apply,
        carry: Carry,
        first_site: int,
        given: Any = None,
        local: Apply | None = None,
    ) -> tuple[Carry, Any]:
        """Runs `apply(layer, carry, first dropout site, that layer's part of given)` for every layer, `local` for local layers.

        `given` has a leading axis over the layers, and so has the second result.
        """
        structure, state = nnx.split(self.layers)
        stacked = nnx.to_pure_dict(state)
        sites = first_site + self.sites * jnp.arange(self.count, dtype=jnp.uint32)

        policy = self._policy()

        def running(apply: Apply, looped: bool) -> RunLayer:
            def run_layer(carry: Any, turn: tuple) -> tuple[Any, Any]:
                layer, site, own = turn
                if self.uses > 1:
                    layer = jax.tree.map(lambda leaf: leaf[layer], stacked)
                layer = self.fetch(layer) if self.fetch else layer
                return apply(nnx.merge(structure, layer), carry, site, own)

            # outside of a loop only checkpoint's barrier keeps XLA from merging the second pass with the first
            return jax.checkpoint(run_layer, prevent_cse=not looped, policy=policy) if policy else run_layer

        each = jnp.arange(self.count) // self.uses if self.uses > 1 else stacked
        turns, looped = (each, sites, given), self.unroll < self.count
        if local is None:
            return jax.lax.scan(running(apply, looped), carry, turns, unroll=self.unroll)
        looped = looped and self.count >= 2 * self.period
        kinds = [running(kind, looped) for kind in (apply, local)]
        return self._scanned_groups(kinds, [running(kind, False) for kind in (apply, local)], carry, turns)

    def _scanned_groups(
        self, kinds: Sequence[RunLayer], behind: Sequence[RunLayer], carry: Any, turns: Any
    ) -> tuple[Any, Any]:
        """Runs a scan over whole groups of a global layer and the local ones that follow, and the remaining layers one by one.

        `kinds` run a global and a local layer inside of the scan, `behind` those behind it.
        """
        groups, results = self.count // self.period, []
        whole = groups * self.period
        parts = _split(turns, [*[whole] * (groups > 0), *[1] * (self.count - whole)])

        def run_group(carry: Any, group: Any) -> tuple[Any, Any]:
            made = []
            for number, turn in enumerate(_split(group, [1] * self.period)):
                carry, result = kinds[number > 0](carry, _first(turn))
                made.append(result)
            return carry, jax.tree.map(lambda *each: jnp.stack(each), *made)

        if groups:
            grouped = jax.tree.map(lambda leaf: leaf.reshape(groups, self.period, *leaf.shape[1:]), parts.pop(0))
            unroll = min(groups, max(1, self.unroll // self.period))
            carry, made = jax.lax.scan(run_group, carry, grouped, unroll=unroll)
            results.append(jax.tree.map(lambda leaf: leaf.reshape(whole, *leaf.shape[2:]), made))
        # the first layer behind a whole group is global again
        for number, turn in enumerate(parts):
            carry, made = behind[number > 0](carry, _first(turn))
            results.append(jax.tree.map(lambda leaf: leaf[None], made))
        return carry, jax.tree.map(lambda *each: jnp.concatenate(each), *results)

    def _policy(self) -> Any:
        """The policy of `jax.checkpoint`; None keeps everything for the backward pass."""
        policy = _POLICIES[self.remat]
        if not self.fetch:
            return policy
        if self.fetch_again:
            return policy or _but_parameters
        return policy and (
            lambda primitive, *arrays, **settings: (
                primitive.name == "all_gather" or policy(primitive, *arrays, **settings)
            )
        )


class Encoder(LayerStack):
    """Embeddings and a stack of layers."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, rngs)
        self.types = config.types
        super().__init__(config, rngs)

    def __call__(
        self,
        tokens_BL: jax.Array,
        segments_BL: jax.Array,
        positions_BL: jax.Array,
        types_BL: jax.Array,
        key: DropoutKey | None = None,
        causal: bool = False,
    ) -> jax.Array:
        """[B, L] ids, blocks, positions and types -> hidden states [B, L, D] of the last layer.

        With `key` dropout is applied (training), without it is not (evaluation). With `causal` a position attends to no later
        one of its block.
        """
        hidden_BLD = self.embeddings(tokens_BL, positions_BL, types_BL, key, site=0)
        return self.run(hidden_BLD, segments_BL, positions_BL, types_BL, key, causal=causal)[0]

    def every_state(
        self, tokens_BL: jax.Array, segments_BL: jax.Array, positions_BL: jax.Array, types_BL: jax.Array
    ) -> jax.Array:
        """Hidden states before the first layer and after each, without dropout: [layers + 1, B, L, D]."""
        first_BLD = self.embeddings(tokens_BL, positions_BL, types_BL, None, site=0)
        states = self.run(first_BLD, segments_BL, positions_BL, types_BL, None, keep=True)[1]
        return jnp.concatenate([first_BLD[None], states])

    def token_table(self) -> jax.Array:
        """The token embedding [V, E], to be passed to heads that are tied to it."""
        return self.embeddings.token.embedding[...]
