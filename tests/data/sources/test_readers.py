"""Documents of files of every kind: text, JSON lines, Parquet, compressed or not, good and bad."""

import bz2
import collections
import gzip
import io
import json
import lzma
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from spanjax.data.sources import paths, readers
from spanjax.data.sources.corpus import open_sources
from spanjax.data.sources.documents import NO_SPANS, Document, SourceSettings
from tests.saved_dataset import saved_dataset

OPENERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: pyarrow.compress(content, codec="zstd", asbytes=True),  # pyright: ignore
}


def read(path: pathlib.Path, skip_bad: bool = False, text_field: str = "text") -> tuple[list[Document], dict[str, int]]:
    skipped: collections.Counter[str] = collections.Counter()
    settings = SourceSettings(text_field=text_field, skip_bad=skip_bad)
    return list(open_sources([str(path)], settings).documents(skipped)), dict(skipped)


def texts(documents: list[Document]) -> list[tuple[str, str]]:
    return [(document.text, document.where) for document in documents]


@pytest.mark.parametrize("suffix", OPENERS)
def test_text_and_json_lines_plain_and_compressed(tmp_path: pathlib.Path, suffix: str) -> None:
    text, lines = tmp_path / f"a.txt{suffix}", tmp_path / f"b.jsonl{suffix}"
    text.write_bytes(OPENERS[suffix]("\ufeff\n\nOne é.\nTwo.\r\n  \n\nThree.".encode()))
    lines.write_bytes(OPENERS[suffix](b'{"text": "One.\\nTwo."}\n\n{"id": 3, "text": "Three."}'))
    assert texts(read(text)[0]) == [("One é.\nTwo.", f"{text}:3"), ("Three.", f"{text}:7")]
    assert texts(read(lines)[0]) == [("One.\nTwo.", f"{lines}:1"), ("Three.", f"{lines}:3")]


@pytest.mark.parametrize("suffix", [suffix for suffix in OPENERS if suffix])
def test_a_damaged_file_gives_what_is_before_the_damage(tmp_path: pathlib.Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(OPENERS[suffix](b"a\n\nb\n" * 200_000)[:-9])
    with pytest.raises(ValueError, match=r"a\.txt.*:\d+: the compressed file is damaged.*get it again.*--skip-bad"):
        read(path)
    assert read(path, skip_bad=True)[1] == {"damaged files": 1}
    two = tmp_path / f"b.txt{suffix}"
    two.write_bytes(OPENERS[suffix](b"a\n\n") + OPENERS[suffix](b"b\n"))  # two streams, as parallel programs write
    assert [document.text for document in read(two)[0]] == ["a", "b"]


@pytest.mark.parametrize(("name", "error"), [("a.txt", OSError("no network")), ("a.txt.gz", OSError(5, "bad disk"))])
def test_a_file_that_cannot_be_read_is_no_bad_input(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str, error: OSError
) -> None:
    class Broken(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, _: Any) -> int:
            raise error

    (tmp_path / name).write_text("x")
    monkeypatch.setattr(paths, "open_bytes", lambda _: io.BufferedReader(Broken()))
    with pytest.raises(OSError, match=str(error.args[-1])):
        read(tmp_path / name, skip_bad=True)


def slowly(content: bytes) -> tuple[list[tuple[str, int]], int]:
    """Documents of a text file, line by line, and the number of bad lines."""
    found, gathered, first, bad = [], [], 0, 0
    for number, line in enumerate(content.split(b"\n"), start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            bad += 1
            continue
        if text.strip():
            first = first if gathered else number
            gathered.append(text.rstrip("\r"))
        elif gathered:
            found.append(("\n".join(gathered), first))
            gathered = []
    return found + ([("\n".join(gathered), first)] if gathered else []), bad


@given(
    st.lists(
        st.sampled_from([b"\n", b"\n", b"\r\n", b"a", b"\xc3\xa9", b"\xff", b" ", b"\xe3\x80\x80", b"\xef\xbb\xbf"])
    ),
    st.integers(1, 9),
)
def test_text_is_cut_as_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], segment: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.txt"
    path.write_bytes(b"".join(parts) or b"\n")
    expected, bad = slowly(path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_SEGMENT_BYTES", segment)
        found, skipped = read(path, skip_bad=True)
    assert texts(found) == [(text, f"{path}:{line}") for text, line in expected]
    assert skipped.get("lines not in UTF-8", 0) == bad and skipped.get("empty files", 0) == (not expected and not bad)


MIB = 1 << 20


def limited(path: pathlib.Path, skip_bad: bool = False) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """(length, place) of the documents of a file where no document may have more than 1 MiB; what was skipped."""
    skipped: collections.Counter[str] = collections.Counter()
    source = open_sources([str(path)], SourceSettings(skip_bad=skip_bad, max_document=1))
    found = [(len(each.text), each.where.rpartition(":")[2]) for each in source.documents(skipped)]
    return [(size, int(line)) for size, line in found], dict(skipped)


LINE = "the line has more than 1 MiB; split it, or allow more with --max-document MIB .*--skip-bad"
DOCUMENT = LINE.replace("line", "document, which a blank line ends,")


@pytest.mark.parametrize(
    ("name", "content", "line", "message", "others"),
    [
        ("a.txt", b"a\n\nbc\n" + b"x" * (3 * MIB) + b"\nd\n\ne\n", 4, LINE, [(1, 1), (4, 3), (1, 7)]),
        ("a.txt", b"a\n\nbc\n" + b"x" * (3 * MIB), 4, LINE, [(1, 1), (2, 3)]),
        ("a.txt", b"a\n\n" + (b"x" * 999 + b"\n") * 3_000 + b"\nb\n", 3, DOCUMENT, [(1, 1), (1, 3004)]),
        ("a.txt", b"\0" * (5 * MIB), 1, LINE, []),
        ("a.jsonl", b'{"text": "a"}\n{"text": "%s"}\n\n{"text": "b"}' % (b"x" * (3 * MIB)), 2, LINE, [(1, 1), (1, 4)]),
        ("a.jsonl", b"[" * (3 * MIB), 1, LINE, []),
    ],
    ids=["line", "last_line", "document", "zeros", "json", "json_without_end"],
)
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_document_that_is_too_large(
    tmp_path: pathlib.Path,
    name: str,
    suffix: str,
    content: bytes,
    line: int,
    message: str,
    others: list[tuple[int, int]],
) -> None:
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(OPENERS[suffix](content))
    with pytest.raises(ValueError, match=rf"{name}{suffix}:{line}: {message}"):
        limited(path)
    assert limited(path, skip_bad=True) == (others, {"documents too large": 1})


def test_a_document_of_the_largest_size_is_read(tmp_path: pathlib.Path) -> None:
    text, lines = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_bytes(b"a\n\n" + b"x" * (MIB - 1) + b"\n\n" + b"y" * (MIB - 1))
    assert limited(text)[0] == [(1, 1), (MIB - 1, 3), (MIB - 1, 5)]
    lines.write_bytes(b'{"text": "%s"}\n' % (b"x" * (MIB - 13)) * 2)
    assert limited(lines)[0] == [(MIB - 13, 1), (MIB - 13, 2)]


def test_a_text_of_parquet_that_is_too_large(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["a", "x" * (MIB + 1), "y" * MIB]})
    parquet.write_table(table, path)
    with pytest.raises(ValueError, match=r"a.parquet:2: the text of the row has more than 1 MiB; split it"):
        limited(path)
    assert limited(path, skip_bad=True) == ([(1, 1), (MIB, 3)], {"documents too large": 1})


def test_long_texts_of_parquet_are_decoded_few_at_a_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sizes = tmp_path / "a.parquet", []
    parquet.write_table(
        pyarrow.table({"text": [f"{number}" * 2_000 for number in range(100)]}), path, compression="gzip"
    )
    iter_batches = parquet.ParquetFile.iter_batches

    def noted(self: Any, size: int, *more: Any, **settings: Any) -> Any:
        sizes.extend([size] if size > 1 else [])  # 1: a look at the texts that rows share
        return iter_batches(self, size, *more, **settings)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", noted)
    whole = limited(path)
    monkeypatch.setattr(readers, "_PARQUET_BYTES", 40_000)
    assert limited(path) == whole and sizes[0] == 1_000 and 5 <= sizes[1] <= 10


def test_a_text_that_many_rows_of_parquet_share_fills_no_memory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a few kilobytes; read in batches of the usual size, 300 MB would be decoded at a time."""
    path, largest = tmp_path / "a.parquet", [0]
    shared = pyarrow.DictionaryArray.from_arrays([0] * 2_000, ["sixteen letters." * 20_000])
    parquet.write_table(pyarrow.table({"text": shared.dictionary_decode()}), path, compression="zstd")
    assert path.stat().st_size < 20_000
    iter_batches = parquet.ParquetFile.iter_batches

    def noted(*arguments: Any, **settings: Any) -> Any:
        for batch in iter_batches(*arguments, **settings):
            largest[0] = max(largest[0], batch.nbytes)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", noted)
    assert len(limited(path)[0]) == 2_000
    assert 10 << 20 < largest[0] <= readers._PARQUET_BYTES + (1 << 20)


def test_the_largest_document_is_a_number_of_mib() -> None:
    with pytest.raises(ValueError, match="--max-document is 0: expected at least 1"):
        open_sources([__file__], SourceSettings(max_document=0))


SPANS = [
    ({"entities": [[0, 3], [4, 5]], "x": []}, ""),
    (None, ""),
    ({"entities": None}, ""),
    ([[0, 1]], "expected {\"LAYER\""),
    ({"entities": "0-3"}, "expected a list"),
    ({"entities": [[0, 6]]}, r"span \[0, 6\] of 'entities'.*<= 5"),
    ({"entities": [[3, 3]]}, "START < END"),
    ({"entities": [[-1, 3]]}, "START < END"),
    ({"entities": [[0, True]]}, "START < END"),
    ({"entities": [[0, 1.0]]}, "START < END"),
    ({"entities": [[0, 1, "ORG"]]}, "START < END"),
]  # fmt: skip


@pytest.mark.parametrize(("spans", "message"), SPANS)
def test_spans_are_read_and_checked(tmp_path: pathlib.Path, spans: Any, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"text": "x"}\n' + json.dumps({"text": "Tom a", "spans": spans}))
    if message:
        with pytest.raises(ValueError, match=f"{path}:3: .*{message}.*'spans'.*--skip-bad"):
            read(path)
        found, skipped = read(path, skip_bad=True)
        assert len(found) == 1 and skipped == {"bad spans": 1}
    else:
        first, second = read(path)[0]
        expected = {name: tuple(map(tuple, layer)) for name, layer in (spans or {}).items() if layer is not None}
        assert first.spans is NO_SPANS and second.spans == expected


def test_no_spans_are_one_object_that_travels() -> None:
    document = pickle.loads(pickle.dumps(Document("a", "b")))
    assert document.spans is NO_SPANS and document.spans == {} and repr(document.spans) == "{}"
    with pytest.raises(TypeError):
        document.spans["a"] = ()  # pyright: ignore


def test_bad_spans_name_line_and_layer_of_parquet_and_maps_are_read(tmp_path: pathlib.Path) -> None:
    layers = pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.list_(pyarrow.int64())))
    spans = pyarrow.array([[("e", [[0, 1]])], None, [("e", [[0, 9]])]], layers)
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["ab", "c", "d"], "spans": spans}), path)
    with pytest.raises(ValueError, match=f"{path}:3: .*'e'"):
        read(path)
    assert read(path, skip_bad=True)[0] == [Document("ab", f"{path}:1", {"e": ((0, 1),)}), Document("c", f"{path}:2")]
    struct = tmp_path / "b.parquet"
    rows = [{"text": "ab", "spans": {"e": [[0, 1]], "x": None}}, {"text": "c", "spans": {"e": None, "x": [[0, 1]]}}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), struct)
    assert [document.spans for document in read(struct)[0]] == [{"e": ((0, 1),)}, {"x": ((0, 1),)}]


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "string_view"])
def test_parquet_is_read_row_group_by_row_group(
    tmp_path: pathlib.Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    column = pyarrow.array([f"text {n}é" for n in range(2_500)], "string").cast(getattr(pyarrow, kind)())
    parquet.write_table(pyarrow.table({"body": column, "n": range(2_500)}), path, row_group_size=1_200)
    asked: list[Any] = []
    original = parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        parquet.ParquetFile, "iter_batches", lambda *args, **named: asked.append(args[2:4]) or original(*args, **named)
    )
    found = read(path, text_field="body")[0]
    assert texts(found) == [(f"text {n}é", f"{path}:{n + 1}") for n in range(2_500)]
    assert asked == [([group], ["body"]) for group in range(3) for _ in ("a look at what rows share", "all of it")]


def test_parquet_of_strings_that_repeat(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.pq"
    parquet.write_table(pyarrow.table({"text": pyarrow.array(["a", "b", "a"]).dictionary_encode()}), path)
    assert [document.text for document in read(path)[0]] == ["a", "b", "a"]


def test_bad_parquet_is_told_or_counted(tmp_path: pathlib.Path) -> None:
    path, other, bad, numbers = (tmp_path / name for name in ("a.parquet", "b.parquet", "c.parquet", "d.parquet"))
    parquet.write_table(pyarrow.table({"text": ["a", None, " "]}), path)
    parquet.write_table(pyarrow.table({"body": ["a"], "id": [1]}), other)
    bad.write_bytes(path.read_bytes()[:-20])
    parquet.write_table(pyarrow.table({"text": [["a"]]}), numbers)
    for file, message in (
        (path, ":2: the text of the row is null"),
        (other, r": no column 'text' \(the columns are \['body', 'id'\]\).*--columns text=body"),
        (bad, ":1: the Parquet file is damaged"),
        (numbers, ": the column 'text' is list<.*expected strings"),
    ):
        with pytest.raises(ValueError, match=f"{file}{message}.*--skip-bad"):
            read(file)
    assert read(path, skip_bad=True)[1] == {"lines without text": 1, "empty documents": 1}
    assert [read(file, skip_bad=True) for file in (other, bad)] == [
        ([], {"files without text": 1}),
        ([], {"damaged files": 1}),
    ]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_file_may_be_a_list(tmp_path: pathlib.Path, indent: int | None) -> None:
    path = tmp_path / "a.json"
    path.write_text("\n" + json.dumps([{"text": "one"}, {"text": 2}, {"text": "three"}, "four"], indent=indent))
    documents, skipped = read(path, skip_bad=True)
    assert [document.text for document in documents] == ["one", "three"]
    assert [document.where for document in documents] == [f"{path}:1", f"{path}:3"]
    assert skipped == {"lines without text": 2}
    path.write_text('[{"text": "one"},')
    with pytest.raises(ValueError, match=r"a\.json: not JSON .*expected a list of objects, or one JSON object a line"):
        read(path)


def test_another_field_holds_the_text_of_json_lines(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text('{"body": "b", "text": "t"}')
    assert [document.text for document in read(path, text_field="body")[0]] == ["b"]
    with pytest.raises(ValueError, match=r"no field \"article\".*\['body', 'text'\].*--columns text=text"):
        read(path, text_field="article")


def test_real_text_is_the_same_however_it_is_stored(tmp_path: pathlib.Path, shared_data: pathlib.Path) -> None:
    original = shared_data / "wiki" / "validation.jsonl.gz"
    expected = [document.text for document in read(original)[0]]
    assert len(expected) == 356
    parquet.write_table(pyarrow.table({"text": expected}), tmp_path / "a.parquet", row_group_size=100)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in expected).encode()
    (tmp_path / "a.jsonl.zst").write_bytes(OPENERS[".zst"](lines))
    paragraphs = ["\n".join(line.rstrip("\r") for line in text.split("\n") if line.strip()) for text in expected]
    (tmp_path / "a.txt.bz2").write_bytes(bz2.compress("\n\n".join(paragraphs).encode()))
    assert [document.text for document in read(tmp_path / "a.parquet")[0]] == expected
    assert [document.text for document in read(tmp_path / "a.jsonl.zst")[0]] == expected
    assert [document.text for document in read(tmp_path / "a.txt.bz2")[0]] == paragraphs


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_tables_of_text(tmp_path: pathlib.Path, suffix: str) -> None:
    long = "word " * 40_000  # beyond the csv module's own limit of a cell
    csv, tsv = tmp_path / f"a.csv{suffix}", tmp_path / f"b.tsv{suffix}"
    csv.write_bytes(OPENERS[suffix](f'id,text\r\n1,"a, ""b""\r\nc"\r\n\r\n2,{long}\r\n3, \r\n'.encode()))
    tsv.write_bytes(OPENERS[suffix](b'id\ttext\n1\ta "b"\n'))
    documents, skipped = read(csv)
    assert texts(documents) == [('a, "b"\nc', f"{csv}:3"), (long, f"{csv}:5")] and skipped == {"empty documents": 1}
    assert texts(read(tsv)[0]) == [('a "b"', f"{tsv}:2")]


def test_tables_that_have_no_text_or_bad_rows(tmp_path: pathlib.Path) -> None:
    other, bad = tmp_path / "other.csv", tmp_path / "bad.tsv"
    other.write_text("id,body\n1,a text\n2,another\n")
    bad.write_text("id\ttext\n1\n2\tgood\n")
    message = r"other.csv: no column 'text' \(the columns are id, body\); name it with --columns text=body \(--skip-bad"
    for path, expected in ((other, message), (bad, "bad.tsv:2: 1 columns: expected the 2 columns id, text")):
        with pytest.raises(ValueError, match=expected):
            read(path)
    assert read(other, skip_bad=True) == ([], {"files without text": 1})
    documents, skipped = read(bad, skip_bad=True)
    assert texts(documents) == [("good", f"{bad}:3")] and skipped == {"bad rows": 1}


def test_a_saved_data_set_is_read_file_by_file(tmp_path: pathlib.Path) -> None:
    rows = [{"text": "a", "spans": None}, {"text": "bc", "spans": {"entities": [[0, 2]]}}, {"text": "d", "spans": None}]
    saved_dataset(tmp_path / "saved", pyarrow.Table.from_pylist(rows), {})
    first, second = (tmp_path / "saved" / f"data-0000{number}-of-00002.arrow" for number in (0, 1))
    documents = read(tmp_path / "saved")[0]
    assert texts(documents) == [("a", f"{first}:1"), ("bc", f"{second}:1"), ("d", f"{second}:2")]
    assert documents[1].spans == {"entities": ((0, 2),)}
    assert read(second)[0] == documents[1:]
    with pytest.raises(ValueError, match=r"no column 'body'.*name it with --columns text=text"):
        read(second, text_field="body")
    second.write_bytes(second.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"the Arrow file is damaged .*; get it again"):
        read(second)


def test_a_saved_data_set_of_several_splits_is_refused_with_their_names(tmp_path: pathlib.Path) -> None:
    for name in ("dataset_dict.json", "test/state.json", "train/state.json"):
        (tmp_path / "saved" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "saved" / name).write_text("{}")
    with pytest.raises(
        ValueError, match=r"saved: a data set of the splits test, train; name one of them: .*saved/test"
    ):
        read(tmp_path / "saved")
