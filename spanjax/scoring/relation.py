"""Relation extraction: TACRED (Zhang et al. 2017) and SemEval-2010 task 8 (Hendrickx et al. 2010), as their scorers do it."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from spanjax.scoring.checks import counted, missing_ids, raise_problems, unequal_lengths, unknown_labels
from spanjax.scoring.counts import Score, score

NO_RELATION = "no_relation"
OTHER = "Other"
SEMEVAL_RELATIONS = (
    *("Cause-Effect", "Component-Whole", "Content-Container", "Entity-Destination", "Entity-Origin"),
    *("Instrument-Agency", "Member-Collection", "Message-Topic", "Product-Producer"),
)
SEMEVAL_LABELS = (*(f"{name}{way}" for name in SEMEVAL_RELATIONS for way in ("(e1,e2)", "(e2,e1)")), OTHER)


@dataclasses.dataclass(frozen=True)
class Tacred:
    """Scores over all relations but `no_relation` together, and of each by name."""

    micro: Score
    relations: Mapping[str, Score]


def tacred(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str] = (), no_relation: str = NO_RELATION
) -> Tacred:
    """TACRED's micro-averaged scores: one gold and one predicted label an example, in order.

    labels: the known ones, others are an error; empty takes any. As in the official scorer the precision is 100
    where no relation is predicted.
    """
    problems = unequal_lengths(gold, predicted, "labels")
    if labels:
        known = (*labels, *(() if no_relation in labels else (no_relation,)))
        problems += unknown_labels(gold, known, "gold") + unknown_labels(predicted, known, "predicted")
    raise_problems("TACRED's scores", problems)
    correct = collections.Counter(a for a, b in zip(gold, predicted, strict=True) if a == b)
    guesses, golds = collections.Counter(predicted), collections.Counter(gold)
    names = sorted((guesses.keys() | golds.keys()) - {no_relation})
    totals = [sum(found[name] for name in names) for found in (correct, guesses, golds)]
    relations = {name: score(correct[name], guesses[name], golds[name], nothing_predicted=100.0) for name in names}
    return Tacred(score(totals[0], totals[1], totals[2], nothing_predicted=100.0), relations)


@dataclasses.dataclass(frozen=True)
class Way:
    """One of the three evaluations of SemEval-2010 task 8, in percent.

    `relations` has every label of the key, `Other` too; `micro` and the macro averages exclude `Other`. `accuracy` is of
    the examples with a prediction; the other two count the skipped ones as wrong and as `Other`.
    """

    relations: Mapping[str, Score]
    micro: Score
    macro_precision: float
    macro_recall: float
    macro_f1: float
    accuracy: float
    accuracy_skipped_wrong: float
    accuracy_skipped_other: float


@dataclasses.dataclass(frozen=True)
class SemEval:
    """The scorer's three evaluations; `official.macro_f1` is the official score.

    `directed`: 2*9+1 labels. `undirected`: 9+1, ignoring directions. `official`: 9+1, and a wrong direction is an error.
    `coverage`: percent of examples with a prediction.
    """

    directed: Way
    undirected: Way
    official: Way
    coverage: float


@dataclasses.dataclass(frozen=True)
class _Judged:
    """One example of the key: its relation, the predicted one (None: skipped), whether the prediction is right."""

    gold: str
    predicted: str | None
    correct: bool


def _way(examples: Sequence[_Judged]) -> Way:
    """The scores of one way; predictions of a relation that the key lacks count as wrong and for no relation."""
    golds = collections.Counter(one.gold for one in examples)
    guesses = collections.Counter(one.predicted for one in examples)
    correct = collections.Counter(one.gold for one in examples if one.correct)
    relations = {name: score(correct[name], guesses[name], golds[name]) for name in sorted(golds)}
    scored = [one for name, one in relations.items() if name != OTHER]
    precision = recall = f1 = 0.0
    for one in scored:
        precision, recall, f1 = precision + one.precision, recall + one.recall, f1 + one.f1
    right, predicted = correct.total(), len(examples) - guesses[None]
    skipped_other = sum(one.gold == OTHER and one.predicted is None for one in examples)
    return Way(
        relations=relations,
        micro=score(*(sum(getattr(one, key) for one in scored) for key in ("correct", "predicted", "gold"))),
        macro_precision=precision / len(scored),
        macro_recall=recall / len(scored),
        macro_f1=f1 / len(scored),
        accuracy=100.0 * right / predicted,
        accuracy_skipped_wrong=100.0 * right / len(examples),
        accuracy_skipped_other=100.0 * (right + skipped_other) / len(examples),
    )


def _undirected(label: str | None) -> str | None:
    return None if label is None else label.partition("(")[0]


def semeval(gold: Mapping[Any, str], predicted: Mapping[Any, str], *, may_skip: bool = False) -> SemEval:
    """The scores of semeval2010_task8_scorer-v1.2.pl: sentence id -> one of SEMEVAL_LABELS, in the key and predicted.

    An id of the key without a prediction is an error, or with `may_skip` a skipped example, as in the scorer. An id that
    the key lacks is an error in both.
    """
    problems = unknown_labels(gold.values(), SEMEVAL_LABELS, "gold")
    problems += unknown_labels(predicted.values(), SEMEVAL_LABELS, "predicted")
    problems += [] if may_skip else missing_ids(gold, predicted, "prediction")
    foreign = [name for name in predicted if name not in gold]
    problems += counted(foreign, "predicted ids are not in the key", "expected ids of the key alone")
    if all(label == OTHER for label in gold.values()):
        problems.append(f"no gold label is a relation: the averages are over those that are not {OTHER}")
    if not predicted:
        problems.append("there is no prediction")
    raise_problems("SemEval-2010 task 8", problems)
    pairs = [(label, predicted.get(name)) for name, label in gold.items()]
    bare = [(str(_undirected(a)), _undirected(b)) for a, b in pairs]
    return SemEval(
        directed=_way([_Judged(a, b, a == b) for a, b in pairs]),
        undirected=_way([_Judged(a, b, a == b) for a, b in bare]),
        official=_way([_Judged(*labels, a == b) for labels, (a, b) in zip(bare, pairs, strict=True)]),
        coverage=100.0 * len(predicted) / len(gold),
    )
