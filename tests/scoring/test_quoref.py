"""Quoref: sets of spans, by hand, against the best of all pairings, and on its file."""

import gzip
import itertools
import json
import pathlib
import random

import pytest

from spanjax.scoring import quoref


@pytest.mark.parametrize(
    ("gold", "predicted", "exact", "f1"),
    [
        (["Edith", "Edward", "Joey"], ["Edith"], 0, 0.33),
        (["Edith", "Edward", "Joey"], ["joey", "the Edith", "Edward!"], 1, 1.0),
        (["Edith"], ["Edith", "Edward"], 0, 0.5),
        (["Edith", "Edward"], ["Edith", "Edith"], 0, 0.5),
        (["Robert Merivel"], ["Merivel"], 0, 0.67),
        (["Marryot", "Bridges"], ["Bridges"], 0, 0.5),
        (["10 men"], ["men"], 0, 0.0),  # numbers have to be there
        (["10 men"], ["10.0 men"], 1, 1.0),
        (["well-known"], ["well known"], 1, 1.0),
        (["a"], ["the"], 1, 1.0),  # nothing is left of either
        (["Anna Bell", "Anna"], ["Anna", "Carl"], 0, 0.5),
    ],
)
def test_by_hand(gold: list[str], predicted: list[str], exact: float, f1: float) -> None:
    assert quoref.scores_of(gold, predicted) == (exact, f1)


def best_of_all_pairings(gold: list[str], predicted: list[str]) -> float:
    """The mean over the larger side, by trying every pairing."""

    def f1(one: str, other: str) -> float:
        return quoref.scores_of([one], [other])[1]

    few, many = sorted((gold, predicted), key=len)
    pairs = [f1(*(one, other) if few is gold else (other, one)) for one in few for other in many]
    best = max(
        sum(pairs[row * len(many) + column] for row, column in enumerate(chosen))
        for chosen in itertools.permutations(range(len(many)), len(few))
    )
    return best / len(many)


def test_the_pairing_is_the_best_one() -> None:
    draw, greedy = random.Random(0), 0
    for _ in range(300):
        gold, predicted = ([" ".join(draw.choices("bcdef", k=draw.randint(1, 3))) for _ in range(draw.randint(1, 4))]
                           for _ in range(2))  # fmt: skip
        found = quoref.scores_of(gold, predicted)[1]
        assert found == pytest.approx(
            best_of_all_pairings(gold, predicted), abs=0.011
        )  # rounded once, and pair by pair
        firsts = sum(max(quoref.scores_of([one], [other])[1] for other in predicted) for one in gold) / len(gold)
        greedy += abs(found - firsts) > 0.02
    assert greedy > 50, "pairs exclude each other"


def test_scores_of_a_file(shared_data: pathlib.Path) -> None:
    """The first span of every question: right where there is one, 1/n of the F1 where there are n that share no word."""
    articles = json.loads(gzip.decompress((shared_data / "squad" / "quoref-original-subset.json.gz").read_bytes()))[
        "data"
    ]
    asked = [one for article in articles for paragraph in article["paragraphs"] for one in paragraph["qas"]]
    gold = {one["id"]: [answer["text"] for answer in one["answers"]] for one in asked}
    found = quoref.score(gold, {name: texts[:1] for name, texts in gold.items()})
    assert found["exact_match"] == 100 * 386 / 415 and 96 < found["f1"] < 98
    assert quoref.score(gold, gold) == {"exact_match": 100.0, "f1": 100.0}


def test_what_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="(?s)1 ids have no list with a gold answer: b.*1 ids have no prediction: c"):
        quoref.score({"a": ["x"], "b": [], "c": ["y"]}, {"a": ["x"], "b": ["z"]})
    with pytest.raises(ValueError, match="1 ids have no list with a predicted span"):
        quoref.score({"a": ["x"]}, {"a": "x"})  # pyright: ignore[reportArgumentType]
