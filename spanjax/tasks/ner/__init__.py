"""Named entities as tags of words: a linear classifier on the first piece of each word (Devlin et al., 2018, section 5.3).

Shapes: B rows, L positions, T tokens of a row, D hidden size, C labels.
"""

import dataclasses
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.columns import Columns
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey, dropout
from spanjax.nn.heads import cross_entropy
from spanjax.nn.layer import float32_outputs, linear
from spanjax.objectives.base import Batch, Mean
from spanjax.scoring import entities as scoring
from spanjax.scoring.calibration import calibrated, calibration_scores, curve_problems, inferred_curve
from spanjax.scoring.counts import Score
from spanjax.tasks.base import HEAD_SITE, LOSS, Examples, Outputs, TokenTask
from spanjax.tasks.ner.files import PREFIXES, Scheme, Tagged, read_tagged, retagged
from spanjax.tasks.ner.records import COLUMNS, has_records, read_tagged_records, record_words
from spanjax.tasks.ner.span_files import is_conllu, tagged_conllu
from spanjax.tasks.rows import Row
from spanjax.tasks.span_tuning import FIELD, SpanTuning

OUTSIDE = "O"
NerWindow = list[tuple[int, np.ndarray]]
"""Words of a row: place in the sentence and pieces, at least one."""


@dataclasses.dataclass(frozen=True)
class Ner(TokenTask):
    """A tag for every word; entities are scored as conlleval does it."""

    labels: tuple[str, ...] = ()
    """Tags in the order of their numbers; empty: O and all tags of the types of the training examples."""
    scheme: Scheme = "iob2"
    """Tag scheme of the classifier: iob2, or bioes, which marks the end of an entity and those of one word. Files may have
    IOB1, IOB2, IOE, BIOES or BILOU."""
    word_column: int = 0
    """The column of the words, from 0; -1 is the last."""
    tag_column: int = -1
    """The column of the tags, from 0; -1 is the last."""
    word_prefix: str = ""
    """Prefix of every word of the files that is no part of it: en: in WikiANN."""
    tag_names: tuple[str, ...] = ()
    """Tags of files that have numbers in their place, in the order of the numbers from 0: O B-PER I-PER. Files that the
    `datasets` library wrote have the names in them."""

    calibration_curve: tuple[float, ...] = ()
    """Parameters a, b, c of the curve from the probability of an entity's tags to its confidence, see `scoring.calibration`.
    Where it is not set, inference takes the curve that fits the model's dev examples."""

    spans: SpanTuning | None = None
    """Span fine-tuning: the classifier also reads a vector of the span that a piece is in; set by a config file."""

    predict_command = "ner"
    hf_head = "token"
    card_settings = ("scheme",)

    @property
    def metric(self) -> str:
        """F1 of entities."""
        return "f1"

    @classmethod
    def settings_from_hf(cls, parts: Collection[str], labels: Sequence[str]) -> dict[str, Any]:
        """The tags, the scheme of which they are, and the layers before the classifier."""
        ends = {"scheme": "bioes"} if any(name.startswith(("E-", "S-")) for name in labels) else {}
        return {**ends, **(super().settings_from_hf(parts, labels) or {}), "labels": list(labels)}

    @property
    def label_names(self) -> tuple[str, ...]:
        """Implements `Task.label_names`."""
        return self.labels

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Adds to `Task.problems` labels that are no tags of the scheme, and one column for both words and tags."""
        found = super().problems(encoder) + curve_problems(self.calibration_curve)
        letters = PREFIXES[self.scheme]
        if wrong := [tag for tag in self.labels if tag != OUTSIDE and not re.fullmatch(f"[{letters}]-.+", tag)]:
            found.append(
                f"objective.labels has {', '.join(map(repr, wrong))}: expected O, or one of {', '.join(letters)} with - and"
                f" a type, as objective.scheme is {self.scheme}"
            )
        if self.labels and (OUTSIDE not in self.labels or len({*self.labels}) < len(self.labels)):
            found.append(f"objective.labels is {self.labels}: expected O and each tag once")
        if self.word_column == self.tag_column:
            found.append(f"objective.word_column and objective.tag_column are {self.word_column}: expected two columns")
        return found + (self.spans.problems(self.length) + self.spans.token_problems() if self.spans else [])

    def read(self, path: pathlib.Path) -> Examples:
        """Reads columns of words by `read_tagged`, CoNLL-U by its last column, tables with a sentence a record by
        `read_tagged_records`.

        A sentence with a bad line is skipped as a whole.
        """
        if is_conllu(path):
            return tagged_conllu(path, self.scheme)
        if has_records(path, self.table):
            return read_tagged_records(path, self.table, self.scheme, self.tag_names, self.word_prefix)
        return read_tagged(path, self.scheme, self.word_column, self.tag_column, self.word_prefix)

    @property
    def table(self) -> Columns:
        """Implements `Task.table`: `tokens` and `ner_tags`, and the user's."""
        return dataclasses.replace(COLUMNS, named=self.columns)

    def is_labelled(self, example: Tagged) -> bool:
        """Implements `Task.is_labelled`."""
        return example.tags is not None

    def example(self, record: Mapping[str, Any], number: int) -> tuple[Tagged | None, str]:
        """Reads `words` (or `tokens`), or `text`, by `record_words`."""
        words, starts, problem = record_words(record)
        return (None, problem) if problem else (Tagged(words, None, starts), "")

    def prediction_json(self, example: Tagged, prediction: Sequence[str], outputs: Sequence[Outputs]) -> dict[str, Any]:
        """The entities with type, words, confidence and, of a text, their characters [start, end); the tags."""
        found = scoring.spans(prediction)
        confidences = calibrated(self._confidences([prediction], [outputs]), self.calibration_curve).tolist()
        entities = [entity_json(example, *each) for each in zip(found, confidences, strict=True)]
        return {"prediction": entities, "tags": list(prediction)}

    def _confidences(self, predictions: Sequence[Sequence[str]], outputs: Sequence[Sequence[Outputs]]) -> np.ndarray:
        """The confidences of the entities of predicted tags, before the curve: the products of the probabilities of their words'
        tags. outputs[i] are those of the rows of example i."""
        numbers = {tag: number for number, tag in enumerate(self.labels)}
        found = []
        for tags, rows in zip(predictions, outputs, strict=True):
            # each word has its tag at its first piece, in one of the rows
            log_of: dict[int, float] = {}
            for row in rows:
                for at in np.flatnonzero(row["word_BL"]):
                    word, scores_C = int(row["word_BL"][at]) - 1, row["logits_BLC"][at].astype(np.float64)
                    scores_C = scores_C - scores_C.max()
                    log_of[word] = float(scores_C[numbers[tags[word]]] - np.log(np.exp(scores_C).sum()))
            found += [sum(log_of[word] for word in range(first, last)) for _, first, last in scoring.spans(tags)]
        return np.exp(np.array(found, np.float64))

    def with_training_labels(self, examples: Sequence[Tagged], vocabulary: Vocabulary) -> Self:
        """Infers labels: O, then the scheme's tags of every type of the examples, in alphabetical order of types."""
        task = dataclasses.replace(self, spans=self.spans.with_fingerprint()) if self.spans else self
        if self.labels:
            return task
        tags = {tag for each in examples for tag in each.tags or () if tag != OUTSIDE}
        if all(each.tags is None for each in examples):
            raise ValueError("no training example has tags: give files with a column of tags")
        kinds = sorted({tag.partition("-")[2] for tag in tags})
        own = [f"{letter}-{kind}" for kind in kinds for letter in PREFIXES[self.scheme]]
        return dataclasses.replace(task, labels=(OUTSIDE, *own))

    def rows(self, examples: Sequence[Tagged], vocabulary: Vocabulary) -> Iterator[Row]:
        """[CLS] pieces [SEP] of every window of a sentence: see `windows`.

        Each distinct word is encoded once and on its own, with SentencePiece and bytes as after a blank: its pieces do not
        depend on the neighbouring words. Fields: `tag_BL` the number of a word's tag at its first piece, `tag_weight_BL` 1
        there, 0 at all other pieces and where the tag is unknown, `word_BL` the word's number in the sentence from 1 at its
        first piece, else 0.
        """
        specials, numbers = vocabulary.specials, {tag: number for number, tag in enumerate(self.labels)}
        pieces = word_pieces((word for each in examples for word in each.words), vocabulary)
        for example, sentence in enumerate(examples):
            tags = sentence.tags or ("",) * len(sentence.words)
            for window in windows([pieces[word] for word in sentence.words], self.length - 2):
                ends = np.cumsum([1, *(len(found) for _, found in window)])
                tokens = np.concatenate([[specials.cls], *(found for _, found in window), [specials.sep]])
                tag, weight, word = (np.zeros(len(tokens), kind) for kind in (np.int32, np.float32, np.int32))
                for first, (place, _) in zip(ends[:-1], window, strict=True):
                    word[first] = place + 1
                    if tags[place] in numbers:
                        tag[first], weight[first] = numbers[tags[place]], 1
                fields = {"tag_BL": tag, "tag_weight_BL": weight, "word_BL": word}
                if self.spans:
                    of_piece = np.repeat([place for place, _ in window], np.diff(ends)) if window else []
                    fields[FIELD] = self.spans.spans_of_words(sentence.words, np.array([-1, *of_piece, -1]), example)
                yield Row(tokens.astype(np.int32), np.zeros(len(tokens), np.int32), example, fields)

    def add_heads(self, module: Any, encoder: EncoderConfig, rngs: nnx.Rngs) -> None:
        """`classifier`, the requested `prediction_head`, and `span_network` with spans."""
        if self.spans is None or self.spans.concatenated:
            super().add_heads(module, encoder, rngs)
        if self.spans:
            self.spans.add_network(module, encoder, rngs, of_tokens=True)
        size = self.spans.vector_size(encoder) if self.spans else encoder.hidden_size
        module.classifier = linear(size, len(self.labels), encoder, rngs)
        module.rate = encoder.dropout

    def vectors(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Input of the classifier at every position, [B, L, D]; with spans that of `SpanTuning.token_vectors`."""
        hidden_BLD = self.hidden(module, batch, key)
        if self.spans and not self.spans.concatenated:
            return self.spans.token_vectors(module, hidden_BLD, None, batch, key)
        own_BLD = self.read_vectors(module, hidden_BLD)
        return self.spans.token_vectors(module, hidden_BLD, own_BLD, batch, key) if self.spans else own_BLD

    def logits(self, module: Any, batch: Batch, key: DropoutKey | None) -> jax.Array:
        """Scores of the tags at every position, float32 [B, L, C]."""
        vectors_BLD = dropout(self.vectors(module, batch, key), module.rate, key, HEAD_SITE)
        return float32_outputs(module.classifier, vectors_BLD)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of words with a tag."""
        return {LOSS: jnp.sum(batch["tag_weight_BL"])}

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """Cross-entropy in nats and share of right tags, over words."""
        logits_BLC, tag_BL, weight_BL = self.logits(module, batch, key), batch["tag_BL"], batch["tag_weight_BL"]
        right_BL = (jnp.argmax(logits_BLC, axis=-1) == tag_BL).astype(jnp.float32)
        count = jnp.sum(weight_BL)
        return {
            LOSS: Mean(jnp.sum(cross_entropy(logits_BLC, tag_BL) * weight_BL), count),
            "task/accuracy": Mean(jnp.sum(right_BL * weight_BL), count),
        }

    def outputs(self, module: Any, batch: Batch) -> dict[str, jax.Array]:
        """{"logits_BLC"}, and `word_BL` of `rows` where the batch has it."""
        return {"logits_BLC": self.logits(module, batch, None), **{n: batch[n] for n in ("word_BL",) if n in batch}}

    def predictions(
        self, examples: Sequence[Tagged], rows: Sequence[Row], outputs: Sequence[Outputs]
    ) -> list[tuple[str, ...]]:
        """A tag for every word: that with the highest score at its first piece, O for a word that has no pieces."""
        tags = [[OUTSIDE] * len(each.words) for each in examples]
        for row, output in zip(rows, outputs, strict=True):
            best_T, word_T = np.argmax(output["logits_BLC"], axis=-1), row.fields["word_BL"]
            for place in np.flatnonzero(word_T):
                tags[row.example][word_T[place] - 1] = self.labels[best_T[place]]
        return [tuple(each) for each in tags]

    def calibration(
        self,
        examples: Sequence[Tagged],
        rows: Sequence[Row],
        predictions: Sequence[Sequence[str]],
        outputs: Sequence[Outputs],
    ) -> dict[str, float]:
        """Calibration of the confidences of entities."""
        found = [scoring.spans(tags) for tags in predictions]
        gold = [{*scoring.spans(each.tags or ())} for each in examples]
        right = [entity in known for entities, known in zip(found, gold, strict=True) for entity in entities]
        confidences = self._confidences(predictions, by_example(len(examples), rows, outputs))
        return calibration_scores(confidences, right, self.calibration_curve)

    def inferred_settings(self, scores: Mapping[str, float]) -> dict[str, Any]:
        """The curve of confidences, where none was set."""
        return inferred_curve(scores, self.calibration_curve)

    def scores(self, examples: Sequence[Tagged], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
        """F1, precision and recall of entities, percent of right tags, and `f1_TYPE` of every type."""
        if missing := [number for number, each in enumerate(examples) if each.tags is None]:
            raise ValueError(f"{len(missing)} sentences have no tags: scores need a file with a column of tags")
        found = scoring.score([each.tags or () for each in examples], predictions)
        return named_scores(found.micro, found.types, tag_accuracy=found.tag_accuracy)

    def write(
        self, folder: pathlib.Path, examples: Sequence[Tagged], predictions: Sequence[Sequence[str]]
    ) -> list[pathlib.Path]:
        """Writes predictions.conll as conlleval reads it: `word gold predicted` a line, IOB2, a blank line after a sentence;
        without `gold` where the file had no tags. Blanks inside of a word become underscores."""
        lines = []
        for each, predicted in zip(examples, predictions, strict=True):
            columns = [[re.sub(r"\s", "_", word) for word in each.words]]
            columns += [list(retagged(tags, "iob2")) for tags in (each.tags, predicted) if tags is not None]
            lines += [*(" ".join(line) for line in zip(*columns, strict=True)), ""]
        file = folder / "predictions.conll"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return [file]


def named_scores(micro: Score, types: Mapping[str, Score], **more: float) -> dict[str, float]:
    """The scores of entities by name: of all of them, `more`, and `f1_TYPE` of every type. Types whose metric names collide
    (`_letters`) are numbered."""
    scores = {"f1": micro.f1, "precision": micro.precision, "recall": micro.recall, **more}
    for kind, one in sorted(types.items()):
        name = f"f1_{_letters(kind)}"
        alike = sum(each == name or each.startswith(f"{name}.") for each in scores)
        scores[f"{name}.{alike + 1}" if alike else name] = one.f1
    return scores


def by_example(examples: int, rows: Sequence[Row], outputs: Sequence[Outputs]) -> list[list[Outputs]]:
    """The outputs of the rows of each example."""
    found: list[list[Outputs]] = [[] for _ in range(examples)]
    for row, output in zip(rows, outputs, strict=True):
        found[row.example].append(output)
    return found


def entity_json(example: Any, entity: scoring.Entity, confidence: float) -> dict[str, Any]:
    """An entity of an example with `words` and `starts`, as `predict ner` prints it."""
    kind, first, last = entity
    described: dict[str, Any] = {"type": kind, "words": list(example.words[first:last]), "first": first}
    if example.starts is not None:
        described |= {"start": example.starts[first], "end": example.starts[last - 1] + len(example.words[last - 1])}
    return described | {"confidence": round(confidence, 6)}


def _letters(kind: str) -> str:
    """A type as part of a metric's name, in characters that every tracker accepts."""
    return re.sub(r"[^\w.-]", "_", kind, flags=re.ASCII)


def word_pieces(words: Iterable[str], vocabulary: Vocabulary) -> dict[str, np.ndarray]:
    """The pieces of each distinct word on its own, int32; some have none (a zero-width space, say)."""
    distinct = list(dict.fromkeys(words))
    return dict(zip(distinct, vocabulary.encode([clean(word) for word in distinct]), strict=True))


def windows(pieces: Sequence[np.ndarray], room: int) -> list[NerWindow]:
    """Words in rows of at most `room` pieces, one after the other, cut before a word; at least one row.

    Words without pieces are in none. A word of more than `room` pieces has a row of its own, which holds the first of them.
    """
    found: list[NerWindow] = [[]]
    used = 0
    for place, each in enumerate(pieces):
        if not len(each):
            continue
        each = each[:room]
        if used + len(each) > room:
            found.append([])
            used = 0
        found[-1].append((place, each))
        used += len(each)
    return found
