"""Grid files: arms, factors, and one error with everything that is wrong."""

import pathlib

import pytest

from spanjax.experiment.grid import Arm, read_grid
from spanjax.run import Run
from tests.running import ROOT

pytestmark = pytest.mark.unit


def grid(folder: pathlib.Path, text: str, name: str = "grid.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_arms_of_toml(tmp_path: pathlib.Path) -> None:
    text = """
seeds = [3, 0]
base = "slow"
equal_flops = true
[arms]
fast = "--optimizer.learning-rate 1e-2 --steps 3"
slow = ["--optimizer.learning-rate=1e-4", "--rows 'a folder'"]
"""
    found = read_grid(grid(tmp_path, text))
    assert found.seeds == (3, 0) and found.equal_flops
    assert found.arms == (
        Arm("slow", ("--optimizer.learning-rate=1e-4", "--rows", "a folder")),
        Arm("fast", ("--optimizer.learning-rate", "1e-2", "--steps", "3")),
    )


def test_the_product_of_factors(tmp_path: pathlib.Path) -> None:
    text = 'seeds = [0]\n[factors.rate]\nr15 = []\nr30 = "--a 3"\n[factors.decay]\nlinear = []\ncosine = "--b 1"\n'
    found = read_grid(grid(tmp_path, text))
    assert [(arm.name, arm.settings) for arm in found.arms] == [
        ("r15-linear", ()),
        ("r15-cosine", ("--b", "1")),
        ("r30-linear", ("--a", "3")),
        ("r30-cosine", ("--a", "3", "--b", "1")),
    ]


def test_python_takes_runs(tmp_path: pathlib.Path) -> None:
    text = (
        "from spanjax.run import Run\nSEEDS = range(0)\nSEEDS = (0, 1)\nARMS = {'a': Run(steps=7), 'b': '--steps 8'}\n"
    )
    found = read_grid(grid(tmp_path, text, "grid.py"))
    assert found.arms == (Arm("a", run=Run(steps=7)), Arm("b", ("--steps", "8"))) and found.seeds == (0, 1)


def test_the_recipe_of_the_project_is_a_grid_of_valid_runs() -> None:
    found = read_grid(str(ROOT / "configs/sweeps/recipe.py"))
    assert found.arms[0].name == "base" and len(found.arms) == 8 and len(found.seeds) == 3
    assert all(arm.run and arm.run.problems() == [] for arm in found.arms)


def test_one_error_lists_all_problems(tmp_path: pathlib.Path) -> None:
    text = """
seed = 0
base = "c"
equal_flops = 1
[arms]
"../up" = []
".hidden" = []
"sweep.json" = []
a = 3
A = "--seed 3 --workdir=x"
b = "'"
a_ = []
A_ = []
"""
    with pytest.raises(ValueError) as error:
        read_grid(grid(tmp_path, text))
    message = str(error.value)
    for part in (
        "'../up'",
        "'.hidden'",
        "'sweep.json'",
        "arms a: 3: expected settings",
        "arms A: --seed is not of an arm",
    ):
        assert part in message, part
    for part in (
        "arms A: --workdir",
        'arms b: "\'": No closing',
        "arm A_: another arm",
        "seed: expected arms, factors",
    ):
        assert part in message, part
    assert "seeds is (): expected" in message and "base is 'c'" in message and "equal_flops is 1" in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("seeds = [0]", "either arms or factors"),
        ("seeds = [0]\n[arms]\na = []\n[factors.x]\nb = []", "either arms or factors"),
        ("seeds = [0, 0]\n[arms]\na = []", "seeds is [0, 0]"),
        ("seeds = [-1]\n[arms]\na = []", "seeds is [-1]"),
        ("seeds = [0]\n[factors]\nx = 3", "factors.x is 3"),
        ("seeds = [0]\n[arms]\na = []\na = []", "is no TOML"),
        ("seeds = [", "is no TOML"),
    ],
)
def test_other_errors(text: str, part: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError) as error:
        read_grid(grid(tmp_path, text))
    assert part in str(error.value)


def test_missing_and_failing_files(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        read_grid(str(tmp_path / "none.py"))
    with pytest.raises(ValueError, match="does not load: NameError"):
        read_grid(grid(tmp_path, "ARMS = a", "bad.py"))
    with pytest.raises(ValueError, match="factors: a Run"):
        read_grid(grid(tmp_path, "from spanjax.run import Run\nSEEDS=[0]\nFACTORS={'x': {'a': Run()}}", "runs.py"))
