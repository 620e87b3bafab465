"""cuDNN's packed attention, without cuDNN: the bounds of blocks that it gets, what it refuses, and the comparison at the start.

`as_jax_reads` computes what jax hands to cuDNN from those bounds: lengths and begins of all rows in one list each.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.nn.attention import attention, choose_backend, cudnn_packed, xla

LENGTH, HEADS, SIZE = 64, 2, 16
ROWS = ((10, 20, 30), (64,), (1, 1, 62), (5, 7))  # lengths of the blocks; the rest of a row is padding


def segments() -> np.ndarray:
    rows = np.zeros((len(ROWS), LENGTH), np.int32)
    for row, lengths in zip(rows, ROWS, strict=True):
        row[: sum(lengths)] = np.repeat(np.arange(len(lengths)) + 1, lengths)
    return rows


def arrays() -> tuple[jax.Array, jax.Array, jax.Array]:
    query, key, value = jax.random.normal(jax.random.key(0), (3, len(ROWS), LENGTH, HEADS, SIZE))
    return query, key, value


def as_jax_reads(query: Any, key: Any, value: Any, lengths: Any, begins: Any, scale: float) -> jax.Array:
    """Attention of each block in a list of all blocks, as jax's documentation describes the arguments; others stay zero."""
    flat = [jnp.reshape(each, (-1, *each.shape[2:])) for each in (query, key, value)]
    sizes, rows = np.asarray(lengths), np.asarray(begins)
    assert rows.shape == (sizes.shape[0], sizes.shape[1] + 1)
    every = [size for size in sizes.ravel() if size >= 0]
    starts = [int(begin) + number * query.shape[1] for number, row in enumerate(rows) for begin in row if begin >= 0]
    assert len(every) == len(starts)
    mixed = jnp.zeros_like(flat[0])
    for size, start in zip(every, starts, strict=True):
        q, k, v = (each[start : start + size] for each in flat)
        weights = jax.nn.softmax(jnp.einsum("qnh,knh->nqk", q, k).astype(jnp.float32) * scale)
        mixed = mixed.at[start : start + size].set(jnp.einsum("nqk,knh->qnh", weights.astype(v.dtype), v))
    return mixed.reshape(query.shape)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_packed, "packed_cudnn_attention", as_jax_reads)


@pytest.mark.parametrize("room", [4, 7])
def test_bounds_are_those_of_a_loop(room: int) -> None:
    lengths, begins = cudnn_packed.block_bounds(jnp.asarray(segments()), room)
    for row, blocks in enumerate(ROWS):
        padding = [LENGTH - sum(blocks)] if sum(blocks) < LENGTH else []
        sizes = [*blocks, *padding]
        assert lengths[row].tolist() == sizes + [-1] * (room - len(sizes))
        assert begins[row].tolist() == [sum(sizes[:n]) for n in range(len(sizes))] + [-1] * (room + 1 - len(sizes))


@pytest.mark.parametrize("blocks", [0, 4])
@pytest.mark.usefixtures("stand_in")
def test_packed_rows_give_the_formula(blocks: int) -> None:
    got = attention(*arrays(), jnp.asarray(segments()), backend="cudnn_packed", blocks=blocks)
    expected = attention(*arrays(), jnp.asarray(segments()), backend="xla")
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.usefixtures("stand_in")
def test_a_row_with_more_blocks_than_room_is_no_number() -> None:
    room = cudnn_packed.BLOCKS
    rows = np.zeros((2, LENGTH), np.int32)
    rows[0, :room] = np.arange(room) + 1  # and the padding
    rows[1, : room - 1] = np.arange(room - 1) + 1
    assert np.asarray(cudnn_packed.overfull(jnp.asarray(rows), room)).tolist() == [True, False]
    query, key, value = arrays()
    got = cudnn_packed.run(query[:2], key[:2], value[:2], jnp.asarray(rows))
    assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()


@pytest.mark.parametrize("options", [{"interpret": True}, {"window": 4}, {"causal": True}])
def test_what_it_cannot_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match="'cudnn_packed' is a library of NVIDIA without windows .* use 'cudnn' or 'xla'"
    ):
        cudnn_packed.run(*arrays(), jnp.asarray(segments()), **options)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device_kind": "NVIDIA A100-SXM4-80GB"}, "compute capability 9.0 or later, not NVIDIA A100"),
        ({"window": 64}, "it has no windows on both sides"),
        ({"dropout": 0.1}, "cannot drop attention probabilities"),
    ],
)
def test_it_is_for_new_gpus_without_windows(changes: dict[str, Any], reason: str) -> None:
    wanted: dict[str, Any] = {"length": 512, "head_size": 64, "dtype": jnp.bfloat16, "dropout": 0.0}
    assert choose_backend("cudnn_packed", "gpu", **wanted, device_kind="NVIDIA H200")[0] == "cudnn_packed"
    assert choose_backend("auto", "gpu", **wanted, device_kind="NVIDIA H200")[0] == "cudnn", "never unasked"
    with pytest.raises(ValueError, match=reason):
        choose_backend("cudnn_packed", "gpu", **{**wanted, **changes})


@pytest.mark.usefixtures("stand_in")
def test_a_right_kernel_passes_the_comparison() -> None:
    cudnn_packed.verify.cache_clear()
    cudnn_packed.verify(LENGTH, SIZE, "bfloat16")


def without_blocks(query: Any, key: Any, value: Any, *_: Any) -> jax.Array:
    return xla.attend(query, key, value, jnp.ones(query.shape[:2], jnp.int32), 0.0, None, 0)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (lambda q, k, v, m, n, scale: as_jax_reads(q, k, v, m, n, 2 * scale), "output"),
        (lambda q, k, v, m, n, scale: as_jax_reads(jax.lax.stop_gradient(q), k, v, m, n, scale), "query"),
        (lambda q, k, v, m, n, scale: as_jax_reads(q, k, v, m, n, scale).at[1, -1].set(jnp.nan), "output"),
        (without_blocks, "output"),
    ],
    ids=["scale", "gradient", "no number", "blocks mixed"],
)
def test_a_wrong_kernel_is_named_before_the_first_step(
    changed: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn_packed.verify.cache_clear()
    monkeypatch.setattr(cudnn_packed, "packed_cudnn_attention", changed)
    with pytest.raises(ValueError, match=f"computes something else than 'xla' on this device: {name} differ by"):
        cudnn_packed.verify(LENGTH, SIZE, "bfloat16")
