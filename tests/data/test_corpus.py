"""Documents from files and docstrings, cleaning and sentence splitting."""

import collections
import gzip
import json
import lzma
import pathlib
import sys
import unicodedata
from collections.abc import Callable

import pytest

from spanjax.data.corpus import Files, InstalledDocs, find_files
from spanjax.data.docstrings import prose
from spanjax.data.sentences import clean, sentences

OPENERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def read(path: pathlib.Path, skip_bad: bool = False) -> tuple[list[tuple[str, str]], dict[str, int]]:
    skipped: collections.Counter[str] = collections.Counter()
    found = [(document.text, document.where) for document in Files((path,), skip_bad).documents(skipped)]
    return found, dict(skipped)


@pytest.mark.parametrize("suffix", OPENERS)
def test_text_and_json_lines_plain_and_compressed(tmp_path: pathlib.Path, suffix: str) -> None:
    text, lines = tmp_path / f"a.txt{suffix}", tmp_path / f"b.jsonl{suffix}"
    text.write_bytes(OPENERS[suffix]("\ufeff\n\nOne é.\nTwo.\r\n  \n\nThree.".encode()))
    lines.write_bytes(OPENERS[suffix](b'{"text": "One.\\nTwo."}\n\n{"id": 3, "text": "Three."}'))
    assert read(text)[0] == [("One é.\nTwo.", f"{text}:3"), ("Three.", f"{text}:7")]
    assert read(lines)[0] == [("One.\nTwo.", f"{lines}:1"), ("Three.", f"{lines}:3")]


@pytest.mark.parametrize(
    ("name", "content", "line", "message", "kind", "left"),
    [
        ("a.txt", b"good\n\nb\xff\n\nmore\n", ":3", "not UTF-8; convert", "lines not in UTF-8", 2),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', ":2", "not JSON", "lines not JSON", 1),
        ("a.jsonl", b'{"text": "x"}\n{"body": "y"}\n', ":2", r"no field \"text\".*\['body'\]", "lines without text", 1),
        ("a.jsonl", b'["text"]\n{"text": "x"}\n', ":1", "not a JSON object", "lines without text", 1),
        ("a.txt", b"\n  \n", "", "holds no text", "empty files", 0),
        ("a.txt.gz", gzip.compress(b"a\n\nb\n")[:-9], "", "damaged", "damaged files", None),
    ],
)
def test_bad_input_names_file_and_line_or_is_counted(
    tmp_path: pathlib.Path, name: str, content: bytes, line: str, message: str, kind: str, left: int | None
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path}{line}.*{message}.*--skip-bad"):
        read(path)
    found, skipped = read(path, skip_bad=True)
    assert skipped == {kind: 1} and left in (None, len(found))


def test_all_missing_patterns_are_told_at_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError) as caught:
        find_files(
            [f"{tmp_path}/no*.txt", f"{tmp_path}/empty.txt", str(tmp_path), f"{tmp_path}/a.txt", f"{tmp_path}/none"]
        )
    assert [word in str(caught.value) for word in ("no*.txt", "empty.txt", "a folder", "none", "a.txt:")] == [
        True
    ] * 4 + [False]
    assert [path.name for path in find_files([f"{tmp_path}/[ab].txt", f"{tmp_path}/a.txt"])] == ["a.txt", "b.txt"]


def test_clean_removes_what_tokenizers_disagree_on() -> None:
    assert clean("a\u200bb\ufeff\u00a0c\x07d\ud800e\ue000\u2028f\u3000g\tz\n\u00ad") == "ab c de\nf g\tz\n"
    assert clean("plain ASCII\n\ttext") == "plain ASCII\n\ttext" and clean("é e\u0301") == "é e\u0301"
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category != "Cn":
            assert (clean(chr(code)) == "") == (category in ("Cf", "Cs", "Co")), hex(code)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? four", ["One.", "Two!", "Three? four"]),
        ("Dr. Smith met J. Doe, e.g. Tom. He left.", ["Dr. Smith met J. Doe, e.g. Tom.", "He left."]),
        ('He said "Hi." Then (it ended.) 3 came.', ['He said "Hi."', "Then (it ended.)", "3 came."]),
        ("no stop\nhere\n\n", ["no stop", "here"]),
        ("我来了。你呢？「好。」走", ["我来了。", "你呢？", "「好。」", "走"]),
        ("version 3.5 is out... Wait", ["version 3.5 is out...", "Wait"]),
        ("Он ушёл. Она тоже.", ["Он ушёл.", "Она тоже."]),
        ("  ", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


DOCSTRING = """Compute the ``mean`` of an array along the :class:`~numpy.axis` given.

    mean(a, axis=None, dtype=None) is what one would write in code here, mostly.

    Parameters
    ----------
    axis : int
        The axis along which the means are computed by default
        over the flattened array of all its numbers.

    The following code shows it::

        this is code that must not appear at all here

    .. note::
       This is inside a directive and it goes away too.

    >>> mean([1, 2]) is a session line of the interpreter
    1.5 is what the session line above then prints out

    ======  ======
    a table of words that stands here somehow
    ======  ======
    """


def test_prose_keeps_sentences_and_drops_code_and_markup() -> None:
    assert prose(DOCSTRING)[:3] == [
        "Compute the mean of an array along the numpy.axis given.",
        "The axis along which the means are computed by default over the flattened array of all its numbers.",
        "The following code shows it:",
    ]
    assert not any(
        word in "\n".join(prose(DOCSTRING)) for word in ("must not", "directive", "session", "dtype", "--", "``")
    )


def test_installed_docs_are_prose_once_and_in_the_same_order() -> None:
    source = InstalledDocs(("optax", "no_such_package_here"))
    skipped: collections.Counter[str] = collections.Counter()
    found = list(source.documents(skipped))
    assert found == list(source.documents(skipped)) and sum(len(document.text) for document in found) > 50_000
    paragraphs = [line for document in found for line in document.text.split("\n")]
    assert len(paragraphs) == len(set(paragraphs)) and not any(">>>" in line or "``" in line for line in paragraphs)
    assert all(document.where.startswith("optax/") for document in found)
    with pytest.raises(ValueError, match="no_such_package_here"):
        list(InstalledDocs(("no_such_package_here",)).documents(skipped))


def test_json_escapes_of_lone_surrogates_survive_cleaning(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a\ud800b"}))
    assert clean(read(path)[0][0][0]) == "ab"
