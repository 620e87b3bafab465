"""Sources: files in groups, docstrings of installed packages, several at once; and what is told of bad ones."""

import collections
import gzip
import json
import pathlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.sources import corpus
from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.corpus import FileSource, InstalledDocs, open_sources
from spanjax.data.sources.docstrings import prose
from spanjax.data.sources.documents import SourceSettings
from spanjax.data.sources.paths import File

pytestmark = pytest.mark.unit

MIB = 1 << 20


def read(path: pathlib.Path, skip_bad: bool = False) -> tuple[list[tuple[str, str]], dict[str, int]]:
    skipped: collections.Counter[str] = collections.Counter()
    documents = open_sources([str(path)], SourceSettings(skip_bad=skip_bad)).documents(skipped)
    return [(document.text, document.where) for document in documents], dict(skipped)


@pytest.mark.parametrize(
    ("name", "content", "line", "message", "kind", "left"),
    [
        ("a.txt", b"good\n\nb\xff\n\nmore\n", ":3", "not UTF-8; convert", "lines not in UTF-8", 2),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', ":2", "not JSON", "lines not JSON", 1),
        ("a.jsonl", b'{"text": "x"}\n{"body": "y"}\n', ":2", r"no field \"text\".*\['body'\]", "lines without text", 1),
        ("a.jsonl", b'["text"]\n{"text": "x"}\n', ":1", "not a JSON object", "lines without text", 1),
        ("a.txt", b"\n  \n", "", "holds no text", "empty files", 0),
        ("a.txt.gz", gzip.compress(b"a\n\nb\n", mtime=0)[:-9], "", "damaged", "damaged files", None),
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
        open_sources(
            [f"{tmp_path}/no*.txt", f"{tmp_path}/empty.txt", str(tmp_path), f"{tmp_path}/a.txt", f"{tmp_path}/none"]
        )
    assert [word in str(caught.value) for word in ("no*.txt", "empty.txt", "a folder", "none", "a.txt:")] == [
        True
    ] * 4 + [False]
    source = open_sources([f"{tmp_path}/[ab].txt", f"{tmp_path}/a.txt"], SourceSettings())
    assert isinstance(source, FileSource) and [file.name for file in source.files] == ["a.txt", "b.txt"]


def test_every_problem_of_every_source_is_told_at_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.tar.gz").write_text("x")
    (tmp_path / "b.parquet.zst").write_text("x")
    (tmp_path / "ok.txt").write_text("x")
    names = [f"{tmp_path}/{name}" for name in ("none.txt", "a.tar.gz", "b.parquet.zst", "ok.txt")]
    with pytest.raises(ValueError) as caught:
        open_sources([*names[:2], "tfds:", "installed-docs", *names[2:], names[0]], SourceSettings())
    problems = str(caught.value).splitlines()
    assert [
        wanted in problem
        for wanted, problem in zip(
            ("no such", "unpack the archive", "expected tfds:NAME", "unpack"), problems, strict=True
        )
    ] == [True] * 4
    with pytest.raises(ValueError, match="no input"):
        open_sources([], SourceSettings())


def test_sources_keep_their_order_and_take_a_file_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "package_documents", lambda packages: (("prose", "module.py:1"),))
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    folder = str(tmp_path)
    source = open_sources([f"{folder}/c.txt", "installed-docs", f"{folder}/*.txt", "installed-docs"], SourceSettings())
    skipped: collections.Counter[str] = collections.Counter()
    assert [document.text for document in source.documents(skipped)] == ["c", "prose", "a", "b"]
    groups = pickle.loads(pickle.dumps(source.groups()))
    assert [document.text for group in groups for document in group.documents(skipped)] == ["c", "prose", "a", "b"]
    assert [group.name for group in groups] == ["c.txt", "installed-docs", "a.txt and 1 more"]
    assert [group.bytes for group in groups] == [1, 5, 2]
    assert source.description.startswith("c.txt, installed-docs (numpy") and source.description.endswith("a.txt, b.txt")


def test_identity_is_json_and_changes_with_the_input(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.txt").write_text("a")

    def identity() -> list[object]:
        return open_sources([f"{tmp_path}/*.txt"], SourceSettings()).identity()

    first = identity()
    assert first == identity() == json.loads(json.dumps(first)) and first[0][:2] == [f"{tmp_path}/a.txt", 1]  # pyright: ignore
    (tmp_path / "a.txt").write_text("b")
    second = identity()
    (tmp_path / "b.txt").write_text("b")
    assert first != second != identity()


def grouped(*sizes: int | None) -> list[list[int | None]]:
    source = FileSource(tuple(File(f"{number}", size) for number, size in enumerate(sizes)))
    return [[file.size for file in group.files] for group in source.groups()]


def test_small_files_are_grouped_and_large_ones_stand_alone() -> None:
    small, half, large = MIB, 40 * MIB, 64 * MIB
    assert grouped(small, small, half, half, small) == [[small, small, half, half], [small]]
    assert grouped(small, large, small, half) == [[small], [large], [small, half]]
    assert grouped(large, large + 1) == [[large], [large + 1]] and grouped(large - 1, small) == [[large - 1, small]]
    assert grouped(small, None, small) == [[small], [None], [small]]
    assert len(grouped(*[1_000] * 100_000)) == 2  # 100 MB


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 100).map(lambda size: size * MIB)), max_size=30), st.integers(0, 30)
)
def test_groups_hold_every_file_in_order_and_do_not_depend_on_what_follows(sizes: list[int | None], many: int) -> None:
    groups = grouped(*sizes)
    assert [size for group in groups for size in group] == sizes and all(groups)
    part = grouped(*sizes[:many])
    assert part[:-1] == groups[: max(len(part) - 1, 0)]
    source = FileSource(tuple(File("a/x.txt", size) for size in sizes))
    assert [group.bytes for group in source.groups()] == [None if None in some else sum(some) for some in groups]  # pyright: ignore


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
