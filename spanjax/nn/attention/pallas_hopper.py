"""The project's own attention kernel for NVIDIA GPUs of compute capability 9.0, in Pallas for Mosaic GPU.

It reads queries, keys and values where the products write them, skips tiles of positions that cannot see each other, drops
probabilities with the mask of `xla`, and computes both again for the backward pass. No GPU has run it yet: it is compiled for
sm90, and its numbers are those of jax's interpreter on a CPU.
Shapes: B rows, L positions, N heads, H width of a head.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from spanjax.nn.attention.on_device import trial
from spanjax.nn.attention.reach import reaches
from spanjax.nn.attention.request import HOPPER, KEPT, Request, is_one_of, reasons
from spanjax.nn.attention.xla import drawn
from spanjax.nn.dropout import DropoutKey


def supports(request: Request) -> str | None:
    """Returns the reasons why the project's kernel for sm90 cannot compute this; None if it can."""
    return reasons(
        request.other_platform("gpu"),
        (
            not is_one_of(request.device_kind, HOPPER),
            f"it needs an NVIDIA GPU of compute capability 9.0, not {request.device_kind or 'an unknown device'}",
        ),
        request.other_type(jnp.bfloat16, jnp.float16),
        request.uneven_length(),
        # with heads of 128 the sums for keys and values do not fit into registers
        (request.head_size not in (32, 64), f"its head size is 32 or 64, not {request.head_size}"),
    )


class Options(NamedTuple):
    """Constants of a call."""

    rate: float
    window: int
    causal: bool
    interpret: bool
    forward: Callable[..., tuple[jax.Array, jax.Array]]
    """The kernel of the result and its log-sums: `hopper_kernels.forward` or another one with its arguments."""
    backward: Callable[..., tuple[jax.Array, jax.Array, jax.Array]]
    """The kernels of the gradients."""


# libraries of kernels are imported when they are used
def _hopper_forward(*inputs: Any) -> tuple[jax.Array, jax.Array]:
    from spanjax.nn.attention import hopper_kernels

    return hopper_kernels.forward(*inputs)


def _hopper_backward(*inputs: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    from spanjax.nn.attention import hopper_kernels

    return hopper_kernels.backward(*inputs)


def run(
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    window: int = 0,
    interpret: bool = False,
    causal: bool = False,
    rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    site: int | jax.Array = 0,
) -> jax.Array:
    """The kernel for sm90; [B, L, N, H] -> [B, L, N, H]. `interpret` runs it on any device. Blocks of a row are contiguous."""
    rate = rate if dropout_key is not None else 0.0
    options = Options(rate, window, causal, interpret, _hopper_forward, _hopper_backward)
    place = jnp.asarray(site, jnp.uint32)
    return attend(options, query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, place)


@functools.cache
def verify(
    length: int, head_size: int, dtype: str, window: int, rate: float, other: str = "xla"
) -> tuple[float, float]:
    """Compares the kernel with `xla` on this process's first device, with and without a window; returns its seconds and those of
    the backend `other`.

    ValueError if they are not equal. Once a process.
    """
    return trial("pallas_hopper", run, length, head_size, dtype, window, rate, other)


def _forward(
    options: Options,
    query_BLNH: jax.Array,
    key_BLNH: jax.Array,
    value_BLNH: jax.Array,
    segments_BL: jax.Array,
    dropout_key: DropoutKey | None,
    site: jax.Array,
) -> tuple[jax.Array, tuple]:
    keys, _ = reaches(segments_BL, options.window, options.causal)
    draws = drawn(options.rate, query_BLNH.shape, dropout_key, site)
    mixed_BLNH, level_BNL = options.forward(
        options.rate, options.interpret, (query_BLNH, key_BLNH, value_BLNH), keys, draws
    )
    mixed_BLNH, level_BNL = checkpoint_name(mixed_BLNH, KEPT), checkpoint_name(level_BNL, KEPT)
    return mixed_BLNH, (query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, site, mixed_BLNH, level_BNL)


def _backward(options: Options, kept: tuple, out_BLNH: jax.Array) -> tuple:
    """Gradients of query, key and value from that of the result."""
    query_BLNH, key_BLNH, value_BLNH, segments_BL, dropout_key, site, mixed_BLNH, level_BNL = kept
    # the mean over keys in the gradient of the softmax, from the results
    mean_BNL = jnp.swapaxes(jnp.sum(out_BLNH.astype(jnp.float32) * mixed_BLNH, axis=-1), 1, 2)
    draws = drawn(options.rate, query_BLNH.shape, dropout_key, site)
    gradients = options.backward(
        options.rate,
        options.interpret,
        (query_BLNH, key_BLNH, value_BLNH, out_BLNH),
        (level_BNL, mean_BNL),
        reaches(segments_BL, options.window, options.causal),
        draws,
    )
    return *gradients, None, None, None


attend = jax.custom_vjp(lambda options, *inputs: _forward(options, *inputs)[0], nondiff_argnums=(0,))
"""(options, queries, keys, values, segments, key of dropout, site) -> result: the formulas around the kernels of an `Options`."""
attend.defvjp(_forward, _backward)
