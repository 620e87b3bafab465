"""The figures of the house, on a small tree whose lines, rooms and arrows are counted by hand."""

import pathlib

import pytest

from benchmarks import house
from benchmarks.life_of_a_batch import Call

pytestmark = pytest.mark.unit

FILES = {
    "__init__.py": '"""A package."""\n',
    "run.py": '"""Run."""\n\nfrom spanjax.data import order, rows\n\nSTEPS = 3\n"""Of a run."""\n',
    "data/__init__.py": "",
    "data/rows.py": "import spanjax.data.order  # rows have an order\n\n\ndef f():\n" + "    x = 1\n" * 25,
    "data/order.py": "def g():\n    # a ring\n    from spanjax.data.rows import f\n    return f\n",
    "nn/encoder.py": "from spanjax.run import STEPS\n\nTEXT = '''\n# no comment\n'''\n",
}


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    for name, text in FILES.items():
        path = tmp_path / "spanjax" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_figures_of_the_text(tree: pathlib.Path) -> None:
    assert house.static_figures(tree) == {
        "rooms": "3",
        "arrows between rooms": "2",  # run -> data, nn -> run
        "loose modules": "1",
        "import cycles": "1",
        "files": "6",
        "lines; code without docstrings, comments, blanks": "45; 36",
        "lines of a file: mean, largest": "8, 29",
        "files under 45 lines": "6",
        "docstring lines": "3 (6.7%)",
        "comment lines": "1 (2.2%)",
        "functions over 25 lines; without a comment": "1; 1",
    }


def test_the_way_of_a_batch_is_inside_of_fit(tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [("outside", "run.py", "main"), ("loop", "data/order.py", "g"), ("outside", "data/rows.py", "f")]
    monkeypatch.setattr(house, "traced", lambda tree, phases: [Call(*call) for call in calls])
    inside, whole, *_ = house.figures(tree).values()
    assert (inside, whole) == ("1 files, 4 lines", "3 files, 39 lines")
