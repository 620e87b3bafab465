"""Bidirectional attention inside the blocks of packed rows, and the choice of the backend that computes it.

Two backends run anywhere and drop probabilities: `xla`, the formula as it stands, and `xla_chunked`, which works on one head
of all rows at a time and keeps no probabilities for the backward pass. The kernels are in `attention_backends`.
Shapes: B rows, L positions (Q and K where the two sides differ), N heads, H width of a head.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spanjax.nn.attention_backends import KERNELS, Request
from spanjax.nn.dropout import DropoutKey, dropout

CHUNKED_FROM = 256  # positions; at 128 both take as long
STRIDE = 4096  # between queries in the masks of dropout: more than there are positions, so that masks do not depend on padding
HIDDEN = -1e9  # the score of what a position may not see
BACKENDS = ("xla", "xla_chunked", *KERNELS)
CANDIDATES = {"cpu": ("xla_chunked", "xla"), "gpu": ("cudnn", "pallas_triton", "xla"), "tpu": ("splash", "xla")}
PLATFORM_NAMES = {"cuda": "gpu", "rocm": "gpu"}


def choose_backend(
    wanted: str,
    platform: str,
    *,
    length: int,
    head_size: int,
    dtype: Any,
    dropout: float,
    device_kind: str = "",
) -> tuple[str, str]:
    """The backend for `wanted` ("auto" or a name) and the reason in words.

    `platform` and `device_kind` are of the mesh's devices; `dropout` is the rate on the probabilities. "auto" takes the first
    candidate of the platform that can do all of it. Raises ValueError on an unknown name and a backend that cannot.
    """
    if wanted not in ("auto", *BACKENDS):
        raise ValueError(f"the attention backend is {wanted!r}: expected one of auto, {', '.join(BACKENDS)}")
    platform = PLATFORM_NAMES.get(platform, platform)
    request = Request(platform, length, head_size, dtype, dropout, device_kind)
    if wanted != "auto":
        problem = _problem(wanted, request)
        if problem:
            raise ValueError(f"the attention backend {wanted!r} cannot be used: {problem}; {_remedy(request)}")
        return wanted, "asked for"
    refused = []
    for name in CANDIDATES.get(platform, ("xla",)):
        problem = _problem(name, request)
        if name == "xla_chunked" and length < CHUNKED_FROM:
            problem = f"it gains nothing for rows shorter than {CHUNKED_FROM}"
        if problem is None:
            return name, "; ".join([f"the first on {platform} that can do it", *refused])
        refused.append(f"not {name}: {problem}")
    raise AssertionError(f"no backend for {request}")


def _problem(name: str, request: Request) -> str | None:
    return KERNELS[name].supports(request) if name in KERNELS else None


def _remedy(request: Request) -> str:
    dropped = "set attention dropout to 0, or " if request.dropout > 0 else ""
    return f"{dropped}take 'auto' or 'xla', which can"


def attention(
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    *,
    rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    site: int | jax.Array = 0,
    backend: str = "xla",
) -> jax.Array:
    """Softmax attention of every position over the positions of its own block; [B, L, N, H] -> [B, L, N, H].

    Scores and softmax are float32 whatever the input. Padding (segment 0) attends to padding, so that every row of the
    softmax has a position to look at; nothing else looks at it. Dropout with `rate` falls on the probabilities, and its
    mask is the same in every backend that has it. `backend` is one of BACKENDS, as `choose_backend` answers. Raises
    ValueError where it is not, and where it is a fused kernel and there is something to drop.
    """
    if backend == "xla":
        return _attend(query_BLNH, key_BLNH, value_BLNH, segments_BL, rate, dropout_key, site)
    if backend == "xla_chunked":
        place = jnp.asarray(site, jnp.uint32)
        return _attend_by_heads(rate, query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, place)
    if backend not in KERNELS:
        raise ValueError(f"the attention backend is {backend!r}: expected one of {', '.join(BACKENDS)}")
    if rate > 0 and dropout_key is not None:
        raise ValueError(
            f"the attention backend {backend!r} cannot drop attention probabilities, and the rate is {rate}: "
            f"set attention dropout to 0, or take the backend 'xla'"
        )
    return KERNELS[backend].run(query_BLNH, key_BLNH, value_BLNH, segments_BL)


def _scaled(query: jax.Array) -> jax.Array:
    return query * jnp.asarray(1.0 / math.sqrt(query.shape[-1]), query.dtype)


def _attend(
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    rate: float,
    dropout_key: DropoutKey | None,
    site: int | jax.Array,
) -> jax.Array:
    query_BNQH, key_BNKH, value_BNKH = (jnp.swapaxes(x, 1, 2) for x in (_scaled(query_BLNH), key_BLNH, value_BLNH))
    scores_BNQK = jnp.einsum("bnqh,bnkh->bnqk", query_BNQH, key_BNKH, preferred_element_type=jnp.float32)
    scores_BNQK = jnp.where(_same_block(segments_BL)[:, None], scores_BNQK, jnp.float32(HIDDEN))
    probabilities_BNQK = jax.nn.softmax(scores_BNQK, axis=-1).astype(value_BNKH.dtype)
    probabilities_BNQK = dropout(probabilities_BNQK, rate, dropout_key, site, strides=(STRIDE**2, STRIDE, 1))
    return jnp.swapaxes(jnp.einsum("bnqk,bnkh->bnqh", probabilities_BNQK, value_BNKH), 1, 2)


def _same_block(segments_BL: jax.Array) -> jax.Array:
    return segments_BL[:, :, None] == segments_BL[:, None, :]


def _product(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """A product in the type of `right`, summed in float32."""
    return jnp.einsum(equation, left.astype(right.dtype), right, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_by_heads(
    rate: float,
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    dropout_key: DropoutKey | None,
    site: jax.Array,
) -> jax.Array:
    """As `_attend`, in a loop over heads; the backward pass computes the probabilities anew."""
    return _forward(rate, query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, site)[0]


def _forward(
    rate: float,
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    dropout_key: DropoutKey | None,
    site: jax.Array,
) -> tuple[jax.Array, tuple]:
    same_BQK = _same_block(segments_BL)

    def run_head(query_BQH: jax.Array, key_BKH: jax.Array, value_BKH: jax.Array, head: jax.Array) -> tuple:
        scores_BQK = jnp.where(same_BQK, _product("bqh,bkh->bqk", query_BQH, key_BKH), jnp.float32(HIDDEN))
        top_BQ1 = jnp.max(scores_BQK, axis=-1, keepdims=True)
        weights_BQK = jnp.exp(scores_BQK - top_BQ1)
        total_BQ1 = jnp.sum(weights_BQK, axis=-1, keepdims=True)
        dropped_BQK = _drop_head(weights_BQK, rate, dropout_key, site, head)
        mixed_BQH = _product("bqk,bkh->bqh", dropped_BQK, value_BKH) / total_BQ1
        return mixed_BQH.astype(value_BKH.dtype), top_BQ1 + jnp.log(total_BQ1)

    mixed_NBLH, level_NBL1 = _over_heads(run_head, *map(_heads_first, (_scaled(query_BLNH), key_BLNH, value_BLNH)))
    mixed_BLNH = jnp.transpose(mixed_NBLH, (1, 2, 0, 3))
    return mixed_BLNH, (query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, site, mixed_BLNH, level_NBL1)


def _backward(rate: float, kept: tuple, out_BLNH: jax.Array) -> tuple:
    """Gradients of query, key and value from that of the result.

    Scores stay [Q, K] in every product: the gradients of keys and values come out as [H, K]. XLA would transpose a matrix
    of [Q, K] otherwise, which takes the CPU as long as a product.
    """
    query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, site, mixed_BLNH, level_NBL1 = kept
    same_BQK = _same_block(segments_BL)
    mean_BLN = jnp.sum(out_BLNH.astype(jnp.float32) * mixed_BLNH, axis=-1)
    mean_NBL1 = jnp.transpose(mean_BLN, (2, 0, 1))[..., None]

    def run_head(query: jax.Array, key: jax.Array, value: jax.Array, out: jax.Array, level: Any, mean: Any, head: Any):
        weights_BQK = jnp.where(same_BQK, jnp.exp(_product("bqh,bkh->bqk", query, key) - level), 0.0)
        dropped_BQK = _drop_head(weights_BQK, rate, dropout_key, site, head)
        to_weights_BQK = _drop_head(_product("bqh,bkh->bqk", out, value), rate, dropout_key, site, head)
        to_scores_BQK = (weights_BQK * (to_weights_BQK - mean)).astype(query.dtype)
        to_query_BQH = _product("bqk,bkh->bqh", to_scores_BQK, key)
        to_key_BHK = _product("bqh,bqk->bhk", query, to_scores_BQK)
        return to_query_BQH, to_key_BHK, _product("bqh,bqk->bhk", out, dropped_BQK.astype(out.dtype))

    sliced = map(_heads_first, (_scaled(query_BLNH), key_BLNH, value_BLNH, out_BLNH))
    to_query_NBQH, to_key_NBHK, to_value_NBHK = _over_heads(run_head, *sliced, level_NBL1, mean_NBL1)
    to_query_BLNH = _scaled(jnp.transpose(to_query_NBQH, (1, 2, 0, 3))).astype(query_BLNH.dtype)
    to_key_BLNH = jnp.transpose(to_key_NBHK, (1, 3, 0, 2)).astype(key_BLNH.dtype)
    to_value_BLNH = jnp.transpose(to_value_NBHK, (1, 3, 0, 2)).astype(value_BLNH.dtype)
    return to_query_BLNH, to_key_BLNH, to_value_BLNH, None, None, None


_attend_by_heads.defvjp(_forward, _backward)


def _drop_head(
    weights_BQK: jax.Array, rate: float, key: DropoutKey | None, site: jax.Array, head: jax.Array
) -> jax.Array:
    """Dropout of one head, with the part of the mask that all heads together get there."""
    return dropout(weights_BQK, rate, key, site, first=head * jnp.uint32(STRIDE**2), strides=(STRIDE, 1))


def _heads_first(x_BLNH: jax.Array) -> jax.Array:
    return jnp.transpose(x_BLNH, (2, 0, 1, 3))


def _over_heads(run_head: Callable[..., tuple], *arrays_N: jax.Array) -> tuple:
    heads = np.arange(arrays_N[0].shape[0], dtype=np.uint32)
    return jax.lax.map(lambda sliced: run_head(*sliced), (*arrays_N, heads))
