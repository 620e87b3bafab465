"""Several passages of a question: rows, ranking against a plain loop, files, confidences."""

import dataclasses
import itertools
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.vocab.wordpiece import WordPieceVocabulary
from spanjax.tasks.squad import Questions
from spanjax.tasks.squad.answers import decode
from spanjax.tasks.squad.questions import Question, read_question

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
VOCABULARY = WordPieceVocabulary(PIECES, lower_case=False)
TASK = Questions(version="2.0", length=16, stride=4, max_query=4, n_best=50, max_answer=3)
PASSAGES = ("a b c d e f g h a b c d e f", "g h", "c d e")
SEVERAL = Question("1", "a b", PASSAGES[0], ("g h",), (), PASSAGES[1:])


def outputs_of(rows: Any, logits: np.random.Generator) -> list[dict[str, np.ndarray]]:
    names = ("start_BL", "end_BL")
    return [{name: logits.normal(0, 4, len(row.tokens_T)).astype(np.float32) for name in names} for row in rows]


def test_rows_are_those_of_each_passage() -> None:
    rows = list(TASK.rows([SEVERAL], VOCABULARY))
    alone = [
        (place, row)
        for place, passage in enumerate(PASSAGES)
        for row in TASK.rows([SEVERAL._replace(context=passage, more=())], VOCABULARY)
    ]
    assert len(rows) == len(alone) == 4
    for row, (place, one) in zip(rows, alone, strict=True):
        assert row.tokens_T.tolist() == one.tokens_T.tolist() and row.example == 0
        assert row.notes.passage == place and (row.fields["start_B"], row.fields["end_B"]) == (0, 0)


@given(st.integers(0, 10**6))
def test_passages_are_ranked_by_their_margin_over_no_answer(seed: int) -> None:
    """Each passage decoded alone, its answers by their score minus its own null, then one list of all of them."""
    rows = list(TASK.rows([SEVERAL], VOCABULARY))
    outputs = outputs_of(rows, np.random.default_rng(seed))
    (found,) = TASK.predictions([SEVERAL], rows, outputs)
    ranked, margins = [], []
    for place, passage in enumerate(PASSAGES):
        own = [number for number, row in enumerate(rows) if row.notes.passage == place]
        logits = [(outputs[number]["start_BL"], outputs[number]["end_BL"]) for number in own]
        windows = [rows[number].notes._replace(passage=0) for number in own]
        alone = decode([passage], windows, logits, TASK.n_best, TASK.max_answer, null=True)
        null = next(one for one in alone.best if not one.text).score
        ranked += [(one.score - null, place, one) for one in alone.best if one.text]
        margins.append(-alone.null_odds)
    best: dict[str, tuple[float, int, Any]] = {}
    for margin, place, one in sorted(ranked, key=lambda each: -each[0]):
        best.setdefault(one.text, (margin, place, one))
    kept = list(best.values())[: TASK.n_best]
    texts = [one for one in found.best if one.text]
    assert [(one.text, one.passage) for one in texts] == [(one.text, place) for _, place, one in kept]
    assert np.allclose([one.score for one in texts], [margin for margin, *_ in kept])
    assert all(PASSAGES[one.passage or 0][one.start : one.end] == one.text for one in texts)
    assert math.isclose(found.null_odds, -max(margins), abs_tol=1e-6)
    assert [(one.score, one.passage) for one in found.best if not one.text] == [(0.0, None)]


def test_the_same_passages_in_another_order_give_the_same_answer() -> None:
    outputs = outputs_of(list(TASK.rows([SEVERAL], VOCABULARY)), np.random.default_rng(3))
    of_passage: dict[int, list[Any]] = {}
    for row, output in zip(TASK.rows([SEVERAL], VOCABULARY), outputs, strict=True):
        of_passage.setdefault(row.notes.passage, []).append(output)
    answers = set()
    for order in itertools.permutations(range(3)):
        passages = [PASSAGES[place] for place in order]
        example = SEVERAL._replace(context=passages[0], more=tuple(passages[1:]))
        rows = list(TASK.rows([example], VOCABULARY))
        (found,) = TASK.predictions([example], rows, [output for place in order for output in of_passage[place]])
        assert found.answer and found.answer.passage is not None
        described = TASK.prediction_json(example, found, ())
        answers.add((found.text, order[found.answer.passage], round(found.null_odds, 9), described["confidence"]))
        assert described["best"][0].keys() == {"text", "start", "end", "passage", "probability"}
        assert described["prediction"] == "" or described["passage"] == found.answer.passage
    assert len(answers) == 1


def test_confidences_are_a_softmax_of_the_best_behind_a_curve() -> None:
    rows = list(TASK.rows([SEVERAL], VOCABULARY))
    (found,) = TASK.predictions([SEVERAL], rows, outputs_of(rows, np.random.default_rng(5)))
    total = sum(math.exp(one.score) for one in found.best)
    for answer in (None, found.best[0], found.answer):
        score = next(one.score for one in found.best if one.text == (answer.text if answer else ""))
        assert found.probability_of(answer) == pytest.approx(math.exp(score) / total)
    decided = None if found.null_odds > 0 else found.answer
    plain = found.probability_of(decided)
    assert TASK.prediction_json(SEVERAL, found, ())["confidence"] == pytest.approx(plain, abs=1e-6)
    curved = dataclasses.replace(TASK, calibration_curve=(0.5, 0.25, -1.0)).prediction_json(SEVERAL, found, ())[
        "confidence"
    ]
    odds = 0.5 * math.log(plain) - 0.25 * math.log(1 - plain) - 1
    assert curved == pytest.approx(1 / (1 + math.exp(-odds)), abs=1e-5)


def test_the_curve_of_the_dev_examples_is_used() -> None:
    """Answers that are right less often than their scores claim get lower confidences, and a smaller error."""
    examples = [SEVERAL._replace(answers=("g h",) if number % 3 else ("h",)) for number in range(120)]
    found = []
    for number in range(120):
        rows = list(TASK.rows([SEVERAL], VOCABULARY))
        outputs = outputs_of(rows, np.random.default_rng(number))
        outputs[2]["start_BL"][4] = outputs[2]["end_BL"][5] = 24  # "g h" of the second passage
        outputs[2]["start_BL"][0] = outputs[2]["end_BL"][0] = -2
        found += TASK.predictions([SEVERAL], rows, outputs)
    assert {each.text for each in found} == {"g h"}
    scores = TASK.calibration(examples, [], found, [])
    assert scores["calibration_error"] == scores["uncalibrated_error"] > 30
    inferred = TASK.inferred_settings({**scores, "best_f1_thresh": -1.5})
    assert inferred["threshold"] == -1.5 and len(inferred["calibration_curve"]) == 3
    again = dataclasses.replace(TASK, **inferred)
    assert again.inferred_settings(scores) == {}
    assert again.calibration(examples, [], found, [])["calibration_error"] < scores["uncalibrated_error"] / 2
    assert dataclasses.replace(TASK, version="1.1", answers="set").calibration(examples, [], found, []) == {}


def test_files(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "several.jsonl"
    lines: list[dict[str, Any]] = [
        {"id": "a", "question": "Who?", "contexts": ["The cat.", "A dog."], "answers": ["cat", "dog"]},
        {"id": "b", "question": "Who?", "passages": ["The cat."], "answers": {"text": ["cat"], "answer_start": [4]}},
        {"id": "c", "question": "Who?", "contexts": ["The cat.", "A dog."], "answers": [{"text": "cat"}]},
        {"id": "d", "question": "Who?", "contexts": ["The cat.", "A dog."]},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = Questions().read(path)
    assert found.problems == []
    assert [each.answers for each in found] == [("cat", "dog"), ("cat",), ("cat",), None]
    assert [each.contexts for each in found] == [("The cat.", "A dog."), ("The cat.",), *[("The cat.", "A dog.")] * 2]
    assert [TASK.teaches(each) for each in found] == [False, False, False, False]
    with pytest.raises(ValueError, match="no training question has answers"):
        TASK.with_training_labels(found, VOCABULARY)
    table = tmp_path / "several.csv"
    table.write_text('id,question,contexts,answer\n1,Who?,"[""The cat."", ""A dog.""]",cat\n')
    assert Questions().read(table) == [Question("1", "Who?", "The cat.", ("cat",), (), ("A dog.",))]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"contexts": []}, "contexts are []; expected a list of texts"),
        ({"contexts": "The cat."}, "expected a list of texts, in a cell as JSON"),
        ({"contexts": ["a", 1]}, "the context is 1; expected a text"),
        ({"contexts": ["a"], "context": "a"}, "`context` and `contexts`; expected one of the two"),
        ({"contexts": ["a"], "answers": [1]}, "expected a list of texts"),
        ({"contexts": ["a"], "answers": "b c"}, "expected a list"),
    ],
)
def test_bad_records(fields: dict[str, Any], said: str) -> None:
    problem = read_question({"question": "Who?", **fields}, 0)
    assert isinstance(problem, str) and said in problem
