"""Reports wrong input in one message: a line for every kind of problem, with the number and the first of its items."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spanjax import bounds

SHOWN = 10


def listed(items: Iterable[object]) -> str:
    """'a, b, c' of up to ten items, then the number of further ones."""
    texts = [item if isinstance(item, str) else repr(item) for item in items]
    more = len(texts) - SHOWN
    return ", ".join(texts[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def counted(items: Sequence[object], problem: str, remedy: str) -> list[str]:
    """One line '3 PROBLEM: a, b, c; REMEDY', or none where nothing is wrong."""
    return [f"{len(items)} {problem}: {listed(items)}; {remedy}"] if items else []


def raise_problems(metric: str, problems: Sequence[str]) -> None:
    """Raises one ValueError with a line for each problem, if there are any."""
    bounds.raise_problems(problems, f"{metric} cannot be computed:")


def missing_ids(gold: Mapping[Any, Any], given: Mapping[Any, Any], what: str) -> list[str]:
    """The problem of gold ids that `given` lacks; its other ids are no problem."""
    missing = [name for name in gold if name not in given]
    return counted(missing, f"ids have no {what}", f"every gold id needs a {what}")


def unequal_lengths(gold: Sequence[Any], predicted: Sequence[Any], what: str) -> list[str]:
    """The problem of two sequences that differ in length."""
    if len(gold) == len(predicted):
        return []
    return [f"{len(gold)} gold {what} and {len(predicted)} predicted ones: expected one prediction for each, in order"]


def unknown_labels(labels: Iterable[object], known: Sequence[str], which: str) -> list[str]:
    """The problem of labels that are not in `known`; each is named once."""
    unknown = list(dict.fromkeys(label for label in labels if label not in known))
    return counted(unknown, f"unknown {which} labels", f"expected {', '.join(known)}")
