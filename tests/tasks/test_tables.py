"""Files of examples: how long a line may be."""

import gzip
import json
import pathlib

import pytest

from spanjax.data.sources.documents import MAX_DOCUMENT
from spanjax.tasks.coref.text import read_text
from spanjax.tasks.tables import read_json, read_lines

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
