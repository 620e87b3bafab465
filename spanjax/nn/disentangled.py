"""Disentangled attention (DeBERTa, He et al., 2021): scores of contents, and of contents with embeddings of distances.

A score is q_i k_j + q_i r(i - j) + s(i - j) k_j over the square root of a head's width times the number of its terms. r and s are
projections of one table of embeddings, which all layers share; far distances share rows of it.
Shapes: B rows, L positions (Q and K where the two sides differ), T = 2 L - 1 distances, R rows of the table, D hidden size,
N heads, H width of a head.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from spanjax.nn.attention.request import KEPT
from spanjax.nn.attention.xla import attend, scaled
from spanjax.nn.config import POSITION_SCORES, EncoderConfig
from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.layer import Layer, PositionInput, inner_linear, layer_norm, normal
from spanjax.nn.products import float32_product
from spanjax.nn.relative import shifted

DISTANCES = 3  # dropout site of the table, after those of a `Layer`


def distance_rows(length: int, max_distance: int, buckets: int) -> np.ndarray:
    """[T]: the row of the table for each of the distances L - 1, ..., 1 - L.

    With buckets, distances up to half of them have rows of their own; the others up to max_distance - 1 are rounded up to the
    next of the remaining buckets, which are equally wide in the logarithm.
    """
    distance_T = np.arange(length - 1, -length, -1)
    span = buckets or max_distance
    if buckets:
        half = buckets // 2
        # float32 like the published code, so that no distance near a border falls into another bucket
        far_T = np.maximum(np.abs(distance_T), half).astype(np.float32)
        width = np.log(np.float32((max_distance - 1) / half))
        bucket_T = np.ceil(np.log(far_T / np.float32(half)) / width * np.float32(half - 1)).astype(int) + half
        distance_T = np.where(np.abs(distance_T) <= half, distance_T, np.sign(distance_T) * bucket_T)
    return np.clip(distance_T + span, 0, 2 * span - 1)


class DistanceTable(nnx.Module):
    """Embeddings of distances, with a LayerNorm where the encoder has one."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        rows = 2 * (config.distance_buckets or config.max_distance)
        self.table = nnx.Embed(rows, config.hidden_size, embedding_init=normal(config), rngs=rngs)
        self.norm = layer_norm(config.hidden_size, config, rngs) if config.distance_norm else None

    def __call__(self) -> jax.Array:
        """[R, D]."""
        table_RD = self.table.embedding[...]
        return table_RD if self.norm is None else self.norm(table_RD)


class DisentangledLayer(Layer):
    """A layer whose attention adds scores of distances; uses one dropout site more, `site + 3`."""

    def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        kind, own, size = config.disentangled_attention, not config.shared_projections, config.hidden_size
        self.by_query, self.by_key = kind in ("c2p", "both"), kind in ("p2c", "both")
        if own and self.by_query:
            self.position_key = inner_linear(size, size, config, rngs)
        if own and self.by_key:
            self.position_query = inner_linear(size, size, config, rngs)
        self.own, self.terms = own, 1 + POSITION_SCORES[kind]
        self.max_distance, self.buckets = config.max_distance, config.distance_buckets

    def _mixed(
        self,
        query_BLNH: jax.Array,
        key_BLNH: jax.Array,
        value_BLNH: jax.Array,
        segments_BL: jax.Array,
        positions: PositionInput,
        key: DropoutKey | None,
        site: jax.Array,
        window: int,
        causal: bool,
    ) -> jax.Array:
        """Values mixed by attention, [B, L, N, H]; `positions` is the table [R, D]."""
        assert isinstance(positions, jax.Array)
        share = jnp.asarray(1.0 / math.sqrt(self.terms), query_BLNH.dtype)
        query_BLNH = query_BLNH * share
        by_distance_BNQK = self._by_distance(query_BLNH, key_BLNH, positions, share, key, site)
        rate = self.attention_rate
        mixed_BLNH = attend(
            query_BLNH, key_BLNH, value_BLNH, segments_BL, rate, key, site, window, causal, by_distance_BNQK
        )
        return checkpoint_name(mixed_BLNH, KEPT)

    def _by_distance(
        self,
        query_BLNH: jax.Array,
        key_BLNH: jax.Array,
        table_RD: jax.Array,
        share: jax.Array,
        key: DropoutKey | None,
        site: jax.Array,
    ) -> jax.Array:
        """Scores with the embeddings of distances, float32 [B, N, Q, K].

        Blocks are contiguous, so a distance in the row is the one in the block.
        """
        length = query_BLNH.shape[1]
        if key is not None:
            # one mask for all rows of the batch, whatever the device or the microbatch: the table belongs to none of them
            shared = dataclasses.replace(key, row_B=jnp.zeros(1, jnp.int32))
            table_RD = dropout(table_RD[None], self.rate, shared, site + DISTANCES)[0]
        row_T = distance_rows(length, self.max_distance, self.buckets)
        scores = []
        if self.by_query:
            made_RD = (self.position_key if self.own else self.key)(table_RD)
            distance_TNH = made_RD.reshape(len(made_RD), self.heads, -1)[row_T]
            by_query_BNQT = float32_product("bqnh,tnh->bnqt", scaled(query_BLNH), distance_TNH)
            scores.append(shifted(by_query_BNQT, length))
        if self.by_key:
            made_RD = (self.position_query if self.own else self.query)(table_RD) * share
            # seen from a key the distances to its queries come in reverse
            distance_TNH = scaled(made_RD.reshape(len(made_RD), self.heads, -1)[row_T[::-1]])
            by_key_BNKT = float32_product("bknh,tnh->bnkt", key_BLNH, distance_TNH)
            scores.append(jnp.swapaxes(shifted(by_key_BNKT, length), 2, 3))
        return scores[0] + scores[1] if len(scores) > 1 else scores[0]
