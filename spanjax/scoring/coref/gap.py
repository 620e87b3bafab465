"""Scores of GAP (Webster et al., 2018): does a pronoun refer to the first name, to the second, or to neither?

Each of both names is a decision. F1 is that of the decision that the pronoun refers to the name; bias is the F1 of feminine
pronouns over that of masculine ones.
"""

import collections
from collections.abc import Iterable

from spanjax.scoring.checks import counted, raise_problems
from spanjax.scoring.counts import score

GENDERS = {
    "she": "feminine",
    "her": "feminine",
    "hers": "feminine",
    "he": "masculine",
    "him": "masculine",
    "his": "masculine",
}
Decision = tuple[bool, bool]
"""True for the first and for the second name where the pronoun refers to it."""


def percents(examples: Iterable[tuple[str, Decision, Decision]]) -> dict[str, float]:
    """F1, recall and precision in percent, and bias, of (pronoun, key, response). ValueError for another pronoun than GAP's.

    Bias is 0 where one gender has no F1.
    """
    right, found, gold = (collections.Counter[str]() for _ in range(3))
    unknown = []
    for pronoun, key, response in examples:
        gender = GENDERS.get(pronoun.lower())
        if gender is None:
            unknown.append(pronoun)
            continue
        # both names are one decision each, as the official scorer counts them
        for name in ("all", gender):
            right[name] += sum(one and other for one, other in zip(key, response, strict=True))
            found[name] += sum(response)
            gold[name] += sum(key)
    raise_problems("GAP scores", counted(unknown, "unknown pronouns", f"expected one of {', '.join(GENDERS)}"))
    total, masculine, feminine = (score(right[n], found[n], gold[n]) for n in ("all", "masculine", "feminine"))
    return {
        "f1": total.f1,
        "recall": total.recall,
        "precision": total.precision,
        "masculine_f1": masculine.f1,
        "feminine_f1": feminine.f1,
        "bias": feminine.f1 / masculine.f1 if masculine.f1 else 0.0,
    }
