"""Resampling against plain loops: sums and the official scorers, all exchanges of a few units, coverage of the intervals."""

import itertools
import math
import random

import numpy as np
import pytest

from spanjax.scoring import coref, entities, glue, quoref, relation, resampling, squad, units

pytestmark = pytest.mark.unit

LABELS = [relation.NO_RELATION, "per:age", "org:city"]


def drawn(labels: list[str], count: int, seed: int) -> tuple[list[str], list[str]]:
    rng = random.Random(seed)
    gold = [rng.choice(labels) for _ in range(count)]
    return gold, [label if rng.random() < 0.6 else rng.choice(labels) for label in gold]


def test_scores_of_all_units_are_the_official_ones() -> None:
    gold, predicted = drawn(LABELS, 60, 0)
    micro = relation.tacred(gold, predicted).micro
    assert units.tacred(gold, predicted).scores == pytest.approx(
        {name: getattr(micro, name) for name in ("precision", "recall", "f1")}
    )
    gold, predicted = drawn(list(relation.SEMEVAL_LABELS), 300, 1)
    ids = [str(number) for number in range(300)]
    official = relation.semeval(dict(zip(ids, gold, strict=True)), dict(zip(ids, predicted, strict=True))).official
    assert units.semeval(gold, predicted).scores["f1"] == pytest.approx(official.macro_f1)
    for name in ("CoLA", "MRPC", "MNLI-m"):
        gold, predicted = drawn(list(glue.TASKS[name].labels), 80, 2)
        found = units.labelled(gold, predicted, glue.TASKS[name].metrics).scores
        assert found == pytest.approx(glue.score(name, gold, predicted))
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 6, 40).astype(float), rng.normal(size=40)
    scores = glue.score("STS-B", numbers[0].tolist(), numbers[1].tolist())
    assert units.numbers(numbers[0].tolist(), numbers[1].tolist()).scores == pytest.approx(scores)


def test_scores_of_spans_and_clusters_are_the_official_ones() -> None:
    gold, predicted = drawn(["O", "B-PER", "I-PER", "B-LOC"], 90, 4)
    sentences = [[side[at : at + 6] for at in range(0, 90, 6)] for side in (gold, predicted)]
    found, micro = units.tagged(*sentences).scores, entities.score(*sentences)
    assert found == pytest.approx(
        {"precision": micro.micro.precision, "recall": micro.micro.recall, "f1": micro.micro.f1}
        | {"tag_accuracy": micro.tag_accuracy}
    )
    pairs = [
        ([[(0, 0), (2, 3), (7, 7)], [(5, 5), (6, 6)]], [[(0, 0), (2, 3)], [(7, 7), (6, 6)]]),
        ([[(1, 1), (4, 4)]], [[(1, 1), (4, 4), (8, 9)]]),
    ]
    official = coref.percents(pairs)
    assert units.documents(pairs).scores == pytest.approx(
        {name: official[name] for name in units.documents(pairs).scores}
    )
    texts = {"a": ["the cat"], "b": ["a dog", "dogs"], "c": ["blue"], "d": []}
    guesses = {"a": "cat", "b": "the dogs", "c": "red", "d": "x"}
    odds = {"a": 0.1, "b": 0.9, "c": 0.2, "d": 0.8}
    scores = squad.score_v2(texts, guesses, odds, 0.5)
    found = units.questions_v2(texts, guesses, odds, 0.5).scores
    assert found == pytest.approx({name: scores[name] for name in found})
    answered = {name: answers for name, answers in texts.items() if answers}
    assert units.questions_v1(answered, guesses).scores == pytest.approx(squad.score_v1(answered, guesses))
    lists = {name: [guess] for name, guess in guesses.items()}
    assert units.span_sets(answered, lists).scores == pytest.approx(quoref.score(answered, lists))


def test_a_sample_is_the_score_of_its_units() -> None:
    gold, predicted = drawn(["0", "1"], 12, 5)
    index = np.random.default_rng(0).integers(12, size=(4, 12))
    sampled = units.labelled(gold, predicted, ("accuracy", "f1", "matthews")).sampled(index)
    for row, chosen in enumerate(index.tolist()):
        sample = [gold[place] for place in chosen], [predicted[place] for place in chosen]
        for name, function in (("accuracy", glue.accuracy), ("f1", glue.f1), ("matthews", glue.matthews)):
            assert sampled[name][row] == pytest.approx(function(*sample))


def test_the_permutation_test_comes_near_to_all_exchanges() -> None:
    gold, first = drawn(["0", "1"], 8, 6)
    second = drawn(["0", "1"], 8, 7)[1]

    def difference(one: list[str], other: list[str]) -> float:
        return glue.accuracy(gold, one) - glue.accuracy(gold, other)

    observed, as_far = difference(first, second), 0
    for taken in itertools.product((False, True), repeat=8):
        pairs = [(b, a) if swap else (a, b) for a, b, swap in zip(first, second, taken, strict=True)]
        one, other = map(list, zip(*pairs, strict=True))
        as_far += abs(difference(one, other)) >= abs(observed) - 1e-9
    systems = [units.labelled(gold, side, ("accuracy",)) for side in (first, second)]
    found = resampling.differences(systems[0], systems[1], samples=100, permutations=4000)["accuracy"]
    assert found.difference == pytest.approx(observed) and observed != 0
    assert found.p == pytest.approx(as_far / 2**8, abs=0.03) and as_far < 2**8


def test_ranked_units_exchange_predictions() -> None:
    rng = np.random.default_rng(8)
    gold, first, second = (rng.normal(size=6) for _ in range(3))
    one, other = units.numbers(gold.tolist(), first.tolist()), units.numbers(gold.tolist(), second.tolist())
    taken = np.array([[True, False, True, False, False, True]])
    found = one.exchanged(other, taken)
    assert found[0]["spearman"][0] == pytest.approx(
        glue.spearman(gold.tolist(), np.where(taken[0], second, first).tolist())
    )
    assert found[1]["pearson"][0] == pytest.approx(
        glue.pearson(gold.tolist(), np.where(taken[0], first, second).tolist())
    )
    constant = units.numbers([1.0, 2.0], [3.0, 3.0])
    assert math.isnan(resampling.intervals(constant, 5)["pearson"].low)


def test_intervals_cover_the_truth_and_are_the_same_each_time() -> None:
    rng = np.random.default_rng(9)
    covered = 0
    for trial in range(60):
        hits = (rng.random(80) < 0.7).astype(float).tolist()
        interval = resampling.intervals(units.means({"accuracy": hits}), 200, seed=trial)["accuracy"]
        covered += interval.low <= 70 <= interval.high
    assert covered >= 50
    again = units.means({"accuracy": np.linspace(0, 1, 30).tolist()})
    assert resampling.intervals(again, 50, seed=1) == resampling.intervals(again, 50, seed=1)
    assert resampling.intervals(again, 50, seed=1) != resampling.intervals(again, 50, seed=2)


def test_other_units_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 1 units"):
        resampling.differences(units.means({"a": [1, 0]}), units.means({"a": [1]}), 1, 1)
