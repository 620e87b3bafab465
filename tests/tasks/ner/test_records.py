"""Tables with a sentence a record: words and tags as lists or as text, tags as names or numbers."""

import json
import pathlib
from typing import Any

import pyarrow
import pytest

from spanjax.tasks.ner import Ner
from spanjax.tasks.ner.files import Tagged
from tests.saved_dataset import saved_dataset

NAMES = ["O", "B-PER", "I-PER", "B-LOC"]
ROWS = [
    {"tokens": ["Anna", "Bell", "is", "in", "Bonn"], "ner_tags": [1, 2, 0, 0, 3]},
    {"tokens": ["Hi"], "ner_tags": [0]},
]
SENTENCES = [
    Tagged(("Anna", "Bell", "is", "in", "Bonn"), ("B-PER", "I-PER", "O", "O", "B-LOC")),
    Tagged(("Hi",), ("O",)),
]


def with_names(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "ner_tags": [NAMES[number] for number in row["ner_tags"]]}


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_every_form_gives_the_same_sentences(tmp_path: pathlib.Path) -> None:
    numbers = {name: [" ".join(map(str, row[name])) for row in ROWS] for name in ("tokens", "ner_tags")}
    tsv = "".join(f"{words}\t{tags}\n" for words, tags in zip(*numbers.values(), strict=True))
    files = {
        "names.jsonl": lines([with_names(row) for row in ROWS]),
        "numbers.jsonl": lines(ROWS),
        "names.json": json.dumps([with_names(row) for row in ROWS]),
        "text.csv": 'words,tags\nAnna Bell is in Bonn,B-PER I-PER O O B-LOC\n"[""Hi""]","[""O""]"\n',
        "numbers.tsv": f"tokens\tner_tags\n{tsv}",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        assert list(Ner(tag_names=tuple(NAMES)).read(tmp_path / name)) == SENTENCES, name
    feature = {"feature": {"names": NAMES, "_type": "ClassLabel"}, "_type": "List"}
    saved_dataset(tmp_path / "saved", pyarrow.Table.from_pylist(ROWS), {"ner_tags": feature})
    assert list(Ner().read(tmp_path / "saved")) == SENTENCES


def test_named_columns_other_schemes_and_prefixes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("w\tt\nen:Anna Bell\tU-PER O\n")
    task = Ner(columns=("tokens=w", "ner_tags=t"), scheme="bioes", word_prefix="en:")
    assert list(task.read(path)) == [Tagged(("Anna", "Bell"), ("S-PER", "O"))]


def test_a_file_of_columns_stays_one(tmp_path: pathlib.Path) -> None:
    """Also where its first words are the names of one of the two columns."""
    path = tmp_path / "a.tsv"
    path.write_text("tokens\tO\nAnna\tB-PER\n\n")
    assert list(Ner().read(path)) == [Tagged(("tokens", "Anna"), ("O", "B-PER"))]


def test_records_without_tags_have_none_and_a_hint(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines([{"tokens": ["Hi"], "labels": ["O"]}]))
    found = Ner().read(tmp_path / "a.jsonl")
    assert list(found) == [Tagged(("Hi",), None)] and not Ner().is_labelled(found[0])
    assert found.hints and "expected `ner_tags`; name yours with --columns" in found.hints[0]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"tokens": [], "ner_tags": []}, "`tokens` is []: expected a list of words"),
        ({"tokens": ["a", " "], "ner_tags": ["O", "O"]}, "`tokens` has ' ' at 1: expected words"),
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, "`ner_tags` is 1 tags: expected a tag for each of the 2 words"),
        ({"tokens": ["a"], "ner_tags": 3}, "`ner_tags` is 3: expected a tag for each of the 1 words"),
        ({"tokens": ["a"], "ner_tags": ["PER"]}, "tag 'PER': expected O, or B-"),
        ({"tokens": ["a"], "ner_tags": [None]}, "tag None: expected O, or B-"),
        ({"tokens": ["a"], "ner_tags": [4]}, "`ner_tags` has the class 4: expected 0 to 3"),
        ({"body": "a"}, "columns body: expected `tokens` (or `words`) and `ner_tags` (or `tags`)"),
    ],
)
def test_a_bad_record_is_named(row: dict[str, Any], problem: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines([ROWS[1], row]))
    found = Ner(tag_names=tuple(NAMES)).read(tmp_path / "a.jsonl")
    assert list(found) == SENTENCES[1:] and len(found.problems) == 1
    assert found.problems[0].startswith(f"{tmp_path / 'a.jsonl'}:2: {problem}")


def test_numbers_without_names_are_one_message(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(ROWS))
    with pytest.raises(
        ValueError, match=r"a.jsonl:1: the tags are numbers: give their names .*--objective.tag-names O B-PER"
    ):
        Ner().read(tmp_path / "a.jsonl")
