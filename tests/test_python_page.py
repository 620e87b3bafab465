"""The snippets of docs/python.md run as they stand on the page, one after the other, on a tiny model."""

import pathlib
import re

import pytest

import spanjax
from tests.running import ROOT

PAGE = ROOT / "docs" / "python.md"


def snippets() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_the_snippets_run(
    run_folder: pathlib.Path,
    tuned_folder: pathlib.Path,
    rows_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(run_folder)
    (tmp_path / "rows").symlink_to(rows_folder)
    (tmp_path / "runs" / "sentences").symlink_to(tuned_folder)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    assert len(found := snippets()) >= 8
    for number, snippet in enumerate(found):
        exec(compile(snippet, f"docs/python.md, snippet {number + 1}", "exec"), names)
        if number == 0:
            assert "<TextModel 'runs/mine/checkpoints/2', step 2, bert of 2 layers x 16, " in capsys.readouterr().out
    assert names["answer"]["prediction"] in ("no", "yes") and len(names["answers"]) == 2
    assert names["result"].step == 2 and names["token"] and 0 < names["probability"] < 1


@pytest.mark.unit
def test_the_page_names_everything_public() -> None:
    text = PAGE.read_text()
    assert [name for name in spanjax.__all__ if name not in text and name not in OF_RESULTS] == []


OF_RESULTS = ("Fill", "FitResult", "Masked", "Span", "TaskPredictor", "__version__")
"""Types of results, which the page shows in use."""
