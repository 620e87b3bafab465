"""Groups of seeds and single runs tested against each other."""

import json
import pathlib

import pytest

from spanjax.pages.document import Table, plain
from spanjax.report.comparisons import comparison_blocks, mcnemar_rows, p_text, welch_rows
from spanjax.report.runs import grouped
from spanjax.run_format import describe
from spanjax.scoring.welch import welch
from spanjax.tasks.glue import Glue, Sentences
from spanjax.tasks.relation import Relation
from spanjax.tasks.relation.files import Mentions
from tests.report.made_runs import cola


def predicted(path: pathlib.Path, right: str, more: str = "") -> None:
    """predictions.jsonl with an example for each letter: r right, w wrong."""
    lines = [{"id": n, "label": "1", "prediction": "1" if each == "r" else "0"} for n, each in enumerate(right)]
    (path / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + more)


def test_groups_of_one_task_are_tested(tmp_path: pathlib.Path) -> None:
    one, other = [60.0, 62.0, 64.0], [50.0, 50.5]
    runs = cola(tmp_path, "first", one) + cola(tmp_path, "second", other, batch_size=16)
    runs += cola(tmp_path, "single", [70.0], batch_size=64)
    runs += cola(tmp_path, "rte", [70.0, 71.0], objective={"task": "RTE"})
    runs += cola(tmp_path, "other_files", [20.0, 21.0], objective={"dev": ["test.tsv"]})
    runs += cola(tmp_path, "half", [20.0, 21.0], objective={"dev_half": "test"})
    rows = welch_rows(grouped(runs))
    assert len(rows) == 1
    task, score, first, second, *_, difference, t, _, p = map(plain, rows[0])
    found = welch(one, other)
    assert (task, score, first, second) == ("CoLA", "Matthews correlation", "first", "second")
    assert (float(difference), float(t)) == (pytest.approx(found.difference), pytest.approx(found.t, rel=1e-3))
    assert float(p) == pytest.approx(found.p, rel=0.05)


def test_without_deviation_nothing_is_claimed(tmp_path: pathlib.Path) -> None:
    runs = cola(tmp_path, "a", [60.0, 60.0]) + cola(tmp_path, "b", [50.0, 50.0], batch_size=16)
    assert plain(welch_rows(grouped(runs))[0][-1]) == "no deviation: not known"
    assert p_text(1e-9) == "<0.0001"


def test_single_runs_with_predictions(tmp_path: pathlib.Path) -> None:
    one, other, third = (cola(tmp_path, n, [50.0], batch_size=b)[0] for n, b in (("a", 8), ("b", 16), ("c", 32)))
    predicted(one.path, "rrrrrrrrwwrr", "{broken\n")
    predicted(other.path, "wwwwwwwwrwrr")
    (third.path / "dev").mkdir()
    predicted(third.path / "dev", "rrr")
    rows, said = mcnemar_rows(grouped([one, other, third]))
    assert [[plain(cell) for cell in row[:6]] for row in rows] == [["CoLA", "a_0", "b_0", "12", "8", "1"]]
    assert float(plain(rows[0][-1])) == pytest.approx(2 * 10 / 2**9, rel=0.05)
    assert len([line for line in said if "other examples" in line]) == 2
    assert any("1 lines of predictions" in line for line in said)


@pytest.mark.parametrize("scheme", ["tacred", "semeval"])
def test_predictions_of_relations(scheme: str, tmp_path: pathlib.Path) -> None:
    """The files are those that the task writes; a wrong direction is wrong."""
    labels = ("Cause-Effect(e1,e2)", "Cause-Effect(e2,e1)", "Other")
    objective = {
        name: value for name, value in describe(Relation(labels=labels)).items() if name not in ("train", "dev")
    }
    runs = []
    for name, predicted in (("a", labels), ("b", (labels[1], labels[1], labels[0]))):
        (run,) = cola(tmp_path, name, [50.0], objective={**objective, "scheme": scheme, "length": ord(name)})
        examples = [Mentions(str(n), ("x", "y"), ((0, 1), (1, 2)), ("", ""), label) for n, label in enumerate(labels)]
        (run.path / "dev").mkdir()
        Relation(scheme=scheme).write(run.path / "dev", examples, predicted)  # pyright: ignore[reportArgumentType]
        runs.append(run)
    rows, said = mcnemar_rows(grouped(runs))
    task = {"tacred": "TACRED", "semeval": "SemEval-2010"}[scheme]
    assert [[plain(cell) for cell in row[:6]] for row in rows] == [[task, "a_0", "b_0", "3", "2", "0"]] and not said


def test_numbers_and_missing_labels_are_not_tested(tmp_path: pathlib.Path) -> None:
    runs = [cola(tmp_path, name, [50.0], batch_size=size)[0] for name, size in (("a", 8), ("b", 16))]
    for run, predicted in zip(runs, ([1.5, 2.0], [2.0, 1.0]), strict=True):
        Glue(task="STS-B").write(run.path, [Sentences(str(n), "x", "y", "2.0") for n in range(2)], predicted)
    rows, said = mcnemar_rows(grouped(runs))
    assert not rows and "none with labels as words" in said[0]


def test_nothing_to_test_is_said(tmp_path: pathlib.Path) -> None:
    blocks = comparison_blocks(grouped(cola(tmp_path, "a", [1.0, 2.0])))
    assert not any(isinstance(block, Table) for block in blocks)
    assert "Nothing could be tested" in plain(getattr(blocks[1], "words", ""))
