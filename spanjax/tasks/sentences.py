"""One label or number for a sentence or a pair of sentences: the common part of GLUE, SNLI and relation extraction.

Shapes: B rows, L positions, D hidden size, C classes.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from spanjax.bounds import Bounds
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import SITES, DropoutKey, dropout
from spanjax.nn.heads import Pooler, PredictionHead, cross_entropy, row_mean
from spanjax.nn.layer import float32_outputs, linear
from spanjax.nn.pointwise import ACTIVATIONS
from spanjax.objectives.base import Batch, Mean
from spanjax.scoring.compare import PREDICTIONS
from spanjax.tasks.base import HEAD_SITE, LOSS, Outputs, Task, TextPooling
from spanjax.tasks.rows import Row
from spanjax.tasks.span_tuning import SpanTuning

FIRST_SITE = SITES["first token"].start
UNSEEN, UNLABELLED = -1, -2  # in the place of a class: a label that is none of the task's, and none at all


@dataclasses.dataclass(frozen=True)
class SentenceTask(Task):
    """A linear classifier on [CLS]; with no labels it is a regression with the squared error."""

    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; empty: those of the task, or of the training examples."""
    class_weights: Annotated[tuple[float, ...], Bounds(0)] = ()
    """Weight in the loss of an example of each class, in the order of `labels`; empty: all alike."""
    pooler: Literal["dense", "gelu", "relu", "prediction_head", "none"] = "dense"
    """Layers between [CLS] and the classifier. dense: BERT's pooler, as released; none: nothing (paper 4.1); gelu: ELECTRA's
    dropout, dense layer and gelu; relu: DistilBERT's dense layer and relu; prediction_head: ModernBERT's dense layer, activation
    and LayerNorm, which start as those of the masked token head of --init-from."""
    pooling: TextPooling = "cls"
    """Vector that these layers read. cls: that of [CLS]; mean: the mean over all tokens of the row, [CLS] and [SEP] included."""
    spans: SpanTuning | None = None
    """Span fine-tuning: the classifier also reads a vector of the row's spans; set by a config file, see `SpanTuning`."""

    hf_head = "sequence"

    @property
    def regression(self) -> bool:
        """True if the task predicts a number, not a class."""
        return False

    @property
    def classes(self) -> int:
        """Outputs of the classifier."""
        return 1 if self.regression else len(self.labels)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Implements `Task.label_names`."""
        return self.labels

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Adds to `Task.problems` class weights that are negative or of another number than the labels."""
        found = super().problems(encoder)
        if self.class_weights and self.labels and len(self.class_weights) != len(self.labels):
            found.append(
                f"objective.class_weights has {len(self.class_weights)} values for the {len(self.labels)} labels"
                f" {', '.join(self.labels)}: give one each"
            )
        return found + (self.spans.problems(self.length) if self.spans else [])

    def with_training_labels(self, examples: Sequence[Any], vocabulary: Vocabulary) -> Self:
        """Infers the settings of the spans. Subclasses that infer more call this first."""
        return dataclasses.replace(self, spans=self.spans.with_fingerprint()) if self.spans else self

    def add_heads(self, module: Any, encoder: EncoderConfig, rngs: nnx.Rngs) -> None:
        """Adds the requested `pooler`, `pre_classifier`, `pre_classifier_relu` or `prediction_head`; `span_network` with spans;
        and `classifier`."""
        if self.spans is None or self.spans.concatenated:
            if self.pooler == "dense":
                module.pooler = Pooler(encoder, rngs)
            elif self.pooler == "gelu":
                module.pre_classifier = linear(encoder.hidden_size, encoder.hidden_size, encoder, rngs)
            elif self.pooler == "relu":
                module.pre_classifier_relu = linear(encoder.hidden_size, encoder.hidden_size, encoder, rngs)
            elif self.pooler == "prediction_head":
                module.prediction_head = PredictionHead(encoder, rngs)
        if self.spans:
            self.spans.add_network(module, encoder, rngs)
        module.classifier = linear(self.vector_size(encoder), self.classes, encoder, rngs)
        module.rate = encoder.dropout

    def vector_size(self, encoder: EncoderConfig) -> int:
        """Width of the classifier's input."""
        return self.spans.vector_size(encoder) if self.spans else encoder.hidden_size

    def vector(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Input of the classifier, [B, D]; with spans that of `SpanTuning.vector`, [B, 2 D] or [B, D]."""
        hidden_BLD = self.hidden(module, batch, key)
        if self.spans is None:
            return self._pooled(module, hidden_BLD, batch, key)
        first_BD = self._pooled(module, hidden_BLD, batch, key) if self.spans.concatenated else None
        return self.spans.vector(module, hidden_BLD, first_BD, batch, key)

    def _pooled(self, module: Any, hidden_BLD: jax.Array, batch: Batch, key: DropoutKey | None) -> jax.Array:
        read_BD = hidden_BLD[:, 0] if self.pooling == "cls" else row_mean(hidden_BLD, batch["segments_BL"] > 0)
        match self.pooler:
            case "dense":
                return module.pooler(read_BD[:, None])[:, 0]
            case "gelu":
                return ACTIVATIONS["gelu"](module.pre_classifier(dropout(read_BD, module.rate, key, FIRST_SITE)))
            case "relu":
                return ACTIVATIONS["relu"](module.pre_classifier_relu(read_BD))
            case "prediction_head":
                return module.prediction_head(read_BD)
            case "none":
                return read_BD

    def logits(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Scores of the classes, float32 [B, C]."""
        vector_BD = dropout(self.vector(module, batch, key), module.rate, key, HEAD_SITE)
        return float32_outputs(module.classifier, vector_BD)

    def row_weights(self, batch: Batch) -> jax.Array:
        """Weight of every row in the loss, float32 [B]: 0 where it is empty or its label is not known."""
        weight_B, label_B = batch["weight_B"] * _known(batch["label_B"]), batch["label_B"]
        if self.class_weights and not self.regression:
            weight_B = weight_B * jnp.asarray(self.class_weights, jnp.float32)[jnp.maximum(label_B, 0)]
        return weight_B

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """The sum of the rows' weights."""
        return {LOSS: jnp.sum(self.row_weights(batch))}

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """Cross-entropy in nats and accuracy, or the squared error. A row whose label is UNSEEN counts in the accuracy, as an
        error; one that is UNLABELLED (a number: NaN) counts nowhere."""
        logits_BC, weight_B, label_B = self.logits(module, batch, key), self.row_weights(batch), batch["label_B"]
        if self.regression:
            loss_B = jnp.square(logits_BC[:, 0] - jnp.where(_known(label_B) > 0, label_B, 0).astype(jnp.float32))
            return {LOSS: Mean(jnp.sum(loss_B * weight_B), jnp.sum(weight_B))}
        loss_B = cross_entropy(logits_BC, jnp.maximum(label_B, 0))
        real_B = batch["weight_B"] * (label_B != UNLABELLED).astype(jnp.float32)
        right_B = (jnp.argmax(logits_BC, axis=-1) == label_B).astype(jnp.float32)
        return {
            LOSS: Mean(jnp.sum(loss_B * weight_B), jnp.sum(weight_B)),
            "task/accuracy": Mean(jnp.sum(right_B * real_B), jnp.sum(real_B)),
        }

    def outputs(self, module: Any, batch: Batch) -> dict[str, jax.Array]:
        """{"logits_BC"}."""
        return {"logits_BC": self.logits(module, batch, None)}

    def prediction_json(self, example: Any, prediction: Any, outputs: Sequence[Outputs]) -> dict[str, Any]:
        """The label and the probability of every class, or the number."""
        if self.regression:
            return {"prediction": prediction}
        named = zip(self.labels, probabilities(outputs[0]).tolist(), strict=True)
        return {"prediction": prediction, "probabilities": {label: round(chance, 6) for label, chance in named}}

    def predictions(self, examples: Sequence[Any], rows: Sequence[Row], outputs: Sequence[Outputs]) -> list[Any]:
        """The label with the highest score, or the number, of every example."""
        scores = [output["logits_BC"] for output in outputs]
        return [float(each[0]) if self.regression else self.labels[int(np.argmax(each))] for each in scores]

    def write(self, folder: pathlib.Path, examples: Sequence[Any], predictions: Sequence[Any]) -> list[pathlib.Path]:
        """Writes predictions.jsonl, which `scoring.compare` and the report read: a line {"id", "label", "prediction"} for every
        example, `label` null where it is not known. Subclasses add further files."""
        return [write_predictions(folder, examples, predictions)]


def probabilities(output: Outputs) -> np.ndarray:
    """Probabilities of the classes of a row, float64 [C]."""
    scores_C = output["logits_BC"].astype(np.float64)
    chances_C = np.exp(scores_C - scores_C.max())
    return chances_C / chances_C.sum()


def write_predictions(folder: pathlib.Path, examples: Sequence[Any], predictions: Sequence[Any]) -> pathlib.Path:
    """Writes predictions.jsonl of examples with a `name` and a `label`, see `SentenceTask.write`; returns the file."""
    lines = [
        json.dumps({"id": each.name, "label": each.label, "prediction": predicted}, ensure_ascii=False)
        for each, predicted in zip(examples, predictions, strict=True)
    ]
    file = folder / PREDICTIONS
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def _known(label_B: jax.Array) -> jax.Array:
    """1.0 for a class or a number, 0.0 for the placeholders UNSEEN, UNLABELLED and NaN."""
    known_B = label_B > UNSEEN if jnp.issubdtype(label_B.dtype, jnp.integer) else jnp.isfinite(label_B)
    return known_B.astype(jnp.float32)
