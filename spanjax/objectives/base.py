"""The interface between the trunk and everything that can be trained."""

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx

from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.pairing import Pairing
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey


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


class Objective(abc.ABC):
    """A frozen dataclass that says which module stands around the encoder, and what the losses are: all that training asks.

    A loss is a `Mean`: its total is summed where the rows are, its count is known from the batch alone, so that the step
    divides by the count over all microbatches, devices and hosts.
    """

    @abc.abstractmethod
    def problems(self, encoder: EncoderConfig) -> list[str]:
        """What is wrong with these settings, in words; empty when nothing is."""

    @abc.abstractmethod
    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """The encoder with its heads, freshly initialised."""

    @abc.abstractmethod
    def loss_weights(self) -> Mapping[str, float]:
        """Name of every loss -> its weight in the sum that is minimised."""

    @abc.abstractmethod
    def counts(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Name of every loss -> what its total is divided by, for these rows."""

    @abc.abstractmethod
    def extra_counts(self) -> dict[str, float]:
        """Name of every loss -> what is added to the global count before dividing (0 but for the released code, D6)."""

    @abc.abstractmethod
    def measure(self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None) -> dict[str, Mean]:
        """Runs the module on these rows: every loss by its name, and further means to show. `key=None` evaluates."""

    def carried(self, encoder: EncoderConfig, length: int, dtype: Any) -> Mapping[str, jax.ShapeDtypeStruct]:
        """What a row hands on to the row at its place in the next batch: name -> shape and type, `dtype` being that of
        activations. By default nothing. It is zero in the first batch, and part of the state of a run.
        """
        del encoder, length, dtype
        return {}

    def measure_carrying(
        self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None
    ) -> tuple[dict[str, Mean], dict[str, jax.Array]]:
        """`measure`, and what the rows hand on. In training `batch` also has, by their names, what was handed to its rows."""
        return self.measure(module, batch, key), {}

    @abc.abstractmethod
    def flops(self, encoder: EncoderConfig, tokens: float, pairs: float, slots: float) -> float:
        """Multiply-add = 2, forward and backward, nothing computed twice, of so many tokens, pairs of tokens that attend to each
        other (the sum of the squared lengths of blocks) and used slots."""

    def flops_per_row(self, encoder: EncoderConfig, length: int, slots: int) -> float:
        """`flops` of one full row of `length` tokens (one block)."""
        return self.flops(encoder, length, length**2, slots)


def type_problems(pairing: Pairing, encoder: EncoderConfig) -> list[str]:
    """What is wrong with the encoder's token types for these pairs, in words."""
    if max(1, encoder.types) >= pairing.types:
        return []
    name = type(pairing).__name__
    return [f"objective.pairing {name} needs encoder.types of at least {pairing.types}, got {encoder.types}"]


class Pretraining(Objective):
    """An objective whose examples are made of the rows that `python -m spanjax.prepare` writes."""

    @property
    def required_order(self) -> str:
        """The order of rows that the objective cannot do without, one of `data.order.Order`; "" where any will do."""
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

    @abc.abstractmethod
    def feed_spec(self, *, seed: int, batch_size: int, order: str) -> FeedSpec:
        """How rows become batches: pairing, masking, boundaries, order."""

    @abc.abstractmethod
    def known_nothing(self, unigram_entropy: float) -> dict[str, tuple[float, str]]:
        """Name of every loss -> its value (nats) for a model that sees no context, and what that is, in words."""

    @abc.abstractmethod
    def predict(self, module: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Name of every head that fills slots -> the most probable piece at every slot, int32 [B, K]."""
