"""Groups of seeds and single runs tested against each other."""

import json
import pathlib

import pytest

from spanjax.report.comparisons import comparison_blocks, mcnemar_rows, p_text, welch_rows
from spanjax.report.document import Table, plain
from spanjax.report.groups import grouped
from spanjax.scoring.welch import welch
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
    rows = welch_rows(grouped(runs))
    assert len(rows) == 1
    task, score, first, second, *_, difference, t, _, p = map(plain, rows[0])
    found = welch(one, other)
    assert (task, score, first, second) == ("CoLA", "mean", "first", "second")
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


def test_nothing_to_test_is_said(tmp_path: pathlib.Path) -> None:
    blocks = comparison_blocks(grouped(cola(tmp_path, "a", [1.0, 2.0])))
    assert not any(isinstance(block, Table) for block in blocks)
    assert "Nothing could be tested" in plain(getattr(blocks[1], "words", ""))
