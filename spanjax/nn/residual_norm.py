"""LayerNorm of hidden states plus the output of a dense layer, with its bias and dropout: one kernel for GPUs in each direction.

XLA writes several kernels for this, which read the same arrays again. Here a row is read once: forward two arrays, and two are
written, of which one is kept for the backward pass, which reads two and writes two. Sums over rows, for the gradients of
scale, shift and bias, are made by the same kernel, one for each of its programs. Masks are computed again from the numbers that
`dropout` makes of every line. In Pallas for Triton. No GPU has run it yet.
Shapes: T lines of the array, R of a tile, D their width, C columns of a part of it, P programs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from spanjax.nn.attention.on_device import check, shortest
from spanjax.nn.attention.request import not_nvidia, reasons
from spanjax.nn.dropout import Draws, DropoutKey, draws_of, dropout, kept, step_key
from spanjax.nn.pointwise import normalise

TILE = 4  # lines that a program reads at a time
PROGRAMS = 256  # of the backward pass at most: each leaves sums over its lines
WARPS = 8
ROWS, LENGTH = 16, 512  # of the trial
NARROWEST = 128  # columns of a part: parts are powers of 2, as Triton wants them
"""The kernels' sizes. No device has tuned them."""
TYPES = ("bfloat16", "float16", "float32")


class Options(NamedTuple):
    """Constants of a call."""

    rate: float
    epsilon: float
    interpret: bool


def supports(platform: str, device_kind: str, width: int, dtype: Any) -> str | None:
    """Returns the reasons why the kernel cannot compute this; None if it can."""
    name = jnp.dtype(dtype).name
    return reasons(
        (platform != "gpu", f"it runs on gpu, and these devices are {platform}"),
        not_nvidia(device_kind),
        (name not in TYPES, f"its types are {', '.join(TYPES)}, not {name}"),
        (_columns(width) < NARROWEST, f"its width is a multiple of {NARROWEST}, not {width}"),
    )


def plain(
    hidden: jax.Array,
    product: jax.Array,
    bias_D: jax.Array,
    scale_D: jax.Array,
    shift_D: jax.Array,
    *,
    rate: float,
    epsilon: float,
    key: DropoutKey | None,
    site: int | jax.Array,
) -> jax.Array:
    """The formula that the kernel computes; [B, L, D] -> [B, L, D]."""
    added = dropout(product + bias_D.astype(product.dtype).reshape(1, 1, -1), rate, key, site)
    return normalise(hidden + added, scale_D, shift_D, epsilon)


def fused(
    hidden: jax.Array,
    product: jax.Array,
    bias_D: jax.Array,
    scale_D: jax.Array,
    shift_D: jax.Array,
    *,
    rate: float,
    epsilon: float,
    key: DropoutKey | None,
    site: int | jax.Array,
    interpret: bool = False,
) -> jax.Array:
    """`plain` by the kernel; by the formula where lines do not fill tiles or are cut into narrow parts, as those of a small
    generator may be. `interpret` runs the kernel on any device."""
    if hidden.shape[0] * hidden.shape[1] % TILE or _columns(hidden.shape[-1]) < NARROWEST:
        return plain(hidden, product, bias_D, scale_D, shift_D, rate=rate, epsilon=epsilon, key=key, site=site)
    drawn = draws_of(hidden.shape, key, site) if key is not None and rate else None
    return _fused(Options(rate, epsilon, interpret), hidden, product, bias_D, scale_D, shift_D, drawn)


@functools.cache
def verify(width: int, dtype: str, rate: float, epsilon: float, interpret: bool = False) -> tuple[float, float]:
    """Compares the kernel with the formula in float32 on this process's first device, and returns the seconds of both in this
    type; ValueError if they are not equal to its rounding. Once a process."""
    generator = np.random.default_rng(0)
    shapes = (*[(ROWS, LENGTH, width)] * 2, *[(width,)] * 3, (ROWS, LENGTH, width))
    arrays = [jnp.asarray(generator.standard_normal(shape), dtype) for shape in shapes]
    key = DropoutKey(step_key(0, jnp.int32(1)), jnp.arange(ROWS), again=True)

    def both(function: Callable[..., jax.Array], dtype: Any, *arrays: jax.Array) -> list[jax.Array]:
        *inputs, change = (each.astype(dtype) for each in arrays)
        options = {"rate": rate, "epsilon": epsilon, "key": key, "site": 3}
        output, backward = jax.vjp(functools.partial(function, **options), *inputs)
        return [output, *backward(change)]

    kernel = functools.partial(fused, interpret=interpret)
    results = [
        [np.asarray(each, np.float32) for each in both(*how, *arrays)] for how in ((kernel, dtype), (plain, "float32"))
    ]
    check("encoder.residual_norm 'pallas'", ("output", "hidden states", "product", "bias", "scale", "shift"), *results)
    own, other = (shortest(functools.partial(both, function, dtype), arrays) for function in (kernel, plain))
    return own, other


def _columns(width: int) -> int:
    """The largest power of 2 that divides a width."""
    return width & -width


class _Tile:
    """Some lines of an array [T, D] in parts of C columns, float32."""

    def __init__(self, options: Options, first: Any, width: int):
        self.options, self.width, self.size = options, width, _columns(width)
        self.lines = pl.ds(first, TILE)
        self.parts = [pl.ds(start, self.size) for start in range(0, width, self.size)]

    def read(self, ref: Any) -> list[jax.Array]:
        """[R, C] each."""
        return [ref[self.lines, part].astype(jnp.float32) for part in self.parts]

    def read_columns(self, ref: Any) -> list[jax.Array]:
        """[1, C] each, of an array [D]."""
        return [ref[part].astype(jnp.float32)[None, :] for part in self.parts]

    def write(self, ref: Any, values: Sequence[jax.Array]) -> None:
        """[R, C] each."""
        for part, value in zip(self.parts, values, strict=True):
            ref[self.lines, part] = value.astype(ref.dtype)

    def mean(self, values: Sequence[jax.Array]) -> jax.Array:
        """Mean of each line, [R, 1]."""
        total = functools.reduce(jnp.add, (jnp.sum(value, axis=1) for value in values))
        return (total * np.float32(1.0 / self.width))[:, None]

    def units(self, values: Sequence[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        """Lines of mean 0 and variance 1, and what they were divided by, inverted."""
        mean = self.mean(values)
        centred = [value - mean for value in values]
        inverse = jax.lax.rsqrt(self.mean([jnp.square(value) for value in centred]) + np.float32(self.options.epsilon))
        return [value * inverse for value in centred], inverse

    def dropped(self, values: Sequence[jax.Array], draws: Sequence[Any]) -> list[jax.Array]:
        """Values that dropout keeps, scaled, and zeros; all values without draws."""
        if not draws:
            return list(values)
        offset, factor = (ref[self.lines][:, None] for ref in draws[:2])
        found = []
        for part, value in zip(self.parts, values, strict=True):
            keep = kept(self.options.rate, offset, factor, draws[2][part][None, :])
            found.append(jnp.where(keep, value * np.float32(1.0 / (1.0 - self.options.rate)), 0.0))
        return found


def _forward_kernel(options: Options, *refs: Any) -> None:
    (hidden, product, bias, scale, shift, *draws), (total, out) = refs[:-2], refs[-2:]
    tile = _Tile(options, pl.program_id(0) * TILE, hidden.shape[1])
    products = [value + other for value, other in zip(tile.read(product), tile.read_columns(bias), strict=True)]
    added = tile.dropped(products, draws)
    totals = [value + other for value, other in zip(tile.read(hidden), added, strict=True)]
    # statistics are those of the numbers that the backward pass reads
    totals = [value.astype(total.dtype) for value in totals]
    tile.write(total, totals)
    units, _ = tile.units([value.astype(jnp.float32) for value in totals])
    columns = zip(units, tile.read_columns(scale), tile.read_columns(shift), strict=True)
    tile.write(out, [unit * factor + more for unit, factor, more in columns])


def _backward_kernel(options: Options, steps: int, *refs: Any) -> None:
    (total, scale, to_out, *draws), (to_total, to_product, *sums) = refs[:-5], refs[-5:]
    program, width = pl.program_id(0), total.shape[1]

    def step(number: Any, carry: Any) -> Any:
        tile = _Tile(options, (program * steps + number) * TILE, width)
        units, inverse = tile.units(tile.read(total))
        change = tile.read(to_out)
        to_units = [value * factor for value, factor in zip(change, tile.read_columns(scale), strict=True)]
        mean = tile.mean(to_units)
        slope = tile.mean([value * unit for value, unit in zip(to_units, units, strict=True)])
        found = [(value - mean - unit * slope) * inverse for value, unit in zip(to_units, units, strict=True)]
        tile.write(to_total, found)
        dropped = tile.dropped(found, draws)
        tile.write(to_product, dropped)
        # of tiles, not of lines: lines are summed once, at the end
        return [
            (to_scale + value * unit, to_shift + value, to_bias + other)
            for (to_scale, to_shift, to_bias), value, unit, other in zip(carry, change, units, dropped, strict=True)
        ]

    size = _columns(width)
    start = [(jnp.zeros((TILE, size), jnp.float32),) * 3 for _ in range(width // size)]
    for part, each in enumerate(jax.lax.fori_loop(0, steps, step, start)):
        for place, value in enumerate(each):
            sums[place][program, pl.ds(part * size, size)] = jnp.sum(value, axis=0)


def _call(body: Callable, options: Options, grid: int, made: Sequence[Any], arrays: Sequence[jax.Array]) -> Any:
    from jax.experimental.pallas import triton

    # whole arrays: programs cut their tiles themselves, as widths are no powers of 2
    return pl.pallas_call(
        body,
        out_shape=list(made),
        grid=(grid,),
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=options.interpret,
        name="residual_norm",
    )(*arrays)


def _forward(
    options: Options,
    hidden: jax.Array,
    product: jax.Array,
    bias_D: jax.Array,
    scale_D: jax.Array,
    shift_D: jax.Array,
    drawn: Draws | None,
) -> tuple[jax.Array, tuple]:
    width = hidden.shape[-1]
    lines = hidden.reshape(-1, width)
    arrays = (lines, product.reshape(-1, width), bias_D, scale_D, shift_D, *_flat(drawn))
    body = functools.partial(_forward_kernel, options)
    total, out = _call(body, options, len(lines) // TILE, [jax.typeof(lines)] * 2, arrays)
    return out.reshape(hidden.shape), (total, bias_D, scale_D, shift_D, drawn)


def _backward(options: Options, kept: tuple, to_out: jax.Array) -> tuple:
    total, bias_D, scale_D, shift_D, drawn = kept
    tiles, width = total.shape[0] // TILE, total.shape[1]
    programs = next(count for count in range(min(PROGRAMS, tiles), 0, -1) if tiles % count == 0)
    made = [jax.typeof(total)] * 2 + [jax.ShapeDtypeStruct((programs, width), jnp.float32)] * 3
    body = functools.partial(_backward_kernel, options, tiles // programs)
    arrays = (total, scale_D, to_out.reshape(total.shape), *_flat(drawn))
    to_total, to_product, *sums = _call(body, options, programs, made, arrays)
    to_scale, to_shift, to_bias = (jnp.sum(each, axis=0) for each in sums)
    of_columns = (to_bias.astype(bias_D.dtype), to_scale.astype(scale_D.dtype), to_shift.astype(shift_D.dtype))
    return to_total.reshape(to_out.shape), to_product.reshape(to_out.shape), *of_columns, None


def _flat(drawn: Draws | None) -> tuple[jax.Array, ...]:
    return () if drawn is None else (drawn.offset.reshape(-1), drawn.factor.reshape(-1), drawn.column.reshape(-1))


_fused = jax.custom_vjp(lambda options, *inputs: _forward(options, *inputs)[0], nondiff_argnums=(0,))
_fused.defvjp(_forward, _backward)
