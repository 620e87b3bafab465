"""Files of questions: every form is read, every kind of bad question is listed with its place, nothing is guessed."""

import gzip
import json
import pathlib
import re
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from spanjax.tasks.squad import Questions
from spanjax.tasks.squad.questions import Question, read_questions

CONTEXT = "The  cat sat\non the mat. The dog did not."
OWN: dict[str, Any] = {"id": "a", "question": "Who sat?", "context": CONTEXT, "answers": [{"text": "cat", "start": 5}]}
MRQA = {
    "qid": "a",
    "question": "Who sat?",
    "answers": ["Cat", "the cat"],
    "detected_answers": [{"text": "cat", "char_spans": [[5, 7]]}, {"text": "the cat", "char_spans": [[0, 7]]}],
}


def lines(folder: pathlib.Path, *records: Any, name: str = "questions.jsonl") -> pathlib.Path:
    path = folder / name
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in records))
    return path


def squad(folder: pathlib.Path, *questions: Any, context: Any = CONTEXT) -> pathlib.Path:
    path = folder / "questions.json"
    path.write_text(json.dumps({"version": "x", "data": [{"paragraphs": [{"context": context, "qas": questions}]}]}))
    return path


def problem(path: pathlib.Path, unanswerable: bool = False) -> str:
    """The one problem of a file none of whose questions is kept but those called 'good'."""
    found = read_questions(path, unanswerable)
    assert [each.name for each in found] in ([], ["good"])
    assert len(found.problems) == 1, found.problems
    return found.problems[0].removeprefix(str(path))


def test_own_form(tmp_path: pathlib.Path) -> None:
    columns = {"text": ["cat", "The cat"], "answer_start": [5, 0]}
    path = lines(tmp_path, OWN, {**OWN, "id": 7, "answers": columns}, "", {**OWN, "id": "c", "answers": None})
    found = read_questions(path, unanswerable=False)
    assert found.problems == []
    assert found == [
        Question("a", "Who sat?", CONTEXT, ("cat",), ((5, 8),)),
        Question("7", "Who sat?", CONTEXT, ("cat", "The cat"), ((5, 8), (0, 8))),  # two blanks in the passage
        Question("c", "Who sat?", CONTEXT, None, ()),
    ]


def test_squad_form(tmp_path: pathlib.Path) -> None:
    known = {"id": "a", "question": "Who?", "answers": [{"text": " cat ", "answer_start": 4}]}
    none = {"id": "b", "question": "Who?", "answers": [], "is_impossible": True, "plausible_answers": [{"text": "x"}]}
    found = read_questions(squad(tmp_path, known, none, {"id": "c", "question": "Who?"}), unanswerable=True)
    assert found.problems == []
    assert [(each.name, each.answers, each.spans) for each in found] == [
        ("a", (" cat ",), ((5, 8),)),
        ("b", (), ()),
        ("c", None, ()),
    ]


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mrqa_form(header: bool, suffix: str, tmp_path: pathlib.Path) -> None:
    first = [{"header": {"dataset": "x", "split": "dev"}}] if header else []
    path = lines(tmp_path, *first, {"id": "", "context": CONTEXT, "context_tokens": [], "qas": [MRQA]})
    if suffix:
        (tmp_path / f"x.jsonl{suffix}").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / f"x.jsonl{suffix}"
    found = read_questions(path, unanswerable=False)
    assert found.problems == []
    assert found == [Question("a", "Who sat?", CONTEXT, ("Cat", "the cat"), ((5, 8), (0, 8)))]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"question": ""}, ":2: the question is empty"),
        ({"question": ["who"]}, ":2: the question is ['who']"),
        ({"context": " \n\u200b"}, ":2: the context is empty"),
        ({"context": None}, ":2: the context is missing"),
        ({"id": ""}, ":2: the id is ''"),
        ({"id": 1.5}, ":2: the id is 1.5"),
        ({"id": None}, ":2: the id is missing"),
        ({"id": "good"}, ":2: the id 'good' again, first at"),
        ({"answers": "cat"}, ":2: answers are 'cat'; expected a list"),
        ({"answers": ["cat"]}, ":2: an answer is 'cat'; expected its text"),
        ({"answers": [{"text": "cat", "start": "5"}]}, ":2: an answer is {'text': 'cat', 'start': '5'}"),
        ({"answers": [{"text": "cat", "start": True}]}, ":2: an answer is {'text': 'cat', 'start': True}"),
        ({"answers": [{"text": " ", "start": 3}]}, ":2: an empty answer"),
        ({"answers": [{"text": "cat", "start": 4}]}, ":2: at 4 is ' ca'; expected the answer 'cat', which is at 5"),
        ({"answers": [{"text": "The", "start": 24}]}, "which is at 25"),
        ({"answers": [{"text": "cat", "start": -36}]}, ":2: at -36 is ''; expected the answer 'cat', which is at 5"),
        ({"answers": [{"text": "cat", "start": 500}]}, ":2: at 500 is ''; expected the answer 'cat', which is at 5"),
        ({"answers": [{"text": "cow", "start": 5}]}, ":2: the answer 'cow' is not in the context"),
        ({"answers": {"text": ["cat"]}}, ":2: answers are an object; expected two lists of one length"),
        ({"answers": {"text": ["cat"], "answer_start": []}}, ":2: answers are an object; expected two lists"),
        ({"answers": []}, ":2: no answer; expected at least one, or --objective.version 2.0"),
        ({"qas": 3}, ':2: "qas" is no list'),
        ({"qas": [3]}, ":2: question 1: a JSON int; expected an object"),
    ],
)
def test_bad_lines(change: dict[str, Any], says: str, tmp_path: pathlib.Path) -> None:
    assert says in problem(lines(tmp_path, {**OWN, "id": "good"}, {**OWN, **change}))


@pytest.mark.parametrize(("line", "says"), [("{", ":2: not JSON"), ("[1]", ":2: a JSON list: expected an object")])
def test_lines_that_are_no_objects(line: str, says: str, tmp_path: pathlib.Path) -> None:
    assert problem(lines(tmp_path, {**OWN, "id": "good"}, line)).startswith(says)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"answers": None}, "question a: answers are missing; expected a list of texts"),
        ({"answers": [3]}, "question a: answers are [3]"),
        ({"detected_answers": []}, "question a: detected_answers are []"),
        ({"detected_answers": [{"text": "cat"}]}, "question a: a detected answer is {'text': 'cat'}"),
        ({"detected_answers": [{"text": "cat", "char_spans": [[5]]}]}, "question a: a char_span is [5]"),
        ({"detected_answers": [{"text": "cat", "char_spans": [[5, 8.0]]}]}, "question a: a char_span is [5, 8.0]"),
        ({"detected_answers": [{"text": "cat", "char_spans": [[5, 8]]}]}, ""),  # a blank more
        ({"detected_answers": [{"text": "cat", "char_spans": [[5, 9]]}]}, "the characters [5, 9] are 'cat s'"),
        ({"detected_answers": [{"text": "mat.", "char_spans": [[20, 22]]}]}, ""),  # the same to the score
        ({"detected_answers": [{"text": "cat", "char_spans": [[7, 5]]}]}, "the characters [7, 5] are ''"),
        ({"detected_answers": [{"text": "not", "char_spans": [[38, 400]]}]}, "the characters [38, 400] are ''"),
        ({"detected_answers": [{"text": "cat", "char_spans": [[-36, -34]]}]}, "the characters [-36, -34] are ''"),
        ({"qid": None}, "the id is missing"),
    ],
)
def test_bad_mrqa(change: dict[str, Any], says: str, tmp_path: pathlib.Path) -> None:
    path = lines(tmp_path, {"header": {}}, {"context": CONTEXT, "qas": [{**MRQA, **change}]})
    if says:
        assert says in problem(path) and problem(path).startswith(":2: question ")
    else:
        assert read_questions(path, False).problems == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"is_impossible": True}, ":question a: is_impossible is true and there are answers"),
        ({"is_impossible": False, "answers": []}, ":question a: is_impossible is false and there is no answer"),
        ({"is_impossible": "no"}, ":question a: is_impossible is 'no'"),
        ({"answers": [{"text": "cat", "answer_start": 6}]}, ":question a: at 6 is 'at '; expected the answer 'cat'"),
        ({"id": None}, ":article 1, paragraph 1, question 1: the id is missing"),
    ],
)
def test_bad_squad(change: dict[str, Any], says: str, tmp_path: pathlib.Path) -> None:
    good = {"id": "a", "question": "Who?", "answers": [{"text": "cat", "answer_start": 5}]}
    assert problem(squad(tmp_path, {**good, **change}), unanswerable=True).startswith(says)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([3], ":article 1: no list"),
        ([{"paragraphs": {}}], ":article 1: no list"),
        ([{"paragraphs": [{"context": "x"}]}], ":article 1, paragraph 1: no list"),
        ([{"paragraphs": [{"context": "x", "qas": ["y"]}]}], ":article 1, paragraph 1, question 1: a JSON str"),
        ([{"paragraphs": [{"qas": [{"id": "b"}]}]}], ":question b: the context is missing"),
    ],
)
def test_bad_articles(data: Any, says: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"data": data}))
    assert problem(tmp_path / "x.json").startswith(says)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.txt", "a,b", "a file of questions is SQuAD's .json"),
        ("x.json", "[]", "not in SQuAD's form"),
        ("x.json", '{"data": {}}', "not in SQuAD's form"),
        ("x.json", '{"data": [', "not JSON"),
        ("missing.json", None, "no such file"),
    ],
)
def test_files_that_are_of_no_form(name: str, content: str | None, says: str, tmp_path: pathlib.Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=says):
        read_questions(tmp_path / name, unanswerable=False)


@pytest.mark.parametrize(
    ("name", "unanswerable", "count", "problems"),
    [
        ("squad/dev-v1.1.json.gz", False, 10_570, 0),
        ("squad/dev-v2.0.json.gz", True, 11_873, 0),
        ("squad/quoref-original-subset.json.gz", False, 408, 7),  # answers whose offset is wrong by one
        ("squad/xquad-en-part1.json.gz", False, 826, 0),
        ("mrqa/NaturalQuestionsShort-dev.jsonl.gz", False, 273, 0),
        ("mrqa/NewsQA_sample.jsonl", False, 17, 0),
    ],
)
def test_real_files(name: str, unanswerable: bool, count: int, problems: int, shared_data: pathlib.Path) -> None:
    found = read_questions(shared_data / name, unanswerable)
    assert (len(found), len(found.problems)) == (count, problems)
    for each in found:
        words = [each.context[start:end].split() for start, end in each.spans]
        assert "mrqa" in name or words == [answer.split() for answer in each.answers or ()]


def test_unanswerable_questions_are_problems_where_answers_are_expected(shared_data: pathlib.Path) -> None:
    found = read_questions(shared_data / "squad" / "dev-v2.0.json.gz", unanswerable=False)
    assert (len(found), len(found.problems)) == (5_928, 5_945)


def test_tables_of_questions(tmp_path: pathlib.Path) -> None:
    cat = Question("0", "Who sat?", "The cat sat.", ("cat",), ((4, 7),))
    answers = {"text": ["cat"], "answer_start": [4]}
    quoted = json.dumps(answers).replace('"', '""')
    files = {
        "flat.csv": "question,context,answer,answer_start\nWho sat?,The cat sat.,cat,4\n",
        "only.csv": "question,passage,answer\nWho sat?,The cat sat.,cat\n",
        "json.csv": f'question,context,answers\nWho sat?,The cat sat.,"{quoted}"\n',
        "list.json": json.dumps([{"question": cat.question, "context": cat.context, "answers": answers}]),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    table = pyarrow.Table.from_pylist([{"question": cat.question, "context": cat.context, "answers": answers}])
    parquet.write_table(table, tmp_path / "a.parquet")
    for name in (*files, "a.parquet"):
        found = read_questions(tmp_path / name, unanswerable=False)
        assert (list(found), found.problems) == ([cat], []), name


@pytest.mark.parametrize(
    ("row", "answers", "problem"),
    [
        ("The cat and the cat.,cat,", None, "an answer is .*expected its text and, a whole number, where it starts"),
        ("The cat sat.,dog,0", None, "the answer 'dog' is not in the context"),
        ("The cat sat.,,", (), ""),
        ("The cat sat.,cat,x", None, "an answer is"),
    ],
)
def test_one_answer_in_a_cell(row: str, answers: tuple[str, ...] | None, problem: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text(f"question,context,answer,answer_start\nWho?,{row}\n")
    found = read_questions(tmp_path / "a.csv", unanswerable=True)
    assert [each.answers for each in found] == ([] if problem else [answers])
    assert bool(found.problems) == bool(problem) and re.search(problem, "".join(found.problems))


def test_questions_of_named_columns(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("q,text,answer\nWho?,The cat.,cat\n")
    task = Questions(columns=("question=q", "context=text"))
    assert [each.spans for each in task.read(tmp_path / "a.csv")] == [((4, 7),)]
    with pytest.raises(
        ValueError, match="columns q, text, answer: expected `question` and.*; name yours with --columns"
    ):
        Questions().read(tmp_path / "a.csv")
