"""Tables of records: every kind alike, classes by name, damaged ones; how long a line may be."""

import gzip
import json
import pathlib
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from spanjax.data.sources.documents import MAX_DOCUMENT
from spanjax.data.sources.tables import list_in_text, number_in_text, read_json, read_lines, read_records
from spanjax.tasks.coref.text import read_text
from tests.saved_dataset import saved_dataset

MOST = MAX_DOCUMENT << 20


def test_a_line_that_is_too_long_is_refused_while_it_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"a\n" + b"x" * (MOST + 10) + b"\n"))
    lines = read_lines(path)
    assert next(lines) == (1, "a")
    with pytest.raises(ValueError, match=f"a.jsonl.gz:2: the line has {MOST:,} characters or more; split it"):
        next(lines)
    assert [(number, len(line)) for number, line in read_lines(path, most=-1)] == [(1, 1), (2, MOST + 10)]


def test_lines_of_the_largest_size_are_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abcd\r\n\nab\nabc")
    assert [*read_lines(path, 6)] == [(1, "abcd"), (2, ""), (3, "ab"), (4, "abc")]
    for most, line in ((5, 1), (3, 1)):
        with pytest.raises(ValueError, match=f"a.txt:{line}: "):
            list(read_lines(path, most))


def test_a_json_file_of_one_long_line_is_read(tmp_path: pathlib.Path) -> None:
    """As SQuAD's are, of 42 MB."""
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": ["x" * MOST, "y"]}))
    assert read_json(path)["data"][1] == "y"


def test_a_text_that_is_too_long_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(bytes(MOST)))
    assert len(read_text(path)) == MOST
    path.write_bytes(gzip.compress(bytes(MOST + 1)))
    with pytest.raises(ValueError, match=f"a.txt.gz has more than {MAX_DOCUMENT} MiB of text; split it"):
        read_text(path)


ROWS = [{"text": 'a, "b"', "label": "x"}, {"text": "c d", "label": "y"}]
CLASSES = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}


def test_every_kind_of_table_has_the_same_records(tmp_path: pathlib.Path) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    csv = 'text,label\n"a, ""b""",x\nc d,y\n'
    written = {
        "a.csv": csv,
        "a.tsv": 'text\tlabel\na, "b"\tx\nc d\ty\n',
        "a.jsonl": "".join(f"{json.dumps(row)}\n" for row in ROWS),
        "a.json": json.dumps(ROWS),
    }
    for name, content in written.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(csv.replace("\n", "\r\n").encode()))
    parquet.write_table(table, tmp_path / "a.parquet")
    saved_dataset(tmp_path / "saved", table, {})
    saved_dataset(tmp_path / "footer", table, {}, footer=True)
    for name in (*written, "b.csv.gz", "a.parquet", "saved", "footer", "saved/data-00000-of-00002.arrow"):
        found = [*read_records(tmp_path / name)]
        assert [record for _, record, _ in found] == ROWS[: len(found)] and len(found) == (1 if "/" in name else 2), (
            name
        )
        assert all(not problem and place.startswith(f"{tmp_path / name}:") for place, _, problem in found)


@pytest.mark.parametrize(
    "described",
    [
        {"feature": CLASSES["label"], "_type": "Sequence"},
        {"feature": CLASSES["label"], "_type": "List"},
        [CLASSES["label"]],
    ],
    ids=["Sequence", "List", "a list"],
)
def test_numbers_of_classes_become_their_names(described: Any, tmp_path: pathlib.Path) -> None:
    rows = [{"label": 1, "tags": [0, 1], "size": 1}, {"label": -1, "tags": [], "size": 0}]
    features = {**CLASSES, "tags": described, "size": {"dtype": "int64", "_type": "Value"}}
    table = saved_dataset(tmp_path / "saved", pyarrow.Table.from_pylist(rows), features)
    parquet.write_table(table, tmp_path / "a.parquet")
    for name in ("saved", "a.parquet"):
        assert [record for _, record, _ in read_records(tmp_path / name)] == [
            {"label": "yes", "tags": ["no", "yes"], "size": 1},
            {"label": None, "tags": [], "size": 0},
        ]


def test_a_number_of_no_class_is_the_problem_of_its_record(tmp_path: pathlib.Path) -> None:
    saved_dataset(tmp_path / "saved", pyarrow.Table.from_pylist([{"label": 2}, {"label": 0}]), CLASSES)
    place, other = (f"{tmp_path / 'saved'}:row {number}" for number in (1, 2))
    expected = [(place, None, "`label` has the class 2: expected 0 to 1"), (other, {"label": "no"}, "")]
    assert [*read_records(tmp_path / "saved")] == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"x.txt": ""}, "saved: a folder, expected a file, or a folder that `datasets` saved"),
        (
            {"dataset_dict.json": "{}", "dev/state.json": "{}", "train/state.json": "{}"},
            "splits dev, train; name one.*saved/dev",
        ),
        ({"state.json": '{"_data_files": []}'}, "names no files"),
        ({"state.json": '{"_data_files": [{"filename": "../x"}]}'}, "names no files"),
        ({"state.json": '{"_data_files": [{"filename": "a.arrow"}]}'}, "a.arrow is missing"),
        (
            {"state.json": '{"_data_files": [{"filename": "a.arrow"}]}', "a.arrow": "none"},
            "a.arrow cannot be read.*copy",
        ),
    ],
)
def test_a_folder_that_cannot_be_read(files: dict[str, str], message: str, tmp_path: pathlib.Path) -> None:
    for name, content in files.items():
        (tmp_path / "saved" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "saved" / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        list(read_records(tmp_path / "saved"))


def test_a_damaged_table_and_one_compressed_as_a_whole(tmp_path: pathlib.Path) -> None:
    for name, message in (
        ("a.parquet", "cannot be read"),
        ("a.parquet.gz", "unpack it first"),
        ("b.arrow", "cannot be read"),
    ):
        (tmp_path / name).write_bytes(b"PAR1 and no more")
        with pytest.raises(ValueError, match=f"{name}.*{message}"):
            list(read_records(tmp_path / name))


def test_cells_of_text_hold_lists_and_numbers() -> None:
    assert list_in_text('["a b", "c"]') == ["a b", "c"] and list_in_text("a b  c") == ["a", "b", "c"]
    assert list_in_text("0 1") == [0, 1] and list_in_text("[0, 1]") == [0, 1] and list_in_text("0 a") == ["0", "a"]
    assert list_in_text(["a"]) == ["a"] and list_in_text(None) is None and list_in_text("[a") == ["[a"]
    assert [number_in_text(each) for each in ("7", " 7", "-1", "x", 7, None)] == [7, 7, "-1", "x", 7, None]
