"""Scores of GAP against a loop over names, and the counts that the official scorer prints."""

import random

import pytest

from spanjax.scoring.coref.gap import percents

pytestmark = pytest.mark.unit


def f1(pairs: list[tuple[bool, bool]]) -> float:
    """F1 in percent of (key, response) decisions."""
    true, false = sum(a and b for a, b in pairs), sum(b and not a for a, b in pairs)
    missed = sum(a and not b for a, b in pairs)
    return 100 * 2 * true / (2 * true + false + missed) if true else 0.0


def test_equals_a_loop_over_names():
    rng = random.Random(0)
    rows = [
        (
            rng.choice(["She", "her", "hers", "he", "HIM", "his"]),
            *((rng.random() < 0.4, rng.random() < 0.4) for _ in "ab"),
        )
        for _ in range(200)
    ]
    found = percents((pronoun, key, response) for pronoun, key, response in rows)

    def pairs(pronouns: set[str]) -> list[tuple[bool, bool]]:
        return [pair for pronoun, a, b in rows if pronoun.lower() in pronouns for pair in zip(a, b, strict=True)]

    feminine, masculine = {"she", "her", "hers"}, {"he", "him", "his"}
    assert found["f1"] == pytest.approx(f1(pairs(feminine | masculine)))
    assert found["feminine_f1"] == pytest.approx(f1(pairs(feminine)))
    assert found["masculine_f1"] == pytest.approx(f1(pairs(masculine)))
    assert found["bias"] == pytest.approx(f1(pairs(feminine)) / f1(pairs(masculine))) and found["bias"] != 1


def test_nothing_found_and_unknown_pronouns():
    assert percents([("she", (True, False), (False, False))]) == dict.fromkeys(
        ("f1", "recall", "precision", "masculine_f1", "feminine_f1", "bias"), 0.0
    )
    with pytest.raises(ValueError, match="2 unknown pronouns: they, it; expected one of she"):
        percents([("they", (True, False), (True, False)), ("it", (True, False), (True, False))])
