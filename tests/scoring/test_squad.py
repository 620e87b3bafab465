"""SQuAD: published predictions give the published scores to the last digit; random answers against code of its own."""

import gzip
import itertools
import json
import pathlib
import random
import string
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from spanjax.scoring import squad

EXPECTED = "squad/predictions/expected-scores.json"
V1 = ("v1.1-logistic-regression-baseline", "v1.1-bert-ensemble", "v1.1-match-lstm-ensemble")
V2 = ("v2.0-bert-single", "v2.0-nlnet-single")
WORDS = [
    "a",
    "an",
    "the",
    "The",
    "AN",
    "cat",
    "cats",
    "theatre",
    "U.S.",
    "it's",
    "–",
    "the–cat",
    "9%",
    "Straße",
    "İ",
    "",
    "é",
    "?!",
]
JOINTS = [" ", "  ", "\u202f", "-", "/", "\n", "", "_"]


def read(path: pathlib.Path) -> Any:
    """JSON, packed or not."""
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def answers(path: pathlib.Path) -> dict[str, list[str]]:
    """Gold answers by id of a file in SQuAD's form."""
    questions = (qa for article in read(path)["data"] for part in article["paragraphs"] for qa in part["qas"])
    return {qa["id"]: [answer["text"] for answer in qa["answers"]] for qa in questions}


@pytest.mark.parametrize("name", V1)
def test_published_v1(name: str, shared_data: pathlib.Path) -> None:
    expected = read(shared_data / EXPECTED)[name]
    gold = answers(shared_data / "squad" / f"{expected['data']}.gz")
    predictions = read(shared_data / "squad" / "predictions" / f"{name}.json.gz")
    lacking = expected["predictions_missing_counted_as_wrong"]
    assert sum(one not in predictions for one in gold) == lacking
    scores = squad.score_v1(gold, predictions, missing_is_wrong=lacking > 0)
    assert scores == {"exact_match": expected["scores"]["exact"], "f1": expected["scores"]["f1"]}


@pytest.mark.parametrize("name", V2)
def test_published_v2(name: str, shared_data: pathlib.Path) -> None:
    expected = read(shared_data / EXPECTED)[name]
    gold = answers(shared_data / "squad" / f"{expected['data']}.gz")
    folder = shared_data / "squad" / "predictions"
    predictions, odds = read(folder / f"{name}.json.gz"), read(folder / f"{name}.na-prob-synthetic.json.gz")
    for given, wanted in ((None, "scores"), (odds, "scores_with_synthetic_na_prob")):
        scores = squad.score_v2(gold, predictions, given)
        assert list(scores.items()) == list(expected[wanted].items())


@pytest.mark.parametrize("name", ["squad2.0-dev-first5articles", "xquad-en-part1"])
def test_published_cuts(name: str, shared_data: pathlib.Path) -> None:
    folder = shared_data / "squad"
    predictions = read(folder / f"{name}.bert-predictions.json")
    scores = squad.score_v2(answers(folder / f"{name}.json.gz"), predictions)
    assert scores == read(folder / f"{name}.expected_scores.json")


def made_answer(draw: random.Random) -> str:
    """A few words with any joints."""
    return "".join(draw.choice(WORDS) + draw.choice(JOINTS) for _ in range(draw.choice([0, 1, 1, 2, 3, 5])))


def plain_words(text: str) -> list[str]:
    """Normalised words without regular expressions: runs of letters and digits that are articles become blanks."""
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    runs = ("".join(run) for _, run in itertools.groupby(kept, str.isalnum))
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def plain_f1(gold: str, predicted: str) -> Fraction | None:
    """Exact F1, None where neither side has a word."""
    gold_words, words = plain_words(gold), plain_words(predicted)
    if not gold_words + words:
        return None
    left, same = list(gold_words), 0
    for word in words:
        if word in left:
            left.remove(word)
            same += 1
    return Fraction(2 * same, len(gold_words) + len(words))


def test_random_answers() -> None:
    draw = random.Random(0)
    for _ in range(20_000):
        gold, predicted = made_answer(draw), made_answer(draw)
        assert squad.normalize_answer(gold) == " ".join(plain_words(gold))
        assert squad.exact_match(gold, predicted) == (plain_words(gold) == plain_words(predicted))
        wanted = plain_f1(gold, predicted)
        for empty in (0.0, 1.0):
            found = squad.token_f1(gold, predicted, both_empty=empty)
            assert found == (empty if wanted is None else pytest.approx(float(wanted), rel=1e-15, abs=0))


def made_set(draw: random.Random) -> Iterator[tuple[str, list[str], str, float]]:
    """id, gold answers, prediction and null odds of a few questions; odds are often equal."""
    for place in range(draw.randint(1, 12)):
        gold = [made_answer(draw) for _ in range(draw.choice([0, 0, 1, 2, 3]))]
        predicted = draw.choice([*gold, made_answer(draw), ""])
        yield f"q{place}", gold, predicted, draw.choice([-2.5, 0.0, 0.25, 1.0, 1.5, draw.random()])


def plain_v2(rows: list[tuple[str, list[str], str, float]], threshold: float) -> dict[str, list[float]]:
    """[exact, f1] of every question by id, with the threshold."""
    found = {}
    for name, gold, predicted, odds in rows:
        kept = [answer for answer in gold if plain_words(answer)] or [""]
        pairs = [plain_f1(answer, predicted) for answer in kept]
        f1 = max(1.0 if one is None else float(one) for one in pairs)
        exact = float(any(plain_words(answer) == plain_words(predicted) for answer in kept))
        found[name] = [float(not gold)] * 2 if odds > threshold else [exact, f1]
    return found


def test_random_v2() -> None:
    draw = random.Random(1)
    for _ in range(3_000):
        rows = list(made_set(draw))
        gold, predictions = {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}
        threshold = draw.choice([1.0, 0.0, -3.0])
        scores = squad.score_v2(gold, {**predictions, "other": "x"}, {row[0]: row[3] for row in rows}, threshold)
        plain = plain_v2(rows, threshold)
        for prefix, names in (
            ("", list(gold)),
            ("HasAns_", [name for name in gold if gold[name]]),
            ("NoAns_", [name for name in gold if not gold[name]]),
        ):
            assert scores.get(f"{prefix}total", 0) == len(names)
            for place, key in enumerate(("exact", "f1")):
                wanted = [plain[name][place] for name in names]
                assert (prefix + key in scores) == bool(names)
                if names:
                    assert scores[prefix + key] == pytest.approx(100 * sum(wanted) / len(names), rel=1e-13)


def test_random_thresholds() -> None:
    """Against trying every prefix of the sorted odds; scores are quarters, so sums are exact."""
    draw = random.Random(2)
    for _ in range(5_000):
        names = [f"q{place}" for place in range(draw.randint(1, 10))]
        odds = {name: draw.choice([-1.0, 0.5, 2.0, draw.random()]) for name in draw.sample(names, len(names))}
        answerable = {name: draw.random() < 0.6 for name in names}
        predictions = {name: draw.choice(["", "x"]) for name in names}
        scores = {
            name: draw.choice([0, 0.25, 0.5, 1]) if answerable[name] else float(not predictions[name]) for name in names
        }
        order = sorted(odds, key=odds.__getitem__)
        totals = []
        for kept in range(len(order) + 1):
            nothing = sum(not answerable[name] for name in order[kept:])
            totals.append(nothing + sum(scores[name] for name in order[:kept]))
        best = totals.index(max(totals))
        wanted = (100 * max(totals) / len(names), odds[order[best - 1]] if best else 0.0)
        found = squad.best_threshold(scores, answerable, predictions, {**odds, "other": 0.1})
        assert found == wanted


def test_by_hand() -> None:
    assert squad.normalize_answer("The U.S. -- an Act, the (first) 'theatre'") == "us act first theatre"
    gold = {"1": ["Denver Broncos", "the Broncos"], "2": ["3 May"]}
    scores = squad.score_v1(gold, {"1": "Broncos!", "2": "on May 3rd"})
    assert scores == {"exact_match": 50.0, "f1": 100 * (1 + 0.4) / 2}
    assert squad.score_v1({"1": ["the"]}, {"1": "a"}) == {"exact_match": 100.0, "f1": 0.0}
    assert squad.score_v2({"1": ["the"]}, {"1": "a"})["f1"] == 100.0


def test_nothing_is_best_at_zero() -> None:
    found = squad.score_v2({"1": [], "2": []}, {"1": "x", "2": "y"}, {"1": -7.0, "2": -3.0})
    assert (found["best_f1"], found["best_f1_thresh"]) == (100.0, 0.0)


def test_all_problems_at_once() -> None:
    gold = {str(one): ["x"] for one in range(30)}
    predictions: dict[str, Any] = {"0": None, "1": "x"}
    with pytest.raises(ValueError, match="SQuAD 2.0 cannot be computed") as caught:
        squad.score_v2(gold, predictions, {"0": float("nan")})
    message = str(caught.value)
    assert "28 ids have no prediction: 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 18 more" in message
    assert "1 predictions are no text: 0;" in message
    assert "29 ids have no null odds" in message and "1 ids have null odds of NaN: 0;" in message
    with pytest.raises(ValueError, match="(?s)1 ids have no gold answer: 1;.*1 ids have no prediction: 2;"):
        squad.score_v1({"1": [], "2": ["x"]}, {"1": "x"})
    with pytest.raises(ValueError, match="there is no gold question"):
        squad.score_v1({}, {})
