"""Local layers: windows by a plain loop in every backend, linear cost, and layers of two kinds in one scan.

Shapes: B rows, L positions, N heads, H width of a head.
"""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.nn import layer
from spanjax.nn.attention import KERNELS, attention, choose_backend, choose_local_backend
from spanjax.nn.attention.bands import Bands
from spanjax.nn.attention.request import Request
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, step_key
from spanjax.nn.encoder import Encoder
from spanjax.nn.layer import rotary_angles
from tests.made import tiny_encoder
from tests.nn.test_attention import BERT, drop_key, gradients, inputs, run

LENGTH, WINDOW = 384, 20
BLOCKS = ((0, 200), (200, 203), (203, 341))  # of row 0; row 1 is one block with a short padding


def segments(length: int = LENGTH) -> jax.Array:
    """Packed rows, cut at `length`."""
    found = np.zeros((2, LENGTH), np.int32)
    for number, (start, stop) in enumerate(BLOCKS, 1):
        found[0, start:stop] = number
    found[1, : LENGTH - 3] = 1
    return jnp.asarray(found[:, :length])


def plain_loop(query: Any, key: Any, value: Any, segments: Any, window: int, causal: bool = False) -> np.ndarray:
    """Query by query in float64: the softmax over keys of its block whose positions in it are at most `window` away, and not
    after it if `causal`."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    segments, found = np.asarray(segments), np.zeros(np.shape(query))
    for row, place in np.ndindex(segments.shape):
        block = np.flatnonzero(segments[row] == segments[row, place])
        position = {int(index): number for number, index in enumerate(block)}
        seen = [index for index in block if abs(position[int(index)] - position[place]) <= window]
        seen = [index for index in seen if not causal or index <= place]
        scores = np.einsum("nh,knh->nk", query[row, place], key[row, seen]) / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        found[row, place] = np.einsum("nk,knh->nh", weights, value[row, seen])
    return found


@pytest.mark.parametrize(
    ("backend", "length", "window"),
    [
        ("xla", LENGTH, WINDOW),
        ("xla_chunked", LENGTH, WINDOW),
        ("xla_chunked", 355, 100),  # rows that end inside of a chunk
        ("xla_chunked", 100, 3),  # too short to be cut
        ("splash", LENGTH, WINDOW),
        ("pallas_tpu", LENGTH, WINDOW),
    ],
)
def test_windows_equal_a_plain_loop_on_packed_rows(backend: str, length: int, window: int) -> None:
    assert Bands(length, window).cut == (length > 100)
    arrays = inputs(length=length)
    got = run(backend, *arrays, segments(length), window=window)
    np.testing.assert_allclose(got, plain_loop(*arrays, segments(length), window), atol=1e-5)


CAUSAL = [
    ("xla", 355, 0),
    ("xla", LENGTH, WINDOW),
    ("xla_chunked", 355, 0),
    ("xla_chunked", LENGTH, WINDOW),
    ("xla_chunked", 100, 3),
    ("splash", LENGTH, 0),
    ("splash", LENGTH, WINDOW),
    ("pallas_tpu", LENGTH, 0),
    ("pallas_tpu", LENGTH, WINDOW),
    ("pallas_triton", LENGTH, 0),
    ("pallas_triton", LENGTH, WINDOW),
]


@pytest.mark.parametrize(("backend", "length", "window"), CAUSAL)
def test_causal_attention_equals_a_plain_loop_on_packed_rows(backend: str, length: int, window: int) -> None:
    arrays = inputs(length=length)
    got = run(backend, *arrays, segments(length), window=window, causal=True)
    expected = plain_loop(*arrays, segments(length), window or length, causal=True)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(("backend", "length", "window"), [each for each in CAUSAL if each[0] != "xla"])
def test_causal_gradients_equal_those_of_the_plain_backend(backend: str, length: int, window: int) -> None:
    arrays, options = inputs(length=length), {"window": window, "causal": True}
    expected = gradients(lambda *a: run("xla", *a, segments(length), **options), arrays)
    for got, wanted in zip(
        gradients(lambda *a: run(backend, *a, segments(length), **options), arrays), expected, strict=True
    ):
        np.testing.assert_allclose(got, wanted, atol=1e-4)
        assert float(jnp.abs(wanted).max()) > 0.1


def test_causal_dropout_is_the_same_mask() -> None:
    arrays, options = inputs(length=LENGTH), {"rate": 0.25, "dropout_key": drop_key(), "site": 4, "causal": True}
    wanted = run("xla", *arrays, segments(), **options)
    np.testing.assert_allclose(run("xla_chunked", *arrays, segments(), **options), wanted, atol=1e-5)


@pytest.mark.parametrize(("backend", "length"), [("xla_chunked", 355), ("splash", LENGTH)])
def test_gradients_in_windows_equal_those_of_the_plain_backend(backend: str, length: int) -> None:
    arrays = inputs(length=length)
    expected = gradients(lambda *a: run("xla", *a, segments(length), window=WINDOW), arrays)
    for got, wanted in zip(
        gradients(lambda *a: run(backend, *a, segments(length), window=WINDOW), arrays), expected, strict=True
    ):
        np.testing.assert_allclose(got, wanted, atol=1e-4)
        assert float(jnp.abs(wanted).max()) > 0.1


def test_dropout_in_windows_is_the_same_mask() -> None:
    arrays, options = inputs(length=LENGTH), {"rate": 0.25, "dropout_key": drop_key(), "site": 4, "window": WINDOW}
    wanted = run("xla", *arrays, segments(), **options)
    np.testing.assert_allclose(run("xla_chunked", *arrays, segments(), **options), wanted, atol=1e-5)
    assert float(jnp.abs(wanted - run("xla", *arrays, segments(), window=WINDOW)).max()) > 0.1


def test_cost_of_the_chunked_backend_is_linear_in_the_length() -> None:
    """Operations of the compiled gradient: half as many more positions, half as many more; without a window the square."""

    def operations(length: int, window: int) -> float:
        arrays = inputs(rows=1, length=length, heads=1)

        def loss(*a: jax.Array) -> jax.Array:
            return jnp.sum(run("xla_chunked", *a, jnp.ones((1, length), jnp.int32), window=window) ** 2)

        cost: Any = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arrays).compile().cost_analysis()
        return (cost if isinstance(cost, dict) else cost[0])["flops"]

    one, two, full, doubled = (operations(*each) for each in ((1024, 64), (2048, 64), (1024, 0), (2048, 0)))
    assert 1.8 < two / one < 2.2 and 3.6 < doubled / full < 4.4
    assert one < 0.3 * full, "256 of 1,024 keys"


def test_a_kernel_without_windows_is_no_candidate() -> None:
    local = {**BERT, "window": 64}
    assert choose_backend("auto", "gpu", **local, device_kind="NVIDIA H200")[0] == "cudnn"
    assert choose_backend("auto", "tpu", **local)[0] == "splash"
    assert choose_backend("auto", "cpu", **local)[0] == "xla_chunked"
    with pytest.raises(ValueError, match="'cudnn_packed' cannot be used: it has no windows on both sides"):
        choose_backend("cudnn_packed", "gpu", **local, device_kind="NVIDIA H200")


def test_cudnn_gets_windows_and_causality_in_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    real = jax.nn.dot_product_attention

    def stand_in(*arrays: jax.Array, implementation: str, **options: Any) -> jax.Array:
        assert implementation == "cudnn"
        return real(*arrays, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    arrays = inputs(length=LENGTH)
    for causal in (False, True):
        got = KERNELS["cudnn"].run(*arrays, segments(), WINDOW, causal=causal)
        np.testing.assert_allclose(got, run("xla", *arrays, segments(), window=WINDOW, causal=causal), atol=1e-5)


CONFIG = tiny_encoder(
    layers=5,
    initializer_std=0.3,
    types=0,
    norm_first=True,
    rope_theta=100.0,
    gated_mlp=True,
    biases=False,
    local_window=2,
    global_every=2,
    local_rope_theta=10.0,
)
KEY = DropoutKey(step_key(0, jnp.int32(1)), jnp.arange(2))


def packed() -> dict[str, Any]:
    """Row 0: blocks of 9 and 4 tokens and 3 of padding; row 1: all padding."""
    segments = jnp.asarray([[1] * 9 + [2] * 4 + [0] * 3, [0] * 16])
    positions = jnp.asarray([[*range(9), *range(4), 0, 0, 0], [0] * 16])
    tokens = jax.random.randint(jax.random.key(0), (2, 16), 0, 50)
    return {"tokens_BL": tokens, "segments_BL": segments, "positions_BL": positions, "types_BL": jnp.zeros_like(tokens)}


def layer_by_layer(encoder: Encoder, config: EncoderConfig, key: DropoutKey | None = None) -> jax.Array:
    """States after every layer, one call a layer: global ones with the global base and no window, as ModernBERT has them."""
    row, first = packed(), 1
    hidden_BLD = encoder.embeddings(row["tokens_BL"], row["positions_BL"], row["types_BL"], key, 0)
    structure, state = nnx.split(encoder.layers)
    states = [hidden_BLD]
    for number in range(config.layers):
        own = number // (config.layers // config.own_layers)
        layer: Any = nnx.merge(structure, jax.tree.map(lambda leaf, own=own: leaf[own], nnx.to_pure_dict(state)))
        is_global = number % config.global_every == 0
        base, window = (config.rope_theta, 0) if is_global else (config.local_rope_theta, config.local_window)
        angles = rotary_angles(row["positions_BL"], config.hidden_size // config.heads, base)
        site = jnp.uint32(first + 3 * number)
        hidden_BLD = layer(hidden_BLD, row["segments_BL"], angles, key, site, jnp.asarray(number == 0), window)
        states.append(hidden_BLD)
    return jnp.stack([*states[:-1], encoder.final_norm(hidden_BLD)])


@pytest.mark.parametrize(
    "changes",
    [
        {},  # two groups of a global and a local layer in the scan, and a global one behind them
        {"unroll": 5},
        {"global_every": 3},  # one group, a global and a local layer behind it
        {"global_every": 8},  # less than a group
        {"layers": 6, "num_layer_groups": 2},
    ],
    ids=str,
)
def test_two_kinds_of_layers_in_one_scan_equal_one_call_a_layer(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    encoder = Encoder(config, nnx.Rngs(0))
    assert encoder.layers.query.kernel[...].shape[0] == config.own_layers
    found, wanted = encoder.every_state(**packed()), layer_by_layer(encoder, config)
    np.testing.assert_allclose(found[:, 0, :13], wanted[:, 0, :13], atol=1e-5)
    np.testing.assert_array_equal(encoder(**packed()), found[-1])
    if not changes:
        dropped = encoder(**packed(), key=KEY)
        np.testing.assert_allclose(dropped[0, :13], layer_by_layer(encoder, config, KEY)[-1][0, :13], atol=1e-5)
        same = Encoder(dataclasses.replace(config, local_window=0, global_every=0, local_rope_theta=0.0), nnx.Rngs(0))
        assert float(jnp.abs(found[-1] - same(**packed()))[0, :9].max()) > 1e-2


@pytest.mark.parametrize("unroll", [1, 5])
def test_local_layers_can_have_a_backend_of_their_own(unroll: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = set()

    def recorded(*arrays: Any, **options: Any) -> jax.Array:
        calls.add((options["backend"], options["window"]))
        return attention(*arrays, **options)

    monkeypatch.setattr(layer, "attention", recorded)
    config = dataclasses.replace(CONFIG, unroll=unroll)

    def states(**backends: Any) -> jax.Array:
        return Encoder(dataclasses.replace(config, attention="xla", **backends), nnx.Rngs(0))(**packed(), key=KEY)

    np.testing.assert_allclose(states(local_backend="xla_chunked"), states(), atol=1e-5)
    assert calls == {("xla", 0), ("xla", 2), ("xla_chunked", 2)}


def local_layers(**changes: Any) -> Request:
    """A request of the local layers of `modern_base` on an H200, with these changes."""
    made = Request("gpu", 512, 64, jnp.bfloat16, 0.0, "NVIDIA H200", 64)
    return dataclasses.replace(made, **changes)


@pytest.mark.parametrize(
    ("backend", "changes", "chosen", "reason"),
    [
        ("cudnn", {}, "pallas_hopper", "cudnn computes whole rows"),
        ("cudnn", {"length": 384}, "cudnn", "rows of 384 are short for a window of 64"),
        ("cudnn", {"window": 65}, "cudnn", "rows of 512 are short for a window of 65"),
        ("cudnn", {"window": 65, "length": 1024}, "pallas_hopper", "whole rows"),
        ("cudnn", {"head_size": 128}, "pallas_triton", "whole rows"),
        ("cudnn", {"device_kind": "NVIDIA A100-SXM4-80GB"}, "pallas_triton", "whole rows"),
        ("cudnn", {"length": 1000}, "cudnn", "not pallas_hopper: .*; not pallas_triton: its length"),
        ("splash", {"platform": "tpu", "device_kind": "TPU v5e"}, "splash", "as the other layers"),
        ("pallas_hopper", {"dropout": 0.1}, "pallas_hopper", "as the other layers"),
    ],
)
def test_local_layers_skip_what_they_do_not_see(backend: str, changes: dict, chosen: str, reason: str) -> None:
    name, why = choose_local_backend(backend, local_layers(**changes))
    assert name == chosen and re.search(reason, why), why


@pytest.mark.parametrize(
    "changes", [{"remat": "full"}, pytest.param({"remat": "dots", "unroll": 5}, marks=pytest.mark.slow)], ids=str
)
def test_computing_again_changes_no_gradient_of_local_layers(changes: dict[str, Any]) -> None:
    found = []
    for config in (CONFIG, dataclasses.replace(CONFIG, **changes)):
        structure, state = nnx.split(Encoder(config, nnx.Rngs(0)))

        def loss(state: Any, structure: Any = structure) -> jax.Array:
            return jnp.sum(jnp.sin(nnx.merge(structure, state)(**packed(), key=KEY)))

        found.append(jax.grad(loss)(state))
    for left, right in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)
    assert any(float(jnp.abs(leaf).max()) > 0.01 for leaf in jax.tree.leaves(found[0]))


@pytest.mark.parametrize("length", [1, 3, 4, 50])
def test_operations_count_pairs_inside_of_the_window(length: int) -> None:
    """Of blocks of one length, pair by pair; the difference to global layers is that of the pairs."""
    config = dataclasses.replace(CONFIG, local_window=3, hidden_size=8)
    inside = sum(abs(one - two) <= 3 for one in range(length) for two in range(length))
    tokens, pairs, blocks = 4 * length, 4 * length**2, 4
    everywhere = dataclasses.replace(config, local_window=0, global_every=0)
    assert config.global_layers == 3 and everywhere.global_layers == 5
    skipped = 12 * 8 * 2 * (pairs - blocks * inside)
    assert everywhere.flops(tokens, pairs) - config.flops(tokens, pairs) == pytest.approx(skipped)
    assert config.flops(0, 0) == 0


def test_settings_of_local_layers_go_together() -> None:
    assert CONFIG.problems() == []
    for changes, words in (
        ({"global_every": 1}, "encoder.global_every is 1: expected 2 or more with encoder.local_window"),
        ({"local_window": 0}, "encoder.global_every is 2: expected 0 without encoder.local_window"),
        (
            {"local_window": 0, "global_every": 0, "local_rope_theta": 0.0, "local_backend": "xla"},
            "encoder.local_backend is 'xla': expected auto without encoder.local_window",
        ),
        ({"local_rope_theta": 0.0}, "encoder.local_rope_theta is 0: expected a base above 0"),
        ({"rope_theta": 0.0}, "encoder.local_rope_theta is 10: expected 0 unless there are encoder.local_window and"),
        ({"local_window": -1}, "encoder.local_window is -1"),
        ({"relative_attention": True}, "encoder.local_window is 2: expected 0 with encoder.relative_attention"),
    ):
        told = "\n".join(dataclasses.replace(CONFIG, **changes).problems())
        assert re.search(re.escape(words), told), told
