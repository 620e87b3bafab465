"""GLUE's metrics against exact fractions and SciPy, the published averages, and the leaderboard's files."""

import csv
import itertools
import math
import pathlib
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.stats

from spanjax.scoring import glue

CLOSE = 1e-10  # percent; SciPy adds in another order

# SpanBERT paper, table 5 (test): CoLA, SST-2, MRPC F1 and accuracy, STS-B, QQP F1 and accuracy, MNLI, QNLI, RTE, the average.
# WNLI is not in the table: its majority class, 65.1, is what gives the averages.
TABLE_5 = {
    "Google BERT": (59.3, 95.2, (88.5, 84.3), (86.4, 88.0), (71.2, 89.0), 86.1, 85.7, 93.0, 71.1, 80.4),
    "Our BERT": (58.6, 93.9, (90.1, 86.6), (88.4, 89.1), (71.8, 89.3), 87.2, 86.6, 93.0, 74.7, 81.1),
    "Our BERT-1seq": (63.5, 94.8, (91.2, 87.8), (89.0, 88.4), (72.1, 89.5), 88.0, 87.4, 93.0, 72.1, 81.7),
    "SpanBERT": (64.3, 94.8, (90.9, 87.9), (89.9, 89.1), (71.9, 89.5), 88.1, 87.7, 94.3, 79.0, 82.8),
}


def of_scipy(correlation: Callable[..., Any], first: list[Any], second: list[Any]) -> float:
    """One of SciPy's correlations, in percent."""
    return 100 * float(np.asarray(correlation(first, second))[0])


def plain_matthews(gold: list[str], predicted: list[str], labels: tuple[str, ...]) -> float:
    """Gorodkin's sum over three labels of the confusion matrix; for two labels it is (TP TN - FP FN) / sqrt(...)."""
    table = {
        pair: sum(one == pair for one in zip(gold, predicted, strict=True))
        for pair in itertools.product(labels, labels)
    }
    above = sum(
        table[k, k] * table[other, m] - table[k, other] * table[m, k]
        for k, other, m in itertools.product(labels, repeat=3)
    )

    def spread(side: list[str]) -> int:
        return sum(side.count(k) * (len(side) - side.count(k)) for k in labels)

    below = spread(gold) * spread(predicted)
    return 100 * above / math.sqrt(below) if below else 0.0


@pytest.mark.parametrize("name", [name for name, task in glue.TASKS.items() if task.labels])
def test_random_labels(name: str) -> None:
    draw, labels = random.Random(name), glue.TASKS[name].labels
    for _ in range(600):
        some = draw.sample(labels, draw.randint(1, len(labels)))
        size = draw.randint(1, 60)
        gold, predicted = draw.choices(labels, k=size), draw.choices(some, k=size)
        scores = glue.score(name, gold, predicted)
        assert tuple(scores) == glue.TASKS[name].metrics
        equal = [a for a, b in zip(gold, predicted, strict=True) if a == b]
        wanted = {
            "accuracy": 100 * Fraction(len(equal), size),
            "f1": Fraction(200 * equal.count("1"), max(1, gold.count("1") + predicted.count("1"))),
            "matthews": plain_matthews(gold, predicted, labels),
        }
        for metric, found in scores.items():
            assert found == pytest.approx(float(wanted[metric]), rel=1e-14, abs=1e-14)


def test_random_numbers() -> None:
    """Quarters, as STS-B has them, so with many ties; and any numbers."""
    draw = random.Random(0)
    for _ in range(1_500):
        size = draw.randint(2, 50)
        gold = [draw.randint(0, 20) / 4 for _ in range(size)]
        predicted = [draw.choice([draw.gauss(2, 3), draw.randint(0, 8) / 2, 1.0]) for _ in range(size)]
        scores = glue.score("STS-B", gold, predicted)
        if min(len(set(gold)), len(set(predicted))) < 2:
            assert math.isnan(scores["pearson"]) and math.isnan(scores["spearman"])
            continue
        assert glue.ranks(predicted) == scipy.stats.rankdata(predicted).tolist()
        assert scores["pearson"] == pytest.approx(of_scipy(scipy.stats.pearsonr, gold, predicted), abs=CLOSE)
        assert scores["spearman"] == pytest.approx(of_scipy(scipy.stats.spearmanr, gold, predicted), abs=CLOSE)


def test_correlations_stay_in_range() -> None:
    values = [0.1 * x for x in range(7)]
    assert glue.pearson(values, [3 * x - 1 for x in values]) <= 100.0
    assert glue.spearman(values, [-x for x in values]) == -100.0
    assert math.isnan(glue.pearson([0.1] * 3, [1.0, 2.0, 3.0]))


def test_real_labels(shared_data: pathlib.Path) -> None:
    """Real gold labels, a third of the predictions changed; the correlation of 0 and 1 is Matthews'."""
    draw = random.Random(3)
    read = {"CoLA": (1, None, 1043), "STS-B": (9, 1, 1500), "RTE": (3, 1, 277)}
    for name, (column, header, size) in read.items():
        with open(shared_data / "glue" / name / "dev.tsv", encoding="utf-8", newline="") as lines:
            rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[header:]
        gold = [row[column] for row in rows]
        assert len(gold) == size
        changed = [draw.choice(gold) if draw.random() < 0.33 else one for one in gold]
        if name == "STS-B":
            numbers, given = [float(one) for one in gold], [float(one) for one in changed]
            scores = glue.score(name, numbers, given)
            assert scores["pearson"] == pytest.approx(of_scipy(scipy.stats.pearsonr, numbers, given), abs=CLOSE)
            assert scores["spearman"] == pytest.approx(of_scipy(scipy.stats.spearmanr, numbers, given), abs=CLOSE)
        elif name == "CoLA":
            found = glue.score(name, gold, changed)["matthews"]
            pairs = [[int(one) for one in side] for side in (gold, changed)]
            assert found == pytest.approx(of_scipy(scipy.stats.pearsonr, *pairs), abs=CLOSE)
            assert 50 < found < 90
        else:
            equal = np.mean(np.array(gold) == np.array(changed))
            assert glue.score(name, gold, changed) == {"accuracy": pytest.approx(100 * equal, abs=CLOSE)}


@pytest.mark.parametrize("row", TABLE_5)
def test_published_average(row: str) -> None:
    cola, sst, mrpc, sts, qqp, matched, mismatched, qnli, rte, wanted = TABLE_5[row]
    scores = {
        "CoLA": {"matthews": cola},
        "SST-2": {"accuracy": sst},
        "MRPC": dict(zip(("f1", "accuracy"), mrpc, strict=True)),
        "STS-B": dict(zip(("spearman", "pearson"), sts, strict=True)),
        "QQP": dict(zip(("f1", "accuracy"), qqp, strict=True)),
        "MNLI-m": {"accuracy": matched},
        "MNLI-mm": {"accuracy": mismatched},
        "QNLI": {"accuracy": qnli},
        "RTE": {"accuracy": rte},
        "WNLI": {"accuracy": 65.1},
    }
    assert f"{glue.average(scores):.1f}" == str(wanted)


def test_submission() -> None:
    assert glue.submission("RTE", ["entailment", "not_entailment"]) == (
        "RTE.tsv",
        "index\tprediction\n0\tentailment\n1\tnot_entailment\n",
    )
    assert glue.submission("STS-B", [5.2, -0.1, 2.34567], [3, 1, 2]) == (
        "STS-B.tsv",
        "index\tprediction\n3\t5.000\n1\t0.000\n2\t2.346\n",
    )
    files = {
        glue.submission(name, [2.5] if name == "STS-B" else task.labels)[0]
        for name, task in glue.TASKS.items()
        if task.file
    }
    plain = {f"{name}.tsv" for name in ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "QNLI", "RTE", "WNLI", "AX")}
    assert files == plain | {"MNLI-m.tsv", "MNLI-mm.tsv"}


def test_all_problems_at_once() -> None:
    with pytest.raises(
        ValueError, match="(?s)RTE cannot.*2 gold labels and 1 predicted.*1 unknown gold labels: -;.*: 7;"
    ):
        glue.score("RTE", ["entailment", "-"], ["7"])
    with pytest.raises(ValueError, match="2 predicted values are no finite numbers: nan, 3; expected"):
        glue.score("STS-B", [1.0, 2.0], [float("nan"), "3"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="unknown GLUE task 'MNLI': expected one of CoLA"):
        glue.score("MNLI", [], [])
    with pytest.raises(ValueError, match="there is no gold label"):
        glue.score("RTE", [], [])
    with pytest.raises(
        ValueError, match="(?s)no part in the average: SNLI;.*QQP has the scores f1.*only one of MNLI-m"
    ):
        glue.average({"SNLI": {"accuracy": 1.0}, "QQP": {"f1": 1.0}, "MNLI-mm": {"accuracy": 1.0}})
    with pytest.raises(ValueError, match="(?s)no such task.*2 predictions and 3 indices.*1 indices are repeated: 1;"):
        glue.submission("SNLI", ["neutral", "neutral"], [1, 1, 2])
