"""Relation extraction: the relation between two entities of a sentence (SpanBERT, section 4.1).

TACRED (Zhang et al., 2017) with its label for no relation, and SemEval-2010 task 8 (Hendrickx et al., 2010).
Shapes: B rows, V ids.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import jax
import numpy as np

from spanjax.data.ngrams.span_layout import Sentence
from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.columns import Columns
from spanjax.data.sources.tables import TABLES, kind_of
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.objectives.base import Batch, Mean
from spanjax.scoring import relation as scoring
from spanjax.scoring.calibration import calibrated, calibration_scores, curve_problems, inferred_curve
from spanjax.tasks.base import Examples, Outputs, ReportRow
from spanjax.tasks.relation.files import COLUMNS, Mentions, read_mentions, read_semeval, read_tacred, usual_names
from spanjax.tasks.relation.markers import Marking, ids_of_text, marker_ids, marker_names, parts, placed_with_spans
from spanjax.tasks.rows import Row
from spanjax.tasks.sentences import SentenceTask, probabilities
from spanjax.tasks.span_tuning import FIELD

CHUNK = 1000  # sentences that are cut into pieces at once


@dataclasses.dataclass(frozen=True)
class Relation(SentenceTask):
    """One of the relations, or none, for a sentence with a subject and an object."""

    scheme: Literal["tacred", "semeval"] = "tacred"
    """tacred: micro F1 of all labels but no_relation, labels of the training examples; semeval: the official macro F1 of
    SemEval-2010 task 8 and its 19 labels. Either reads both kinds of files."""
    marking: Marking = "types"
    """Marking of the two entities in the input. types: a piece for role and type in the place of each entity,
    [SUBJ-PERSON] (paper 4.1); markers: [SUBJ] and [/SUBJ], [OBJ] and [/OBJ] around them; typed_markers: these with the type,
    [SUBJ-PERSON] and [/SUBJ-PERSON]; none: not at all."""
    pieces: tuple[tuple[str, int], ...] = ()
    """Markers and the ids that they take, sorted by name; empty: those of the training examples. An entity type that is not
    among them gets the marker of its role without a type."""
    calibration_curve: tuple[float, ...] = ()
    """Parameters a, b, c of the curve from the probability of the predicted label to its confidence, see `scoring.calibration`.
    Where it is not set, inference takes the curve that fits the model's dev examples."""

    score_names: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tacred": {"scheme": "tacred"},
        "semeval": {"scheme": "semeval"},
    }
    predict_command = "relation"
    card_settings = ("scheme",)

    @property
    def metric(self) -> str:
        """The official F1."""
        return "f1"

    @property
    def report_row(self) -> ReportRow:
        """The benchmark whose score and labels the scheme has."""
        return ReportRow("SemEval-2010" if self.scheme == "semeval" else "TACRED", self.metric)

    @property
    def typed(self) -> bool:
        """True if the marking reads the types of entities, so that records need them."""
        return self.marking in ("types", "typed_markers")

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Adds to `SentenceTask.problems` labels that are not SemEval's, and impossible ids of markers."""
        found = super().problems(encoder) + curve_problems(self.calibration_curve)
        if self.scheme == "semeval" and self.labels and set(self.labels) != set(scoring.SEMEVAL_LABELS):
            found.append(f"objective.labels is {self.labels}: SemEval-2010 task 8 has its own; leave the setting out")
        if not self.pieces:
            return found
        names, ids = zip(*self.pieces, strict=True)
        if missing := [name for name in marker_names(self.marking, ()) if name not in names]:
            found.append(
                f"objective.pieces has no id for {', '.join(missing)}, which objective.marking {self.marking} needs:"
                " leave objective.pieces out, or take the marking that they were made for"
            )
        if len({*names}) < len(names) or len({*ids}) < len(ids):
            found.append(f"objective.pieces is {self.pieces}: expected every name and every id once")
        if wrong := [number for number in ids if not 0 <= number < (encoder.vocab_size or number + 1)]:
            found.append(f"objective.pieces has the ids {wrong}: the vocabulary has {encoder.vocab_size}")
        return found

    def read(self, path: pathlib.Path) -> Examples:
        """Reads records from tables (TACRED's .json, .jsonl, CSV, Parquet ...), SemEval's text from .txt."""
        kind = kind_of(path)
        if kind in TABLES:
            return read_tacred(path, scoring.SEMEVAL_LABELS if self.scheme == "semeval" else (), self.typed, self.table)
        if kind == ".txt":
            return read_semeval(path)
        raise ValueError(
            f"{path}: expected a table ({', '.join(TABLES)}) in TACRED's form, or .txt in that of SemEval-2010 task 8"
        )

    @property
    def table(self) -> Columns:
        """Implements `Task.table`: TACRED's fields, or `text` with <e1> and <e2>, and the user's."""
        return dataclasses.replace(COLUMNS, named=self.columns)

    def is_labelled(self, example: Mentions) -> bool:
        """Implements `Task.is_labelled`."""
        return example.label is not None

    def example(self, record: Mapping[str, Any], number: int) -> tuple[Mentions | None, str]:
        """Reads TACRED's fields, or `text` with <e1> and <e2> around the entities; ignores `relation`."""
        asked = {name: value for name, value in usual_names(record).items() if name != "relation"}
        return read_mentions(asked, number, typed=self.typed)

    def with_training_labels(self, examples: Sequence[Mentions], vocabulary: Vocabulary) -> Self:
        """Infers labels and markers from the examples, whatever their order. ValueError without labels, or without ids left."""
        task, labels, pieces = super().with_training_labels(examples, vocabulary), self.labels, self.pieces
        if not labels:
            found = {each.label for each in examples if each.label is not None}
            labels = tuple(sorted(found, key=lambda label: (label != scoring.NO_RELATION, label)))
            if self.scheme == "semeval":
                labels = scoring.SEMEVAL_LABELS
            if not found:
                raise ValueError("no training example has a relation: give examples with `relation`")
        if not pieces:
            names = marker_names(self.marking, [each.kinds for each in examples])
            pieces = tuple(zip(names, marker_ids(vocabulary, len(names)), strict=True))
        return dataclasses.replace(task, labels=labels, pieces=pieces)

    def rows(self, examples: Sequence[Mentions], vocabulary: Vocabulary) -> Iterator[Row]:
        """[CLS] words and markers [SEP]. `markers.placed` cuts long ones, but never [CLS] and [SEP] (the released code
        drops [SEP]). Parts between markers are encoded on their own: with SentencePiece and bytes as after a blank."""
        ids, specials = dict(self.pieces), vocabulary.specials
        text_V = ids_of_text(vocabulary, list(ids.values()))
        for start in range(0, len(examples), CHUNK):
            some = [
                (example, parts(example.words, example.spans, example.kinds, self.marking))
                for example in examples[start : start + CHUNK]
            ]
            texts = [clean(part.text) for _, found in some for part in found if not part.marker]
            encoded = iter(self._encoded(texts, vocabulary, start))
            for number, (example, found) in enumerate(some, start=start):
                own = list(itertools.islice(encoded, sum(not part.marker for part in found)))
                inner, span = placed_with_spans(found, own, ids, text_V, self.length - 2)
                tokens = np.concatenate([[specials.cls], inner, [specials.sep]]).astype(np.int32)
                known = example.label in self.labels
                label = self.labels.index(example.label) if known else 0
                fields = {"label_B": np.int32(label), "known_B": np.float32(known)}
                if self.spans and self.spans.has_spans:
                    fields[FIELD] = self.spans.framed(span)
                yield Row(tokens, np.zeros(len(tokens), np.int32), number, fields)

    def _encoded(self, texts: Sequence[str], vocabulary: Vocabulary, first: int) -> list[Sentence]:
        """The pieces of texts, with their spans if the task has spans. `first` numbers them for random segmentations."""
        if self.spans and self.spans.has_spans:
            return self.spans.sentences(vocabulary, texts, range(2 * first, 2 * first + 2 * len(texts), 2))
        return [Sentence(ids_T, np.zeros(len(ids_T), np.int32)) for ids_T in vocabulary.encode(texts)]

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Implements `SentenceTask.counts`; rows without a label, or with one that is not among `labels`, count nothing."""
        return super().counts(_known(batch))

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """Implements `SentenceTask.measure` over the rows of `counts`."""
        return super().measure(module, _known(batch), key)

    def scores(self, examples: Sequence[Mentions], predictions: Sequence[str]) -> dict[str, float]:
        """Official precision, recall and F1; with SemEval's labels the share of right ones too."""
        if missing := [each.name for each in examples if each.label is None]:
            raise ValueError(f"{len(missing)} examples have no relation ({missing[0]} first): scores need one for each")
        gold = [str(each.label) for each in examples]
        if self.scheme == "tacred":
            micro = scoring.tacred(gold, predictions).micro
            return {"f1": micro.f1, "precision": micro.precision, "recall": micro.recall}
        found = scoring.semeval(dict(enumerate(gold)), dict(enumerate(predictions)))
        way = found.official
        return {
            "f1": way.macro_f1,
            "precision": way.macro_precision,
            "recall": way.macro_recall,
            "accuracy": found.directed.accuracy,
        }

    def prediction_json(self, example: Mentions, prediction: str, outputs: Sequence[Outputs]) -> dict[str, Any]:
        """Adds to `SentenceTask.prediction_json` the confidence: the probability of the label behind the curve."""
        found = super().prediction_json(example, prediction, outputs)
        confidence = calibrated([probabilities(outputs[0]).max()], self.calibration_curve)[0]
        return {"prediction": prediction, "confidence": round(float(confidence), 6), **found}

    def calibration(
        self, examples: Sequence[Mentions], rows: Sequence[Row], predictions: Sequence[str], outputs: Sequence[Outputs]
    ) -> dict[str, float]:
        """Calibration of the confidences of all labels, that for no relation among them."""
        right = [each.label == prediction for each, prediction in zip(examples, predictions, strict=True)]
        return calibration_scores([probabilities(each).max() for each in outputs], right, self.calibration_curve)

    def inferred_settings(self, scores: Mapping[str, float]) -> dict[str, Any]:
        """The curve of confidences, where none was set."""
        return inferred_curve(scores, self.calibration_curve)

    def write(
        self, folder: pathlib.Path, examples: Sequence[Mentions], predictions: Sequence[str]
    ) -> list[pathlib.Path]:
        """Writes predictions.txt, and key.txt where all labels are known, for the official scorer: TACRED's one label a
        line in order, SemEval's `id<TAB>label`; and predictions.jsonl, see `SentenceTask.write`."""
        columns = {"predictions.txt": list(predictions)}
        if all(each.label is not None for each in examples):
            columns["key.txt"] = [str(each.label) for each in examples]
        files = []
        for name, labels in columns.items():
            lines = labels
            if self.scheme == "semeval":
                lines = [f"{each.name}\t{label}" for each, label in zip(examples, labels, strict=True)]
            files.append(folder / name)
            files[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return [*files, *super().write(folder, examples, predictions)]


def _known(batch: Batch) -> dict[str, jax.Array]:
    return {**batch, "weight_B": batch["weight_B"] * batch["known_B"]}
