"""Predictions of every task as units for `resampling`: what each unit adds to the sums that the official score is made of.

Shapes: N units, S sums, R samples.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from spanjax.scoring import coref, entities, quoref, relation, squad
from spanjax.scoring.coref.mention_chains import Clusters
from spanjax.scoring.resampling import Figures, Ranked, Summed, Units


def _share(part_R: np.ndarray, whole_R: np.ndarray, otherwise: float = 0.0) -> np.ndarray:
    """Percent, `otherwise` where the whole is 0."""
    filled_R = np.full(part_R.shape, otherwise)
    return np.divide(100.0 * part_R, whole_R, out=filled_R, where=whole_R != 0)


def _harmonic(precision_R: np.ndarray, recall_R: np.ndarray) -> np.ndarray:
    total_R = precision_R + recall_R
    return np.divide(2 * precision_R * recall_R, total_R, out=np.zeros(total_R.shape), where=total_R != 0)


def means(values: Mapping[str, Sequence[float]]) -> Summed:
    """Units with a value of 0 to 1 for each score, which is the mean in percent."""
    names, columns = list(values), [np.asarray(column, np.float64) for column in values.values()]
    sums_NS = np.stack([*columns, np.ones(len(columns[0]))], axis=1)

    def figures(sums_RS: np.ndarray) -> Figures:
        return {name: 100.0 * sums_RS[:, place] / sums_RS[:, -1] for place, name in enumerate(names)}

    return Summed(sums_NS, figures)


def questions_v1(gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> Summed:
    """SQuAD 1.1 and MRQA: a missing prediction is wrong."""
    found = []
    for name, answers in gold.items():
        text = predictions.get(name)
        if text is None:
            found.append((0.0, 0.0))
            continue
        exact = max(squad.exact_match(answer, text) for answer in answers)
        found.append((float(exact), max(squad.token_f1(answer, text, both_empty=0.0) for answer in answers)))
    exact, f1 = zip(*found, strict=True)
    return means({"exact_match": exact, "f1": f1})


def questions_v2(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None,
    threshold: float,
) -> Summed:
    """SQuAD 2.0 at one threshold, all questions, those with and those without an answer."""
    rows = []
    for name, answers in gold.items():
        exact, f1 = squad.answer_scores_v2(answers, predictions[name])
        if null_odds is not None and null_odds[name] > threshold:
            exact = f1 = float(not answers)
        has = float(bool(answers))
        rows.append((exact, f1, 1.0, exact * has, f1 * has, has))

    # the best threshold is no function of sums: it has no interval
    def figures(sums_RS: np.ndarray) -> Figures:
        exact_R, f1_R, all_R, has_exact_R, has_f1_R, has_R = sums_RS.T
        groups = {"": (exact_R, f1_R, all_R), "HasAns_": (has_exact_R, has_f1_R, has_R)}
        groups["NoAns_"] = (exact_R - has_exact_R, f1_R - has_f1_R, all_R - has_R)
        return {
            f"{group}{name}": _share(part_R, whole_R, np.nan)
            for group, (one_R, other_R, whole_R) in groups.items()
            for name, part_R in (("exact", one_R), ("f1", other_R))
        }

    return Summed(np.array(rows, np.float64), figures)


def span_sets(gold: Mapping[str, Sequence[str]], predictions: Mapping[str, Sequence[str]]) -> Summed:
    """Quoref: answers of several spans."""
    exact, f1 = zip(*(quoref.scores_of(answers, predictions[name]) for name, answers in gold.items()), strict=True)
    return means({"exact_match": exact, "f1": f1})


def _micro(sums_RS: np.ndarray, nothing_predicted: float) -> Figures:
    correct_R, predicted_R, gold_R = sums_RS[:, :3].T
    precision_R, recall_R = _share(correct_R, predicted_R, nothing_predicted), _share(correct_R, gold_R)
    return {"precision": precision_R, "recall": recall_R, "f1": _harmonic(precision_R, recall_R)}


def tacred(gold: Sequence[str], predicted: Sequence[str]) -> Summed:
    """TACRED: counts of right, predicted and gold relations."""
    none = relation.NO_RELATION
    rows = [(a == b != none, b != none, a != none) for a, b in zip(gold, predicted, strict=True)]
    return Summed(np.array(rows, np.float64), lambda sums_RS: _micro(sums_RS, 100.0))


def semeval(gold: Sequence[str], predicted: Sequence[str]) -> Summed:
    """SemEval-2010 task 8: counts by relation without its direction; a wrong direction is an error."""
    # the official average is over the relations of the key, in every sample too
    bare = [(one.partition("(")[0], other.partition("(")[0]) for one, other in zip(gold, predicted, strict=True)]
    names = sorted({one for one, _ in bare} - {relation.OTHER})
    place = {name: number for number, name in enumerate(names)}
    sums_NS = np.zeros((len(gold), 3, len(names)))
    for row, ((one, other), a, b) in enumerate(zip(bare, gold, predicted, strict=True)):
        if one in place:
            sums_NS[row, 2, place[one]] = 1
            sums_NS[row, 0, place[one]] = a == b
        if other in place:
            sums_NS[row, 1, place[other]] = 1

    def figures(sums_RS: np.ndarray) -> Figures:
        correct, predicted, golds = sums_RS.reshape(len(sums_RS), 3, -1).swapaxes(0, 1)
        precision, recall = _share(correct, predicted), _share(correct, golds)
        return {"f1": _harmonic(precision, recall).mean(axis=1)}

    return Summed(sums_NS.reshape(len(gold), -1), figures)


def tagged(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Summed:
    """Entities of sentences: counts of right, predicted and gold ones, of equal tags, and of words."""
    rows = []
    for tags, others in zip(gold, predicted, strict=True):
        one, other = entities.spans(tags), entities.spans(others)
        equal = sum(a == b for a, b in zip(tags, others, strict=True))
        rows.append((len({*one} & {*other}), len(other), len(one), equal, len(tags)))

    def figures(sums_RS: np.ndarray) -> Figures:
        return {**_micro(sums_RS, 0.0), "tag_accuracy": _share(sums_RS[:, 3], sums_RS[:, 4])}

    return Summed(np.array(rows, np.float64), figures)


def labelled(gold: Sequence[str], predicted: Sequence[str], metrics: Sequence[str]) -> Summed:
    """Labels of GLUE: the table of gold and predicted labels, of which accuracy, F1 and Matthews correlation are made."""
    labels = sorted({*gold, *predicted})
    place = {label: number for number, label in enumerate(labels)}
    size = len(labels)
    sums_NS = np.zeros((len(gold), size * size))
    sums_NS[np.arange(len(gold)), [place[a] * size + place[b] for a, b in zip(gold, predicted, strict=True)]] = 1

    def figures(sums_RS: np.ndarray) -> Figures:
        table = sums_RS.reshape(-1, size, size)
        right = np.einsum("rii->ri", table)
        golds, guesses, total = table.sum(axis=2), table.sum(axis=1), table.sum(axis=(1, 2))
        found: dict[str, Callable[[], np.ndarray]] = {
            "accuracy": lambda: _share(right.sum(axis=1), total),
            "f1": lambda: _positive_f1(right, guesses, golds, place.get("1")),
            "matthews": lambda: _matthews(right.sum(axis=1), guesses, golds, total),
        }
        return {name: found[name]() for name in metrics}

    return Summed(sums_NS, figures)


def _positive_f1(right: np.ndarray, guesses: np.ndarray, golds: np.ndarray, label: int | None) -> np.ndarray:
    if label is None:
        return np.zeros(len(right))
    return _harmonic(
        _share(right[:, label], guesses[:, label]),
        _share(right[:, label], golds[:, label]),
    )


def _matthews(right_R: np.ndarray, guesses: np.ndarray, golds: np.ndarray, total_R: np.ndarray) -> np.ndarray:
    covariance_R = right_R * total_R - (guesses * golds).sum(axis=1)
    spread_R = (total_R**2 - (guesses**2).sum(axis=1)) * (total_R**2 - (golds**2).sum(axis=1))
    return _share(covariance_R, np.sqrt(spread_R))


def numbers(gold: Sequence[float], predicted: Sequence[float]) -> Units:
    """STS-B: correlations."""
    return Ranked(np.asarray(gold, np.float64), np.asarray(predicted, np.float64))


COREF = ("muc", "bcub", "ceafe", "ceafm", "lea", "mention")
PARTS = ("recall_numerator", "recall_denominator", "precision_numerator", "precision_denominator")


def documents(pairs: Iterable[tuple[Clusters, Clusters]]) -> Summed:
    """Coreference of documents, (key, response): numerators and denominators of every metric but BLANC, and their average."""
    rows = []
    for pair in pairs:
        found = coref.score([pair])
        rows.append([getattr(getattr(found, name), part) for name in COREF for part in PARTS])

    def figures(sums_RS: np.ndarray) -> Figures:
        found = {}
        for name, four_R4 in zip(COREF, np.split(sums_RS, len(COREF), axis=1), strict=True):
            right_R, gold_R, hit_R, predicted_R = four_R4.T
            found[f"{name}_f1"] = _harmonic(_share(hit_R, predicted_R), _share(right_R, gold_R))
        return {"f1": (found["muc_f1"] + found["bcub_f1"] + found["ceafe_f1"]) / 3, **found}

    return Summed(np.array(rows, np.float64), figures)
