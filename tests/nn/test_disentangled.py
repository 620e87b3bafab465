"""Disentangled attention by a plain loop; its buckets, its dropout, packed rows, and layers that are computed again.

Shapes: B rows, L positions, D hidden size.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.nn.config import EncoderConfig
from spanjax.nn.disentangled import DisentangledLayer, distance_rows
from spanjax.nn.dropout import DropoutKey, step_key
from spanjax.nn.encoder import Encoder
from tests.made import tiny_encoder
from tests.torch_format.references import REASON

HEADS, SIZE = 2, 16
CONFIG = tiny_encoder(
    layers=3,
    types=0,
    initializer_std=0.3,
    disentangled_attention="both",
    max_distance=9,
    distance_buckets=6,
    distance_norm=True,
    shared_projections=True,
)
KEY = DropoutKey(step_key(0, jnp.int32(1)), jnp.arange(2))
BLOCKS = ((0, 14), (14, 23), (23, 24))  # of row 0, which is packed and has two positions of padding


def segments() -> np.ndarray:
    """Row 0 packed, row 1 one block."""
    found = np.zeros((2, 26), np.int32)
    for number, (start, stop) in enumerate(BLOCKS, 1):
        found[0, start:stop] = number
    found[1] = 1
    return found


def batch() -> dict[str, Any]:
    """Rows of these segments; positions restart with every block."""
    positions = np.zeros((2, 26), np.int32)
    for start, stop in BLOCKS:
        positions[0, start:stop] = np.arange(stop - start)
    positions[1] = np.arange(26)
    tokens = np.random.default_rng(0).integers(0, 50, (2, 26)).astype(np.int32)
    arrays = {"tokens_BL": tokens, "segments_BL": segments(), "positions_BL": positions, "types_BL": 0 * tokens}
    return {name: jnp.asarray(array) for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("length", "buckets", "farthest"),
    [(600, 256, 512), (1100, 256, 512), (40, 6, 9), (40, 2, 3), (90, 48, 64), (7, 0, 4)],
)
def test_buckets_are_those_of_transformers(length: int, buckets: int, farthest: int) -> None:
    torch = pytest.importorskip("torch", reason=REASON)
    pytest.importorskip("transformers", reason=REASON)
    from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

    rows = torch.zeros(length, 1)
    theirs = build_relative_position(rows, rows, buckets or -1, farthest)[0]
    span = buckets or farthest
    wanted = torch.clamp(theirs + span, 0, 2 * span - 1).numpy()
    found = distance_rows(length, farthest, buckets)
    for query in (0, length // 2, length - 1):
        np.testing.assert_array_equal(found[length - 1 - query :][:length], wanted[query], err_msg=str(query))


def in_loops(layer: Any, hidden_LD: np.ndarray, table_RD: np.ndarray, config: EncoderConfig, blocks: Any) -> np.ndarray:
    """What attention mixes for each position of a row, in float64, score by score."""

    def split(name: str, x: np.ndarray) -> np.ndarray:
        kernel, bias = (np.asarray(getattr(getattr(layer, name), part)[...], np.float64) for part in ("kernel", "bias"))
        return (x @ kernel + bias).reshape(len(x), HEADS, -1)

    query, key, value = (split(name, hidden_LD) for name in ("query", "key", "value"))
    kind, shared = config.disentangled_attention, config.shared_projections
    to_query = split("key" if shared else "position_key", table_RD) if kind != "p2c" else None
    to_key = split("query" if shared else "position_query", table_RD) if kind != "c2p" else None
    terms = 1 + (to_query is not None) + (to_key is not None)
    row_of = distance_rows(len(hidden_LD), config.max_distance, config.distance_buckets)
    out = np.zeros(query.shape)
    for start, stop in blocks:
        for i in range(start, stop):
            for head in range(HEADS):
                scores = []
                for j in range(start, stop):
                    row = row_of[len(hidden_LD) - 1 - (i - j)]
                    score = query[i, head] @ key[j, head]
                    score += query[i, head] @ to_query[row, head] if to_query is not None else 0.0
                    score += to_key[row, head] @ key[j, head] if to_key is not None else 0.0
                    scores.append(score / np.sqrt(terms * SIZE / HEADS))
                weights = np.exp(np.array(scores) - max(scores))
                out[i, head] = np.einsum("j,jh->h", weights / weights.sum(), value[start:stop, head])
    return out


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"disentangled_attention": "c2p"},
        {"disentangled_attention": "p2c"},
        {"shared_projections": False, "distance_buckets": 0},
    ],
    ids=str,
)
def test_attention_is_the_formula(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    layer, random = DisentangledLayer(config, nnx.Rngs(0)), np.random.default_rng(0)
    rows = 2 * (config.distance_buckets or config.max_distance)
    hidden_BLD, table_RD = random.normal(size=(2, 26, SIZE)), random.normal(size=(rows, SIZE))
    given = jnp.asarray(hidden_BLD, jnp.float32)
    parts = ((part(given).reshape(2, 26, HEADS, -1)) for part in (layer.query, layer.key, layer.value))
    table = jnp.asarray(table_RD, jnp.float32)
    mix: Any = layer._mixed
    found = mix(*parts, jnp.asarray(segments()), table, None, jnp.uint32(1), 0, False)
    for row, blocks in enumerate((BLOCKS, ((0, 26),))):
        wanted, stop = in_loops(layer, hidden_BLD[row], table_RD, config, blocks), blocks[-1][1]
        np.testing.assert_allclose(found[row, :stop], wanted[:stop], atol=1e-5)


def test_a_packed_row_is_its_blocks_apart() -> None:
    encoder, rows = Encoder(CONFIG, nnx.Rngs(0)), batch()
    found = encoder(**rows)
    for start, stop in BLOCKS:
        alone = {name: array[:1, start:stop] for name, array in rows.items()}
        assert np.array_equal(alone["positions_BL"][0], np.arange(stop - start))
        np.testing.assert_allclose(found[:1, start:stop], encoder(**alone), atol=1e-5)


def test_distances_count() -> None:
    """The words of a block in another order get other states: nothing else tells positions."""
    encoder, rows = Encoder(CONFIG, nnx.Rngs(0)), batch()
    order = np.array([3, 1, 2, 0, *range(4, 26)])
    found, other = encoder(**rows), encoder(**{**rows, "tokens_BL": rows["tokens_BL"][:, order]})
    assert float(jnp.abs(other[1] - found[1][order]).max()) > 0.1
    assert not hasattr(encoder.embeddings, "position")


def test_the_mask_of_the_table_is_that_of_no_row() -> None:
    """Rows in one batch or in two, as devices and microbatches have them, drop the same."""
    encoder, rows = Encoder(CONFIG, nnx.Rngs(0)), batch()
    found = encoder(**rows, key=KEY)
    for row in range(2):
        alone = {name: array[row : row + 1] for name, array in rows.items()}
        key = dataclasses.replace(KEY, row_B=KEY.row_B[row : row + 1])
        np.testing.assert_allclose(found[row : row + 1], encoder(**alone, key=key), atol=1e-5)


def test_the_table_has_dropout_of_its_own() -> None:
    config = dataclasses.replace(CONFIG, attention_dropout=0.0)
    layer, random = DisentangledLayer(config, nnx.Rngs(0)), np.random.default_rng(0)
    arrays = [jnp.asarray(random.normal(size=(1, 26, HEADS, SIZE // HEADS)), jnp.float32) for _ in range(3)]
    table = jnp.asarray(random.normal(size=(12, SIZE)), jnp.float32)

    def mixed(site: int, key: DropoutKey | None, row: int = 0) -> jax.Array:
        key = key and dataclasses.replace(key, row_B=jnp.full(1, row))
        mix: Any = layer._mixed
        return mix(*arrays, jnp.ones((1, 26), jnp.int32), table, key, jnp.uint32(site), 0, False)

    assert float(jnp.abs(mixed(1, KEY) - mixed(1, None)).max()) > 1e-3
    assert float(jnp.abs(mixed(1, KEY) - mixed(5, KEY)).max()) > 1e-3, "every layer has its own"
    np.testing.assert_array_equal(mixed(1, KEY, 0), mixed(1, KEY, 7))


@pytest.mark.parametrize(
    "changes",
    [
        {"remat": "full"},
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ({"remat": "dots", "unroll": 3}, {"remat": "elementwise"})
        ),
        pytest.param({"unroll": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_computing_again_changes_no_gradient(changes: dict[str, Any]) -> None:
    found = []
    for config in (CONFIG, dataclasses.replace(CONFIG, **changes)):
        structure, state = nnx.split(Encoder(config, nnx.Rngs(0)))

        def loss(state: Any, structure: Any = structure) -> jax.Array:
            return jnp.sum(jnp.sin(nnx.merge(structure, state)(**batch(), key=KEY)))

        found.append(jax.grad(loss)(state))
    for left, right in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=2e-5)
    assert float(jnp.abs(found[0]["distances"]["table"]["embedding"][...]).max()) > 0.01


def test_narrow_embeddings_are_widened_before_their_norm() -> None:
    encoder = Encoder(dataclasses.replace(CONFIG, embedding_size=4), nnx.Rngs(0))
    first = encoder.every_state(**batch())[0]
    assert encoder.embeddings.widen.bias is None and encoder.token_table().shape[1] == 4
    np.testing.assert_allclose(jnp.mean(first, axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(jnp.std(first, axis=-1), 1, atol=1e-3)


def test_operations_count_the_scores_of_distances() -> None:
    plain = dataclasses.replace(
        CONFIG, **{name: getattr(EncoderConfig(), name) for name in ("disentangled_attention", "max_distance")}
    )
    one = 6 * CONFIG.layers * CONFIG.hidden_size * 100
    for kind, scores in (("c2p", 1), ("p2c", 1), ("both", 2)):
        config = dataclasses.replace(CONFIG, disentangled_attention=kind)  # pyright: ignore[reportArgumentType]
        assert config.flops(10, 100) - plain.flops(10, 100) == pytest.approx(scores * one)


def test_settings_of_distances_go_together() -> None:
    assert CONFIG.problems() == []
    for changes, words in (
        ({"disentangled_attention": "p2p"}, "is 'p2p': expected one of none, c2p, p2c, both"),
        ({"disentangled_attention": "none"}, "encoder.distance_buckets is 6: expected 0 without"),
        ({"max_distance": 0}, "encoder.max_distance is 0: expected a distance above 0"),
        ({"max_distance": 4}, "encoder.distance_buckets is 6 with encoder.max_distance 4: expected 0, or 2"),
        ({"distance_buckets": 1}, "encoder.distance_buckets is 1 with"),
        ({"rope_theta": 1e4}, "encoder.rope_theta is 10000.0: expected 0.0 with encoder.disentangled_attention"),
        ({"relative_attention": True}, "encoder.relative_attention is True: expected False with encoder.dis"),
        ({"local_window": 4, "global_every": 2}, "encoder.local_window is 4: expected 0 with encoder.disentangled"),
        (
            {"attention": "splash"},
            "encoder.attention is 'splash': expected 'auto' or 'xla' with encoder.disentangled_attention, the only",
        ),
    ):
        told = "\n".join(dataclasses.replace(CONFIG, **changes).problems())
        assert words in told, told
