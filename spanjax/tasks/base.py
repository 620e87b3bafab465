"""What a fine-tuning task is: an objective that reads a user's files, predicts, and says how predictions are scored.

Shapes: B rows, L positions, D hidden size.
"""

import abc
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx

from spanjax.bounds import AtLeast1, Bounds, DropRate, Positive, range_problems
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import SITES, DropoutKey
from spanjax.nn.encoder import Encoder
from spanjax.objectives.base import Mean, Objective
from spanjax.tasks.rows import Row, lengths_up_to

HEAD_SITE = SITES["head"].start
LOSS = "task/loss"
SCORE = "score/"  # before the names of scores, among the numbers of an evaluation


class Examples(list):
    """The examples that were read, and what was wrong with others, a line each: 'FILE:LINE: what; what was expected'."""

    def __init__(self, examples: Sequence[Any] = (), problems: Sequence[str] = (), notes: Sequence[str] = ()):
        super().__init__(examples)
        self.problems = list(problems)
        self.notes = list(notes)
        """What was left out as it should be, in words."""


@dataclasses.dataclass(frozen=True)
class Task(Objective):
    """Settings that every task has. `examples` below are what `read` gives: the tasks' own types."""

    train: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--train",))] = ()
    """Files of training examples."""
    dev: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--dev",))] = ()
    """Files of examples on which the best checkpoint is chosen."""
    length: Annotated[int, Bounds(8)] = 128
    """Most tokens of a row, specials included; longer input is cut, or read in windows where the task has them."""
    epochs: Positive = 3.0
    """Passes over the training examples; they decide the number of steps."""
    evaluations: AtLeast1 = 1
    """Evaluations in an epoch; the checkpoint with the best score is kept beside the newest."""
    warmup: DropRate = 0.1
    """Share of the steps over which the learning rate grows; it takes the place of optimizer.warmup_steps."""
    skip_bad: Annotated[bool, tyro.conf.arg(aliases=("--skip-bad",))] = False
    """Leave out examples that cannot be used, and list them, instead of refusing the file."""
    vocabulary: str = ""
    """The vocabulary for weights that are drawn fresh; with --init-from it is that of the weights."""

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """What is wrong with these settings, in words; empty when nothing is."""
        return range_problems(self, "objective.")

    @property
    @abc.abstractmethod
    def metric(self) -> str:
        """The score by which checkpoints are chosen, one of those that `scores` gives; higher is better."""

    @abc.abstractmethod
    def read(self, path: pathlib.Path) -> Examples:
        """The examples of one file with labels where it has them. ValueError for a file that is not of this task at all."""

    @abc.abstractmethod
    def example(self, record: Mapping[str, Any], number: int) -> tuple[Any, str]:
        """(the example of a user's record, which needs no label, or None; what is wrong with it, or ""). `number` names it."""

    @abc.abstractmethod
    def fitted(self, examples: Sequence[Any], vocabulary: Vocabulary) -> Self:
        """The task with what the training examples decide: labels, pieces for markers. What is set already is kept."""

    @abc.abstractmethod
    def is_labelled(self, example: Any) -> bool:
        """Whether the example says what is right: training and scores need that, predictions do not."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes in the order of their numbers; empty for a task without classes."""
        return ()

    @property
    def rows_together(self) -> int:
        """Rows that go through a trained model together where nobody says how many."""
        return 32

    def reader(self, half: str = "") -> Self:
        """The task that reads files which a trained model is to be scored on, or a half of them: this one.

        ValueError where its files have no halves.
        """
        if half:
            raise ValueError(f"--dev-half is {half}: the model answers no questions, leave it out")
        return self

    def notes(self, examples: Sequence[Any]) -> list[str]:
        """What is to be known of dev examples of the fitted task, in words; empty when nothing is."""
        return []

    @abc.abstractmethod
    def rows(self, examples: Sequence[Any], vocabulary: Vocabulary) -> Iterator[Row]:
        """The rows of the examples, those of example i with `example` i, in order."""

    @abc.abstractmethod
    def add_heads(self, module: nnx.Module, encoder: EncoderConfig, rngs: nnx.Rngs) -> None:
        """Sets the heads as attributes of the module, which has `encoder` already."""

    @abc.abstractmethod
    def outputs(self, module: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """What predictions are made of, without dropout: arrays with a row for each row of the batch."""

    @abc.abstractmethod
    def predictions(
        self, examples: Sequence[Any], rows: Sequence[Row], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> list[Any]:
        """The prediction for every example; outputs[i] is what `outputs` gave for rows[i], arrays of [L] cut to its length."""

    @abc.abstractmethod
    def scores(self, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """The official scores of predictions, in percent, by name."""

    def decided(self, scores: Mapping[str, float]) -> dict[str, Any]:
        """Settings that the scores of the dev examples decide for a model that is used: nothing."""
        return {}

    @abc.abstractmethod
    def write(self, folder: pathlib.Path, examples: Sequence[Any], predictions: Sequence[Any]) -> list[pathlib.Path]:
        """Writes predictions as the official scripts read them; the files."""

    def lengths(self, longest: int) -> tuple[int, ...]:
        """Lengths of batches, the last one of which holds rows of `longest`: each batch has the least that will do."""
        return lengths_up_to(self.length)

    def judged(self, module: Any, batch: Mapping[str, jax.Array]) -> tuple[dict[str, Mean], dict[str, jax.Array]]:
        """(`measure` without dropout, `outputs`)."""
        return self.measure(module, batch, None), self.outputs(module, batch)

    def shown(self, example: Any, prediction: Any, outputs: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
        """What `python -m spanjax.predict` says of an example: the prediction, and what else its rows' `outputs` tell."""
        return {"prediction": prediction}

    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """The encoder with the heads of the task."""
        module = TaskModule(encoder, rngs)
        self.add_heads(module, encoder, rngs)
        return module

    def hidden(self, module: Any, batch: Mapping[str, jax.Array], key: DropoutKey | None) -> jax.Array:
        """The encoder's hidden states of the rows, [B, L, D]. Types that it does not have are its last one (RoBERTa has one)."""
        tokens_BL, segments_BL, positions_BL = (batch[f"{name}_BL"] for name in ("tokens", "segments", "positions"))
        types_BL = jnp.minimum(batch["types_BL"], max(0, module.encoder.types - 1))
        return module.encoder(tokens_BL, segments_BL, positions_BL, types_BL, key)

    def loss_weights(self) -> dict[str, float]:
        """The one loss of a task."""
        return {LOSS: 1.0}

    def extra_counts(self) -> dict[str, float]:
        """Nothing is added to the count."""
        return {LOSS: 0.0}

    def flops(self, encoder: EncoderConfig, tokens: float, pairs: float, slots: float) -> float:
        """Matrix products of encoder and attention, forward and backward; heads are left out."""
        return float(encoder.flops(tokens, pairs))


class TaskModule(nnx.Module):
    """The encoder; the heads of a task are set on it."""

    def __init__(self, encoder: EncoderConfig, rngs: nnx.Rngs):
        self.encoder = Encoder(encoder, rngs)
