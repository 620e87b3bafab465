"""Precision, recall and F1 of counts, as the official scorers of relations and entities compute them."""

import dataclasses
from typing import Self


class Summed:
    """A dataclass of counts, or of such dataclasses, that adds up over documents."""

    def __add__(self, other: Self) -> Self:
        """Field by field."""
        names = [field.name for field in dataclasses.fields(self)]  # pyright: ignore[reportArgumentType]
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclasses.dataclass(frozen=True)
class Score:
    """Percentages of `correct` of `predicted` and of `gold`, and the counts they are from."""

    precision: float
    recall: float
    f1: float
    correct: int
    predicted: int
    gold: int


def harmonic(precision: float, recall: float) -> float:
    """F1 of two percentages, in percent; 0 where both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def score(correct: int, predicted: int, gold: int, nothing_predicted: float = 0.0) -> Score:
    """The scores of three counts; `nothing_predicted` is the precision, in percent, where `predicted` is 0."""
    precision = 100.0 * correct / predicted if predicted else nothing_predicted
    recall = 100.0 * correct / gold if gold else 0.0
    return Score(precision, recall, harmonic(precision, recall), correct, predicted, gold)
