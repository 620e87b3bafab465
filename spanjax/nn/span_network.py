"""The hierarchical network of span fine-tuning (Bao et al., 2021, section 3.2): pieces -> vectors of spans -> one vector.

A span is a run of positions with one number: 1, 2, ... along the row, 0 on padding and outside of spans. All intermediates
stay at the positions of the row, [B, L, D]; the padded [B, S, P, D] of the released code is never made.

Padding takes no part. The windows of a convolution are those that lie wholly inside of a run: n - 2 for a run of n vectors.
Only a run of one or two has a window that reaches over its end, into zeros: one piece t1 gives ReLU(W0 t1 + b), two
give ReLU(W0 t1 + W1 t2 + b). A row without spans gives zeros. The released code convolves over zero padding and takes its
windows, ReLU(b) and those that reach over the end, into the maximum, so that there a vector depends on the padded size:
`padding` as-released.

Shapes: B rows, L positions, S spans of a row, P pieces of a span that count, N vectors in order (pieces or spans), R runs
of them, D hidden size, C outputs, K kernel size.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.bounds import DropRate
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.heads import gather_positions
from spanjax.nn.layer import normal

KERNEL = 3
HIDDEN = -1e9  # the score outside of a run


@dataclasses.dataclass(frozen=True)
class SpanNetworkConfig:
    """The two levels: by default Table 7's CNN-CNN; CNN-Max, Attention-Max and Attention-Attention are the others."""

    token_level: Literal["cnn", "attention"] = "cnn"
    """From the pieces of a span to its vector: a convolution with the maximum over its windows, or attention over them."""
    span_level: Literal["cnn", "attention", "max"] = "cnn"
    """From the vectors of spans to one: the same two, or their maximum alone, without parameters (Table 7's single layer)."""
    dropout: DropRate = 0.1
    """Dropout on the vectors of spans, in [0, 1)."""
    padding: Literal["masked", "as-released"] = "masked"
    """masked: padding takes no part. as-released: spans are padded to `pieces` and rows to `spans` with zeros, and the maxima
    take the windows of padding too; for convolutions at both levels over spans."""


class Convolution(nnx.Module):
    """Windows of three vectors, a dense layer over each, and ReLU: `kernel` [3, D, C] and `bias` [C]."""

    def __init__(self, encoder: EncoderConfig, rngs: nnx.Rngs):
        size = encoder.hidden_size
        self.kernel = nnx.Param(normal(encoder)(rngs.params(), (KERNEL, size, size), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(size, jnp.float32))

    def __call__(
        self, vector_BND: jax.Array, run_BN: jax.Array, most: int | None = None, padded: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        """(windows [B, N, C], each where it begins; True where one begins, bool [B, N]) of the first `most` of every run.

        Positions where none begins have zeros. `padded` includes windows that reach over the end of a run, into zeros, as
        far as `most` positions hold them whole.
        """
        offset_BN = offsets_in_runs(run_BN)
        made_KBNC = jnp.einsum("bnd,kdc->kbnc", vector_BND, self.kernel[...])
        sum_BNC, inside_BN = made_KBNC[0], run_BN > 0
        for k in range(1, KERNEL):
            inside_BN = (run_BN > 0) & (_later(run_BN, k) == run_BN) & (offset_BN + k < (most or run_BN.shape[1]))
            sum_BNC += jnp.where(inside_BN[..., None], _later(made_KBNC[k], k), 0)
        if padded:
            begins_BN = (run_BN > 0) & (offset_BN + KERNEL <= (most or run_BN.shape[1]))
        else:
            begins_BN = inside_BN | ((run_BN > 0) & (offset_BN == 0))
        windows_BNC = jax.nn.relu(sum_BNC + self.bias[...][None, None])
        return jnp.where(begins_BN[..., None], windows_BNC, 0), begins_BN

    def centred(self, vector_BND: jax.Array, run_BN: jax.Array) -> jax.Array:
        """[B, N, C]: the window around every vector, zeros beyond its run; zeros outside of runs. Nothing is pooled."""
        made_KBNC = jnp.einsum("bnd,kdc->kbnc", vector_BND, self.kernel[...])
        before_BN, after_BN = (_later(run_BN, k) == run_BN for k in (-1, 1))
        sum_BNC = made_KBNC[1] + jnp.where(before_BN[..., None], _later(made_KBNC[0], -1), 0)
        sum_BNC += jnp.where(after_BN[..., None], _later(made_KBNC[2], 1), 0)
        return jnp.where((run_BN > 0)[..., None], jax.nn.relu(sum_BNC + self.bias[...][None, None]), 0)

    def of_every_span(self, vector_BND: jax.Array, widths: int) -> jax.Array:
        """[B, N, S, C]: the maximum over the windows of the span of S = 1, 2, ... `widths` vectors from every vector on: that of
        `__call__` where this span is a run. Spans that end behind the last vector have zeros in the place of the others."""
        made_KBNC = jnp.einsum("bnd,kdc->kbnc", vector_BND, self.kernel[...])
        found, sum_BNC = [], jnp.zeros_like(made_KBNC[0])
        for width in range(min(widths, KERNEL)):  # of spans that one window covers
            sum_BNC += _later(made_KBNC[width], width)
            found.append(jax.nn.relu(sum_BNC + self.bias[...][None, None]))
        for width in range(KERNEL, widths):
            found.append(jnp.maximum(found[-1], _later(found[KERNEL - 1], width - KERNEL + 1)))
        return jnp.stack(found, axis=2)


class SelfAttention(nnx.Module):
    """The self-attentive module of Lin et al. (2017) with one hop: weights softmax(w tanh(W x)) over a run, W [D, D], w [D]."""

    def __init__(self, encoder: EncoderConfig, rngs: nnx.Rngs):
        size, init = encoder.hidden_size, normal(encoder)
        self.kernel = nnx.Param(init(rngs.params(), (size, size), jnp.float32))
        self.score = nnx.Param(init(rngs.params(), (size,), jnp.float32))

    def __call__(self, vector_BND: jax.Array, member_BRN: jax.Array) -> jax.Array:
        """[B, R, D]: the weighted sums of the members (bool [B, R, N]) of every run; zeros for a run without one."""
        seen_BND = jnp.tanh(jnp.einsum("bnd,dc->bnc", vector_BND, self.kernel[...]))
        score_BN = jnp.einsum("bnc,c->bn", seen_BND, self.score[...], preferred_element_type=jnp.float32)
        weight_BRN = jax.nn.softmax(jnp.where(member_BRN, score_BN[:, None], jnp.float32(HIDDEN)), axis=-1)
        weight_BRN = jnp.where(member_BRN, weight_BRN, 0).astype(vector_BND.dtype)
        return jnp.einsum("brn,bnd->brd", weight_BRN, vector_BND)

    def of_every_span(self, vector_BND: jax.Array, widths: int) -> jax.Array:
        """[B, N, S, D]: the weighted sums over the spans of S = 1, 2, ... `widths` vectors from every vector on. Of a span that
        ends behind the last vector, those that exist count."""
        seen_BND = jnp.tanh(jnp.einsum("bnd,dc->bnc", vector_BND, self.kernel[...]))
        score_BN = jnp.einsum("bnc,c->bn", seen_BND, self.score[...], preferred_element_type=jnp.float32)
        # a score is a sum of D products of weights with values of tanh: its exponential stays in range without the maximum
        weight_BN1 = jnp.exp(score_BN)[..., None]
        part_BND, found = weight_BN1 * vector_BND, []
        sum_BND, total_BN1 = jnp.zeros_like(part_BND), jnp.zeros_like(weight_BN1)
        for width in range(widths):
            sum_BND += _later(part_BND, width)
            total_BN1 += _later(weight_BN1, width)
            found.append((sum_BND / total_BN1).astype(vector_BND.dtype))
        return jnp.stack(found, axis=2)


LEVELS: dict[str, Any] = {"cnn": Convolution, "attention": SelfAttention}


class SpanNetwork(nnx.Module):
    """The token level and, but where it is a bare maximum, the span level; by default 2 (3 D^2 + D) parameters."""

    def __init__(self, encoder: EncoderConfig, config: SpanNetworkConfig, rngs: nnx.Rngs, spans: int, pieces: int):
        """`spans`: the most spans of a row; of a longer span the first `pieces` pieces count."""
        self.token = LEVELS[config.token_level](encoder, rngs)
        if config.span_level != "max":
            self.span = LEVELS[config.span_level](encoder, rngs)
        self.levels = (config.token_level, config.span_level)
        self.rate, self.spans, self.pieces = config.dropout, spans, pieces
        self.padded = config.padding == "as-released"

    def __call__(
        self, hidden_BLD: jax.Array, span_BL: jax.Array, key: DropoutKey | None = None, site: int = 0
    ) -> jax.Array:
        """The vector of every row, [B, D], of hidden states and the span of every position; uses the dropout site `site`."""
        # as released a row has all of its spans, empty ones included: they are windows of the second level
        spans = self.spans if self.padded else min(self.spans, span_BL.shape[1])
        vector_BSD, used_BS = self.of_spans(hidden_BLD, span_BL, spans)
        vector_BSD = dropout(vector_BSD, self.rate, key, site)
        if self.levels[1] == "attention":
            return self.span(vector_BSD, used_BS[:, None])[:, 0]
        if self.levels[1] == "cnn":
            vector_BSD, used_BS = self.span(vector_BSD, used_BS.astype(jnp.int32))
        return _maximum(vector_BSD, used_BS)

    def without_spans(
        self, hidden_BLD: jax.Array, inside_BL: jax.Array, key: DropoutKey | None = None, site: int = 0
    ) -> jax.Array:
        """Table 6's CNN: the same layers one after the other over all positions that are `inside` (bool [B, L]), then the
        maximum, [B, D]. Both levels must be convolutions, or the second a bare maximum."""
        vector_BLD, begins_BL = self.token(hidden_BLD, inside_BL.astype(jnp.int32))
        vector_BLD = dropout(vector_BLD, self.rate, key, site)
        if self.levels[1] == "cnn":
            vector_BLD, begins_BL = self.span(vector_BLD, begins_BL.astype(jnp.int32))
        return _maximum(vector_BLD, begins_BL)

    def of_spans(self, hidden_BLD: jax.Array, span_BL: jax.Array, spans: int) -> tuple[jax.Array, jax.Array]:
        """(vectors of the spans 1 ... `spans` [B, S, D], zeros for missing ones; True for existing ones, bool [B, S])."""
        member_BSL = span_BL[:, None] == 1 + jnp.arange(spans, dtype=span_BL.dtype)[None, :, None]
        used_BS = jnp.any(member_BSL, axis=-1)
        if self.levels[0] == "attention":
            counted_BL = offsets_in_runs(span_BL) < self.pieces
            return self.token(hidden_BLD, member_BSL & counted_BL[:, None]), used_BS
        highest_BLD = self._highest(hidden_BLD, span_BL)
        vector_BSD = gather_positions(highest_BLD, jnp.argmax(member_BSL, axis=-1))
        vector_BSD = jnp.where(used_BS[..., None], vector_BSD, 0)
        if not self.padded:
            return vector_BSD, used_BS
        # windows of zeros alone, ReLU(b), begin behind the end of a span that leaves room for one
        empty_BS = jnp.sum(member_BSL, axis=-1) + KERNEL <= self.pieces
        bare_BSD = jax.nn.relu(self.token.bias[...]).astype(vector_BSD.dtype)[None, None]
        return jnp.where(empty_BS[..., None], jnp.maximum(vector_BSD, bare_BSD), vector_BSD), jnp.ones_like(used_BS)

    def of_pieces(
        self, hidden_BLD: jax.Array, span_BL: jax.Array, pooled: bool, key: DropoutKey | None = None, site: int = 0
    ) -> jax.Array:
        """A vector for every position, [B, L, D], for tasks of tokens: that of its span, or with `pooled` False the window
        around it inside of its span (the convolution without its pooling; D26). Zeros where there is no span."""
        if not pooled:
            vector_BLD = self.token.centred(hidden_BLD, span_BL)
        elif self.levels[0] == "attention":
            vector_BSD, _ = self.of_spans(hidden_BLD, span_BL, span_BL.shape[1])
            vector_BLD = gather_positions(vector_BSD, jnp.maximum(span_BL - 1, 0))
        else:
            first_BL = jnp.arange(span_BL.shape[1], dtype=jnp.int32)[None] - offsets_in_runs(span_BL)
            vector_BLD = gather_positions(self._highest(hidden_BLD, span_BL), first_BL)
        return dropout(jnp.where((span_BL > 0)[..., None], vector_BLD, 0), self.rate, key, site)

    def of_every_span(self, vector_BND: jax.Array, widths: int) -> jax.Array:
        """The vectors of all spans of 1, 2, ... `widths` vectors, [B, N, S, D] by their first vector: those of `of_spans` where
        such a span is the only one. For spans that overlap; those that end behind the last vector are meaningless."""
        return self.token.of_every_span(vector_BND, widths)

    def _highest(self, hidden_BLD: jax.Array, span_BL: jax.Array) -> jax.Array:
        """At the first position of every span the maximum over its windows, [B, L, D], in steps of doubling width."""
        highest_BLD, _ = self.token(hidden_BLD, span_BL, self.pieces, self.padded)
        width = 1
        while width < min(self.pieces, span_BL.shape[1]):
            same_BL = (_later(span_BL, width) == span_BL)[..., None]
            highest_BLD = jnp.maximum(highest_BLD, jnp.where(same_BL, _later(highest_BLD, width), 0))
            width *= 2
        return highest_BLD


def offsets_in_runs(run_BN: jax.Array) -> jax.Array:
    """int32 [B, N]: how many positions of equal number come before each without a gap: runs 1 1 2 have 0 1 0."""
    place_BN = jnp.broadcast_to(jnp.arange(run_BN.shape[1], dtype=jnp.int32)[None], run_BN.shape)
    begins_BN = (_later(run_BN, -1) != run_BN) | (place_BN == 0)
    return place_BN - jax.lax.cummax(jnp.where(begins_BN, place_BN, 0), axis=1)


def _later(x_BN: jax.Array, by: int) -> jax.Array:
    """x_BN[:, n + by] at [:, n], zeros where there is none; further axes stay."""
    rest = ((0, 0),) * (x_BN.ndim - 2)
    if by < 0:
        return jnp.pad(x_BN, ((0, 0), (-by, 0), *rest))[:, : x_BN.shape[1]]
    return jnp.pad(x_BN, ((0, 0), (0, by), *rest))[:, by:]


def _maximum(vector_BND: jax.Array, inside_BN: jax.Array) -> jax.Array:
    """[B, D]: the maximum over the vectors that are inside; zeros where none is."""
    lowest = jnp.finfo(vector_BND.dtype).min
    highest_BD = jnp.max(jnp.where(inside_BN[..., None], vector_BND, lowest), axis=1)
    return jnp.where(jnp.any(inside_BN, axis=1)[:, None], highest_BD, 0)
