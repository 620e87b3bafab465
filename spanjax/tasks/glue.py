"""GLUE (Wang et al., 2018) and SNLI: sentences and pairs of sentences with a label or a number, from their public files.

The columns are those of the published files; a user's own file has `sentence`, or `sentence1` and `sentence2`, and
`label`. Shapes: T pieces of a sentence.
"""

import collections
import contextlib
import dataclasses
import math
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np

from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.columns import Columns, Role, listed
from spanjax.data.sources.tables import HIDDEN, JSON_KINDS, TABLES, TYPED, TableRecord, kind_of, read_lines
from spanjax.data.sources.tfds import is_tfds
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.scoring import glue as scoring
from spanjax.tasks.base import Examples, ReportRow
from spanjax.tasks.rows import Row
from spanjax.tasks.sentences import UNLABELLED, UNSEEN, SentenceTask
from spanjax.tasks.span_tuning import FIELD
from spanjax.tasks.tfds_records import read_tfds

CHUNK = 1000  # sentences that are cut into pieces at once
SHOWN = 5  # labels in a note
GlueName = Literal[
    "CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX", "SNLI", "own"
]
FIRST = ("sentence", "sentence1", "#1 String", "question1", "question", "text", "premise", "Premise", "content")
SECOND = ("sentence2", "#2 String", "question2", "hypothesis", "Hypothesis")
LABEL = ("label", "Label", "gold_label", "score", "is_duplicate", "Quality")
INDEX = ("index", "id", "pairID", "idx")
ROLES = (Role("text", FIRST), Role("pair", SECOND), Role("label", LABEL, "label"), Role("id", INDEX, "id"))
UNSETTLED = "-"
COLA = ("source", "label", "mark", "sentence")
INFERENCE = ("SNLI", "MNLI-m", "MNLI-mm")
"""Tasks whose files have the label UNSETTLED where the annotators did not agree."""
OF_ONE_SENTENCE = ("CoLA", "SST-2")
_MNLI = ("MNLI-m", "MNLI-mm")
OWNERS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), ("MRPC",)),
    **dict.fromkeys(("qid1", "qid2", "question1", "question2", "is_duplicate"), ("QQP",)),
    **dict.fromkeys(("old_index", "score"), ("STS-B",)),
    **dict.fromkeys(("pairID", "sentence1_binary_parse", "sentence1_parse", "gold_label"), INFERENCE),
    **dict.fromkeys(("promptID",), _MNLI),
    **dict.fromkeys(("captionID",), ("SNLI",)),
    **dict.fromkeys(("Premise", "Hypothesis"), ("AX",)),
}
"""A column that only the published files of some tasks have -> these tasks."""
PLAIN: Mapping[tuple[str, ...], Sequence[str]] = {
    ("sentence", "label"): ("SST-2",),
    ("index", "sentence"): OF_ONE_SENTENCE,
    ("index", "sentence1", "sentence2", "label"): ("RTE", "WNLI"),
    ("index", "sentence1", "sentence2"): ("RTE", "WNLI", "AX"),
}
"""Whole headers of published files that a user's own file may have too -> the tasks that have them."""
TFDS_LABELS: Mapping[str, Sequence[str]] = {
    "CoLA": ("unacceptable", "acceptable"),
    "SST-2": ("negative", "positive"),
    "MRPC": ("not_equivalent", "equivalent"),
    "QQP": ("not_duplicate", "duplicate"),
    "WNLI": ("not_entailment", "entailment"),
}
"""Names in TensorFlow Datasets of the labels 0 and 1 of the files; other tasks have the files' names there."""
EXPECTED = ("`sentence`, or `sentence1` and `sentence2`", "`sentence` alone", "both `sentence1` and `sentence2`")
"""Columns of a user's own file, by the number of sentences of an example; 0: any number."""
_REMEDY = "give the file of the task, or name the task of the file (--objective.task; evaluate: --task)"
_TFDS = re.compile(r"tfds:glue/([a-z0-9]+)")


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
        """Labels of the user's own, or one number; the layers before the classifier, if they are not BERT's."""
        names = {"pre_classifier": "gelu", "pre_classifier_relu": "relu", "prediction_head": "prediction_head"}
        pooler = next((name for part, name in names.items() if part in parts), "")
        return {
            **({"pooler": pooler} if pooler else {}),
            "labels": list(labels),
            **({} if labels else {"numbers": True}),
        }

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
        records = read_glue(self.task, path, self._sentences, examples.notes, self.table)
        for number, (place, record, problem) in enumerate(records):
            if record is not None and not examples.hints and record.keys().isdisjoint(LABEL):
                examples.hints.append(f"{path}: {self.table.label_hint(record)}")
            example, problem = (None, problem) if record is None else self._example(record, number)
            if self.task in INFERENCE and example and example.label == UNSETTLED:
                unsettled += 1
            else:
                examples.take(place, example, problem or self._label_problem(example))
        if unsettled:
            examples.notes.append(f"{path}: {unsettled:,} without a label that the annotators agreed on skipped")
        return examples

    @property
    def table(self) -> Columns:
        """Implements `Task.table`: the names in GLUE's files, and the user's."""
        # either text alone reads too: `wrong_file` then counts the sentences, which are called otherwise in QNLI
        both = (("text", "pair"),) if self._sentences == 2 else ()
        # `problems` builds the table too, before it has refused a number of sentences
        expected = EXPECTED[max(0, min(self._sentences, 2))]
        return Columns(ROLES, (*both, ("text",), ("pair",)), expected, self.columns)

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
            return None, f"columns {listed(record)}: expected {EXPECTED[self._sentences]}"
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
        listed = ", ".join(repr(label) for label in sorted(unseen)[:SHOWN]) + ", ..." * (len(unseen) > SHOWN)
        count = sum(unseen.values())
        return [
            f"{count:,} of {len(examples):,} have labels without training examples ({listed}): errors, not in the loss"
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


def read_glue(task: str, path: pathlib.Path, wanted: int, notes: list[str], table: Columns) -> Iterator[TableRecord]:
    """The records of a file, or of tfds:NAME, with the labels and columns of GLUE's files. Messages about its columns go to
    `notes`.

    ValueError for a file of another task, by its columns or their number of sentences (`wanted`, 0 for any).
    """
    if problem := wrong_source(task, path):
        raise ValueError(f"{path}: {problem}")
    headless = task == "CoLA" and not is_tfds(str(path)) and is_headless_cola(path)
    seen: set[tuple[str, ...]] = {COLA}
    if is_tfds(str(path)):
        columns = (*FIRST, *SECOND, *LABEL, *INDEX, *table.mapping.values())
        records = (
            (place, record and table.renamed(record), problem)
            for place, record, problem in read_tfds(str(path), columns)
        )
    else:
        records = table.records(path, COLA if headless else ())
    if is_tfds(str(path)) or kind_of(path) in TYPED:
        records = _with_labels_of_files(task, records)
    for place, record, problem in records:
        # the records of a table share their columns: each set of them is looked at once
        if record is not None and (columns := tuple(record)) not in seen:
            if wrong := wrong_file(task, columns, wanted, kind_of(path) in JSON_KINDS):
                raise ValueError(f"{place}: {wrong}")
            notes += [f"{path}: {note}"] if (note := ambiguous(task, columns)) else []
            seen.add(columns)
        yield place, record, problem


def _with_labels_of_files(task: str, records: Iterable[TableRecord]) -> Iterator[TableRecord]:
    """Gives the records of a data set with names of classes the labels of the task's published files."""
    names = {name: str(number) for number, name in enumerate(TFDS_LABELS.get(task, ()))}
    for place, record, problem in records:
        if record and "label" in record:
            label = record["label"]
            if label is None and task == "SNLI":
                label = UNSETTLED
            elif label == HIDDEN and task == "STS-B":
                label = None
            record["label"] = names.get(label, label) if isinstance(label, str) else label
        yield place, record, problem


def sentences_of(columns: Iterable[str]) -> int:
    """Sentences for which a record has columns: 0, 1 or 2."""
    names = {*columns}
    pair = not names.isdisjoint(SECOND) or {"question", "sentence"} <= names  # QNLI has the latter
    return 0 if names.isdisjoint(FIRST) else 2 if pair else 1


def wrong_file(task: str, columns: Sequence[str], wanted: int, alone: bool = False) -> str:
    """Reason why records with these columns cannot be examples of the task; "" where they can.

    `wanted`: sentences of an example, 0 for any number. `alone`: only this record has them (JSON), so that its number of
    sentences does not describe the file.
    """
    # a `score` or `gold_label` next to a `label` is an extra column of a user's own file: it is not read
    names = [name for name in columns if not (name in ("score", "gold_label") and "label" in columns)]
    owners: Sequence[str] = next((OWNERS[name] for name in names if task not in OWNERS.get(name, (task,))), ())
    if not owners and {"question", "sentence"} <= {*names} and task != "QNLI":
        owners = ("QNLI",)
    if owners and task != "own":
        own = "`sentence`" if wanted == 1 else "`sentence1`, `sentence2`"
        return (
            f"columns {', '.join(columns)} are those of {' and '.join(owners)}, not of {task}: {_REMEDY}, or call the columns of"
            f" your own file {own} and `label`"
        )
    found = sentences_of(columns)
    if not alone and wanted and found and found != wanted:
        return f"columns {', '.join(columns)} hold {wrong_count(found, wanted)}"
    return ""


def wrong_count(found: int, wanted: int) -> str:
    """Message with the number of sentences that a record has, and the expected one."""
    return f"{'one sentence' if found == 1 else 'two sentences'}: expected {EXPECTED[wanted]} in every example"


def wrong_source(task: str, path: pathlib.Path) -> str:
    """Reason why the file or data set as a whole cannot be the task's, before its records are read; "" where it can."""
    if is_tfds(str(path)):
        found, bare = _TFDS.match(str(path)), re.sub("-mm?$", "", task).replace("-", "").lower()
        another = found is not None and task != "own" and found[1] != bare
        return f"the data set of another task than {task}: {_REMEDY}" if another else ""
    if task != "CoLA" and is_headless_cola(path):
        return f"four columns without a header, as in CoLA's files, not {task}'s: {_REMEDY}"
    return ""


def is_headless_cola(path: pathlib.Path) -> bool:
    """True if the first line has CoLA's four columns, 0 or 1 in the second, and no names."""
    if kind_of(path) in TABLES and kind_of(path) != ".tsv":
        return False
    with contextlib.closing(read_lines(path)) as lines:
        columns = next(lines, (0, ""))[1].split("\t")
    return len(columns) == len(COLA) and columns[1] in ("0", "1")


def ambiguous(task: str, columns: Sequence[str]) -> str:
    """A note on a header of another task's file that a user's own file may have as well; "" on any other."""
    owners = PLAIN.get(tuple(columns), (task,))
    if task == "own" or task in owners:
        return ""
    return f"columns {', '.join(columns)}, as in the files of {' and '.join(owners)}: read as examples of {task}"
