"""Interface of fine-tuning tasks: objectives that read a user's files, predict, and score predictions.

A task owns all its uses: whatever a command line, the report or a conversion knows of one task is a method or a constant of
its class, with a default here. A task in a config file of the user's own is complete.

Shapes: B rows, L positions, D hidden size.
"""

import abc
import dataclasses
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx

from spanjax.bounds import AtLeast1, Bounds, DropRate, Positive
from spanjax.data.sources.columns import Columns
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import SITES, DropoutKey
from spanjax.nn.encoder import Encoder
from spanjax.nn.heads import PredictionHead
from spanjax.objectives.base import Batch, Mean, Objective
from spanjax.tasks.rows import Row, lengths_up_to

HEAD_SITE = SITES["head"].start
LOSS = "task/loss"
SCORE = "score/"  # before the names of scores, among the numbers of an evaluation
ANY_TASK = "task"
"""Command of `spanjax.predict` that takes the records of every task."""
HfHead = Literal["sequence", "token", "question"]
"""Heads of transformers' classes. sequence: a class or a number for a row; token: a class for every token; question: start and
end of an answer."""

TextPooling = Literal["mean", "cls"]
"""Vector of a text: the mean over its tokens, or that of [CLS]."""

Outputs = Mapping[str, np.ndarray]
"""`Task.outputs` of one row."""


class ReportRow(NamedTuple):
    """Labels of a task's runs in the report."""

    name: str
    """Name of the task: runs of one name share a column, and are compared on the same dev files."""
    metric: str
    """`Task.metric`."""
    variant: str = ""
    """Text next to the model's name; empty for the plain heads of the SpanBERT paper."""
    part: str = ""
    """Part of the dev files that is scored; empty for all of it."""


class Examples(list):
    """The examples that were read, and the problems of the others, a line each: 'FILE:LINE: what; what was expected'."""

    def __init__(self, examples: Sequence[Any] = (), problems: Sequence[str] = (), notes: Sequence[str] = ()):
        super().__init__(examples)
        self.problems = list(problems)
        self.notes = list(notes)
        """Messages for the user, such as the examples that were skipped on purpose."""
        self.hints: list[str] = []
        """Remedies that help if no example has a label: the column that could hold it."""

    def take(self, place: str, example: Any, problem: str) -> None:
        """Takes the example at this place of a file, or its problem."""
        if problem:
            self.problems.append(f"{place}: {problem}")
        else:
            self.append(example)


@dataclasses.dataclass(frozen=True)
class Task(Objective):
    """Settings of every task. `examples` below are those that `read` returns, of the tasks' own types."""

    train: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--train",), metavar="FILE [...]")] = ()
    """Files of training examples."""
    dev: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--dev",), metavar="FILE [...]")] = ()
    """Files of examples on which the best checkpoint is chosen."""
    length: Annotated[int, Bounds(8)] = 128
    """Most tokens of a row, specials included; longer input is cut, or read in windows where the task has them."""
    epochs: Positive = 3.0
    """Passes over the training examples; they decide the number of steps."""
    evaluations: AtLeast1 = 1
    """Evaluations in an epoch; the checkpoint with the best score is kept in addition to the newest."""
    warmup: DropRate = 0.1
    """Share of the steps over which the learning rate grows; replaces optimizer.warmup_steps."""
    columns: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--columns",), metavar="ROLE=COLUMN [...]")] = ()
    """Columns of the files, where they have other names than the usual ones: text=review label=stars."""
    skip_bad: Annotated[bool, tyro.conf.arg(aliases=("--skip-bad",))] = False
    """Skip examples that cannot be used, and list them, instead of refusing the file."""
    vocabulary: str = ""
    """The vocabulary for randomly initialised weights; with --init-from it is that of the weights."""

    score_names: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Names of `spanjax.evaluate --task` for models of this task -> the settings with which they are scored."""
    predict_command: ClassVar[str] = ANY_TASK
    """Command of `spanjax.predict` that takes the task's records; ANY_TASK takes them too."""
    hf_head: ClassVar[HfHead | None] = None
    """Head of transformers' classes that computes the task's scores; None exports the encoder alone."""
    card_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that the model card names next to the class."""
    rows_together: ClassVar[int] = 32
    """Default batch size of a trained model, in rows."""
    positions_together: ClassVar[int] = 0
    """Positions, padding included, that a batch of predictions may have where rows differ much in length: long rows come in
    batches of few. 0: every batch has as many rows."""

    @property
    @abc.abstractmethod
    def metric(self) -> str:
        """Name of the score that selects checkpoints, one of those that `scores` returns; higher is better."""

    @abc.abstractmethod
    def read(self, path: pathlib.Path) -> Examples:
        """The examples of one file with labels where it has them. ValueError for a file that is not of this task at all."""

    @abc.abstractmethod
    def example(self, record: Mapping[str, Any], number: int) -> tuple[Any, str]:
        """(the example of a user's record, which needs no label, or None; its problem, or ""). `number` names it."""

    @abc.abstractmethod
    def with_training_labels(self, examples: Sequence[Any], vocabulary: Vocabulary) -> Self:
        """Returns the task with the settings that it infers from the training examples: labels, pieces for markers. Settings
        with a value are kept."""

    @abc.abstractmethod
    def is_labelled(self, example: Any) -> bool:
        """True if the example has its gold answer: training and scores need it, predictions do not."""

    def teaches(self, example: Any) -> bool:
        """True if training learns from the example: by default if it is labelled."""
        return self.is_labelled(example)

    @property
    def text_pooling(self) -> TextPooling:
        """Pooling by which `encode` makes vectors of texts with the encoder of this task."""
        return "mean"

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes in the order of their numbers; empty for a task without classes."""
        return ()

    @property
    def table(self) -> Columns | None:
        """Columns of the tables that the task reads, `columns` included; None for a task that reads none by their names."""
        return None

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Adds to `Objective.problems` columns that the task does not know."""
        return super().problems(encoder) + self.column_problems()

    def column_problems(self) -> list[str]:
        """Returns a message for each entry of `columns` that the task does not know."""
        if self.table:
            return self.table.problems()
        words = " ".join(self.columns)
        return [f"--columns {words}: {type(self).__name__} reads no columns by name; leave it out"] if words else []

    def reader(self, half: str = "") -> Self:
        """Returns the task that reads the files, or a half of them, on which a trained model is scored: this one.

        ValueError where its files have no halves.
        """
        if half:
            raise ValueError(f"--dev-half is {half}: the model answers no questions, leave it out")
        return self

    def notes(self, examples: Sequence[Any]) -> list[str]:
        """Returns messages about the dev examples for the user, on the task with its inferred settings."""
        return []

    @abc.abstractmethod
    def rows(self, examples: Sequence[Any], vocabulary: Vocabulary) -> Iterator[Row]:
        """The rows of the examples, those of example i with `example` i, in order."""

    @abc.abstractmethod
    def add_heads(self, module: nnx.Module, encoder: EncoderConfig, rngs: nnx.Rngs) -> None:
        """Sets the heads as attributes of the module, which has `encoder` already."""

    @abc.abstractmethod
    def outputs(self, module: Any, batch: Batch) -> dict[str, jax.Array]:
        """Model outputs that predictions are made from, without dropout: arrays with a row for each row of the batch."""

    @abc.abstractmethod
    def predictions(self, examples: Sequence[Any], rows: Sequence[Row], outputs: Sequence[Outputs]) -> list[Any]:
        """The prediction for every example; outputs[i] are the `outputs` of rows[i], arrays of [L] cut to its length."""

    @abc.abstractmethod
    def scores(self, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """The official scores of predictions, in percent, by name."""

    def calibration(
        self, examples: Sequence[Any], rows: Sequence[Row], predictions: Sequence[Any], outputs: Sequence[Outputs]
    ) -> dict[str, float]:
        """Further scores: `scoring.calibration.calibration_scores` of a task whose predictions have confidences."""
        return {}

    def inferred_settings(self, scores: Mapping[str, float]) -> dict[str, Any]:
        """Settings that inference and export take from the scores of the dev examples: none."""
        return {}

    @classmethod
    def settings_from_hf(cls, parts: Collection[str], labels: Sequence[str]) -> dict[str, Any] | None:
        """Settings for a model of transformers with `hf_head` that names no task, with these top-level parts of parameters and
        these labels, none for one number. None: such a model is not read as this task."""
        return None

    @property
    def report_row(self) -> ReportRow:
        """Labels of its runs in the report, also stored in checkpoints: the report needs no class of a user's own."""
        name = type(self).__name__
        return ReportRow(name, self.metric, name)

    @abc.abstractmethod
    def write(self, folder: pathlib.Path, examples: Sequence[Any], predictions: Sequence[Any]) -> list[pathlib.Path]:
        """Writes predictions as the official scripts read them, and returns the files."""

    def lengths(self, longest: int) -> tuple[int, ...]:
        """Lengths of batches; the last one holds rows of `longest`. Each batch takes the shortest that fits."""
        return lengths_up_to(self.length)

    def attended_length(self, length: int) -> int:
        """Positions of the sequences that the encoder reads in a batch of this length."""
        return min(length, self.length)

    def measure_with_outputs(self, module: Any, batch: Batch) -> tuple[dict[str, Mean], dict[str, jax.Array]]:
        """(`measure` without dropout, `outputs`)."""
        return self.measure(module, batch, None), self.outputs(module, batch)

    def prediction_json(self, example: Any, prediction: Any, outputs: Sequence[Outputs]) -> dict[str, Any]:
        """Output of `python -m spanjax.predict` for an example: the prediction and further values of its rows' `outputs`."""
        return {"prediction": prediction}

    def build(self, encoder: EncoderConfig, rngs: nnx.Rngs) -> nnx.Module:
        """The encoder with the heads of the task."""
        module = TaskModule(encoder, rngs)
        self.add_heads(module, encoder, rngs)
        return module

    def hidden(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """The encoder's hidden states of the rows, [B, L, D]. A type beyond its last becomes the last (RoBERTa has one)."""
        tokens_BL, segments_BL, positions_BL = (batch[f"{name}_BL"] for name in ("tokens", "segments", "positions"))
        types_BL = jnp.minimum(batch["types_BL"], max(0, module.encoder.types - 1))
        return module.encoder(tokens_BL, segments_BL, positions_BL, types_BL, key)

    def loss_weights(self) -> dict[str, float]:
        """The one loss of a task."""
        return {LOSS: 1.0}


@dataclasses.dataclass(frozen=True)
class TokenTask(Task):
    """A task that scores every position."""

    pooler: Literal["prediction_head", "none"] = "none"
    """Layers between a position and its scores. none: nothing, as in BERT; prediction_head: ModernBERT's dense layer, activation
    and LayerNorm, which start as those of the masked token head of --init-from."""

    @classmethod
    def settings_from_hf(cls, parts: Collection[str], labels: Sequence[str]) -> dict[str, Any] | None:
        """The layers before the scores, if there are any."""
        return {"pooler": "prediction_head"} if "prediction_head" in parts else {}

    def add_heads(self, module: Any, encoder: EncoderConfig, rngs: nnx.Rngs) -> None:
        """Adds the requested `prediction_head`. Subclasses add the scores."""
        if self.pooler == "prediction_head":
            module.prediction_head = PredictionHead(encoder, rngs)

    def read_vectors(self, module: Any, hidden_BLD: jax.Array) -> jax.Array:
        """The vectors that the scores read, of the encoder's hidden states: [B, L, D] -> [B, L, D]."""
        return module.prediction_head(hidden_BLD) if self.pooler == "prediction_head" else hidden_BLD


class TaskModule(nnx.Module):
    """The encoder; the heads of a task are set on it."""

    def __init__(self, encoder: EncoderConfig, rngs: nnx.Rngs):
        self.encoder = Encoder(encoder, rngs)
