"""TACRED and SemEval-2010 task 8: the official scorer's own print-outs, and sets of examples counted by hand."""

import gzip
import pathlib
import random
import re

import pytest

from spanjax.scoring import relation
from spanjax.scoring.relation import SEMEVAL_LABELS, Way

CASES = "relation/semeval2010_task8/scorer_cases"
NUMBER = r"\s*([\d.]+)%"
RELATION = re.compile(
    rf"^\s*(\S+) :    P =\s*(\d+)/\(?\s*(\d+)(?: \+\s*(\d+)\))? ={NUMBER}\s*R =\s*\d+/\s*(\d+) ={NUMBER}\s*F1 ={NUMBER}"
)
MICRO = re.compile(rf"^P =\s*(\d+)/\s*(\d+) ={NUMBER}\s*R =\s*\d+/\s*(\d+) ={NUMBER}\s*F1 ={NUMBER}")
MACRO = re.compile(rf"^P ={NUMBER}\s*R ={NUMBER}\s*F1 ={NUMBER}")


def labels(path: pathlib.Path) -> dict[str, str]:
    """Labels by sentence id."""
    return dict(line.split("\t") for line in path.read_text().splitlines() if line)


def printed(way: Way) -> list[tuple[str, ...]]:
    """What the scorer prints of one way: relations, micro, macro, accuracies."""
    rows = []
    for name, one in [*way.relations.items(), ("micro", way.micro)]:
        shown = "_Other" if name == "Other" else name
        rows.append((shown, one.correct, one.predicted, one.precision, one.gold, one.recall, one.f1))
    rows.append(("macro", way.macro_precision, way.macro_recall, way.macro_f1))
    rows.append(("accuracy", way.accuracy, way.accuracy_skipped_wrong, way.accuracy_skipped_other))
    rounded = [tuple(f"{x:.2f}" if isinstance(x, float) else str(x) for x in row) for row in rows]
    return sorted(rounded)


def read_way(section: str) -> list[tuple[str, ...]]:
    """The same from a section of the scorer's print-out."""
    rows: list[tuple[str, ...]] = []
    for line in section.splitlines():
        if found := RELATION.match(line):
            name, correct, predicted, wrong_way, *rest = found.groups()
            rows.append((name, correct, str(int(predicted) + int(wrong_way or 0)), *rest))
        elif found := MICRO.match(line):
            rows.append(("micro", *found.groups()))
        elif found := MACRO.match(line):
            rows.append(("macro", *found.groups()))
    rows.append(("accuracy", *re.findall(r"Accuracy .* = \d+/\d+ =\s+([\d.]+)%", section)))
    return sorted(rows)


@pytest.mark.parametrize("case", [1, 2, 3, 5])
def test_official_cases(case: int, shared_data: pathlib.Path) -> None:
    folder = shared_data / CASES
    gold, predicted = labels(folder / f"answer_key{case}.txt"), labels(folder / f"proposed_answer{case}.txt")
    found = relation.semeval(gold, predicted, may_skip=True)
    text = (folder / f"result_scores{case}.txt").read_text()
    sections = re.split(r"<<< \(.*WAY EVALUATION.*>>>:\n", text)[1:]
    assert len(sections) == 3
    for way, section in zip((found.directed, found.undirected, found.official), sections, strict=True):
        assert len(read_way(section)) == len(way.relations) + 3
        assert printed(way) == read_way(section)
        assert f"= {found.coverage:5.2f}%" in section
    assert f"macro-averaged F1 = {found.official.macro_f1:0.2f}%" in text


def test_real_key_against_itself(shared_data: pathlib.Path) -> None:
    packed = shared_data / "relation/semeval2010_task8/TEST_FILE_FULL.TXT.gz"
    lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
    gold = {line.split("\t")[0]: label for line, label in zip(lines, lines[1:], strict=False) if "\t" in line}
    found = relation.semeval(gold, gold)
    assert len(gold) == 2717 and found.official.macro_f1 == found.directed.macro_f1 == 100.0
    assert (found.official.micro.gold, found.official.relations["Other"].gold) == (2263, 454)


def test_rejected_case(shared_data: pathlib.Path) -> None:
    predicted = labels(shared_data / CASES / "proposed_answer4.txt")
    wanted = r"3 unknown predicted labels: Message-Topc\(e1,e2\), Cause-Effect\(e1, e2\), Instrument-Agency \(e2,e1\);"
    with pytest.raises(ValueError, match=wanted):
        relation.semeval(labels(shared_data / CASES / "answer_key3.txt"), predicted, may_skip=True)


def test_random_semeval() -> None:
    """The official way by sets of ids."""
    draw = random.Random(0)
    for _ in range(2_000):
        some = [
            *draw.sample(SEMEVAL_LABELS, draw.randint(1, 6)),
            "Message-Topic(e1,e2)",
            "Message-Topic(e2,e1)",
            "Other",
        ]
        ids = range(draw.randint(1, 40))
        gold = {one: draw.choice(some) for one in ids} | {-1: "Message-Topic(e2,e1)"}
        predicted = {one: draw.choice(some) for one in ids if draw.random() < 0.9} | {-1: "Other"}
        found = relation.semeval(gold, predicted, may_skip=True)
        right = {one for one in predicted if predicted[one] == gold[one]}
        names = sorted({label.split("(")[0] for label in gold.values()} - {"Other"})
        f1s, micro = [], [0, 0, 0]
        for name in names:
            golds = {one for one in gold if gold[one].startswith(name)}
            guesses = {one for one in predicted if predicted[one].startswith(name)}
            counts = [len(golds & right), len(guesses), len(golds)]
            micro = [a + b for a, b in zip(micro, counts, strict=True)]
            f1s.append(200 * counts[0] / (counts[1] + counts[2]))
            one = found.official.relations[name]
            assert [one.correct, one.predicted, one.gold] == counts
        assert found.official.macro_f1 == pytest.approx(sum(f1s) / len(names), rel=1e-13)
        one = found.official.micro
        assert [one.correct, one.predicted, one.gold] == micro
        assert found.official.accuracy == 100 * len(right) / len(predicted)
        assert found.official.macro_f1 <= found.undirected.macro_f1 + 1e-9


def test_random_tacred() -> None:
    """By sets of (place, relation); three decimals of percent are what the official scorer prints."""
    draw = random.Random(1)
    names = ["no_relation", "per:title", "org:founded", "per:age", "org:website"]
    for _ in range(3_000):
        size = draw.randint(0, 30)
        gold, predicted = draw.choices(names, k=size), draw.choices(names[: draw.randint(1, 5)], k=size)
        found = relation.tacred(gold, predicted, names)
        for name, one in [(None, found.micro), *found.relations.items()]:
            golds, guesses = (
                {(place, x) for place, x in enumerate(side) if x != "no_relation" and name in (None, x)}
                for side in (gold, predicted)
            )
            counts = (len(golds & guesses), len(guesses), len(golds))
            assert (one.correct, one.predicted, one.gold) == counts
            precision = counts[0] / counts[1] if counts[1] else 1.0
            recall = counts[0] / counts[2] if counts[2] else 0.0
            f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
            wanted = [f"{x:.3%}" for x in (precision, recall, f1)]
            assert [f"{x:.3f}%" for x in (one.precision, one.recall, one.f1)] == wanted
        assert set(found.relations) == ({*gold, *predicted} - {"no_relation"})


def test_all_problems_at_once() -> None:
    with pytest.raises(
        ValueError, match="(?s)2 gold labels and 1 pred.*1 unknown gold labels: b;.*1 unknown predicted labels: c;"
    ):
        relation.tacred(["no_relation", "b"], ["c"], labels=["a"])
    with pytest.raises(
        ValueError, match="(?s)1 ids have no prediction: 2;.*ids are not in the key: 3;.*no gold label is a relation"
    ):
        relation.semeval({1: "Other", 2: "Other"}, {1: "Other", 3: "Other"})
    with pytest.raises(ValueError, match="there is no prediction"):
        relation.semeval({1: "Cause-Effect(e1,e2)"}, {}, may_skip=True)
