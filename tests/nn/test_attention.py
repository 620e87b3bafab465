"""Attention: every backend gives the formula, on packed rows and with its gradients; the choice is made for a reason.

The kernels of accelerators run interpreted. Shapes: B rows, L positions, N heads, H width of a head.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spanjax.nn.attention import BACKENDS, DROPPING, KERNELS, attention, choose_backend
from spanjax.nn.attention.xla import STRIDE
from spanjax.nn.dropout import DropoutKey, dropout, step_key

LENGTH, HEADS, SIZE = 128, 2, 32
BLOCKS = ((0, 50), (50, 113))  # of row 0; the rest of it and all of row 1 are padding
FUSED = ("splash", "pallas_tpu", "pallas_triton")
RUNNING = ("xla", "xla_chunked", *FUSED)


def run(backend: str, *inputs: Any, **options: Any) -> jax.Array:
    if backend in KERNELS:
        return KERNELS[backend].run(*inputs, interpret=True, **options)
    return attention(*inputs, backend=backend, **options)


def inputs(rows: int = 2, length: int = LENGTH, heads: int = HEADS) -> tuple[Any, Any, Any]:
    query, key, value = jax.random.normal(jax.random.key(0), (3, rows, length, heads, SIZE))
    return query, key, value


def ragged() -> jax.Array:
    segments = np.zeros((2, LENGTH), np.int32)
    for number, (start, stop) in enumerate(BLOCKS, 1):
        segments[0, start:stop] = number
    return jnp.asarray(segments)


def formula(query: Any, key: Any, value: Any, segments: Any, kept: Any = 1.0) -> np.ndarray:
    """Plain float64; `kept` [B, N, Q, K] multiplies the probabilities."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    segments = np.asarray(segments)
    scores = np.einsum("bqnh,bknh->bnqk", query, key) / np.sqrt(query.shape[-1])
    scores = np.where((segments[:, :, None] == segments[:, None, :])[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True) * kept
    return np.einsum("bnqk,bknh->bqnh", weights, value)


def gradients(function: Callable[..., jax.Array], arrays: Any) -> Any:
    direction = jax.random.normal(jax.random.key(9), arrays[0].shape)
    return jax.jit(jax.grad(lambda *a: jnp.sum(function(*a) * direction), argnums=(0, 1, 2)))(*arrays)


def drop_key(rows: int = 2) -> DropoutKey:
    return DropoutKey(step_key(3, jnp.int32(7)), 5 + jnp.arange(rows))


@pytest.mark.parametrize("backend", RUNNING)
def test_equals_the_formula_on_packed_rows(backend: str) -> None:
    got = run(backend, *inputs(), ragged())
    np.testing.assert_allclose(got, formula(*inputs(), ragged()), atol=1e-5)


@pytest.mark.parametrize("backend", RUNNING)
def test_a_packed_row_equals_separate_rows(backend: str) -> None:
    together = run(backend, *inputs(), ragged())
    for start, stop in BLOCKS:
        alone: Any = [jnp.zeros_like(x[:1]).at[:, : stop - start].set(x[:1, start:stop]) for x in inputs()]
        segments = jnp.asarray(np.arange(LENGTH) < stop - start, jnp.int32)[None]
        np.testing.assert_allclose(
            together[0, start:stop], run(backend, *alone, segments)[0, : stop - start], atol=1e-5
        )


@pytest.mark.parametrize("backend", RUNNING[1:])
def test_gradients_equal_those_of_the_plain_backend(backend: str) -> None:
    expected = gradients(lambda *a: run("xla", *a, ragged()), inputs())
    for got, wanted in zip(gradients(lambda *a: run(backend, *a, ragged()), inputs()), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-4)
        assert float(jnp.abs(wanted).max()) > 0.1


@pytest.mark.parametrize("backend", RUNNING)
def test_rows_of_padding_are_finite_and_other_blocks_have_no_gradient(backend: str) -> None:
    def first_block(*arrays: jax.Array) -> jax.Array:
        out = run(backend, *arrays, ragged())
        finite = jnp.isfinite(out).all()
        return jnp.sum(jnp.where(finite, out, jnp.nan)[0, : BLOCKS[0][1]] ** 2)

    for gradient in jax.grad(first_block, argnums=(0, 1, 2))(*inputs()):
        assert bool(jnp.isfinite(gradient).all())
        assert float(jnp.abs(gradient[0, : BLOCKS[0][1]]).max()) > 0
        assert float(jnp.abs(gradient[0, BLOCKS[0][1] :]).max()) == 0 and float(jnp.abs(gradient[1]).max()) == 0


@pytest.mark.parametrize("backend", RUNNING)
def test_bfloat16_stays_close_to_float32(backend: str) -> None:
    query, key, value = (x.astype(jnp.bfloat16) for x in inputs())
    half = (query, key, value)
    out = run(backend, *half, ragged())
    assert out.dtype == jnp.bfloat16
    # 8 bits of the probabilities and of outputs up to 1.4: 0.0071 measured at most
    np.testing.assert_allclose(out.astype(jnp.float32), formula(*half, ragged()), atol=0.012)
    for gradient in gradients(lambda *a: run(backend, *a, ragged()).astype(jnp.float32), half):
        assert gradient.dtype == jnp.bfloat16 and bool(jnp.isfinite(gradient.astype(jnp.float32)).all())


@pytest.mark.parametrize("backend", ["xla", "xla_chunked", "pallas_tpu"])
def test_dropout_is_the_counted_mask_of_the_probabilities(backend: str) -> None:
    strides = (STRIDE, 1)
    kept = np.asarray(dropout(jnp.ones((2, HEADS, LENGTH, LENGTH)), 0.25, drop_key(), 4, strides=strides))
    assert abs((kept > 0).mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / kept.size)
    got = run(backend, *inputs(), ragged(), rate=0.25, dropout_key=drop_key(), site=4)
    np.testing.assert_allclose(got, formula(*inputs(), ragged(), kept), atol=1e-5)


@pytest.mark.parametrize("backend", ["xla", "xla_chunked"])
def test_more_padding_drops_nothing_else(backend: str) -> None:
    longer = [jnp.pad(x, ((0, 0), (0, 24), (0, 0), (0, 0))) for x in inputs()]
    some = {"rate": 0.25, "dropout_key": drop_key(), "site": 4}
    got = run(backend, *longer, jnp.pad(ragged(), ((0, 0), (0, 24))), **some)[:, :LENGTH]
    used = np.asarray(ragged() > 0)
    np.testing.assert_allclose(got[used], run(backend, *inputs(), ragged(), **some)[used], atol=1e-6)


def test_the_chunked_backend_equals_the_plain_one_with_dropout() -> None:
    """To 1e-6 of the largest value: the sums of the softmax and of the products run in another order."""

    def one(backend: str) -> Any:
        options = {"rate": 0.1, "dropout_key": drop_key(), "site": jnp.uint32(4)}
        function = lambda *a: run(backend, *a, ragged(), **options)  # noqa: E731
        return function(*arrays), *gradients(function, arrays)

    arrays = inputs(heads=3)
    for got, wanted in zip(one("xla_chunked"), one("xla"), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6 * float(jnp.abs(wanted).max()))


def test_the_chunked_backend_keeps_no_probabilities() -> None:
    arrays = inputs(rows=2, length=512, heads=8)
    segments = jnp.ones((2, 512), jnp.int32)

    def megabytes(backend: str) -> float:
        def loss(*a: jax.Array) -> jax.Array:
            return jnp.sum(run(backend, *a, segments, rate=0.1, dropout_key=drop_key()) ** 2)

        memory = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arrays).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes / 2**20

    probabilities = 2 * 8 * 512 * 512 * 4 / 2**20
    assert megabytes("xla") > probabilities > megabytes("xla_chunked")


@pytest.mark.parametrize("backend", [name for name in KERNELS if name not in DROPPING])
def test_other_fused_kernels_refuse_to_drop(backend: str) -> None:
    with pytest.raises(ValueError, match=f"'{backend}' cannot drop .* rate is 0.1: set attention dropout to 0"):
        attention(*inputs(), ragged(), rate=0.1, dropout_key=drop_key(), backend=backend)


def test_cudnn_gets_the_mask_and_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = jax.nn.dot_product_attention, {}

    def stand_in(*arrays: jax.Array, implementation: str, **options: Any) -> jax.Array:
        seen.update(options, implementation=implementation)
        return real(*arrays, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    got = attention(*inputs(), ragged(), rate=0.1, dropout_key=None, backend="cudnn")
    assert seen["implementation"] == "cudnn" and seen["mask"].dtype == bool
    assert seen["scale"] == pytest.approx(SIZE**-0.5)
    np.testing.assert_allclose(got, formula(*inputs(), ragged()), atol=1e-5)


BERT: dict[str, Any] = {"length": 512, "head_size": 64, "dtype": jnp.bfloat16, "dropout": 0.0}


@pytest.mark.parametrize(
    ("platform", "changes", "chosen", "reason"),
    [
        ("cpu", {"dropout": 0.1, "dtype": jnp.float32}, "xla_chunked", "first on cpu"),
        ("cpu", {"length": 128}, "xla", "not xla_chunked: it gains nothing for rows shorter than 256"),
        ("tpu", {}, "splash", "first on tpu"),
        ("tpu", {"dropout": 0.1}, "pallas_tpu", "not splash: .*dropout is 0.1"),
        ("tpu", {"length": 192}, "xla", "not splash: .*multiple of 128, not 192; not pallas_tpu: "),
        (
            "tpu",
            {"head_size": 80},
            "xla_chunked",
            "not splash: .*not pallas_tpu: its head size is 32, 64 or 128, not 80",
        ),
        ("tpu", {"dtype": jnp.float16}, "xla_chunked", "not splash: .*not float16"),
        ("gpu", {"device_kind": "NVIDIA H200"}, "cudnn", "first on gpu"),
        ("cuda", {}, "cudnn", "first on gpu"),
        ("gpu", {"head_size": 20}, "xla", "not cudnn: its head size is a multiple of 8 up to 128, not 20"),
        (
            "gpu",
            {"head_size": 192},
            "xla",
            "not cudnn: .*; not pallas_hopper: .*; not pallas_triton: its head size is 32, 64 or 128, not 192",
        ),
        ("gpu", {"head_size": 192, "device_kind": "NVIDIA H200"}, "cudnn", "first on gpu"),
        ("gpu", {"length": 200}, "cudnn", "first on gpu"),
        ("gpu", {"length": 201}, "xla", "not cudnn: .*even length, not 201"),
        ("gpu", {"dtype": jnp.float32}, "xla", "not cudnn: it computes in bfloat16 or float16, not float32"),
        ("gpu", {"dropout": 0.1}, "pallas_triton", "not cudnn: .*dropout is 0.1; not pallas_hopper: "),
        ("gpu", {"device_kind": "Tesla V100-SXM2-16GB"}, "xla", "not cudnn: .*V100"),
        ("gpu", {"device_kind": "AMD Instinct MI300X"}, "xla", "not cudnn: it needs an NVIDIA GPU"),
        ("metal", {}, "xla", "first on metal"),
    ],
)
def test_auto_takes_the_first_that_can(platform: str, changes: dict[str, Any], chosen: str, reason: str) -> None:
    name, why = choose_backend("auto", platform, **{**BERT, **changes})
    assert name == chosen
    assert re.search(reason, why), why


@pytest.mark.parametrize(
    ("wanted", "platform", "changes", "message"),
    [
        (
            "flash",
            "gpu",
            {},
            "'flash': expected one of auto, xla, xla_chunked, splash, cudnn, cudnn_packed, pallas_hopper, pallas_tpu,"
            " pallas_triton",
        ),
        ("splash", "gpu", {}, "'splash' cannot be used: it runs on tpu, and these devices are gpu; take 'auto'"),
        ("cudnn", "gpu", {"dropout": 0.1}, "'cudnn' cannot .* set attention dropout to 0, or take 'auto'"),
        ("pallas_triton", "cpu", {}, "'pallas_triton' cannot be used: it runs on gpu"),
        (
            "cudnn_packed",
            "gpu",
            {"length": 511, "window": 8},
            "an even length, not 511; it has no windows on both sides",
        ),
    ],
)
def test_a_backend_that_cannot_is_refused(wanted: str, platform: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_backend(wanted, platform, **{**BERT, **changes})


def test_a_backend_that_can_is_taken_as_asked() -> None:
    assert choose_backend("xla", "tpu", **{**BERT, "dropout": 0.1}) == ("xla", "requested")
    assert choose_backend("xla_chunked", "gpu", **BERT)[0] == "xla_chunked"
    assert choose_backend("pallas_triton", "cuda", **BERT)[0] == "pallas_triton"


def test_unknown_backends_are_named() -> None:
    fused = {"splash", "cudnn", "cudnn_packed", "pallas_hopper", "pallas_tpu", "pallas_triton"}
    assert set(BACKENDS) == {"xla", "xla_chunked", *fused}
    for name in ("auto", "flash"):
        with pytest.raises(ValueError, match=f"'{name}': expected one of xla, xla_chunked"):
            attention(*inputs(), ragged(), backend=name)
    with pytest.raises(ValueError, match="'cudnn' cannot be interpreted"):
        KERNELS["cudnn"].run(*inputs(), ragged(), interpret=True)
