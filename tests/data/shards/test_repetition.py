"""N-grams that occur again and again: found as by a plain loop, left out of rows, counted and listed."""

import json
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.shards.repetition import LONGEST, repetition
from spanjax.prepare import main

PIECES = st.lists(st.integers(0, 2), max_size=12).flatmap(
    lambda ngram: st.tuples(st.just(ngram), st.integers(0, 6), st.lists(st.integers(0, 3), max_size=5))
)


def plainly(ids: list[int], times: int) -> tuple[int, int] | None:
    """(size, most occurrences in a row) of the shortest n-gram that occurs often enough."""
    for size in range(1, LONGEST + 1):
        most = 0
        for start in range(len(ids) - size + 1):
            count = 1
            while ids[start : start + size] == ids[start + count * size : start + (count + 1) * size]:
                count += 1
            most = max(most, count)
        if most >= times:
            return size, most
    return None


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=4), st.integers(2, 5))
def test_it_is_what_a_plain_loop_finds(parts: list[tuple[list[int], int, list[int]]], times: int) -> None:
    ids = [each for ngram, count, rest in parts for each in [*ngram * count, *rest]]
    found = repetition(np.array(ids, np.int32), times)
    assert (found and (found.size, found.times)) == plainly(ids, times)
    if found:
        part = ids[found.start : found.start + found.size]
        assert ids[found.start : found.start + found.size * found.times] == part * found.times


@pytest.mark.parametrize(("ids", "times"), [([], 2), ([7], 2), ([7] * 31, 32), ([1, 2] * 31 + [1], 32)])
def test_too_few_are_none(ids: list[int], times: int) -> None:
    assert repetition(np.array(ids, np.int32), times) is None


def test_rows_are_prepared_without_them(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    good = "The old sailor sold three books to a neighbour who had asked for them."
    lines = [good, "menu home menu home " * 40, "Another sentence of plain words stands here.", "ab cd ef " * 31]
    (tmp_path / "text.txt").write_text("\n\n".join(lines * 3) + "\n")
    arguments = ["--input", str(tmp_path / "text.txt"), "--length", "1024", "--workers", "1"]
    arguments += ["--vocab", str(rows_folder / "train" / "vocabulary")]
    left = {}
    for name, more in (("all", []), ("some", ["--max-repeats", "32"])):
        assert main([*arguments, *more, "--output", str(tmp_path / name)]) == 0
        manifest = json.loads((tmp_path / name / "train" / "manifest.json").read_text())
        left[name] = manifest["blocks"]
        assert manifest["settings"]["max_repeats"] == (32 if more else 0)
        assert manifest["skipped"] == ({"blocks that repeat an n-gram": 3} if more else {})
    said = capsys.readouterr().out
    assert left["all"] - left["some"] == 3 and "skipped blocks that repeat an n-gram" in said
    assert not (tmp_path / "all" / "train" / "skipped_blocks.jsonl").exists()
    listed = [
        json.loads(line) for line in (tmp_path / "some" / "train" / "skipped_blocks.jsonl").read_text().splitlines()
    ]
    assert [each["where"].rpartition(":")[2] for each in listed] == ["3", "11", "19"]
    assert {each["times"] for each in listed} == {80} and {each["ngram"] for each in listed} == {"menu home"}
    assert main([*arguments, "--max-repeats", "1", "--output", str(tmp_path / "other")]) == 2
    assert "--max-repeats is 1" in capsys.readouterr().err
