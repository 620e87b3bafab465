"""Dropout as versions 0.1 and 0.2 computed it, one hash an element: with it a run of theirs continues to their numbers."""

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from spanjax.nn import dropout as module
from spanjax.nn.dropout import DropoutKey, hash32, row_keys

POSITIONS = 1 << 12  # the distance of neighbouring queries
SPANS = 1 << 13  # that of neighbouring spans of coreference


def counted(shape: tuple[int, ...], strides: tuple[int, ...], first: jax.Array) -> jax.Array:
    """The numbers of elements, [1 or B, ...]."""
    places = (
        jax.lax.broadcasted_iota(jnp.uint32, (1, *shape[1:]), axis + 1) * jnp.uint32(stride)
        for axis, stride in enumerate(strides)
    )
    return sum(places, first.reshape(-1, *(1 for _ in shape[1:])))


def of_0_1(
    of_module: str,
    x: jax.Array,
    rate: float,
    key: DropoutKey | None,
    site: int | jax.Array,
    line: int | jax.Array = 0,
    column: jax.Array | None = None,
    strides: tuple[int, ...] = (),
) -> jax.Array:
    if key is None or rate == 0.0:
        return x
    first, distances = jnp.uint32(0), tuple(math.prod(x.shape[axis + 1 :]) for axis in range(1, x.ndim))
    if strides:  # attention of all heads
        distances = (POSITIONS**2, POSITIONS, 1)
    elif not isinstance(line, int):  # of one head, or of chunks of its queries
        head, query = line >> 16, line & 0xFFFF
        distances = (POSITIONS, 1)
        first = head * jnp.uint32(POSITIONS**2) + query * jnp.uint32(POSITIONS) + (0 if column is None else column)
    elif of_module == "spanjax.nn.coreference" and not _dense(x, sys._getframe(1)):
        distances = (SPANS, 1)
    bits = hash32(
        counted(x.shape, distances, jnp.asarray(first, jnp.uint32))
        ^ row_keys(key, site).reshape(-1, *(1 for _ in x.shape[1:]))
    )
    keep = bits >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))


def _dense(x: jax.Array, caller: Any) -> bool:
    """The tables of coreference that had no strides: features of pairs, and the distances of the coarse scores."""
    if caller.f_code.co_name == "drop":
        return True
    model = caller.f_locals.get("self")
    return caller.f_code.co_name == "_coarse" and x.shape[1:] == model.coarse_distance.embedding[...].shape


def use_masks_of_0_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces dropout wherever spanjax has imported it."""
    new: Callable[..., jax.Array] = module.dropout
    for name, each in list(sys.modules.items()):
        if name.startswith("spanjax.") and getattr(each, "dropout", None) is new:
            monkeypatch.setattr(each, "dropout", functools.partial(of_0_1, name))
