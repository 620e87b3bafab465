"""Extractive question answering: SQuAD 1.1 and 2.0, MRQA 2019 and a user's own questions (SpanBERT, section 4.1).

Shapes: B rows, L positions, D hidden size. Rows are windows of passages; [CLS] is position 0.
"""

import collections
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from spanjax.bounds import AtLeast1
from spanjax.data.sources.columns import Columns
from spanjax.data.vocab.base import Vocabulary
from spanjax.data.vocab.offsets import pieces_of
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.nn.heads import cross_entropy
from spanjax.nn.layer import float32_outputs, linear
from spanjax.objectives.base import Batch, Mean
from spanjax.scoring import quoref, squad
from spanjax.scoring.calibration import calibrated, calibration_scores, curve_problems, inferred_curve
from spanjax.scoring.checks import counted, raise_problems
from spanjax.tasks.base import LOSS, Examples, Outputs, ReportRow, TokenTask
from spanjax.tasks.rows import Row
from spanjax.tasks.squad.answers import Answer, Prediction, decode
from spanjax.tasks.squad.passage_windows import WindowSettings, windows
from spanjax.tasks.squad.questions import COLUMNS, Question, Span, notes_on_answers, read_question, read_questions

CHUNK = 1000  # questions that are cut into pieces at once
PADDING_SCORE = -1e9


@dataclasses.dataclass(frozen=True)
class Questions(TokenTask):
    """Extracts the answer from a passage: two scores for every token, as its start and as its end."""

    version: Literal["1.1", "2.0", "mrqa"] = "1.1"
    """1.1: every passage has the answer, the first one of the file is learnt; 2.0: there can be none; mrqa: as 1.1, but the
    occurrence that is first in the passage is learnt, of the shortest if several begin there."""
    stride: AtLeast1 = 128
    """Pieces from the start of a window of a long passage to that of the next."""
    max_query: AtLeast1 = 64
    """Most pieces of a question; the rest is cut off."""
    first: Literal["question", "passage"] = "question"
    """First part of a row: the question as released, or the passage as in the paper (D15)."""
    n_best: AtLeast1 = 20
    """Number of starts, ends and answers to consider."""
    max_answer: AtLeast1 = 30
    """Most pieces of an answer."""
    threshold: float = 0.0
    """Version 2.0: a question whose null odds are above this gets no answer. Where it is 0, inference and
    export take the score best_f1_thresh of the model's dev examples."""
    calibration_curve: tuple[float, ...] = ()
    """Parameters a, b, c of the curve from the probability of an answer to its confidence, see `scoring.calibration`.
    Where it is not set, inference takes the curve that fits the model's dev examples."""
    answers: Literal["alternatives", "set"] = "alternatives"
    """Meaning of several answers: alternatives, any of which is right (SQuAD), or a set, all of which are expected (Quoref).
    Of a set, training learns the first, prediction gives one span, and the score is Quoref's, with that span as a part."""
    dev_half: Literal["", "dev", "test"] = ""
    """Keep one half of every file that is not one of --train, by a hash of the question's id; MRQA's dev sets were split so for
    the paper (not into these halves, which were never released)."""

    score_names: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "squad1": {"version": "1.1", "answers": "alternatives"},
        "squad2": {"version": "2.0", "answers": "alternatives"},
        "mrqa": {"version": "mrqa", "answers": "alternatives"},
        "quoref": {"version": "1.1", "answers": "set"},
    }
    predict_command = "qa"
    hf_head = "question"

    @property
    def metric(self) -> str:
        """F1; with unanswerable questions F1 at the best threshold."""
        return "best_f1" if self.version == "2.0" else "f1"

    @property
    def report_row(self) -> ReportRow:
        """SQuAD with its version, Quoref, or the set of MRQA that the names of the dev files begin with."""
        name = "Quoref" if self.answers == "set" else f"SQuAD {self.version}"
        if self.version == "mrqa":
            name = mrqa_set(self.dev)
        return ReportRow(name, self.metric, part=f"the half {self.dev_half}" if self.dev_half else "")

    @property
    def layout(self) -> WindowSettings:
        """The settings of windows."""
        return WindowSettings(self.length, self.stride, self.max_query, self.first)

    def problems(self, encoder: EncoderConfig) -> list[str]:
        """Adds to `Task.problems` settings that leave no room for a passage, and halves of training files."""
        found = super().problems(encoder) + curve_problems(self.calibration_curve)
        found += self._room_problems(1)
        if self.answers == "set" and self.version != "1.1":
            found.append(f"objective.answers is set: expected objective.version 1.1, got {self.version}")
        if self.dev_half and (both := sorted({*self.train} & {*self.dev})):
            found.append(
                f"objective.dev_half is {self.dev_half}: {', '.join(both)} is trained on, expected another file"
            )
        return found

    def _room_problems(self, separators: int) -> list[str]:
        if self.layout.room(self.max_query, separators) >= 1:
            return []
        return [
            f"objective.length is {self.length}: expected at least {self.max_query + 3 + separators}, or a smaller"
            f" objective.max_query than {self.max_query}: no passage fits beside so long a question"
        ]

    def read(self, path: pathlib.Path) -> Examples:
        """Reads a file by `questions.read_questions`, reduced to `dev_half`."""
        examples = read_questions(path, unanswerable=self.version == "2.0", table=self.table)
        if self.version != "mrqa":  # whose spans are all occurrences of the answers
            examples.notes += [f"{path}: {note}" for note in notes_on_answers(examples, self.answers == "set")]
        if not self.dev_half or pathlib.Path(path) in map(pathlib.Path, self.train):
            return examples
        kept = [each for each in examples if half(each.name) == self.dev_half]
        note = f"{path}: {len(kept):,} of {len(examples):,} questions are in the half {self.dev_half}, the others are skipped"
        return Examples(kept, examples.problems, [*examples.notes, note])

    def reader(self, half: str = "") -> Self:
        """Implements `Task.reader` by `dev_half`; files that the model was trained on are halved like others."""
        return dataclasses.replace(self, dev_half=half, train=())

    @property
    def table(self) -> Columns:
        """Implements `Task.table`: `question`, `context` and `answers`, and the user's."""
        return dataclasses.replace(COLUMNS, named=self.columns)

    def is_labelled(self, example: Question) -> bool:
        """Implements `Task.is_labelled`; an empty list of answers counts as known."""
        return example.answers is not None

    def teaches(self, example: Question) -> bool:
        """Implements `Task.teaches`: training learns from questions on one passage whose answers have places."""
        return example.answers is not None and not example.more and len(example.spans) >= min(1, len(example.answers))

    def example(self, record: Mapping[str, Any], number: int) -> tuple[Question | None, str]:
        """Reads `question`, `context` or a list `contexts`, and an optional `id`."""
        found = read_question(record, number)
        return (None, found) if isinstance(found, str) else (found, "")

    def prediction_json(self, example: Question, prediction: Prediction, outputs: Sequence[Outputs]) -> dict[str, Any]:
        """The answer ("" for none) and its position, context[start:end], null for none, with several passages also the number of
        its passage; its confidence; the three best with their probability among the best ones; with 2.0 the null odds and the
        threshold."""
        answer = self._chosen(prediction)

        def place(found: Answer | None) -> dict[str, Any]:
            one = found or Answer("", 0.0, 0.0, 0.0, None, None, None)
            return {"start": one.start, "end": one.end, **({"passage": one.passage} if example.more else {})}

        best = [
            {"text": each.text, **place(each), "probability": round(each.probability, 6)}
            for each in prediction.best[:3]
        ]
        described: dict[str, Any] = {
            "id": example.name,
            "prediction": answer.text if answer else "",
            **place(answer),
            "confidence": round(float(calibrated([prediction.probability_of(answer)], self.calibration_curve)[0]), 6),
            "best": best,
        }
        odds = {"null_odds": round(prediction.null_odds, 6), "threshold": round(self.threshold, 6)}
        return {**described, **odds} if self.version == "2.0" else described

    def _chosen(self, prediction: Prediction) -> Answer | None:
        """The best answer; None for no answer, with 2.0 where the null odds are above the threshold."""
        return None if self.version == "2.0" and prediction.null_odds > self.threshold else prediction.answer

    def with_training_labels(self, examples: Sequence[Question], vocabulary: Vocabulary) -> Self:
        """Infers no settings. ValueError where no example has answers, or the vocabulary's separators leave no room for a
        passage."""
        if problems := self._room_problems(vocabulary.separators):
            raise ValueError(problems[0])
        if not any(map(self.teaches, examples)):
            raise ValueError("no training question has answers: give examples with `answers`")
        return self

    def learnt(self, question: Question) -> Span | None:
        """The answer to train on, in characters [start, end), or None."""
        if not question.spans:
            return None
        return min(question.spans) if self.version == "mrqa" else question.spans[0]

    def rows(self, examples: Sequence[Question], vocabulary: Vocabulary) -> Iterator[Row]:
        """The windows of the passages; `notes` of a row are its `passage_windows.Window`. Windows without the answer are kept,
        with [CLS] as the answer, in MRQA too, as released."""
        for start in range(0, len(examples), CHUNK):
            some = examples[start : start + CHUNK]
            contexts = list(dict.fromkeys(context for each in some for context in each.contexts))
            passages = dict(zip(contexts, pieces_of(contexts, vocabulary), strict=True))
            queries = pieces_of([each.question for each in some], vocabulary)
            for number, (each, query) in enumerate(zip(some, queries, strict=True), start=start):
                for place, context in enumerate(each.contexts):
                    for placed in windows(query.ids_T, passages[context], self.learnt(each), vocabulary, self.layout):
                        fields = {"start_B": np.int32(placed.start), "end_B": np.int32(placed.end)}
                        window = placed.window._replace(passage=place)
                        yield Row(placed.tokens_T, placed.types_T, number, fields, window)

    def add_heads(self, module: Any, encoder: EncoderConfig, rngs: nnx.Rngs) -> None:
        """`qa`, a linear layer to two scores, and the requested `prediction_head`; there is no dropout before them."""
        super().add_heads(module, encoder, rngs)
        module.qa = linear(encoder.hidden_size, 2, encoder, rngs)

    def logits(self, module: Any, batch: Batch, key: DropoutKey | None) -> tuple[jax.Array, jax.Array]:
        """Scores of every position as start and as end, float32 [B, L]; padding scores -1e9 (released: unmasked)."""
        read_BLD = self.read_vectors(module, self.hidden(module, batch, key))
        scores_BLC = float32_outputs(module.qa, read_BLD)
        real_BL = batch["segments_BL"] > 0
        start_BL, end_BL = (jnp.where(real_BL, scores_BLC[..., side], PADDING_SCORE) for side in (0, 1))
        return start_BL, end_BL

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of rows."""
        return {LOSS: jnp.sum(batch["weight_B"])}

    def measure(self, module: Any, batch: Batch, key: DropoutKey | None) -> dict[str, Mean]:
        """The mean of the two cross-entropies over the positions of the row, nats; how often both are the highest."""
        start_BL, end_BL = self.logits(module, batch, key)
        start_B, end_B, weight_B = batch["start_B"], batch["end_B"], batch["weight_B"]
        loss_B = (cross_entropy(start_BL, start_B) + cross_entropy(end_BL, end_B)) / 2
        right_B = (jnp.argmax(start_BL, axis=-1) == start_B) & (jnp.argmax(end_BL, axis=-1) == end_B)
        count = jnp.sum(weight_B)
        return {
            LOSS: Mean(jnp.sum(loss_B * weight_B), count),
            "task/accuracy": Mean(jnp.sum(right_B.astype(jnp.float32) * weight_B), count),
        }

    def outputs(self, module: Any, batch: Batch) -> dict[str, jax.Array]:
        """{"start_BL", "end_BL"} of `logits`."""
        start_BL, end_BL = self.logits(module, batch, None)
        return {"start_BL": start_BL, "end_BL": end_BL}

    def predictions(
        self, examples: Sequence[Question], rows: Sequence[Row], outputs: Sequence[Outputs]
    ) -> list[Prediction]:
        """The answers of every question from the scores of all its windows."""
        found: list[list[int]] = [[] for _ in examples]
        for number, row in enumerate(rows):
            found[row.example].append(number)
        return [
            decode(
                example.contexts,
                [rows[number].notes for number in numbers],
                [(outputs[number]["start_BL"], outputs[number]["end_BL"]) for number in numbers],
                self.n_best,
                self.max_answer,
                self.version == "2.0",
            )
            for example, numbers in zip(examples, found, strict=True)
        ]

    def scores(self, examples: Sequence[Question], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The official scores. With 2.0 also those at the best threshold, and exact and f1 at `threshold`."""
        unknown = [each.name for each in examples if each.answers is None]
        raise_problems(
            "the score", counted(unknown, "questions have no answers", "scores need those of every question")
        )
        numbers = [str(number) for number in range(len(examples))]  # ids of several files may be the same
        gold = {number: each.answers or () for number, each in zip(numbers, examples, strict=True)}
        texts = {number: each.text for number, each in zip(numbers, predictions, strict=True)}
        if self.version == "mrqa":
            return squad.score_mrqa(gold, texts)
        if self.answers == "set":
            return quoref.score(gold, {number: [text] for number, text in texts.items()})
        if self.version == "1.1":
            return squad.score_v1(gold, texts)
        odds = {number: each.null_odds for number, each in zip(numbers, predictions, strict=True)}
        return squad.score_v2(gold, texts, odds, self.threshold)

    def calibration(
        self,
        examples: Sequence[Question],
        rows: Sequence[Row],
        predictions: Sequence[Prediction],
        outputs: Sequence[Outputs],
    ) -> dict[str, float]:
        """Calibration of the confidence that an answer, or no answer, matches one of the file's exactly. Of a set of answers one
        span is no match."""
        if self.answers == "set":
            return {}
        chosen = [self._chosen(each) for each in predictions]
        right = [
            any(squad.exact_match(gold, answer.text if answer else "") for gold in example.answers or ("",))
            for example, answer in zip(examples, chosen, strict=True)
        ]
        each = zip(predictions, chosen, strict=True)
        confidences = [found.probability_of(answer) for found, answer in each]
        return calibration_scores(confidences, right, self.calibration_curve)

    def inferred_settings(self, scores: Mapping[str, float]) -> dict[str, Any]:
        """The curve of confidences and, for version 2.0, the threshold with the best F1, where none was set."""
        curve, found = inferred_curve(scores, self.calibration_curve), scores.get("best_f1_thresh")
        if self.version == "2.0" and not self.threshold and found is not None:
            return {"threshold": found, **curve}
        return curve

    def write(
        self, folder: pathlib.Path, examples: Sequence[Question], predictions: Sequence[Prediction]
    ) -> list[pathlib.Path]:
        """Writes predictions.json for official scripts and leaderboards, and nbest_predictions.json; with 2.0 null_odds.json,
        and best_non_null.json: the answers without a threshold, which a search for one needs with the odds."""
        names = [each.name for each in examples]
        twice = [name for name, count in collections.Counter(names).items() if count > 1]
        remedy = "predictions are written by id: give one file at a time"
        raise_problems("predictions.json", counted(twice, "ids are those of several questions", remedy))
        each = list(zip(names, predictions, strict=True))
        texts = {name: found.text for name, found in each}
        contents: dict[str, Any] = {
            "predictions.json": texts,
            "nbest_predictions.json": {name: [_listed(one) for one in found.best] for name, found in each},
        }
        if self.version == "2.0":
            answered = {name: found.text if found.null_odds <= self.threshold else "" for name, found in each}
            odds = {name: found.null_odds for name, found in each}
            contents |= {"predictions.json": answered, "null_odds.json": odds, "best_non_null.json": texts}
        for name, content in contents.items():
            (folder / name).write_text(json.dumps(content, indent=1) + "\n")
        return [folder / name for name in contents]


def _listed(answer: Answer) -> dict[str, Any]:
    """An answer as the released code lists it."""
    return {name: getattr(answer, name) for name in ("text", "probability", "start_logit", "end_logit")}


MRQA: Mapping[str, str] = {
    "newsqa": "NewsQA",
    "triviaqa": "TriviaQA",
    "searchqa": "SearchQA",
    "hotpotqa": "HotpotQA",
    "naturalquestions": "Natural Questions",
    "naturalq": "Natural Questions",
    "squad": "SQuAD (MRQA)",
}
"""Prefix of MRQA's file names, in lower case -> the set."""


def mrqa_set(files: Sequence[str]) -> str:
    """The one set of MRQA that the names of files, or of the folders that they are in, begin with; MRQA for several or none."""
    names = [name.replace("\\", "/").rstrip("/") for name in files]
    parts = [part.casefold().replace("-", "").replace("_", "") for name in names for part in name.split("/")[-2:]]
    found = {name for part in parts for begin, name in MRQA.items() if part.startswith(begin)}
    return found.pop() if len(found) == 1 else "MRQA"


def half(name: str) -> Literal["dev", "test"]:
    """The half of a set that has a question: the lowest bit of the first byte of its id's SHA-256, 0 for dev."""
    odd = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[0] & 1
    return "test" if odd else "dev"
