"""The kernel for sm90, interpreted on a CPU with its barriers and copies: results, gradients, masks of dropout, skipped tiles.

Products are those of `lax.dot_general`, as the interpreter has none in registers. Shapes: B rows, L positions, N heads, H width.
"""

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.distributed.jax_internals import gpu_interpreter
from spanjax.nn.attention import (
    KERNELS,
    attention,
    choose_backend,
    cudnn,
    hopper_kernels,
    on_device,
    pallas_hopper,
    xla,
    xla_chunked,
)
from spanjax.nn.attention.reach import reaches
from spanjax.nn.attention.xla import STRIDE, visible
from spanjax.nn.dropout import DropoutKey, dropout, step_key, threshold
from tests.nn import gpu_interpreter as interpreter

TRAINED: dict[str, Any] = {"length": 512, "head_size": 64, "dtype": jnp.bfloat16, "dropout": 0.1}


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    interpreter.compile_once(monkeypatch)
    yield
    interpreter.reset()


def rows_of(length: int, *blocks: tuple[int, ...]) -> jax.Array:
    """Rows with blocks of these lengths; the rest of a row is padding."""
    segments = np.zeros((len(blocks), length), np.int32)
    for row, sizes in zip(segments, blocks, strict=True):
        row[: sum(sizes)] = np.repeat(np.arange(len(sizes)) + 1, sizes)
    return jnp.asarray(segments)


def drop_key(rows: int) -> DropoutKey:
    return DropoutKey(step_key(3, jnp.int32(7)), 5 + jnp.arange(rows))


def arrays(segments: jax.Array, heads: int = 1, size: int = 64, dtype: Any = jnp.float32) -> list[jax.Array]:
    made = jax.random.normal(jax.random.key(0), (4, *segments.shape, heads, size))
    return list(made.astype(dtype))


def both(segments: jax.Array, given: Any, rate: float, window: int = 0, causal: bool = False) -> Any:
    """(output and gradients by the kernel, the same by the plain backend in float32)."""
    query, key, value, change = given
    drop = drop_key(len(segments)) if rate else None

    def kernel(query: Any, key: Any, value: Any) -> jax.Array:
        options: Any = {"rate": rate, "dropout_key": drop, "site": jnp.uint32(4)}
        return pallas_hopper.run(query, key, value, segments, window, interpret=True, causal=causal, **options)

    def plain(query: Any, key: Any, value: Any) -> jax.Array:
        return xla.attend(query, key, value, segments, rate, drop, jnp.uint32(4), window, causal)

    found = []
    for function, dtype in ((kernel, query.dtype), (plain, jnp.float32)):
        out, back = jax.vjp(function, *(each.astype(dtype) for each in (query, key, value)))
        found.append([np.asarray(each, np.float32) for each in (out, *back(change.astype(dtype)))])
    return found


ROWS = {
    "one block": rows_of(128, (128,)),
    "padding": rows_of(384, (100, 27, 90), ()),
    "many blocks": rows_of(256, (1, 63, 64, 65, 30, 33), (250,)),
    "512": rows_of(512, (300, 150)),
    "1152": rows_of(1152, (400, 500)),  # so long that the gradient of scores is not kept
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "window", "causal", "heads", "size"),
    [
        ("one block", 0, False, 2, 64),
        ("one block", 5, False, 1, 32),
        ("padding", 0, False, 1, 64),
        ("padding", 20, True, 1, 64),
        ("many blocks", 0, False, 1, 32),
        ("many blocks", 64, False, 1, 64),
        ("many blocks", 0, True, 1, 64),
        ("512", 0, False, 1, 64),
        ("512", 128, False, 1, 64),
        ("1152", 0, False, 1, 32),
        ("1152", 100, False, 1, 64),
    ],
)
def test_outputs_and_gradients_are_those_of_xla(
    name: str, window: int, causal: bool, heads: int, size: int, rate: float
) -> None:
    """In float32 outputs to 1e-6 and gradients to 1e-5 of the largest value, which other masks would miss by far."""
    segments = ROWS[name]
    found = both(segments, arrays(segments, heads, size), rate, window, causal)
    for got, wanted, allowed in zip(*found, (1e-6, 1e-5, 1e-5, 1e-5), strict=True):
        np.testing.assert_allclose(got, wanted, atol=allowed * np.abs(wanted).max())
        assert np.abs(wanted).max() > 0.1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("blocks", "window"),
    [((8192,), 64), ((700, 900, 300, 1000, 800, 1100, 600, 500, 900, 1000), 0)],
    ids=["window", "blocks"],
)
def test_rows_of_8192_positions(blocks: tuple[int, ...], window: int) -> None:
    """Of which a window, or ten blocks, let most tiles be skipped."""
    segments = rows_of(8192, blocks)
    found = both(segments, arrays(segments, 1, 32), 0.1, window)
    for got, wanted, allowed in zip(*found, (1e-6, 1e-5, 1e-5, 1e-5), strict=True):
        np.testing.assert_allclose(got, wanted, atol=allowed * np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_close_to_float32(dtype: str) -> None:
    """8 bits of probabilities and of their gradients; 0.6 % of the largest value were found in bfloat16."""
    segments = ROWS["many blocks"]
    for got, wanted in zip(*both(segments, arrays(segments, 2, 64, dtype), 0.1), strict=True):
        np.testing.assert_allclose(got, wanted, atol=0.01 * np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_the_mask_is_that_of_xla_to_the_bit() -> None:
    """Values that are one-hot show which probabilities are zero."""
    segments, rate = rows_of(128, (128,), (128,)), 0.25
    query, key, *_ = arrays(segments, 2)
    kept = dropout(jnp.ones((2, 2, 128, 128)), rate, drop_key(2), 4, strides=(STRIDE, 1)) > 0
    assert 0.7 < float(kept.mean()) < 0.8
    for half in (0, 64):
        value = jnp.broadcast_to(jnp.eye(128)[:, half : half + 64][None, :, None], query.shape)
        shown = pallas_hopper.run(
            query, key, value, segments, interpret=True, rate=rate, dropout_key=drop_key(2), site=4
        )
        np.testing.assert_array_equal(jnp.swapaxes(shown, 1, 2) > 0, kept[..., half : half + 64])


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_tiles_out_of_reach_are_not_read() -> None:
    """The second block is not a number, which a masked product would spread to the first one in the same program."""
    segments = rows_of(256, (64, 192))
    spoilt = [each.at[:, 64:].set(jnp.nan) for each in arrays(segments)]
    for got, wanted in zip(both(segments, spoilt, 0.1)[0], both(segments, arrays(segments), 0.1)[0], strict=True):
        np.testing.assert_array_equal(got[:, :64], wanted[:, :64])
        assert np.isnan(got[:, 64:]).all()


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_groups_do_not_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven tiles through three stages: every stage is filled again while groups read."""
    monkeypatch.setattr(hopper_kernels, "gpu_interpreter", lambda: gpu_interpreter(detect_races=True))
    segments = rows_of(512, (440,))
    query, key, value, change = arrays(segments, 1, 32)

    def attend(query: Any, key: Any, value: Any) -> jax.Array:
        return pallas_hopper.run(query, key, value, segments, interpret=True, rate=0.1, dropout_key=drop_key(1))

    out, back = jax.vjp(attend, query, key, value)
    assert not interpreter.races_found()
    assert all(np.isfinite(each).all() for each in (out, *back(change)))
    assert not interpreter.races_found()


@pytest.mark.parametrize(("window", "causal"), [(0, False), (7, False), (0, True), (7, True)])
def test_reach_is_what_is_visible(window: int, causal: bool) -> None:
    segments = rows_of(64, (10, 20, 30), (64,), (1, 1, 62), (5, 7))
    seen = np.asarray(visible(segments, window, causal))
    keys, queries = reaches(segments, window, causal)
    place = np.arange(64)
    for side, matrix in ((keys, seen), (queries, np.swapaxes(seen, 1, 2))):
        first, behind = (np.asarray(each)[:, :, None] for each in side)
        np.testing.assert_array_equal((place >= first) & (place < behind), matrix)
        tiles = np.asarray(side.tiles(8))
        assert (np.diff(tiles, axis=1) >= 0).all(), "so that a program's tiles are between the first and the last bound"
        for row, tile in np.ndindex(4, 8):
            met = np.flatnonzero(matrix[row, tile * 8 : tile * 8 + 8].any(axis=0))
            assert tiles[row, tile].tolist() == [met.min() // 8, met.max() // 8 + 1]


def test_draws_give_the_mask_of_dropout() -> None:
    """By the sum and the product that the kernel computes of them."""
    drop, rate = drop_key(2), 0.25
    draws = xla.drawn(rate, (2, 32, 3, 64), drop, jnp.uint32(4))
    assert draws is not None
    draw = draws.offset[..., None] + draws.factor[..., None] * draws.column[None, None, None]
    kept = dropout(jnp.ones((2, 3, 32, 32)), rate, drop, 4, strides=(STRIDE, 1)) > 0
    np.testing.assert_array_equal(draw >= threshold(rate), kept)
    assert xla.drawn(0.0, (2, 32, 3, 64), drop, jnp.uint32(4)) is None


def test_attention_passes_dropout_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, Any] = {}
    monkeypatch.setattr(KERNELS["pallas_hopper"], "run", lambda *a, **options: passed.update(options) or a[0])
    segments = rows_of(128, (128,))
    query, key, value, _ = arrays(segments)
    drop = drop_key(1)
    attention(query, key, value, segments, rate=0.1, dropout_key=drop, site=6, backend="pallas_hopper", causal=True)
    assert passed == {"rate": 0.1, "dropout_key": drop, "site": 6, "causal": True}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device_kind": "NVIDIA A100-SXM4-80GB"}, "compute capability 9.0, not NVIDIA A100-SXM4-80GB"),
        ({"device_kind": "NVIDIA B200"}, "compute capability 9.0, not NVIDIA B200"),
        ({"device_kind": ""}, "compute capability 9.0, not an unknown device"),
        ({"dtype": jnp.float32}, "bfloat16 or float16, not float32"),
        ({"head_size": 128}, "head size is 32 or 64, not 128"),
        ({"length": 192}, "a multiple of 128, not 192"),
    ],
)
def test_what_it_cannot_compute_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"'pallas_hopper' cannot be used: .*{re.escape(reason)}"):
        choose_backend("pallas_hopper", "gpu", **{**TRAINED, "device_kind": "NVIDIA H200", **changes})


@pytest.mark.parametrize(
    ("kind", "changes", "chosen"),
    [
        ("NVIDIA H200", {}, "pallas_hopper"),
        ("NVIDIA H100 80GB HBM3", {"window": 64}, "pallas_hopper"),
        ("NVIDIA H200", {"dropout": 0.0}, "cudnn"),
        ("NVIDIA A100-SXM4-80GB", {}, "pallas_triton"),
    ],
)
def test_auto_takes_it_on_hopper_where_probabilities_are_dropped(kind: str, changes: dict, chosen: str) -> None:
    assert choose_backend("auto", "gpu", **{**TRAINED, **changes}, device_kind=kind)[0] == chosen


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_the_comparison_before_the_first_step(rate: float) -> None:
    """A kernel that drops something else, or reads a window of another size, is named; the right one passes."""

    def right(query: Any, key: Any, value: Any, segments: Any, window: int, **options: Any) -> jax.Array:
        drop, site = options.get("dropout_key"), options.get("site", 0)
        return xla.attend(query, key, value, segments, options.get("rate", 0.0), drop, site, window)

    def wider(*a: Any, **options: Any) -> jax.Array:
        return right(a[0], a[1], a[2], a[3], a[4] + 1, **options)

    def elsewhere(*a: Any, **options: Any) -> jax.Array:
        return right(a[0], a[1], a[2], a[3], a[4], **{**options, "site": 4})

    on_device.compare("mine", right, 64, 16, "bfloat16", window=5, rate=rate)
    with pytest.raises(ValueError, match="'mine' computes something else than 'xla' on this device: output differ by"):
        on_device.compare("mine", wider, 64, 16, "bfloat16", window=5)
    if rate:
        with pytest.raises(ValueError, match="output differ by"):
            on_device.compare("mine", elsewhere, 64, 16, "bfloat16", rate=rate)


def test_both_are_timed_with_their_gradients() -> None:
    calls = []

    def counted(*a: Any, **options: Any) -> jax.Array:
        jax.debug.callback(lambda: calls.append(1))
        drop, site = options["dropout_key"], options["site"]
        return xla.attend(a[0], a[1], a[2], a[3], options["rate"], drop, site, a[4])

    found = on_device.times(counted, 64, 16, "float32", window=5, rate=0.25)
    assert min(found) > 0 and len(calls) == on_device.TIMED + 1


@pytest.mark.parametrize("other", ["xla", "xla_chunked", "cudnn"])
def test_what_a_kernel_would_replace_is_timed(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN by its function, which no CPU can run."""
    asked = []
    # where each has its queries
    modules = {"xla": (xla, "attend", 0), "xla_chunked": (xla_chunked, "attend", 2), "cudnn": (cudnn, "run", 0)}
    for name, (module, function, place) in modules.items():
        monkeypatch.setattr(module, function, lambda *a, name=name, place=place: asked.append(name) or a[place] * 2)

    def own(query: jax.Array, *_: Any) -> jax.Array:
        return query * 2

    monkeypatch.setattr(on_device, "shortest", lambda function, arrays: function(*arrays)[0].size)
    assert on_device.times(own, 64, 16, "bfloat16", window=5, other=other)[1] > 0
    assert asked == [other]
