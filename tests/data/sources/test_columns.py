"""Columns of tables by their roles, and the one message for a table whose columns are others."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from spanjax.data.sources.columns import MOST_NAMES, Columns, Role, listed

TEXT, LABEL, WORDS = (
    Role("text", ("sentence", "text")),
    Role("label", ("label", "gold"), "label"),
    Role("tokens", ("tokens",), "list"),
)
TABLE = Columns((TEXT, LABEL, WORDS), (("text",), ("tokens",)), "`sentence`")


def named(*words: str) -> Columns:
    return dataclasses.replace(TABLE, named=words)


def written(path: pathlib.Path, records: list[dict[str, Any]]) -> pathlib.Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def test_a_named_column_wins_over_the_usual_ones() -> None:
    record = {"text": "usual", "review": "mine", "stars": 3, "gold": 4, "more": 5}
    assert named("text=review", "label=stars").renamed(record) == {"sentence": "mine", "label": 3, "more": 5}
    assert named("sentence=review").renamed(record) == {"sentence": "mine", "stars": 3, "gold": 4, "more": 5}
    assert named().renamed(record) == record
    # a record of the command line has the usual names
    assert named("text=review").renamed({"sentence": "given"}) == {"sentence": "given"}


def test_words_that_name_no_column_are_all_listed() -> None:
    assert named("text=review", "gold=stars").problems() == []
    assert named("tex=review", "label", "text=", "label=a", "gold=b").problems() == [
        "--columns tex=review: expected ROLE=COLUMN with a role of text, label, tokens; for example text=review",
        "--columns label: expected ROLE=COLUMN with a role of text, label, tokens; for example label=COLUMN",
        "--columns text=: expected ROLE=COLUMN with a role of text, label, tokens; for example text=COLUMN",
        "--columns gold=b: label has another column already; name one",
    ]


@pytest.mark.parametrize(
    ("words", "record", "flag"),
    [
        # by name, whatever the values
        ((), {"Sentence": "a", "body": "longer"}, "text=Sentence label=body"),
        (("text=reviw",), {"review": "a", "body": "longer", "labels": "x"}, "text=review label=labels"),
        # by value: the longest text, the shortest rest
        ((), {"id": "77", "review": "a fine film", "stars": "3"}, "text=review label=stars"),
        ((), {"stars": 3, "review": "a fine film"}, "text=review label=stars"),
        (("label=stars",), {"stars": 3, "review": "a fine film"}, "text=review label=stars"),
        ((), {"sentence": "known", "stars": 3}, "label=stars"),
        # nothing is left
        ((), {"number": 3.5}, "label=number"),
        ((), {}, ""),
        ((), {"sentence": "a", "label": "b", "more": "c"}, ""),
    ],
)  # fmt: skip
def test_the_likely_columns(words: tuple[str, ...], record: dict[str, Any], flag: str) -> None:
    assert named(*words).suggestion(record) == (f"--columns {flag}" if flag else "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "columns review, stars: expected `sentence`; name yours with --columns text=review label=stars"),
        (("text=reviews",), r"expected text=reviews \(--columns\); name yours with --columns text=review label=stars"),
    ],
)
def test_a_table_with_other_columns_is_one_message(
    words: tuple[str, ...], message: str, tmp_path: pathlib.Path
) -> None:
    rows = [{"review": f"a fine film {number}", "stars": "3"} for number in range(5)]
    (tmp_path / "a.csv").write_text("review,stars\n" + "".join(f"{row['review']},{row['stars']}\n" for row in rows))
    for path in (tmp_path / "a.csv", written(tmp_path / "a.jsonl", rows)):
        with pytest.raises(ValueError, match=message) as caught:
            list(named(*words).records(path))
        assert "\n" not in str(caught.value) and str(caught.value).startswith(f"{path}: ")
        assert [record for _, record, _ in named("text=review").records(path)][0] == {
            "sentence": "a fine film 0",
            "stars": "3",
        }


def test_objects_of_json_may_differ(tmp_path: pathlib.Path) -> None:
    """One without the columns among others, or alone, is the task's to describe."""
    good, bad = {"sentence": "a"}, {"other": "b"}
    for rows in ([bad, good], [bad, bad, good], [bad], []):
        assert [record for _, record, _ in TABLE.records(written(tmp_path / "a.jsonl", rows))] == rows


def test_columns_of_the_training_need_not_be_in_a_file_to_predict(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "a.jsonl", [{"sentence": "a"}] * 2)
    columns, records = named("text=review"), [("x", {"sentence": "a"}, "")] * 2
    assert [*columns.checked(records, path, strict=False)] == records
    wrong = [("x", {"other": "a"}, "")] * 2
    assert [*columns.checked(wrong, path, strict=False)] == wrong
    with pytest.raises(ValueError, match=r"expected text=review \(--columns\)"):
        list(columns.checked(records, path))


def test_a_message_has_some_of_many_columns() -> None:
    assert listed([]) == "(none)" and listed(["a", "b"]) == "a, b"
    assert listed(map(str, range(MOST_NAMES + 2))).endswith(", 18, 19 and 2 more")
