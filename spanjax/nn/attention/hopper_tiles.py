"""Parts of the attention kernels in `hopper_kernels`: values in registers, products of tiles, and tiles that are copied ahead.

A program of the grid is several warpgroups, each with `TILE` positions of its own side. They read the same tiles of the other
side. Everything here runs compiled for a GPU, and interpreted on a CPU.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILE = 64  # positions of a group and of a tile of the other side: one product of the tensor core is 64 high
STAGES = 3  # tiles of the other side that are in shared memory at a time

Shape = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Registers:
    """Values in the layout of the tensor core's results.

    jax's interpreter has neither layouts nor products of values in registers. There products are computed by `lax.dot_general`,
    of the same tiles and at the same place of the program.
    """

    interpret: bool

    def matrix(self, x: jax.Array) -> jax.Array:
        """Gives a new [rows, columns] value the layout of a product."""
        return x if self.interpret else plgpu.layout_cast(x, plgpu.Layout.WGMMA)

    def full(self, shape: Shape, value: float) -> jax.Array:
        """float32 [rows, columns]."""
        return self.matrix(lax.full(shape, value, jnp.float32))

    def column(self, size: int, value: float) -> jax.Array:
        """float32 with one number a row."""
        made = lax.full((size,), value, jnp.float32)
        return made if self.interpret else plgpu.layout_cast(made, plgpu.Layout.WGMMA.reduce(1))

    def load(self, ref: Any, axis: int) -> jax.Array:
        """A vector with one number for each index along `axis` of a product."""
        if self.interpret:
            return ref[...]
        return plgpu.load(ref, (), layout=plgpu.Layout.WGMMA.reduce(1 - axis), optimized=False)

    def numbers(self, shape: Shape, axis: int, first: Any) -> jax.Array:
        """int32 [rows, columns]: `first` and the following numbers along an axis."""
        return self.matrix(lax.broadcasted_iota(jnp.int32, shape, axis)) + first

    def products(self, *pairs: tuple[Any, Any]) -> tuple[jax.Array, ...]:
        """float32 `left @ right.T` for pairs of tiles in shared memory. All are under way before the first one is waited for."""
        if self.interpret:
            return tuple(_dot(left[...], right[...], 1) for left, right in pairs)

        def run(*sums: Any) -> tuple[jax.Array, ...]:
            for total, (left, right) in zip(sums, pairs, strict=True):
                plgpu.wgmma(total, left, plgpu.transpose_ref(right, (1, 0)))
            return tuple(total[...] for total in sums)

        rooms = (plgpu.WGMMAAccumulatorRef((left.shape[0], right.shape[0]), jnp.float32) for left, right in pairs)
        return pl.run_scoped(run, *rooms)

    def added(self, *triples: tuple[jax.Array, jax.Array, Any]) -> tuple[jax.Array, ...]:
        """float32 `total + left @ right` for (total, value in registers, tile in shared memory)."""
        if self.interpret:
            return tuple(total + _dot(left, right[...], 0) for total, left, right in triples)

        def run(sums: tuple[Any, ...]) -> None:
            for total, (_, left, right) in zip(sums, triples, strict=True):
                plgpu.wgmma(total, left, right)

        sums: Any = tuple(plgpu.WGMMAAccumulatorRef.init(total) for total, _, _ in triples)
        return pl.run_state(run)(sums)

    def added_transposed(self, total: jax.Array, left: Any, right: Any) -> jax.Array:
        """float32 `total + left.T @ right` for tiles in shared memory."""
        if self.interpret:
            return total + _dot(left[...], right[...], 0, of_left=0)
        start: Any = plgpu.WGMMAAccumulatorRef.init(total)
        return pl.run_state(lambda room: plgpu.wgmma(room, plgpu.transpose_ref(left, (1, 0)), right))(start)


def _dot(left: jax.Array, right: jax.Array, of_right: int, of_left: int = 1) -> jax.Array:
    dimensions = (((of_left,), (of_right,)), ((), ()))
    return lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def spread(x: jax.Array, shape: Shape, axis: int = 0) -> jax.Array:
    """Repeats a vector along the other axis of a product."""
    return lax.broadcast_in_dim(x, shape, (axis,))


def tiles(*shape: int, dtype: Any) -> Any:
    """Shared memory for tiles [..., positions, H], in the order that the tensor core reads."""
    size = jnp.dtype(dtype).itemsize
    swizzle = min(128, shape[-1] * size)
    transforms = (plgpu.TilingTransform((8, swizzle // size)), plgpu.SwizzleTransform(swizzle))
    return plgpu.SMEM(shape, dtype, transforms=transforms)


@dataclasses.dataclass(frozen=True)
class Stream:
    """Tiles of the other side from `low` to `high`, which group 0 copies to shared memory ahead of the groups that read them."""

    copies: tuple[tuple[Callable[[Any], Any], Any], ...]
    """(slice of an array in device memory by its positions, buffer of `STAGES` tiles)."""
    arrived: Any
    """Barriers of tiles that have arrived, one a stage."""
    read: Any
    """Barriers of tiles that all groups have read."""
    group: Any
    low: Any
    high: Any

    def start(self) -> None:
        """Begins to copy the first tiles."""
        for ahead in range(STAGES):
            wanted = (self.group == 0) & (self.low + ahead < self.high)
            pl.when(wanted)(lambda ahead=ahead: self._copy(self.low + ahead))

    def take(self, step: Any) -> tuple[Any, ...]:
        """Waits for a tile and returns its buffers."""
        before = step - 1

        # the stage of the tile before this one: no group waits for another that still reads the tile of now
        @pl.when((self.group == 0) & (before >= self.low) & (before + STAGES < self.high))
        def _() -> None:
            plgpu.barrier_wait(self.read.at[self.stage(before)])
            self._copy(before + STAGES)

        stage = self.stage(step)
        plgpu.barrier_wait(self.arrived.at[stage])
        return tuple(buffer.at[stage] for _, buffer in self.copies)

    def release(self, step: Any) -> None:
        """Tells that this group has read a tile. Nobody waits for the last ones."""
        pl.when(step + STAGES < self.high)(lambda: plgpu.barrier_arrive(self.read.at[self.stage(step)]))

    def stage(self, step: Any) -> Any:
        """Number of the buffers that hold a tile."""
        return lax.rem(step - self.low, np.int32(STAGES))

    def _copy(self, step: Any) -> None:
        stage = self.stage(step)
        for source, buffer in self.copies:
            plgpu.copy_gmem_to_smem(source(pl.ds(step * TILE, TILE)), buffer.at[stage], self.arrived.at[stage])


def barriers(groups: int, copies: int) -> tuple[Any, Any]:
    """Types of the barriers of a `Stream` of so many arrays."""
    return (
        plgpu.Barrier(num_arrivals=copies, num_barriers=STAGES),
        plgpu.Barrier(num_arrivals=groups, num_barriers=STAGES),
    )
