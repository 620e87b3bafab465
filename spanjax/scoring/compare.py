"""Compares two systems on the same examples by their tasks' prediction files: right answers of each, and McNemar's test."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from spanjax.json_files import parse_json
from spanjax.scoring.checks import counted, listed, raise_problems
from spanjax.scoring.significance import McNemar, mcnemar

PREDICTIONS = "predictions.jsonl"
"""The file that tasks with one label for an example write."""
SHOWN = 5


class Labelled(NamedTuple):
    """The predictions of a file."""

    by_id: Mapping[str, tuple[str, str]]
    """id -> (label, prediction)."""
    problems: tuple[str, ...]
    """Problems of the other lines, or of the file."""

    @property
    def labels(self) -> dict[str, str]:
        """id -> label."""
        return {name: label for name, (label, _) in self.by_id.items()}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Right answers of two systems by example, in the order of the first file, and the test of their difference."""

    ids: tuple[str, ...]
    first_right: tuple[bool, ...]
    second_right: tuple[bool, ...]
    test: McNemar

    @property
    def both(self) -> int:
        """Examples that both got right."""
        return sum(a and b for a, b in zip(self.first_right, self.second_right, strict=True))

    @property
    def neither(self) -> int:
        """Examples that both got wrong."""
        return len(self.ids) - self.both - self.test.only_first - self.test.only_second

    def lines(self, first: str = "first", second: str = "second") -> list[str]:
        """The comparison as text, with names of the two systems."""
        test, count = self.test, len(self.ids)
        accuracy = [100 * sum(right) / count for right in (self.first_right, self.second_right)]
        return [
            f"{count:,} examples: {first} {accuracy[0]:.2f}% right, {second} {accuracy[1]:.2f}%",
            f"both right {self.both:,}, only {first} {test.only_first:,}, only {second} {test.only_second:,},"
            f" neither {self.neither:,}",
            f"McNemar's test: p {test.exact_p:.4g} (exact), {test.chi_square_p:.4g} (chi-square {test.chi_square:.2f})",
        ]


def read_labelled(path: pathlib.Path) -> Labelled:
    """Reads a predictions.jsonl: lines {"id", "label", "prediction"} with labels that are words, as tasks with one label for an
    example write it. Other lines, and those without a label, with a number, or with the id of an earlier line are problems."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        return Labelled({}, (f"{path} cannot be read ({error}): expected a {PREDICTIONS}",))
    if lines == [""]:
        return Labelled({}, (f"{path} is empty: expected a line for every example",))
    found: dict[str, tuple[str, str]] = {}
    wrong: list[str] = []
    for number, line in enumerate(lines, start=1):
        name, label, prediction, problem = _parsed(line)
        if problem:
            wrong.append(f"{path}:{number}: {problem}")
        elif name in found:
            wrong.append(f"{path}:{number}: id {name!r} stands on an earlier line; expected it once")
        else:
            found[name] = (label, prediction)
    return Labelled(found, tuple(wrong))


def compared(first: Labelled, second: Labelled) -> Comparison:
    """Compares predictions of the same examples. KeyError where the second lacks one."""
    names = tuple(first.by_id)
    scored = [tuple(len({*given.by_id[name]}) == 1 for name in names) for given in (first, second)]
    return Comparison(names, scored[0], scored[1], mcnemar(*scored))


def compare_predictions(first: pathlib.Path, second: pathlib.Path) -> Comparison:
    """Compares two files predictions.jsonl, see `read_labelled`.

    ValueError lists every problem: those of the lines, ids that one file lacks, labels that differ.
    """
    one, other = read_labelled(first), read_labelled(second)
    problems: list[str] = []
    for path, wrong in ((first, one.problems), (second, other.problems)):
        problems += wrong[:SHOWN]
        problems += [f"{path}: and {len(wrong) - SHOWN:,} lines more"] if len(wrong) > SHOWN else []
    mine, theirs = one.labels, other.labels
    for path, here, there in ((first, mine, theirs), (second, theirs, mine)) if mine and theirs else ():
        lacking = [name for name in there if name not in here]
        problems += counted(lacking, f"ids are missing in {path}", "expected the same examples in both files")
    differing = [name for name, label in mine.items() if theirs.get(name, label) != label]
    problems += counted(differing, "ids have another label in the two files", "expected files of the same examples")
    raise_problems("the comparison", problems)
    return compared(one, other)


def _parsed(line: str) -> tuple[str, str, str, str]:
    """(id, label, prediction, problem or "")."""
    fields = ("id", "label", "prediction")
    try:
        record = parse_json(line)
    except ValueError as error:
        return "", "", "", f"not JSON ({error}); expected an object with {listed(fields)}"
    if not isinstance(record, dict) or any(name not in record for name in fields):
        return "", "", "", f"{line[:60]!r}; expected an object with {listed(fields)}"
    if record["label"] is None:
        return "", "", "", "no label; expected predictions for labelled examples"
    if type(record["id"]) is int:
        record["id"] = str(record["id"])
    wrong = [name for name in fields if not isinstance(record[name], str)]
    if wrong:
        return "", "", "", f"{wrong[0]} {record[wrong[0]]!r}; expected a word: numbers are not right or wrong"
    return record["id"], record["label"], record["prediction"], ""
