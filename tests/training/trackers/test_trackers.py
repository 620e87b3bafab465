"""One run stays one curve: ids, newest steps, servers that change; packages that are missing; addresses with passwords."""

import json
import pathlib
import shutil
import sys
from typing import Any

import pytest

from spanjax.training.metrics import JsonLines
from spanjax.training.trackers import Trackers, Tracking, require
from tests.fake_trackers import FakeMlflow, FakeWandb, install_fakes

pytestmark = pytest.mark.unit

BOTH = Tracking(to=("wandb", "mlflow"), uri="https://server", group="g", tags=("big", "corpus=wiki"))
CONFIG = {"seed": 1, "terms": [{"weight": 1.0}, {"weight": 0.5}], "rows": []}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeWandb, FakeMlflow]:
    return install_fakes(monkeypatch)


class Process:
    """One process of a run of ten steps: it goes on from `begin` and is killed or ends after `end`."""

    def __init__(self, workdir: pathlib.Path, begin: int, end: int, settings: Tracking = BOTH, config: Any = CONFIG):
        self.said = list[str]()
        workdir.mkdir(exist_ok=True)
        metrics = JsonLines(workdir / "metrics.jsonl", begin)
        self.trackers = Trackers(settings, workdir, begin, 10, config, self.said.append)
        for step in range(begin + 1, end + 1):
            for writer in (metrics, self.trackers):
                writer.write(step, {"train/loss": 1.0 / step})
                if step % 5 == 0:
                    writer.write(step, {"eval/loss": 2.0 / step})
        metrics.close()
        self.meta = json.loads(json.dumps(self.trackers.meta()))
        self.trackers.close()


WHOLE = {step: 1.0 / step for step in range(1, 11)}


def curve(mlflow: FakeMlflow) -> dict[int, float]:
    points = [m for m in mlflow.only_run().history if m.key == "train/loss"]
    assert len(points) == len({m.step for m in points}), "no step twice"
    return {m.step: m.value for m in points}


def test_a_run_that_went_back_is_one_curve_without_doubles(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path
) -> None:
    wandb, mlflow = fakes
    Process(tmp_path / "run", 0, 7)
    assert mlflow.only_run().info.status == "KILLED" and wandb.endings == [1]
    Process(tmp_path / "run", 5, 10)
    assert mlflow.only_run().info.status == "FINISHED" and wandb.endings == [1, 0]
    assert curve(mlflow) == WHOLE
    ((id, rows),) = wandb.runs.items()
    assert [row["step"] for row in rows if "train/loss" in row] == [*range(1, 11)]
    assert [row["step"] for row in rows if "eval/loss" in row] == [5, 10]
    assert [start["id"] for start in wandb.started] == [id, id] and wandb.started[1]["resume"] == "allow"
    assert wandb.started[0]["group"] == "g" and wandb.started[0]["tags"] == ["big", "corpus=wiki"]
    run = mlflow.only_run()
    assert run.params == {"seed": "1", "terms/0/weight": "1.0", "terms/1/weight": "0.5"}
    assert {"big": "true", "corpus": "wiki", "group": "g"}.items() <= run.tags.items()


def test_a_failed_run_is_marked_failed(fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path) -> None:
    trackers = Trackers(BOTH, tmp_path, 0, 10, CONFIG, print)
    try:
        with pytest.raises(ZeroDivisionError):
            try:
                _ = 1 / 0
            finally:
                trackers.close()
    finally:
        assert fakes[1].only_run().info.status == "FAILED" and fakes[0].endings == [1]


def test_records_of_another_time_are_sent_when_the_tracker_answers_again(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path
) -> None:
    wandb, mlflow = fakes
    wandb.faults.calls["init"] = mlflow.faults.calls["connect"] = ConnectionError("unreachable")
    first = Process(tmp_path / "run", 0, 5)
    assert sum("unreachable. Training continues" in line for line in first.said) == 2
    wandb.faults.calls.clear()
    mlflow.faults.calls.clear()
    Process(tmp_path / "run", 5, 10)
    assert curve(mlflow) == WHOLE
    assert [row["step"] for row in wandb.runs.popitem()[1]] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10]


def test_a_tracker_asked_for_later_gets_the_whole_curve(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path
) -> None:
    wandb, mlflow = fakes
    assert Process(tmp_path / "run", 0, 5, Tracking()).meta == {}
    assert not (tmp_path / "run" / "tracking.json").exists() and not wandb.started and not mlflow.stores
    Process(tmp_path / "run", 5, 10)
    assert curve(mlflow) == WHOLE and len(wandb.runs.popitem()[1]) == 12


def test_a_checkpoint_in_a_new_folder_goes_on_with_the_same_curve(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path
) -> None:
    wandb, mlflow = fakes
    first = Process(tmp_path / "run", 0, 5)
    file = tmp_path / "new" / "checkpoints" / "5" / "meta" / "metadata"
    file.parent.mkdir(parents=True)
    ids = json.loads((tmp_path / "run" / "tracking.json").read_text())["ids"]
    file.write_text(json.dumps({"tracking": ids}))
    shutil.copy(tmp_path / "run" / "metrics.jsonl", tmp_path / "new")
    assert first.meta["tracking"]["wandb"] == ids["wandb"]
    second = Process(tmp_path / "new", 5, 10)
    assert second.meta["tracking"] == ids and ids["mlflow"]["id"] == mlflow.only_run().info.run_id
    assert curve(mlflow) == WHOLE and list(wandb.runs) == [ids["wandb"]["id"]]
    assert [row["step"] for row in wandb.runs[ids["wandb"]["id"]] if "train/loss" in row] == [*range(1, 11)]
    third = Process(tmp_path / "new", 10, 10, Tracking())
    assert third.meta["tracking"] == ids, "kept in checkpoints while no tracker is asked for"


def test_a_run_made_before_its_id_was_noted_is_found(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = fakes[1]
    mlflow.faults.calls["created"] = ConnectionError("lost while answering")
    Process(tmp_path / "run", 0, 5)
    mlflow.faults.calls.clear()
    Process(tmp_path / "run", 5, 10)
    assert curve(mlflow) == WHOLE


def test_a_request_that_was_cut_in_a_file_store_is_completed(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first number of a request was written when the process was killed."""
    mlflow, settings = fakes[1], Tracking(to=("mlflow",))
    Process(tmp_path / "run", 0, 2, settings)
    mlflow.faults.calls["cut"] = ConnectionError("killed")
    monkeypatch.setattr("spanjax.training.trackers.queue.FIRST_PAUSE_S", 60.0)
    Process(tmp_path / "run", 2, 5, settings)
    assert "train/loss" in [m.key for m in mlflow.only_run().history if m.step == 3]
    mlflow.faults.calls.clear()
    Process(tmp_path / "run", 5, 10, settings)
    assert curve(mlflow) == WHOLE


def test_another_mlflow_server_gets_a_run_of_its_own_with_everything(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path
) -> None:
    mlflow = fakes[1]
    Process(tmp_path / "run", 0, 5, Tracking(to=("mlflow",), uri="https://one"))
    Process(tmp_path / "run", 5, 10, Tracking(to=("mlflow",), uri="https://two"))
    (second,) = mlflow.stores["https://two"].values()
    assert [m.step for m in second.history if m.key == "train/loss"] == [*range(1, 11)]


def test_a_changed_setting_does_not_set_a_parameter_again(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path
) -> None:
    Process(tmp_path / "run", 0, 5)
    said = Process(tmp_path / "run", 5, 10, config={**CONFIG, "seed": 2, "new": 3}).said
    assert not any("failure" in line for line in said)
    assert fakes[1].only_run().params["seed"] == "1" and fakes[1].only_run().params["new"] == "3"


@pytest.mark.parametrize("content", ["", "[]", '{"ids": 3, "sent": {}}', "\x00", '{"ids": {"wandb": 3}, "sent": {}}'])
def test_a_damaged_file_of_ids_stops_nothing(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path, content: str
) -> None:
    (tmp_path / "tracking.json").write_text(content)
    said = Process(tmp_path, 0, 5).said
    assert any("ids are taken from the checkpoint" in line for line in said)
    assert len(fakes[0].runs) == 1


def test_a_full_disk_stops_nothing(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("spanjax.storage.local.os.replace", full)
    said = Process(tmp_path / "run", 0, 5).said
    assert len([line for line in said if "No space left on device" in line]) == 1
    assert curve(fakes[1]) == {step: WHOLE[step] for step in range(1, 6)}


def test_no_login_is_said_and_nobody_is_asked(fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path) -> None:
    fakes[0].logged_in = False
    said = Process(tmp_path / "run", 0, 5, Tracking(to=("wandb",))).said
    assert "no login: set WANDB_API_KEY, call `wandb login`" in said[0] and not fakes[0].started
    Process(tmp_path / "run", 0, 5, Tracking(to=("wandb",), mode="offline"))
    assert fakes[0].started[0]["mode"] == "offline"


def test_passwords_of_an_address_move_out_of_it(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:p%40ss@server:5000/x")
    said = Process(tmp_path / "run", 0, 5, Tracking(to=("mlflow",))).said
    import os

    assert list(fakes[1].stores) == ["https://server:5000/x"]
    assert (os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]) == ("me", "p@ss")
    assert "https://server:5000/x" in said[0] and "p%40ss" not in str(said) and "p@ss" not in str(said)


def test_secrets_in_the_settings_of_a_run_are_not_sent(
    fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hushhush")
    Process(tmp_path / "run", 0, 1, config={"data": {"rows": ["s3://id:key@bucket/hushhush"]}})
    assert fakes[1].only_run().params == {"data/rows/0": "s3://***@bucket/***"}
    assert "hushhush" not in str(fakes[0].started)
    options = fakes[0].started[0]["settings"]
    assert options["console"] == "off" and options["x_disable_meta"] and options["disable_git"]


def test_many_numbers_are_split_over_requests(fakes: tuple[FakeWandb, FakeMlflow], tmp_path: pathlib.Path) -> None:
    config = {f"setting{i}": i for i in range(250)}
    trackers = Trackers(Tracking(to=("mlflow",), uri="https://server"), tmp_path, 0, 3, config, print)
    for step in (1, 2, 3):
        trackers.write(step, {f"train/{i}": 1.0 for i in range(600)})
    trackers.close()
    assert len(fakes[1].only_run().history) == 3 * 601 and len(fakes[1].only_run().params) == 250


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    install_fakes(monkeypatch)
    require(BOTH)
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ValueError, match="pip install wandb, or leave wandb out of --tracking.to") as caught:
        require(BOTH)
    assert "pip install mlflow-skinny" in str(caught.value)


def test_wrong_settings_are_collected_and_no_password_is_repeated() -> None:
    found = Tracking(to=("wandb", "wandb"), project=" ", uri="https://me:hushhush@host").problems()
    assert len(found) == 3 and "MLFLOW_TRACKING_PASSWORD" in found[2] and "hushhush" not in str(found)
    assert BOTH.problems() == []
