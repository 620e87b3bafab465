"""Contrastive training of text vectors: InfoNCE (van den Oord et al., 2018) over the pairs and triplets of a table.

The loss of an anchor is the cross-entropy of its own positive among all positives and hard negatives of the global batch, by
cosine similarity / temperature. The dev score is that of STS-B: the correlation of cosine similarities with human scores.

Shapes: B rows of this device, R rows of all devices, S texts of a row, L positions, D hidden size.
"""

import dataclasses
import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from spanjax.bounds import Positive
from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.columns import Columns, Role
from spanjax.data.sources.tables import TableRecord, list_in_text, quoted, read_records
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.objectives.base import Batch, Mean
from spanjax.scoring import glue as scoring
from spanjax.sharding import all_rows
from spanjax.tasks.base import LOSS, Examples, Outputs, ReportRow, Task, TextPooling
from spanjax.tasks.rows import Row, lengths_up_to
from spanjax.tasks.sentences import write_predictions

CHUNK = 1000  # examples whose texts are cut into pieces at once
ROLES = (
    Role("anchor", ("anchor", "query", "question", "sentence1")),
    Role("positive", ("positive", "answer", "passage", "sentence2")),
    Role("negative", ("negative", "negatives", "negative_1")),
    Role("text", ("text", "sentence")),
    Role("score", ("score", "label"), "label"),
)
NEEDED = (("anchor", "positive"), ("text",))
EXPECTED = "`anchor` and `positive`, `sentence1` and `sentence2`, or `text` alone"
NEGATIVES = re.compile(r"negatives?(_?\d+)?")
"""Columns of hard negatives, any number of them: negative, negative_1, negative_2, ..., or lists of texts."""
ABSENT = -1
"""Number of a text in the place of a negative that a row lacks."""
STEP = 64  # the longest rows are padded to a multiple of it
LONGER = (640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584)
"""Lengths of rows beyond those of `lengths_up_to`: several texts of 512."""


class Texts(NamedTuple):
    """One example."""

    name: str
    """Its number in the file from 0."""
    first: str
    second: str | None
    """The positive of the anchor; None: the same text once more (unsupervised SimCSE)."""
    negatives: tuple[str, ...] = ()
    label: float | None = None
    """Similarity of both texts by people, on any scale; None in files for training."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Anchor, positive, negatives."""
        return (self.first, self.first if self.second is None else self.second, *self.negatives)


@dataclasses.dataclass(frozen=True)
class Contrastive(Task):
    """Vectors of texts that are near for texts of one pair. `length` is that of one text."""

    temperature: Positive = 0.05
    """Divisor of cosine similarities in the loss; SimCSE's by default (Gao et al., 2021)."""
    pooling: TextPooling = "mean"
    """Vector of a text. mean: over all its tokens, [CLS] and [SEP] included; cls: that of [CLS]. `encode` of the model and its
    sentence-transformers folder use it too."""
    unsupervised: bool = False
    """Derived from the training examples: they are single texts, and the positive is the same text under another dropout mask."""

    whole_batch = True

    @property
    def metric(self) -> str:
        """Spearman's correlation, as STS is scored."""
        return "spearman"

    @property
    def report_row(self) -> ReportRow:
        """Similarity of texts."""
        return ReportRow("text similarity", self.metric)

    @property
    def text_pooling(self) -> TextPooling:
        """Implements `Task.text_pooling`."""
        return self.pooling

    @property
    def table(self) -> Columns:
        """Implements `Task.table`."""
        return Columns(ROLES, NEEDED, EXPECTED, self.columns)

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Adds to `Task.problems` single texts without dropout: both vectors of a text would be equal."""
        found = super().problems(encoder)
        if self.unsupervised and encoder.dropout == encoder.attention_dropout == 0:
            found.append(
                "the training examples are single texts, whose two vectors differ by dropout alone, and encoder.dropout is 0:"
                " set --encoder.dropout 0.1, or give pairs"
            )
        return found

    def read(self, path: pathlib.Path) -> Examples:
        """Reads pairs, triplets, single texts, or pairs with a score."""
        examples = Examples()
        for number, (place, record, problem) in enumerate(self._records(path, examples.notes)):
            example, problem = (None, problem) if record is None else _example(record, number)
            examples.take(place, example, problem)
            if record and example and example.label is None and not examples.hints:
                examples.hints.append(f"{path}: {self.table.label_hint(record)}")
        if examples and all(example.second is None for example in examples):
            examples.notes.append(
                f"{path}: single texts: the positive of each is the text itself under another dropout mask"
            )
        return examples

    def _records(self, path: pathlib.Path, notes: list[str]) -> Iterator[TableRecord]:
        """The records of a file. Dev files have other columns than training files: one with usual names and none of `columns`
        is read by those, with a note."""
        table, usual = self.table, Columns(ROLES, NEEDED, EXPECTED)
        first = next((record for _, record, _ in read_records(path) if record), {}) if table.mapping else {}
        if first and not usual.lacking(first) and first.keys().isdisjoint(table.mapping.values()):
            notes.append(f"{path}: has no column of --columns {' '.join(self.columns)}: read by the usual names")
            table = usual
        return table.records(path)

    def example(self, record: Mapping[str, Any], number: int) -> tuple[Texts | None, str]:
        """Reads two texts, whose similarity is predicted; ignores a score."""
        found, problem = _example(
            {name: value for name, value in record.items() if name not in ROLES[-1].columns}, number
        )
        if found and found.second is None:
            return None, f"one text: expected two, {EXPECTED.rpartition(',')[0]}"
        return found, problem

    def is_labelled(self, example: Texts) -> bool:
        """Implements `Task.is_labelled`: dev examples have a score."""
        return example.label is not None

    def teaches(self, example: Texts) -> bool:
        """Implements `Task.teaches`: training pairs have no score, they belong together."""
        return example.label is None

    def with_training_labels(self, examples: Sequence[Texts], vocabulary: Vocabulary) -> Self:
        """Infers `unsupervised`. ValueError for scored pairs, and for single texts among pairs."""
        if examples and not any(map(self.teaches, examples)):
            raise ValueError(
                "--train: all examples have a score, and training takes pairs that belong together: give scored pairs to --dev,"
                " and pairs without a column `score` or `label` here"
            )
        singles = sum(example.second is None for example in examples)
        if 0 < singles < len(examples):
            raise ValueError(
                f"--train: {singles:,} of {len(examples):,} examples are single texts, the others are pairs: train on one kind"
            )
        return dataclasses.replace(self, unsupervised=singles > 0)

    def lengths(self, longest: int) -> tuple[int, ...]:
        """Implements `Task.lengths`: a row holds several texts of `length`."""
        most = -(-longest // STEP) * STEP
        return (*sorted({*lengths_up_to(most), *(length for length in LONGER if length < most)}),)

    def attended_length(self, length: int) -> int:
        """Implements `Task.attended_length`: the texts of a row are blocks of one sequence."""
        return length

    def rows(self, examples: Sequence[Texts], vocabulary: Vocabulary) -> Iterator[Row]:
        """[CLS] text [SEP] of every text of an example one after the other, each a block whose positions begin at 0.

        `text_BS` numbers the texts: equal ones, as the encoder reads them, have one number.
        """
        cls, sep = vocabulary.specials.cls, vocabulary.specials.sep
        most, numbers = max((len(example.texts) for example in examples), default=2), dict[bytes, int]()
        for start in range(0, len(examples), CHUNK):
            some = examples[start : start + CHUNK]
            pieces = iter(vocabulary.encode([text for example in some for text in example.texts]))
            for number, example in enumerate(some, start=start):
                ids = [np.array([cls, *next(pieces)[: self.length - 2], sep], np.int32) for _ in example.texts]
                sizes, text_S = [len(ids_T) for ids_T in ids], np.full(most, ABSENT, np.int32)
                text_S[: len(ids)] = [numbers.setdefault(ids_T.tobytes(), len(numbers)) for ids_T in ids]
                fields = {
                    "segments_BL": np.repeat(np.arange(1, len(ids) + 1), sizes),
                    "positions_BL": np.concatenate([np.arange(size) for size in sizes]),
                    "text_BS": text_S,
                }
                tokens_T = np.concatenate(ids)
                yield Row(tokens_T, np.zeros_like(tokens_T), number, fields)

    def add_heads(self, module: nnx.Module, encoder: EncoderConfig, rngs: nnx.Rngs) -> None:
        """Adds none: the vectors are the encoder's."""

    def vectors(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Vectors of length 1 of all texts of the rows, float32 [B, S, D]; 0 for an absent one."""
        hidden_BLD = self.hidden(module, batch, key).astype(jnp.float32)
        number_S = jnp.arange(1, batch["text_BS"].shape[1] + 1)
        used_BSL = batch["segments_BL"][:, None] == number_S[None, :, None]
        if self.pooling == "cls":
            used_BSL &= batch["positions_BL"][:, None] == 0
        # a sum serves as the mean: the length becomes 1
        sum_BSD = _exact("bsl,bld->bsd", used_BSL.astype(jnp.float32), hidden_BLD)
        return sum_BSD * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(sum_BSD), axis=-1, keepdims=True), 1e-24))

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of rows."""
        return {LOSS: jnp.sum(batch["weight_B"])}

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """InfoNCE in nats, and the share of anchors whose own positive is the nearest candidate.

        Candidates are the positives and negatives of all rows on all devices. A text that is equal to the anchor or to its
        positive is no negative of it, nor is another positive of an equal anchor.
        """
        weight_B, row_B = batch["weight_B"], batch["row_B"]
        vectors_BSD = self.vectors(module, batch, key)
        text_BS = jnp.where(weight_B[:, None] > 0, batch["text_BS"], ABSENT)
        # inside of shard_map the gradient of a gather is the sum of all devices' gradients for these rows
        vectors_RSD, text_RS, row_R = all_rows(vectors_BSD), all_rows(text_BS), all_rows(row_B)
        logits_BRS = _exact("bd,rsd->brs", vectors_BSD[:, 0], vectors_RSD[:, 1:]) / self.temperature
        candidate_RS = text_RS[:, 1:]
        positive_11S = (jnp.arange(text_RS.shape[1] - 1) == 0)[None, None]
        own_BRS = (row_B[:, None] == row_R[None])[..., None] & positive_11S
        excluded_BRS = (candidate_RS == ABSENT)[None]
        for known in (0, 1):
            excluded_BRS |= candidate_RS[None] == text_BS[:, known, None, None]
        excluded_BRS |= (text_BS[:, :1] == text_RS[None, :, 0])[..., None] & positive_11S
        logits_BRS = jnp.where(excluded_BRS & ~own_BRS, -jnp.inf, logits_BRS)
        own_B = jnp.sum(jnp.where(own_BRS, logits_BRS, 0.0), axis=(1, 2))
        loss_B = jax.nn.logsumexp(logits_BRS, axis=(1, 2)) - own_B
        right_B = own_B >= jnp.max(logits_BRS, axis=(1, 2))
        rows = jnp.sum(weight_B)
        return {
            LOSS: Mean(jnp.sum(loss_B * weight_B), rows),
            "task/accuracy": Mean(jnp.sum(right_B * weight_B), rows),
        }

    def outputs(self, module: Any, batch: Batch) -> dict[str, jax.Array]:
        """{"cosine_B"}: the similarity of the first two texts."""
        vectors_BSD = self.vectors(module, batch, None)
        return {"cosine_B": jnp.sum(vectors_BSD[:, 0] * vectors_BSD[:, 1], axis=-1)}

    def measure_with_outputs(self, module: Any, batch: Batch) -> tuple[dict[str, Mean], dict[str, jax.Array]]:
        """No losses, as scored pairs need not belong together; and `outputs`."""
        return {}, self.outputs(module, batch)

    def predictions(self, examples: Sequence[Any], rows: Sequence[Row], outputs: Sequence[Outputs]) -> list[Any]:
        """The cosine similarity of every pair."""
        return [float(output["cosine_B"]) for output in outputs]

    def scores(self, examples: Sequence[Texts], predictions: Sequence[float]) -> dict[str, float]:
        """Pearson's and Spearman's correlation with the scores, -100 to 100; 0 where one side has a single value."""
        gold = [example.label for example in examples if example.label is not None]
        found = {metric.__name__: metric(gold, predictions) for metric in (scoring.pearson, scoring.spearman)}
        return {name: 0.0 if math.isnan(value) else value for name, value in found.items()}

    def write(
        self, folder: pathlib.Path, examples: Sequence[Texts], predictions: Sequence[float]
    ) -> list[pathlib.Path]:
        """Writes predictions.jsonl, a line {"id", "label", "prediction"} for every pair."""
        return [write_predictions(folder, examples, predictions)]


def _exact(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """`jnp.einsum` of float32 arrays without the rounding of accelerators, which is large next to the temperature."""
    return jnp.einsum(equation, left, right, precision=jax.lax.Precision.HIGHEST)


def _example(record: Mapping[str, Any], number: int) -> tuple[Texts | None, str]:
    """(the example of a record, or None; its problem, or "")."""
    roles = {role.name: next((name for name in role.columns if name in record), "") for role in ROLES}
    names = [roles["anchor"], roles["positive"]] if roles["anchor"] and roles["positive"] else [roles["text"]]
    if not all(names):
        return None, f"columns {', '.join(record) or '(none)'}: expected {EXPECTED}"
    for name in names:
        if not isinstance(record[name], str):
            return None, f"`{name}` is {quoted(record[name])}: expected text"
        if not clean(record[name]).strip():
            return None, f"an empty `{name}`: expected text"
    first, second = clean(record[names[0]]), clean(record[names[1]]) if len(names) == 2 else None
    negatives: list[str] = []
    for name in filter(NEGATIVES.fullmatch, record if second is not None else ()):
        value = list_in_text(record[name]) if str(record[name]).lstrip().startswith("[") else record[name]
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str | None):
                return None, f"`{name}` holds {quoted(text)}: expected text, or a list of texts"
            negatives += [clean(text)] if text and clean(text).strip() else []
    label, problem = _score(record.get(roles["score"])) if second is not None else (None, "")
    return (None, problem) if problem else (Texts(str(number), first, second, tuple(negatives), label), "")


def _score(value: Any) -> tuple[float | None, str]:
    if value is None or not str(value).strip():
        return None, ""
    try:
        score = float(value)
    except (ValueError, TypeError):
        score = math.nan
    return (score, "") if math.isfinite(score) else (None, f"score {quoted(value)}: expected a finite number")
