"""A tracker of a user's own, tests/extending/tracker.py: what it gets, what its faults change, its id."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from spanjax import train
from spanjax.run import Run, load
from spanjax.training.preemption import StopRequest
from spanjax.training.trackers import Trackers, Tracking, require
from spanjax.training.trackers.base import Connection, TrackedRun, Tracker
from spanjax.training.trackers.mlflow import MLflow
from spanjax.training.trackers.wandb import Wandb
from tests.fake_trackers import install_fakes
from tests.running import ROOT, records, shrunk

CONFIG = """
import dataclasses

from configs.pretrain.demo import RUN as DEMO
from spanjax.training.trackers import Tracking
from tests.extending.tracker import Csv

RUN = dataclasses.replace(DEMO, tracking=Tracking(to=(Csv(),)))
"""


@pytest.fixture
def own_config(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A config file with the tracker."""
    monkeypatch.chdir(ROOT)
    path = tmp_path / "own.py"
    path.write_text(CONFIG)
    return str(path)


def drawn(folder: pathlib.Path, key: str) -> list[tuple[int, float]]:
    """(step, value) of every line of the only CSV file, in the order of writing."""
    (path,) = (folder / "run").glob("*.csv")
    lines = [line.split(",") for line in path.read_text().splitlines()]
    return [(int(step), float(value)) for step, name, value in lines if name == key]


def part(run: Run, workdir: pathlib.Path, begin: int, end: int, *more: Tracker) -> list[str]:
    """One process that takes these steps of four; the lines that it said."""
    said = list[str]()
    workdir.mkdir(exist_ok=True)
    settings = dataclasses.replace(run.tracking, to=(*run.tracking.to, *more))
    trackers = Trackers(settings, workdir, begin, 4, {}, said.append)
    for step in range(begin + 1, end + 1):
        trackers.write(step, {"train/loss": 1.0 / step})
    trackers.close()
    return said


@dataclasses.dataclass(frozen=True)
class Broken(Tracker):
    """A tracker whose service is gone, or whose class has a fault."""

    how: str = "raises"

    def open(self, run: TrackedRun) -> Connection:
        if self.how == "raises":
            raise ConnectionError("gone")
        connection: Any = None if self.how == "returns nothing" else Connection()  # which has no `log`
        return connection


@pytest.mark.unit
def test_the_example_gets_all_records_and_its_id_back(own_config: str, tmp_path: pathlib.Path) -> None:
    run = load(own_config)
    assert run.problems() == []
    part(run, tmp_path / "run", 0, 2)
    ids = json.loads((tmp_path / "run" / "tracking.json").read_text())["ids"]
    part(run, tmp_path / "run", 2, 4)
    assert drawn(tmp_path, "train/loss") == [(step, 1.0 / step) for step in (1, 2, 3, 4)]
    assert [path.stem for path in (tmp_path / "run").glob("*.csv")] == [ids["csv"]["id"]]


@pytest.mark.unit
@pytest.mark.parametrize("how", ["raises", "returns nothing", "logs nothing"])
def test_one_that_fails_stops_neither_the_run_nor_the_others(own_config: str, tmp_path: pathlib.Path, how: str) -> None:
    said = part(load(own_config), tmp_path / "run", 0, 4, Broken(how))
    assert [step for step, _ in drawn(tmp_path, "train/loss")] == [1, 2, 3, 4]
    assert sum("Training continues" in line for line in said) == 1
    assert any(line.startswith("broken: ") and "4 not sent" in line for line in said)


def test_a_run_of_the_example_resumes_its_curve(
    own_config: str, rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir = tmp_path / "run"
    arguments = shrunk(own_config, rows_folder, workdir, 4, "--data.feed=numpy", "--cadence.checkpoint-every=2")
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "agreed", lambda self, step: step == 2)
        assert train.main(arguments) == 75
    assert train.main(arguments) == 0
    assert drawn(tmp_path, "train/mlm/loss") == sorted(records(workdir, "train/mlm/loss").items())
    ids = json.loads((workdir / "tracking.json").read_text())["ids"]
    (file,) = (workdir / "checkpoints" / "4").glob("meta/metadata")
    meta = json.loads(file.read_text())
    assert meta["tracking"] == ids and meta["own_classes"] == {}, "no reader of the weights needs the tracker"
    assert json.loads((workdir / "run.json").read_text())["tracking"]["to"][0]["class"] == "Csv"


@pytest.mark.unit
def test_the_command_line_keeps_objects_and_replaces_them(own_config: str) -> None:
    parsed = train.parse(["--config", own_config]).run.tracking
    assert [each.service for each in parsed.to] == ["csv"]
    named = train.parse(
        ["--config", own_config, "--tracking.to", "wandb", "mlflow", "--tracking.tags", "a"]
    ).run.tracking
    assert named.trackers() == (Wandb(tags=("a",)), MLflow(tags=("a",)))
    (problem,) = train.parse(["--config", own_config, "--tracking.project", "x"]).run.tracking.problems()
    assert "tracking.project is set, but every tracker" in problem


@pytest.mark.unit
def test_names_and_objects_draw_together(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    wandb, mlflow = install_fakes(monkeypatch)
    settings = Tracking(to=("wandb", MLflow(project="own", uri="https://server", tags=("a=b",))), tags=("c",))
    assert settings.problems() == []
    require(settings)
    trackers = Trackers(settings, tmp_path, 0, 1, {}, print)
    trackers.write(1, {"train/loss": 1.0})
    trackers.close()
    assert (
        wandb.started[0]["tags"] == ["c"] and mlflow.only_run().tags["a"] == "b" and "c" not in mlflow.only_run().tags
    )


@dataclasses.dataclass(frozen=True)
class Keyed(Tracker):
    """A tracker with settings that are secrets."""

    api_key: str = "hushhush"
    server_url: str = "https://me:hushhush@host"

    def open(self, run: TrackedRun) -> Connection:
        return Connection()

    def require(self) -> None:
        raise ModuleNotFoundError("No module named 'keyed'")


@pytest.mark.unit
def test_faults_of_settings_are_collected_and_secrets_not_repeated() -> None:
    found = Tracking(to=(Keyed(), Keyed(), MLflow(uri="https://me:hushhush@host"), Wandb(project=""))).problems()
    for start in (
        "tracking.to is keyed keyed mlflow wandb: name every tracker once",
        "tracking.to.0.api_key holds a user, password or token",
        "tracking.to.1.server_url holds",
        "tracking.to.2.uri holds a user, password or token: a setting is written to files, so give the URI without it",
        "tracking.to.3.project is empty",
    ):
        assert sum(line.startswith(start) for line in found) == 1, (start, found)
    assert "hushhush" not in str(found)
    wrong: Any = ("wandbb",)
    assert "tracking.to holds 'wandbb': expected wandb, mlflow, or an object" in Tracking(to=wrong).problems()[0]
    with pytest.raises(ValueError, match="names keyed, whose package does not import .*: leave keyed out of"):
        require(Tracking(to=(Keyed(),)))
