"""The interface between the training step and the objectives."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx

from spanjax.bounds import range_problems
from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.masking import Boundaries, MaskingPolicy
from spanjax.data.feed.order import Order
from spanjax.data.feed.pairing import Pairing
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey

Batch = Mapping[str, jax.Array]
"""Rows of a batch on devices, or shapes of them: arrays by name."""


class Mean(NamedTuple):
    """A mean kept as its two sums; both are scalars (Python, NumPy or jax)."""

    total: Any
    count: Any

    def merge(self, other: "Mean") -> "Mean":
        """The mean over both sets of values."""
        return Mean(self.total + other.total, self.count + other.count)

    def value(self) -> float:
        """total / count as a Python float; NaN where nothing was counted."""
        count = float(self.count)
        return float(self.total) / count if count else float("nan")


class FillHead(NamedTuple):
    """A head that predicts the token of every slot: predictions of masks, examples of the report, comparisons of models."""

    name: str
    """Name in metrics and output."""
    neighbours: bool = False
    """True if it reads the tokens around a span and the offset inside it, and not the masked position."""
    reach: int | None = None
    """Number of offsets inside a span that it predicts, from 0 on; None: all."""


class Objective(abc.ABC):
    """A frozen dataclass that defines the module around the encoder and the losses; what is not abstract has a default.

    A loss is a `Mean`: its total is summed where the rows are, its count is known from the batch alone, so that the step
    divides by the count over all microbatches, devices and hosts.
    """

    whole_batch: ClassVar[bool] = False
    """True if the loss of a row reads other rows of the batch, so that microbatches would change it."""

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Returns a message for each problem of these settings; by default of the ranges that their annotations give."""
        del encoder
        return range_problems(self, "objective.")

    @abc.abstractmethod
    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """The encoder with its heads, freshly initialised."""

    @abc.abstractmethod
    def loss_weights(self) -> Mapping[str, float]:
        """Name of every loss -> its weight in the sum that is minimised."""

    @abc.abstractmethod
    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Name of every loss -> the divisor of its total, for these rows."""

    def extra_counts(self) -> dict[str, float]:
        """Name of every loss -> number to add to the global count before dividing (0 except in the released code, D6)."""
        return dict.fromkeys(self.loss_weights(), 0.0)

    @abc.abstractmethod
    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """Runs the module on these rows: every loss by its name, and further metrics. `key=None` evaluates."""

    @property
    def memory_length(self) -> int:
        """Positions before or behind a row that its relative attention also reads."""
        return 0

    def recurrent_state(self, encoder: EncoderConfig, length: int, dtype: Any) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Recurrent state that a row passes to the row at its batch index in the next batch: name -> shape and type, `dtype`
        being that of activations. By default none. It is zero in the first batch, and part of the state of a run.
        """
        del encoder, length, dtype
        return {}

    def losses_with_state(
        self, module: Any, batch: Batch, key: DropoutKey | None
    ) -> tuple[dict[str, Mean], dict[str, jax.Array]]:
        """`measure`, and the rows' new recurrent state. In training `batch` also has the previous state, by the same names."""
        return self.measure(module, batch, key), {}

    def flops(self, encoder: EncoderConfig, tokens: float, pairs: float, slots: float) -> float:
        """Multiply-add = 2, forward and backward, without remat, of `tokens` tokens, `pairs` pairs of them that attend to each
        other (the sum of the squared lengths of blocks) and used slots; by default those of the encoder."""
        del slots
        return float(encoder.flops(tokens, pairs))

    def flops_per_row(self, encoder: EncoderConfig, length: int, slots: int) -> float:
        """`flops` of one full row of `length` tokens (one block)."""
        return self.flops(encoder, length, length**2, slots)

    @property
    def fill_heads(self) -> tuple[FillHead, ...]:
        """The T heads that fill masks; by default none."""
        return ()

    def has_pieces(self, name: str) -> bool:
        """True if this parameter of its heads has a row per token of the vocabulary: by default the `bias` of `fill_heads`."""
        return name in {f"{head.name}/bias" for head in self.fill_heads}

    def setting_of(self, part: str) -> str:
        """Path of the settings of a part of its parameters, as in flags after `--objective.`; "" for none."""
        del part
        return ""


def type_problems(pairing: Pairing, encoder: EncoderConfig) -> list[str]:
    """Returns the problem of the encoder's token types with these pairs, if there is one."""
    if max(1, encoder.types) >= pairing.types:
        return []
    name = type(pairing).__name__
    return [f"objective.pairing {name} needs encoder.types of at least {pairing.types}, got {encoder.types}"]


class Pretraining(Objective):
    """An objective that makes its examples from the rows of `python -m spanjax.prepare`.

    Its module has the `encoder`, and its heads under their names; `vocab_size`, if its tokens are decoded by `tied_decoder`.
    """

    masking: MaskingPolicy
    """Masking policy: the tokens of the slots, and their replacements."""
    pairing: Pairing
    """Kind of sequences."""

    @property
    def required_order(self) -> str:
        """The order of rows that the objective requires, one of `data.feed.order.Order`; "" for any."""
        return ""

    def order_of(self, requested: str) -> str:
        """The order of rows to use: the requested one; for "auto" the required one, else "uniform"."""
        return (self.required_order or "uniform") if requested == "auto" else requested

    def order_problems(self, requested: str) -> list[str]:
        """The problem with a requested order of rows, if there is one."""
        required = self.required_order
        if not required or requested in ("auto", required):
            return []
        return [
            f"data.order is {requested!r}, but objective {type(self).__name__} reads rows in the order {required!r}, which its"
            " memory needs: leave data.order out, or set objective.memory 0"
        ]

    @property
    def boundaries(self) -> Boundaries:
        """Settings of span boundaries for the feed."""
        return Boundaries()

    def feed_spec(self, *, seed: int, batch_size: int, order: str) -> FeedSpec:
        """Returns the settings of the feed: pairing, masking, boundaries, order."""
        chosen: Order = self.order_of(order)  # pyright: ignore[reportAssignmentType]
        return FeedSpec(seed, batch_size, self.masking, self.boundaries, chosen, self.pairing)

    def baseline_losses(self, unigram_entropy: float) -> dict[str, tuple[float, str]]:
        """Baseline losses: name of a loss -> its value (nats) for a model that sees no context, and a description."""
        del unigram_entropy
        return {}

    @property
    def parts(self) -> Mapping[str, str]:
        """Its parts of the canonical tree (`torch_format.families`) besides the encoder -> human-readable description."""
        return {}

    def of_parts(self, params: Mapping[str, Any], pair: str) -> Self | None:
        """This objective with the settings of the heads in a canonical tree; None if they are not its own.

        For weights without a run. `pair` is the name of the loss of their pair head.
        """
        del pair
        return self if self.parts and self.parts.keys() <= params.keys() else None

    def hidden(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Input of `logits`: the encoder's hidden states of the rows, [B, L, D]."""
        inputs = (batch[name] for name in ("tokens_BL", "segments_BL", "positions_BL", "types_BL"))
        return module.encoder(*inputs, key)

    def logits(self, module: Any, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
        """Scores of every one of `fill_heads` at every slot: float32 [B, T, K, V], V being the padded vocabulary."""
        raise NotImplementedError(f"{type(self).__name__} has fill_heads and no logits")

    def predict(self, module: Any, batch: Batch) -> dict[str, jax.Array]:
        """Name of every head that fills slots -> the most probable piece at every slot, int32 [B, K]."""
        if not self.fill_heads:
            return {}
        best_BTK = jnp.argmax(self.logits(module, self.hidden(module, batch, None), batch), axis=-1).astype(jnp.int32)
        return {head.name: best_BTK[:, index] for index, head in enumerate(self.fill_heads)}
