"""Two systems on the same examples, from the predictions that their tasks wrote: who was right, and McNemar's test."""

import dataclasses
import json
import pathlib

from spanjax.scoring.checks import counted, listed, raise_problems
from spanjax.scoring.significance import McNemar, mcnemar

SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Who was right on which example, in the order of the first file, and how likely so uneven a split is by chance."""

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
        """The comparison in words, with names of the two systems."""
        test, count = self.test, len(self.ids)
        accuracy = [100 * sum(right) / count for right in (self.first_right, self.second_right)]
        return [
            f"{count:,} examples: {first} {accuracy[0]:.2f}% right, {second} {accuracy[1]:.2f}%",
            f"both right {self.both:,}, only {first} {test.only_first:,}, only {second} {test.only_second:,},"
            f" neither {self.neither:,}",
            f"McNemar's test: p {test.exact_p:.4g} (exact), {test.chi_square_p:.4g} (chi-square {test.chi_square:.2f})",
        ]


def compare_predictions(first: pathlib.Path, second: pathlib.Path) -> Comparison:
    """The comparison of two files predictions.jsonl, lines {"id", "label", "prediction"} with labels that are words.

    ValueError lists every problem: lines that are none, ids that repeat or that one file lacks, labels that are missing or
    differ, numbers for predictions (a number is not right or wrong).
    """
    problems: list[str] = []
    one, other = (_read(path, problems) for path in (first, second))
    for path, mine, theirs in ((first, one, other), (second, other, one)) if one and other else ():
        lacking = [name for name in theirs if name not in mine]
        problems += counted(lacking, f"ids are missing in {path}", "expected the same examples in both files")
    differing = [name for name, (label, _) in one.items() if name in other and other[name][0] != label]
    problems += counted(differing, "ids have another label in the two files", "expected files of the same examples")
    raise_problems("the comparison", problems)
    judged = [tuple(given[name][0] == given[name][1] for name in one) for given in (one, other)]
    return Comparison(tuple(one), judged[0], judged[1], mcnemar(*judged))


def _read(path: pathlib.Path, problems: list[str]) -> dict[str, tuple[str, str]]:
    """id -> (label, prediction); what is wrong is added to the problems."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path} cannot be read ({error}): expected a predictions.jsonl")
        return {}
    if lines == [""]:
        problems.append(f"{path} is empty: expected a line for every example")
        return {}
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
    problems += wrong[:SHOWN] + ([f"{path}: and {len(wrong) - SHOWN:,} lines more"] if len(wrong) > SHOWN else [])
    return found


def _parsed(line: str) -> tuple[str, str, str, str]:
    """(id, label, prediction, what is wrong)."""
    fields = ("id", "label", "prediction")
    try:
        record = json.loads(line)
    except ValueError as error:
        return "", "", "", f"not JSON ({error}); expected an object with {listed(fields)}"
    if not isinstance(record, dict) or any(name not in record for name in fields):
        return "", "", "", f"{line[:60]!r}; expected an object with {listed(fields)}"
    if record["label"] is None:
        return "", "", "", "no label; expected predictions for labelled examples"
    wrong = [name for name in fields if not isinstance(record[name], str)]
    if wrong:
        return "", "", "", f"{wrong[0]} {record[wrong[0]]!r}; expected a word: numbers are not right or wrong"
    return record["id"], record["label"], record["prediction"], ""
