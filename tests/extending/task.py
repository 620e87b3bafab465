"""A task: the department that a support ticket is for, from a file with a ticket a line, "billing: I was charged twice."."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.tables import read_lines
from spanjax.data.vocab.base import Vocabulary
from spanjax.tasks.base import Examples
from spanjax.tasks.rows import Row
from spanjax.tasks.sentences import UNLABELLED, UNSEEN, SentenceTask


class Ticket(NamedTuple):
    """One example."""

    name: str
    text: str
    label: str | None


@dataclasses.dataclass(frozen=True)
class Tickets(SentenceTask):
    """The department of a ticket. `SentenceTask` has the classifier, its loss and its predictions."""

    @property
    def metric(self) -> str:
        """The score that selects checkpoints."""
        return "mean_recall"

    def read(self, path: pathlib.Path) -> Examples:
        """Reads lines "DEPARTMENT: text"; the department "?" is not known."""
        found = Examples()
        for number, line in read_lines(path):
            label, colon, text = line.partition(":")
            if colon and text.strip():
                found.append(Ticket(f"{number}", clean(text), None if label == "?" else label))
            else:
                found.problems.append(f"{path}:{number}: {line!r:.40}; expected a department, a colon and a text")
        return found

    def example(self, record: Mapping[str, Any], number: int) -> tuple[Ticket | None, str]:
        """Reads `text` of a record of `predict task`."""
        text = record.get("text")
        if not isinstance(text, str) or not text.strip():
            return None, f"fields {', '.join(record) or '(none)'}: expected `text`"
        return Ticket(f"{number}", clean(text), None), ""

    def is_labelled(self, example: Ticket) -> bool:
        """True if the department is known."""
        return example.label is not None

    def with_training_labels(self, examples: Sequence[Ticket], vocabulary: Vocabulary) -> Self:
        """Infers the departments."""
        task = super().with_training_labels(examples, vocabulary)
        own = tuple(sorted({each.label for each in examples if each.label is not None}))
        return dataclasses.replace(task, labels=self.labels or own)

    def rows(self, examples: Sequence[Ticket], vocabulary: Vocabulary) -> Iterator[Row]:
        """[CLS] text [SEP], cut at `length`."""
        numbers, specials = {label: number for number, label in enumerate(self.labels)}, vocabulary.specials
        texts = vocabulary.encode([each.text for each in examples])
        for index, (ticket, ids_T) in enumerate(zip(examples, texts, strict=True)):
            tokens_T = np.array([specials.cls, *ids_T[: self.length - 2], specials.sep], np.int32)
            label = UNLABELLED if ticket.label is None else numbers.get(ticket.label, UNSEEN)
            yield Row(tokens_T, np.zeros_like(tokens_T), index, {"label_B": np.int32(label)})

    def scores(self, examples: Sequence[Ticket], predictions: Sequence[str]) -> dict[str, float]:
        """Recall in percent, the mean over the departments of the examples."""
        right: dict[str | None, list[bool]] = {}
        for ticket, predicted in zip(examples, predictions, strict=True):
            right.setdefault(ticket.label, []).append(ticket.label == predicted)
        return {"mean_recall": 100 * float(np.mean([np.mean(each) for each in right.values()]))}
