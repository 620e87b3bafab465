"""MRQA: scored over `answers` and not over the spans that were detected in the passage; questions that nobody answers count 0."""

import collections
import json
import pathlib
import random
import re
import string
from collections.abc import Sequence

import pytest

from spanjax.scoring import squad
from spanjax.tasks.squad import Questions
from spanjax.tasks.squad.answers import Prediction

FILES = ("NewsQA_sample.jsonl", "NaturalQuestionsShort-dev.jsonl.gz", "SQuAD-dev-6articles.jsonl.gz")


def words(text: str) -> list[str]:
    """The words that count, by the published rule, letter by letter."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return [word for word in re.sub(r"\b(a|an|the)\b", " ", bare).split() if word]


def by_loops(answers: Sequence[str], predicted: str) -> tuple[float, float]:
    best = [0.0, 0.0]
    for answer in answers:
        gold, given = words(answer), words(predicted)
        left, same = collections.Counter(gold), 0
        for word in given:
            if left[word] > 0:
                left[word] -= 1
                same += 1
        best[0] = max(best[0], float(gold == given))
        best[1] = max(best[1], 2 * same / (len(gold) + len(given)) if same else 0.0)
    return best[0], best[1]


@pytest.mark.parametrize("name", FILES)
def test_files_are_scored_over_their_answers(name: str, shared_data: pathlib.Path) -> None:
    """Through the reader: parts of passages as predictions, every seventh question not answered."""
    draw, asked = random.Random(0), Questions(version="mrqa").read(shared_data / "mrqa" / name)
    gold = {each.name: list(each.answers or ()) for each in asked}
    given = {}
    for number, each in enumerate(asked):
        start, end = each.spans[0]
        texts = [
            each.context[start:end],
            each.context[max(0, start - 5) : end],
            each.context[start : end + 9],
            "",
            "the",
        ]
        if number % 7:
            given[each.name] = draw.choice(texts)
    expected = [by_loops(answers, given[qid]) if qid in given else (0.0, 0.0) for qid, answers in gold.items()]
    found = squad.score_mrqa(gold, given, missing_is_wrong=True)
    assert found["exact_match"] == pytest.approx(100 * sum(one for one, _ in expected) / len(gold), rel=1e-12)
    assert found["f1"] == pytest.approx(100 * sum(f1 for _, f1 in expected) / len(gold), rel=1e-12)
    assert 5 < found["exact_match"] < found["f1"] < 95
    with pytest.raises(
        ValueError, match=f"MRQA cannot be computed:\n  - {len(gold) - len(given)} ids have no prediction"
    ):
        squad.score_mrqa(gold, given)


def test_a_detected_span_is_no_gold_answer(tmp_path: pathlib.Path) -> None:
    """Training learns the detected span; the score knows the texts alone."""
    asked = {"qid": "a", "question": "when?", "answers": ["1990s"]}
    asked["detected_answers"] = [{"text": "late 1990s", "char_spans": [[7, 16]]}]
    (path := tmp_path / "dev.jsonl").write_text(json.dumps({"context": "In the late 1990s.", "qas": [asked]}) + "\n")
    task = Questions(version="mrqa")
    (question,) = task.read(path)
    assert question.context[slice(*(task.learnt(question) or (0, 0)))] == "late 1990s"
    scores = task.scores([question], [Prediction("late 1990s", 0.0, ())])
    assert scores == {"exact_match": 0.0, "f1": pytest.approx(200 / 3)}
    assert task.scores([question], [Prediction("the 1990s!", 0.0, ())]) == {"exact_match": 100.0, "f1": 100.0}
