"""GLUE (Wang et al., 2018) and SNLI: sentences and pairs of sentences with a label or a number, from their public files.

The columns are those of the published files; a user's own file has `sentence`, or `sentence1` and `sentence2`, and
`label`. Shapes: T pieces of a sentence.
"""

import collections
import dataclasses
import math
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np

from spanjax.data.sources.cleaning import clean
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.scoring import glue as scoring
from spanjax.tasks.base import Examples, ReportRow
from spanjax.tasks.glue_files import (
    EXPECTED,
    FIRST,
    INDEX,
    INFERENCE,
    LABEL,
    OF_ONE_SENTENCE,
    SECOND,
    UNSETTLED,
    read_glue,
    wrong_count,
)
from spanjax.tasks.rows import Row
from spanjax.tasks.sentences import UNLABELLED, UNSEEN, SentenceTask
from spanjax.tasks.span_tuning import FIELD

CHUNK = 1000  # sentences that are cut into pieces at once
SHOWN = 5  # labels in a note
GlueName = Literal[
    "CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX", "SNLI", "own"
]


class Sentences(NamedTuple):
    """One example."""

    name: str
    """Its name in the file, or its number in the file from 0."""
    first: str
    second: str | None
    label: str | None
    """The label's name, or the number as text; None in a test file."""


@dataclasses.dataclass(frozen=True)
class Glue(SentenceTask):
    """A task of GLUE, SNLI, or a user's own sentences with any labels."""

    task: GlueName = "own"
    """Task of GLUE: decides labels, scores and the leaderboard's file. own: accuracy on any labels."""
    numbers: bool = False
    """Task own: labels are numbers (regression), scored by Pearson's and Spearman's correlation."""
    sentences: Literal[0, 1, 2] = 0
    """Task own: sentences of an example; 0 takes the number that all training examples have, or any where they differ."""

    score_names: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {"task": name} for name in get_args(GlueName)}
    predict_command = "classify"
    card_settings = ("task",)

    @property
    def regression(self) -> bool:
        """Implements `SentenceTask.regression`."""
        return self.numbers or self.task == "STS-B"

    @property
    def metric(self) -> str:
        """The mean of the task's scores, as in the leaderboard's average."""
        return "mean"

    @property
    def report_row(self) -> ReportRow:
        """The task of GLUE."""
        return ReportRow(self.task if self.task in scoring.TASKS else "own sentences", self.metric)

    @classmethod
    def settings_from_hf(cls, parts: Collection[str], labels: Sequence[str]) -> dict[str, Any]:
        """Labels of the user's own, or one number; ELECTRA's layers before the classifier."""
        pooler = {"pooler": "gelu"} if "pre_classifier" in parts else {}
        return {**pooler, "labels": list(labels), **({} if labels else {"numbers": True})}

    @property
    def _sentences(self) -> int:
        """Sentences of every example, 0 for any number."""
        return self.sentences if self.task == "own" else 1 if self.task in OF_ONE_SENTENCE else 2

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Adds to `SentenceTask.problems` labels and sentences of a GLUE task that are not its own."""
        found = super().problems(encoder)
        if self.sentences not in (0, self._sentences):
            found.append(
                f"objective.sentences is {self.sentences}: {self.task} has {self._sentences}; leave the setting out"
            )
        own = _labels(self.task)
        if self.labels and own and set(self.labels) != set(own):
            found.append(f"objective.labels is {self.labels}: {self.task} has {own}; leave the setting out")
        return found

    def read(self, path: pathlib.Path) -> Examples:
        """Reads a file, or tfds:NAME. Skips examples of SNLI and MNLI whose label is '-', as is usual.

        ValueError for a file of another task; a header that a user's own file or another task may have adds a note.
        """
        examples, unsettled = Examples(), 0
        for number, (place, record, problem) in enumerate(read_glue(self.task, path, self._sentences, examples.notes)):
            if record is None:
                examples.problems.append(f"{place}: {problem}")
                continue
            example, problem = self._example(record, number)
            if problem := problem or self._label_problem(example):
                examples.problems.append(f"{place}: {problem}")
            elif self.task in INFERENCE and example and example.label == UNSETTLED:
                unsettled += 1
            else:
                examples.append(example)
        if unsettled:
            examples.notes.append(f"{path}: {unsettled:,} without a label that the annotators agreed on skipped")
        return examples

    def reader(self, half: str = "") -> Self:
        """Implements `Task.reader`; with task own, labels without training examples are errors, as during training."""
        task = super().reader(half)
        return dataclasses.replace(task, labels=()) if self.task == "own" else task

    def is_labelled(self, example: Sentences) -> bool:
        """Implements `Task.is_labelled`."""
        return example.label is not None

    def example(self, record: Mapping[str, Any], number: int) -> tuple[Sentences | None, str]:
        """Reads `sentence`, or two sentences, under any of the column names of GLUE's files; ignores a label."""
        found, problem = self._example(record, number)
        return (found._replace(label=None) if found else None), problem

    def _example(self, record: Mapping[str, Any], number: int) -> tuple[Sentences | None, str]:
        first, second, label, name = (
            next((record[column] for column in columns if column in record), None)
            for columns in (FIRST, SECOND, LABEL, INDEX)
        )
        if "question" in record and "sentence" in record:  # QNLI
            first, second = record["question"], record["sentence"]
        if first is None and second is None:
            return None, f"columns {', '.join(record) or '(none)'}: expected {EXPECTED[self._sentences]}"
        texts = [text for text in (first, second) if text is not None]
        if wrong := [text for text in texts if not isinstance(text, str)]:
            return None, f"a sentence is a JSON {type(wrong[0]).__name__}: expected text"
        if any(not clean(text).strip() for text in texts):
            return None, "an empty sentence: expected text"
        if self._sentences not in (0, len(texts)) or first is None:
            return None, wrong_count(len(texts), self._sentences)
        label = None if label is None or not str(label).strip() else str(label)
        name = str(number if name is None else name)
        return Sentences(name, clean(first), None if second is None else clean(second), label), ""

    def _label_problem(self, example: Sentences | None) -> str:
        label = example.label if example else None
        if label is None or (label == UNSETTLED and self.task in INFERENCE):
            return ""
        if self.regression:
            try:
                return "" if math.isfinite(float(label)) else f"label {label!r}: expected a finite number"
            except ValueError:
                return f"label {label!r}: expected a number"
        known = self.labels or _labels(self.task)
        return f"label {label!r}: expected one of {', '.join(known)}" if known and label not in known else ""

    def with_training_labels(self, examples: Sequence[Sentences], vocabulary: Vocabulary) -> Self:
        """Infers labels (the task's, or those of the examples in alphabetical order), `sentences`, and the spans.

        ValueError where no example has a label.
        """
        task = super().with_training_labels(examples, vocabulary)
        if all(each.label is None for each in examples):
            raise ValueError("no training example has a label: give examples with `label`")
        counts = {1 if each.second is None else 2 for each in examples}
        if self.task == "own" and not self.sentences and len(counts) == 1:
            task = dataclasses.replace(task, sentences=counts.pop())
        if self.labels or self.regression:
            return task
        own = _labels(self.task) or tuple(sorted({each.label for each in examples if each.label is not None}))
        return dataclasses.replace(task, labels=own)

    def rows(self, examples: Sequence[Sentences], vocabulary: Vocabulary) -> Iterator[Row]:
        """[CLS] first [SEP], or [CLS] first [SEP] second [SEP], with two [SEP] between them where the vocabulary has two
        `separators`; the longer sentence is cut from its end, the second of equals.

        With spans, the rows of `SpanTuning.lay`.
        """
        for start in range(0, len(examples), CHUNK):
            some = examples[start : start + CHUNK]
            laid = self._with_spans(some, vocabulary, start) or self._laid(some, vocabulary)
            for number, (example, (tokens, types, fields)) in enumerate(zip(some, laid, strict=True), start=start):
                yield Row(tokens, types, number, {"label_B": self._label(example), **fields})

    def _laid(self, examples: Sequence[Sentences], vocabulary: Vocabulary) -> list[tuple[Any, Any, dict[str, Any]]]:
        firsts = vocabulary.encode([each.first for each in examples])
        seconds = iter(vocabulary.encode([each.second for each in examples if each.second is not None]))
        pairs = [
            (first, None if each.second is None else next(seconds))
            for each, first in zip(examples, firsts, strict=True)
        ]
        return [(*joined(vocabulary, self.length, *pair), {}) for pair in pairs]

    def _with_spans(self, examples: Sequence[Sentences], vocabulary: Vocabulary, first: int) -> list[Any]:
        if self.spans is None or not self.spans.has_spans:
            return []
        texts = [[each.first] if each.second is None else [each.first, each.second] for each in examples]
        laid = self.spans.lay(vocabulary, self.length, texts, first)
        return [(row.tokens_T, row.types_T, {FIELD: row.span_T}) for row in laid]

    def _label(self, example: Sentences) -> Any:
        if self.regression:
            return np.float32(math.nan if example.label is None else example.label)
        if example.label is None:
            return np.int32(UNLABELLED)
        return np.int32(self.labels.index(example.label) if example.label in self.labels else UNSEEN)

    def notes(self, examples: Sequence[Sentences]) -> list[str]:
        """Reports labels that are none of the task's."""
        unseen = collections.Counter(
            each.label for each in examples if each.label is not None and each.label not in self.labels
        )
        if self.regression or not unseen:
            return []
        shown = ", ".join(repr(label) for label in sorted(unseen)[:SHOWN]) + ", ..." * (len(unseen) > SHOWN)
        count = sum(unseen.values())
        return [
            f"{count:,} of {len(examples):,} have labels without training examples ({shown}): errors, not in the loss"
        ]

    def scores(self, examples: Sequence[Sentences], predictions: Sequence[Any]) -> dict[str, float]:
        """The official scores of the task and their `mean`; correlations of constant predictions count 0 in it."""
        gold = [_gold(each, self.regression) for each in examples]
        if self.task != "own":
            found = scoring.score(self.task, gold, predictions)
        elif self.regression:
            found = {"pearson": scoring.pearson(gold, predictions), "spearman": scoring.spearman(gold, predictions)}
        else:
            found = {"accuracy": scoring.accuracy(gold, predictions)}
        known = [0.0 if math.isnan(value) else value for value in found.values()]
        return {**found, "mean": math.fsum(known) / len(known)}

    def write(
        self, folder: pathlib.Path, examples: Sequence[Sentences], predictions: Sequence[Any]
    ) -> list[pathlib.Path]:
        """Writes predictions.jsonl, and the file for the leaderboard where there is one."""
        files = super().write(folder, examples, predictions)
        if self.task in scoring.TASKS and scoring.TASKS[self.task].file:
            indices = [int(each.name) for each in examples] if all(each.name.isdigit() for each in examples) else None
            name, content = scoring.submission(self.task, predictions, indices)
            files.append(folder / name)
            files[1].write_text(content)
        return files


def _labels(task: str) -> tuple[str, ...]:
    return scoring.TASKS[task].labels if task in scoring.TASKS else ()


def _gold(example: Sentences, number: bool) -> Any:
    if example.label is None:
        raise ValueError(f"example {example.name} has no label: scores need a label for every example")
    return float(example.label) if number else example.label


def joined(
    vocabulary: Vocabulary, length: int, first_T: np.ndarray, second_T: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, types) of one or two sentences with specials, at most `length` long: pieces fall off the end of the longer one.

    Every separator has the type of the sentence before it.
    """
    cls, sep = vocabulary.specials.cls, vocabulary.specials.sep
    between = [sep] * vocabulary.separators
    if second_T is None:
        tokens = np.concatenate([[cls], first_T[: length - 2], [sep]])
        return tokens.astype(np.int32), np.zeros(len(tokens), np.int32)
    room = length - 2 - len(between)
    one, other = len(first_T), len(second_T)
    if one + other > room:
        one, other = (min(one, max(room - other, (room + 1) // 2)), min(other, max(room - one, room // 2)))
    tokens = np.concatenate([[cls], first_T[:one], between, second_T[:other], [sep]])
    types = np.repeat([0, 1], [1 + one + len(between), other + 1])
    return tokens.astype(np.int32), types.astype(np.int32)
