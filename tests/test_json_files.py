"""The reader of JSON: whatever is wrong with a file is a ValueError that names it."""

import pathlib
import re

import pytest

from spanjax import json_files
from spanjax.json_files import parse_json, read_json

DEEP = "[" * 100_000 + "]" * 100_000
WRONG = {
    "deep": (DEEP, "more than 100 deep"),
    "deep, but not too deep for the parser": ("[" * 101 + "]" * 101 + "", "more than 100 deep"),
    "deep object": ('{"a":' * 200 + "1" + "}" * 200, "more than 100 deep"),
    "a huge number": ('{"a": 1' + "0" * 400 + "}", "a number of 401 digits"),
    "a number that Python refuses": ('{"a": 1' + "0" * 9000 + "}", "a number of 9,001 digits"),
    "cut": ('{"a": ', "Expecting value"),
    "empty": ("", "Expecting value"),
    "a list": ("[1]", "it holds a list, expected an object"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_names_the_file(name: str, tmp_path: pathlib.Path) -> None:
    content, reason = WRONG[name]
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + re.escape(reason)):
        read_json(path)


def test_bytes_that_are_no_text_and_files_that_are_too_large(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ValueError, match=r"config\.json is not readable JSON \('utf-8' codec"):
        read_json(path)
    monkeypatch.setattr(json_files, "MAX_BYTES", 10)
    path.write_text('{"a": "0123456789"}')
    with pytest.raises(ValueError, match="19 bytes, at most 10"):
        read_json(path)


def test_what_is_right_is_read() -> None:
    assert parse_json('{"a": [1, 2.5, NaN, -Infinity, 1000000000000000019884624838656]}')["a"][4] > 10**29
    assert parse_json(b"3", int) == 3 and parse_json("[" * 100 + "]" * 100)
