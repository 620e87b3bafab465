"""Two files of predictions: who was right, McNemar's test of it, and everything that keeps them from being compared."""

import json
import pathlib

import pytest

from spanjax.scoring.compare import compare_predictions
from spanjax.scoring.significance import mcnemar
from spanjax.tasks.glue import Glue, Sentences


def written(path: pathlib.Path, *lines: object) -> pathlib.Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def predictions(path: pathlib.Path, labels: str, predicted: str, names: str = "") -> pathlib.Path:
    """A file with a letter for each label, prediction and id."""
    names = names or "abcdefghij"[: len(labels)]
    given = zip(names, labels, predicted, strict=True)
    return written(path, *({"id": a, "label": b, "prediction": c} for a, b, c in given))


def test_who_was_right(tmp_path: pathlib.Path) -> None:
    first = predictions(tmp_path / "a", "yyynnn", "yynnny")
    second = predictions(tmp_path / "b", "nnnyyy", "nynyyn", "fedcba")  # the same examples in another order
    found = compare_predictions(first, second)
    assert found.ids == tuple("abcdef")
    assert found.first_right == (True, True, False, True, True, False)
    assert found.second_right == (False, True, True, True, False, True)
    assert (found.both, found.neither) == (2, 0)
    assert found.test == mcnemar(found.first_right, found.second_right)
    assert (found.test.only_first, found.test.only_second) == (2, 2)
    told = "\n".join(found.lines("plain", "spans"))
    assert "6 examples: plain 66.67% right, spans 66.67%" in told and "only plain 2, only spans 2, neither 0" in told
    assert "p 1 (exact)" in told


def test_a_difference_that_is_none_by_chance(tmp_path: pathlib.Path) -> None:
    names = "".join(chr(0x4E00 + number) for number in range(40))
    first = predictions(tmp_path / "a", "y" * 40, "y" * 30 + "n" * 10, names)
    second = predictions(tmp_path / "b", "y" * 40, "y" * 18 + "n" * 22, names)
    found = compare_predictions(first, second)
    assert found.test.exact_p == pytest.approx(2 / 2**12) and (found.both, found.neither) == (18, 10)


def test_files_that_glue_writes(tmp_path: pathlib.Path) -> None:
    examples = [
        Sentences("7", "One.", None, "1"),
        Sentences("a\u2028b", "Two.", None, "0"),  # a line separator inside of a line
    ]
    for folder, predicted in (("a", ["1", "0"]), ("b", ["1", "1"])):
        (tmp_path / folder).mkdir()
        Glue(labels=("0", "1")).write(tmp_path / folder, examples, predicted)
    found = compare_predictions(*(tmp_path / folder / "predictions.jsonl" for folder in "ab"))
    assert (found.first_right, found.second_right) == ((True, True), (True, False))


def test_every_problem_is_told_at_once(tmp_path: pathlib.Path) -> None:
    good = {"id": "a", "label": "y", "prediction": "n"}
    first = written(tmp_path / "a", good, good, "{", {"id": "b"}, [1], {**good, "id": "c", "label": None})
    second = written(
        tmp_path / "b", {**good, "label": "n"}, {**good, "id": "d", "prediction": 2.5}, {**good, "id": "e"}
    )
    with pytest.raises(ValueError) as error:
        compare_predictions(first, second)
    for told in (
        f"{first}:2: id 'a' stands on an earlier line",
        f"{first}:3: not JSON",
        f'{first}:4: \'{{"id": "b"}}\'; expected an object with id, label, prediction',
        f"{first}:5: '[1]'",
        f"{first}:6: no label",
        f"{second}:2: prediction 2.5; expected a word",
        f"1 ids are missing in {first}: e",
        "1 ids have another label in the two files: a",
    ):
        assert told in str(error.value)


def test_files_without_predictions(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(ValueError, match="(?s)absent cannot be read .*empty is empty: expected a line"):
        compare_predictions(tmp_path / "absent", tmp_path / "empty")


def test_of_many_bad_lines_some_are_shown(tmp_path: pathlib.Path) -> None:
    first, second = written(tmp_path / "a", *["{"] * 9), predictions(tmp_path / "b", "y", "y")
    with pytest.raises(ValueError, match=f"{first}: and 4 lines more"):
        compare_predictions(first, second)
