"""Every wrong input of the tables gets one message that says what is wrong, what was expected and what to do."""

import os
import pathlib

import pytest

from tests.bad_inputs import Case, World, page, problems, run, shown
from tests.bad_inputs_data import DATA_CASES
from tests.bad_inputs_environment import ENVIRONMENT_CASES
from tests.bad_inputs_models import MODEL_CASES
from tests.bad_inputs_run import RUN_CASES
from tests.bad_inputs_storage import STORAGE_CASES
from tests.bad_inputs_tasks import TASK_CASES
from tests.running import ROOT

CASES: tuple[Case, ...] = (*RUN_CASES, *ENVIRONMENT_CASES, *DATA_CASES, *MODEL_CASES, *TASK_CASES, *STORAGE_CASES)
PAGE = ROOT / "docs" / "errors.md"
WRITE = "SPANJAX_WRITE_ERRORS"
MESSAGES: dict[Case, str] = {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_message(
    case: Case,
    rows_folder: pathlib.Path,
    run_folder: pathlib.Path,
    weights_folder: pathlib.Path,
    corpus_file: pathlib.Path,
    tuned_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    world = World(tmp_path, rows_folder, run_folder, weights_folder, corpus_file, tuned_folder)
    said = run(case, world)
    MESSAGES[case] = shown(case, said, world)
    found = problems(case, said, world)
    assert not found, f"{found}\n{said.error}"


def test_the_page_is_what_is_said() -> None:
    """Runs last; where a part of the cases was selected, only their lines are compared."""
    if len(MESSAGES) == len(CASES) and os.environ.get(WRITE):
        PAGE.write_text(page({case: MESSAGES[case] for case in CASES}))
    written, remedy = PAGE.read_text(), f"write the page again: {WRITE}=1 python -m pytest tests/test_bad_inputs.py"
    expected = page({case: MESSAGES[case] for case in CASES if case in MESSAGES})
    lines = set(written.splitlines())
    changed = [line for line in expected.splitlines() if line not in lines]
    assert not changed, "\n".join([f"not in docs/errors.md; {remedy}", *changed])
    if len(MESSAGES) == len(CASES):
        assert written == expected, f"docs/errors.md has other lines or another order; {remedy}"
