"""The ngrams command: its file, what changes it and what does not, and what it refuses."""

import json
import pathlib

import pytest

from spanjax.data.ngrams.dictionary import HEADER, read_ngrams
from spanjax.prepare import main


def run(corpus: pathlib.Path, output: pathlib.Path, *arguments: str) -> int:
    return main(["ngrams", "--input", str(corpus), "--output", str(output), *arguments])


def test_file_has_settings_and_ngrams_and_can_be_looked_up(
    corpus_file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(corpus_file, tmp_path / "new" / "d.txt") == 0
    first, *lines = (tmp_path / "new" / "d.txt").read_text("utf-8").splitlines()
    header = json.loads(first.removeprefix(HEADER))
    assert header["most_words"] == 5 and header["more_than"] == 10 and header["ngrams"] == len(lines) > 100
    assert header["corpus"] == corpus_file.name and header["corpus_words"] > 30_000
    counts = [int(line.partition("\t")[2]) for line in lines]
    assert counts == sorted(counts, reverse=True) and counts[-1] == 11
    dictionary = read_ngrams(tmp_path / "new" / "d.txt")
    assert len(dictionary) == len(lines) and ["in", "the", "harbour"] in dictionary
    out = capsys.readouterr().out
    assert f"{len(lines):,} n-grams that occur more than 10 times" in out and "5 words: " in out
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["d.txt"]


@pytest.mark.slow
def test_memory_and_processes_do_not_change_the_file(corpus_file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert (
        run(corpus_file, tmp_path / "a") == run(corpus_file, tmp_path / "b", "--memory-mb", "1", "--workers", "2") == 0
    )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_settings_reach_the_counting(corpus_file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert run(corpus_file, tmp_path / "plain") == 0
    seen = {(tmp_path / "plain").read_text().partition("\n")[2]}
    for arguments in (
        ["--most-words", "3"], ["--more-than", "9"], ["--most-ngrams", "50"], ["--no-lower-case"],
        ["--punctuation", "attached"], ["--with-punctuation"], ["--max-documents", "100"],
    ):  # fmt: skip
        assert run(corpus_file, tmp_path / "other", "--overwrite", *arguments) == 0
        lines = (tmp_path / "other").read_text().partition("\n")[2]
        assert lines not in seen, arguments
        seen.add(lines)
        assert read_ngrams(tmp_path / "other").settings.most_words == (3 if "--most-words" in arguments else 5)
    assert len(seen) == 8


def test_everything_wrong_is_told_at_once(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.txt").write_text("mine")
    wrong = ["--most-words", "1", "--more-than", "-1", "--most-ngrams", "-1", "--memory-mb", "0", "--workers", "-1"]
    assert run(tmp_path / "absent", tmp_path / "d.txt", *wrong) == 2
    told = capsys.readouterr().err
    parts = [
        "cannot write",
        "--most-words is 1: expected at least 2 and at most 16",
        "--more-than is -1",
        "--most-ngrams is -1",
        "--memory-mb is 0",
    ]
    assert all(part in told for part in [*parts, "--workers is -1", "d.txt exists already", "absent: no such file"]), (
        told
    )
    assert (tmp_path / "d.txt").read_text() == "mine"
    assert (
        run(tmp_path / "absent", tmp_path / "d.txt" / "x") == 2
        and "is a file, expected a folder" in capsys.readouterr().err
    )


def test_text_without_words_or_frequent_ngrams(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "marks").write_text("... !\n")
    assert run(tmp_path / "marks", tmp_path / "d") == 2
    assert "has no words" in capsys.readouterr().err and not (tmp_path / "d").exists()
    (tmp_path / "short").write_text("one two three\n")
    assert run(tmp_path / "short", tmp_path / "d") == 0
    assert "no n-gram is frequent enough" in capsys.readouterr().out and len(read_ngrams(tmp_path / "d")) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"marks", "short", "d"}


def test_what_is_no_dictionary_stays(
    corpus_file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "corpus.txt"
    text.write_bytes(corpus_file.read_bytes())
    assert run(corpus_file, text, "--overwrite") == 2 and "is no file of n-grams" in capsys.readouterr().err
    assert run(text, text, "--overwrite") == 2 and "is read: name another" in capsys.readouterr().err
    assert text.read_bytes() == corpus_file.read_bytes() and [path.name for path in tmp_path.iterdir()] == [
        "corpus.txt"
    ]
