"""Layers whose attention reads distances instead of positions (Transformer-XL, Dai et al., 2019; XLNet, Yang et al., 2019).

A score is (q + u) k + (q + v) r(distance) + (q + w) s(same type or not), over the square root of a head's width. Rows may have a
memory: hidden states of a neighbouring row, which positions attend to and which are not recomputed. r is a linear map of sines
and cosines of the distance, so by their addition theorems (q + v) r(i - j) is the product of a vector of (q + v, i) and of the
sines and cosines of j: a score by distance is an ordinary product, and nothing is shifted.
Shapes: B rows, L positions, K slots, M positions of the memory, J = M + L keys, D hidden size, N heads, H width of a head;
Q positions or slots that attend, C of a chunk of them, X chunks.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from spanjax.nn.attention.on_device import check, shortest
from spanjax.nn.attention.xla import HIDDEN, STRIDE, visible
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, dropout, step_key
from spanjax.nn.layer import Linear, layer_norm, linear, normal
from spanjax.nn.pointwise import ACTIVATIONS
from spanjax.nn.products import float32_product

CHUNK = 128  # queries; scores of more exist at no time


class AttentionMask(NamedTuple):
    """Attention mask: True for keys that a query sees, and for keys of another type than the query's."""

    seen_BQJ: jax.Array
    other_BQJ: jax.Array


class Keyed(NamedTuple):
    """Arrays that all queries of a layer read: those they attend to, and the parameters of their scores."""

    key_BJNH: jax.Array
    value_BJNH: jax.Array
    distance_DNH: jax.Array
    """Kernel of the linear map of sines and cosines."""
    content_NH: jax.Array
    distance_NH: jax.Array
    type_NH: jax.Array
    types_2NH: jax.Array

    def by_distance(self, query_BQNH: jax.Array, place_BQ: jax.Array, places_JD: jax.Array) -> jax.Array:
        """Scores of the distances between queries at places among the keys and all keys, float32 [B, N, Q, J].

        `places_JD` are the sinusoids of all places.
        """
        biased_BQNH = query_BQNH + self.distance_NH[None, None]
        sine_BNQE, cosine_BNQE = jnp.split(
            float32_product("bqnh,dnh->bnqd", biased_BQNH, self.distance_DNH), 2, axis=-1
        )
        sine_of_B1QE, cosine_of_B1QE = jnp.split(places_JD[place_BQ][:, None], 2, axis=-1)
        turned_BNQD = jnp.concatenate(
            [
                cosine_BNQE * sine_of_B1QE - sine_BNQE * cosine_of_B1QE,
                sine_BNQE * sine_of_B1QE + cosine_BNQE * cosine_of_B1QE,
            ],
            axis=-1,
        )
        return float32_product("bnqd,jd->bnqj", *(x.astype(query_BQNH.dtype) for x in (turned_BNQD, places_JD)))


class RelativeContext(NamedTuple):
    """Inputs of a relative layer other than hidden states."""

    content: AttentionMask
    """Mask of the content stream: Q = L."""
    backward_B: jax.Array | None = None
    """Rows whose memory follows them: their keys are the row and then the memory. None: no memory."""
    end_B: jax.Array | None = None
    """End of the text of each row, int32: the memory of a row read backwards begins there. None: no memory."""
    slots: AttentionMask | None = None
    """Mask of the query stream: Q = K."""
    slot_position_BK: jax.Array | None = None

    def before(self, rows: int, keys: int) -> jax.Array:
        """Keys of the memory before each row, int32 [B]: none where it lies behind the row."""
        remembered = jnp.full((rows,), keys - self.content.seen_BQJ.shape[1], jnp.int32)
        return remembered if self.backward_B is None else jnp.where(self.backward_B, 0, remembered)


def joined_heads(x: jax.Array) -> jax.Array:
    """[..., N, H] -> [..., D]."""
    return x.reshape(*x.shape[:-2], -1)


def sinusoids(place: jax.Array, size: int) -> jax.Array:
    """[...] -> [..., D]: sines of all places times 10000 ** (-2i / D), then cosines; float32."""
    rates = 1e4 ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    angles = place.astype(jnp.float32)[..., None] * rates.reshape(*(1 for _ in place.shape), -1)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def full_context(segments_BL: jax.Array, types_BL: jax.Array, causal: bool = False) -> RelativeContext:
    """Full attention inside each block, without a memory, as in fine-tuning; with `causal` to no later position."""
    seen_BLL = visible(segments_BL, 0, causal)
    other_BLL = types_BL[:, :, None] != types_BL[:, None, :]
    return RelativeContext(AttentionMask(seen_BLL, other_BLL))


def shifted(scores_BNLT: jax.Array, keys: int) -> jax.Array:
    """[..., L, L + keys - 1] by distance -> [..., L, keys] by key: row i begins at column L - 1 - i."""
    *outer, rows, columns = scores_BNLT.shape
    flat = jnp.pad(scores_BNLT, [(0, 0)] * (len(outer) + 1) + [(0, 1)]).reshape(*outer, rows * (columns + 1))
    flat = jax.lax.slice_in_dim(flat, rows - 1, rows - 1 + rows * columns, axis=-1)
    return flat.reshape(*outer, rows, columns)[..., :keys]


def chunk_of(length: int) -> int:
    """Returns the number of queries of a chunk: at most CHUNK, and a divisor of the length."""
    return next(size for size in range(min(CHUNK, length), 0, -1) if length % size == 0)


class RelativeLayer(nnx.Module):
    """One layer of Transformer-XL with both streams of XLNet; LayerNorms after its parts."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        size, heads = config.hidden_size, config.heads
        init, shape = normal(config), (heads, config.hidden_size // config.heads)
        self.query, self.key, self.value, self.distance, self.output = (
            Linear(size, size, use_bias=False, kernel_init=init, rngs=rngs) for _ in range(5)
        )
        self.content_bias, self.distance_bias, self.type_bias = (
            nnx.Param(init(rngs.params(), shape, jnp.float32)) for _ in range(3)
        )
        self.types = nnx.Param(init(rngs.params(), (2, *shape), jnp.float32))
        self.attention_norm = layer_norm(size, config, rngs)
        self.feed_in = linear(size, config.intermediate_size, config, rngs)
        self.feed_out = linear(config.intermediate_size, size, config, rngs)
        self.feed_norm = layer_norm(size, config, rngs)
        self.heads, self.rate, self.attention_rate = heads, config.dropout, config.attention_dropout
        self.activation = config.activation
        self.backend = "xla" if config.attention == "auto" else config.attention

    def __call__(
        self,
        hidden_BLD: jax.Array,
        segments_BL: jax.Array,
        context: RelativeContext,
        key: DropoutKey | None,
        site: jax.Array,
        first: jax.Array,
        window: int = 0,
        causal: bool = False,
    ) -> jax.Array:
        """The content stream alone, called like `Layer`: [B, L, D] -> [B, L, D]; uses dropout sites `site` to `site + 3`."""
        del segments_BL, first, window, causal  # the context has the mask
        return self._content(hidden_BLD, self._keyed(hidden_BLD, None, context), context, key, site)

    def both(
        self,
        hidden_BLD: jax.Array,
        slots_BKD: jax.Array,
        memory_BMD: jax.Array | None,
        context: RelativeContext,
        key: DropoutKey | None,
        site: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """(content stream, query stream): the second attends to the content that its mask allows, from its slot's position.

        Uses dropout sites `site` to `site + 7`.
        """
        assert context.slots is not None and context.slot_position_BK is not None
        keyed = self._keyed(hidden_BLD, memory_BMD, context)
        slots = (self._split(self.query(slots_BKD)), context.slot_position_BK)
        after_BKD = self._after(
            slots_BKD, self._mixed(*slots, keyed, context, context.slots, key, site + 4), key, site + 5
        )
        return self._content(hidden_BLD, keyed, context, key, site), after_BKD

    def _content(
        self,
        hidden_BLD: jax.Array,
        keyed: Keyed,
        context: RelativeContext,
        key: DropoutKey | None,
        site: jax.Array,
    ) -> jax.Array:
        query_BLNH, position_1L = self._split(self.query(hidden_BLD)), jnp.arange(hidden_BLD.shape[1])[None]
        mixed_BLD = self._mixed(query_BLNH, position_1L, keyed, context, context.content, key, site)
        return self._after(hidden_BLD, mixed_BLD, key, site + 1)

    def _split(self, x_BLD: jax.Array) -> jax.Array:
        return x_BLD.reshape(*x_BLD.shape[:-1], self.heads, -1)

    def _keyed(self, hidden_BLD: jax.Array, memory_BMD: jax.Array | None, context: RelativeContext) -> Keyed:
        """Keys and values of memory and row, in the order of the text, and the parameters of scores."""
        read_BJD = joined(hidden_BLD, memory_BMD, context.backward_B, context.end_B)
        return Keyed(
            self._split(self.key(read_BJD)),
            self._split(self.value(read_BJD)),
            self._split(self.distance.kernel[...]),
            *(
                each[...].astype(hidden_BLD.dtype)
                for each in (self.content_bias, self.distance_bias, self.type_bias, self.types)
            ),
        )

    def _mixed(
        self,
        query_BQNH: jax.Array,
        position_BQ: jax.Array,
        keyed: Keyed,
        context: RelativeContext,
        mask: AttentionMask,
        key: DropoutKey | None,
        site: jax.Array,
    ) -> jax.Array:
        """Values mixed by attention, [B, Q, D], a chunk of queries at a time; the backward pass computes their scores again.

        So scores of more than a chunk exist at no time. The gradients of what all chunks read are summed in float32.
        """
        rows, count, keys = *query_BQNH.shape[:2], keyed.key_BJNH.shape[1]
        if self.backend == "pallas_tpu":
            return self._mixed_on_tpu(query_BQNH, position_BQ, keyed, context, mask, key, site)
        chunk, size = chunk_of(count), query_BQNH.dtype
        place_BQ = jnp.broadcast_to(position_BQ + context.before(rows, keys)[:, None], (rows, count))
        places_JD = sinusoids(jnp.arange(keys), keyed.distance_DNH.shape[0])

        @jax.checkpoint
        def mix(wide: Keyed, first: jax.Array, query_BCNH: jax.Array, place_BC: jax.Array) -> jax.Array:
            keyed = jax.tree.map(lambda x: x.astype(size), wide)
            seen = AttentionMask(*(jax.lax.dynamic_slice_in_dim(each, first, chunk, axis=1) for each in mask))
            by_distance_BNCJ = keyed.by_distance(query_BCNH, place_BC, places_JD)
            return self._mixed_chunk(query_BCNH, keyed, by_distance_BNCJ, seen, key, site, first)

        @jax.checkpoint  # it keeps the arrays as they were before they are widened
        def mix_all(keyed: Keyed, query_BQNH: jax.Array) -> jax.Array:
            wide = jax.tree.map(lambda x: x.astype(jnp.float32), keyed)
            cut = (
                jnp.moveaxis(x.reshape(rows, count // chunk, chunk, *x.shape[2:]), 1, 0) for x in (query_BQNH, place_BQ)
            )
            return jax.lax.map(lambda each: mix(wide, *each), (jnp.arange(0, count, chunk), *cut))

        mixed_XBCD = mix_all(keyed, query_BQNH)
        return jnp.moveaxis(mixed_XBCD, 0, 1).reshape(rows, count, mixed_XBCD.shape[-1])

    def _mixed_on_tpu(
        self,
        query_BQNH: jax.Array,
        position_BQ: jax.Array,
        keyed: Keyed,
        context: RelativeContext,
        mask: AttentionMask,
        key: DropoutKey | None,
        site: jax.Array,
    ) -> jax.Array:
        """`_mixed` by the project's kernels for TPU, which read scores by distance from a table of all distances."""
        from spanjax.nn.attention import tpu_relative

        rows, keys, heads, _ = keyed.key_BJNH.shape
        size, kernel_DNH = query_BQNH.dtype, keyed.distance_DNH.astype(query_BQNH.dtype)
        table_RD = sinusoids(keys - 1 - jnp.arange(2 * keys), len(kernel_DNH)).astype(size) @ joined_heads(kernel_DNH)
        # a softmax does not see what all keys of a query have in common: the difference of the types is enough
        gap_NH = keyed.types_2NH[1] - keyed.types_2NH[0]
        vectors_4NH = jnp.stack([keyed.content_NH, keyed.distance_NH, keyed.type_NH, gap_NH])
        return tpu_relative.run(
            (joined_heads(query_BQNH), joined_heads(keyed.key_BJNH), joined_heads(keyed.value_BJNH)),
            table_RD,
            joined_heads(vectors_4NH),
            mask.seen_BQJ.astype(jnp.int8) + (mask.seen_BQJ & mask.other_BQJ).astype(jnp.int8),
            context.before(rows, keys),
            None if mask is context.content else position_BQ,
            heads,
            context.content.seen_BQJ.shape[1],
            self.attention_rate,
            key,
            site,
        )

    def _mixed_chunk(
        self,
        query_BQNH: jax.Array,
        keyed: Keyed,
        by_distance_BNQJ: jax.Array,
        mask: AttentionMask,
        key: DropoutKey | None,
        site: jax.Array,
        first: int | jax.Array,
    ) -> jax.Array:
        """Values mixed by attention for queries from number `first` on, [B, Q, D]: zero where nothing is seen."""
        scores_BNQJ = float32_product("bqnh,bjnh->bnqj", query_BQNH + keyed.content_NH[None, None], keyed.key_BJNH)
        by_type_BNQ2 = float32_product("bqnh,snh->bnqs", query_BQNH + keyed.type_NH[None, None], keyed.types_2NH)
        by_type_BNQJ = jnp.where(mask.other_BQJ[:, None], by_type_BNQ2[..., 1:], by_type_BNQ2[..., :1])
        scores_BNQJ = (scores_BNQJ + by_distance_BNQJ + by_type_BNQJ) * jnp.float32(query_BQNH.shape[-1] ** -0.5)
        seen_B1QJ = mask.seen_BQJ[:, None]
        weights_BNQJ = jax.nn.softmax(jnp.where(seen_B1QJ, scores_BNQJ, jnp.float32(HIDDEN)), axis=-1)
        weights_BNQJ = jnp.where(seen_B1QJ, weights_BNQJ, 0.0).astype(query_BQNH.dtype)
        weights_BNQJ = dropout(weights_BNQJ, self.attention_rate, key, site, line=first, strides=(STRIDE, 1))
        mixed_BQNH = jnp.einsum("bnqj,bjnh->bqnh", weights_BNQJ, keyed.value_BJNH)
        return mixed_BQNH.reshape(*mixed_BQNH.shape[:2], -1)

    def _after(self, hidden_BQD: jax.Array, mixed_BQD: jax.Array, key: DropoutKey | None, site: jax.Array) -> jax.Array:
        """The part of a layer after attention, of either stream."""
        added_BQD = dropout(self.output(mixed_BQD), self.rate, key, site)
        hidden_BQD = self.attention_norm(hidden_BQD + added_BQD)
        inner_BQI = dropout(ACTIVATIONS[self.activation](self.feed_in(hidden_BQD)), self.rate, key, site + 1)
        return self.feed_norm(hidden_BQD + dropout(self.feed_out(inner_BQI), self.rate, key, site + 2))


def joined(
    row: jax.Array, memory: jax.Array | None, backward_B: jax.Array | None, end_B: jax.Array | None, axis: int = 1
) -> jax.Array:
    """Row and memory along an axis, in the order of the text: the memory before the row or, for a row read backwards, from
    `end_B` on, in the place of padding, with zeros behind it.
    """
    if memory is None or backward_B is None or end_B is None:
        return row
    memory = memory.astype(row.dtype)
    length, size = row.shape[axis], memory.shape[axis]
    aside = [1] * row.ndim
    aside[0], aside[axis] = -1, length + size
    place = (jnp.arange(length + size)[None] - end_B[:, None]).reshape(aside)  # in the memory, of rows read backwards
    moved = jnp.take_along_axis(memory, jnp.clip(place, 0, size - 1), axis)
    moved = jnp.where(place < size, moved, jnp.zeros((), row.dtype))
    text_first = jnp.where(place < 0, jnp.concatenate([row, jnp.zeros_like(memory)], axis), moved)
    behind = backward_B.reshape(-1, *[1] * (row.ndim - 1))
    return jnp.where(behind, text_first, jnp.concatenate([memory, row], axis))


@functools.cache
def verify(length: int, memory: int, head_size: int, dtype: str, rate: float) -> tuple[float, float]:
    """Compares the kernels for TPU with the plain formula in float32 on this process's first device: both streams, with outputs
    and gradients. Returns the seconds of the kernels and of the formula; ValueError as of `on_device.compare`."""
    heads, rows, keys, slots = 12, 2, length + memory, length // 8
    config = EncoderConfig(hidden_size=heads * head_size, heads=heads, attention_dropout=rate, relative_attention=True)
    graph, state = nnx.split(RelativeLayer(config, nnx.Rngs(0)))
    generator = np.random.default_rng(0)
    masks = [
        AttentionMask(*(jnp.asarray(generator.random((rows, count, keys)) < 0.6) for _ in range(2)))
        for count in (length, slots)
    ]
    position_BK = jnp.asarray(generator.integers(0, length, (rows, slots)), jnp.int32)
    sides = (jnp.arange(rows) % 2 == 1, jnp.full(rows, length)) if memory else (None, None)
    context = RelativeContext(masks[0], *sides, masks[1], position_BK)
    key = DropoutKey(step_key(0, jnp.int32(1)), jnp.arange(rows)) if rate else None
    sizes = (length, slots, memory, length, slots)
    arrays = [jnp.asarray(generator.standard_normal((rows, size, config.hidden_size)), dtype) for size in sizes]

    def both(backend: str, kind: str) -> Callable[..., list[jax.Array]]:
        def mixed(state: Any, hidden_BLD: jax.Array, slots_BKD: jax.Array, memory_BMD: jax.Array) -> list[jax.Array]:
            layer = nnx.merge(graph, jax.tree.map(lambda x: x.astype(kind), state))
            layer.backend = backend
            keyed = layer._keyed(hidden_BLD, memory_BMD, context)
            streams = ((hidden_BLD, jnp.arange(length)[None], masks[0]), (slots_BKD, position_BK, masks[1]))
            return [
                layer._mixed(layer._split(layer.query(x)), place, keyed, context, mask, key, jnp.uint32(4 * number))
                for number, (x, place, mask) in enumerate(streams)
            ]

        def results(*arrays: jax.Array) -> list[jax.Array]:
            *read, of_content, of_slots = (each.astype(kind) for each in arrays)
            output, backward = jax.vjp(mixed, state, *read)
            return [*output, *jax.tree.leaves(backward([of_content, of_slots]))]

        return results

    functions = both("pallas_tpu", dtype), both("xla", "float32")
    got, right = ([np.asarray(each, np.float32) for each in jax.jit(each)(*arrays)] for each in functions)
    # the parts of a layer behind attention have no gradient here
    used = [number for number, each in enumerate(right) if each.size and each.any()]
    names = [f"result {number}" for number in used]
    check("encoder.attention 'pallas_tpu'", names, *([part[number] for number in used] for part in (got, right)))
    own, plain = (shortest(both(backend, dtype), arrays) for backend in ("pallas_tpu", "xla"))
    return own, plain
