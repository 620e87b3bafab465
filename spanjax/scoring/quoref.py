"""Answers of several spans as sets: exact match and F1 of DROP (Dua et al. 2019), which Quoref (Dasigi et al. 2019) took over.

As the last release of allennlp's drop_eval.py and quoref_eval.py: spans of both sides are paired one to one so that the F1 of
their words is highest in sum. (Its first release paired them greedily.)
"""

import re
import string
from collections.abc import Mapping, Sequence

from spanjax.scoring.checks import counted, missing_ids, raise_problems
from spanjax.scoring.squad import percent

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _number(word: str) -> str:
    """A number as Python writes its float, "" for any other word."""
    try:
        return str(float(word))
    except ValueError:
        return ""


def normalize_span(text: str) -> str:
    """Lower case, words cut at blanks and hyphens; numbers as floats, the others without ASCII punctuation and articles."""
    words = []
    for word in re.split(" |-", text.lower()):
        bare = word if _number(word) else word.translate(_PUNCTUATION)
        words += _ARTICLES.sub(" ", _number(bare) or bare).split()
    return " ".join(words)


def _word_f1(gold: frozenset[str], predicted: frozenset[str]) -> float:
    numbers = {word for word in gold if _number(word)}
    if numbers and not numbers & predicted:
        return 0.0
    same = len(gold & predicted)
    precision = same / len(predicted) if predicted else 1.0
    recall = same / len(gold) if gold else 1.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def scores_of(gold: Sequence[str], predicted: Sequence[str]) -> tuple[float, float]:
    """(1.0 where both are the same set of normalised spans, as many on either side, else 0.0; the mean F1 of the best pairs).

    A span without a partner has F1 0; the mean is rounded to two digits, as in the official script.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    spans = [list(map(normalize_span, side)) for side in (gold, predicted)]
    exact = float(set(spans[0]) == set(spans[1]) and len(spans[0]) == len(spans[1]))
    bags = [[frozenset(span.split()) for span in side] for side in spans]
    table = np.array([[_word_f1(one, other) for other in bags[1]] for one in bags[0]]).reshape(
        len(gold), len(predicted)
    )
    total = float(table[linear_sum_assignment(table, maximize=True)].sum())
    return exact, round(total / max(len(gold), len(predicted)), 2)


def score(gold: Mapping[str, Sequence[str]], predictions: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """{'exact_match', 'f1'} in percent over questions whose gold answers belong together.

    gold: id -> one or more spans; predictions: id -> spans, one or more; other ids are ignored. ValueError with all problems.
    """
    problems = [] if gold else ["there is no gold question"]
    for side, what in ((gold, "gold answer"), (predictions, "predicted span")):
        bare = [name for name in gold if name in side and (isinstance(side[name], str) or not side[name])]
        problems += counted(bare, f"ids have no list with a {what}", "expected one span at least for each id")
    raise_problems("Quoref", problems + missing_ids(gold, predictions, "prediction"))
    found = [scores_of(answers, predictions[name]) for name, answers in gold.items()]
    exact, f1 = (percent([pair[place] for pair in found], len(found)) for place in (0, 1))
    return {"exact_match": exact, "f1": f1}
