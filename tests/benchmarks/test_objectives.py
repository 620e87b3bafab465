"""The comparison of objectives reuses what was made by the same command, and stops at what was made by another."""

import dataclasses
import pathlib
import subprocess
from typing import Any

import pytest

from benchmarks import objectives
from benchmarks.objectives import Ablation, TaskOf
from spanjax.nn.config import Architecture
from spanjax.run import load
from spanjax.train import parse
from tests.running import ROOT

TASK = TaskOf.read("sst2=glue.py:train.tsv:dev.tsv:accuracy:--objective.epochs=3")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The runs that were started; none trains."""
    started: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess:
        started.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(objectives, "measured", lambda *_, **__: (1.0, 2))
    monkeypatch.setattr(objectives, "values", lambda *_: [1.0])
    return started


def ablation(folder: pathlib.Path, rows: str = "rows", steps: int = 8, task: TaskOf = TASK) -> Ablation:
    return Ablation(rows, folder, (task,), (0,), steps, {}, "1e-3")


def test_what_the_same_command_made_is_not_made_again(tmp_path: pathlib.Path, commands: list[list[str]]) -> None:
    for folder in (tmp_path / "here", tmp_path / "here", tmp_path / "there"):
        made = ablation(folder)
        made.pretrain("tokens")
        made.tune("tokens", TASK, 0)
        if folder.name == "here":
            assert len(commands) == 2
    assert len(commands) == 4
    (tmp_path / "here").rename(tmp_path / "moved")
    moved = ablation(tmp_path / "moved")
    moved.pretrain("tokens")
    moved.tune("tokens", TASK, 0)
    assert len(commands) == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"steps": 9},
            r"tokens/pretrained was made with --steps 8, this command has --steps 9: give another --workdir, or",
        ),
        (
            {"rows": "other"},
            r"tokens/cost_8.json was made with --rows rows, this command has --rows other: give another",
        ),
    ],
)
def test_another_pretraining_stops(
    tmp_path: pathlib.Path, commands: list[list[str]], changes: dict[str, Any], said: str
) -> None:
    ablation(tmp_path).pretrain("tokens")
    with pytest.raises(SystemExit, match=said):
        ablation(tmp_path, **changes).pretrain("tokens")
    assert len(commands) == 1


def test_stages_keep_their_shares_of_the_steps(tmp_path: pathlib.Path, commands: list[list[str]]) -> None:
    ablation(tmp_path, steps=2400).pretrain("ernie")
    ablation(tmp_path, steps=2400).pretrain("xlnet")
    stages = [[word for word in command if word.startswith("--objective.masking")] for command in commands]
    name = "--objective.masking.stages.{}.first-step={}"
    assert stages == [[name.format(*each) for each in ((0, 0), (1, 801), (2, 1599))], []]


def test_rows_that_an_arm_cannot_read_are_refused_first(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    arms = ["--arms", "tokens", "ernie", "random", f"--workdir={tmp_path}", "--tasks", "a=b:c:d:e"]
    monkeypatch.setattr("sys.argv", ["objectives", "--rows", str(rows_folder), *arms])
    with pytest.raises(SystemExit, match=r"^ernie: .*the rows have none: prepare them with --tags [^\n]*\n.*--arms$"):
        objectives.main()
    assert not list(tmp_path.iterdir())


def test_another_fine_tuning_stops(tmp_path: pathlib.Path, commands: list[list[str]]) -> None:
    """Also where its own settings are the same and those of the weights below are not."""
    made = ablation(tmp_path)
    made.pretrain("tokens")
    made.tune("tokens", TASK, 0)
    more = TASK._replace(settings=("--objective.epochs=4",))
    said = (
        r"sst2_0 was made with --objective.epochs=3, this .* --objective.epochs=4: .*remove .*sst2_0 and .*sst2_0.done"
    )
    with pytest.raises(SystemExit, match=said):
        made.tune("tokens", more, 0)
    (tmp_path / "tokens" / "pretrained.done").unlink()
    longer = ablation(tmp_path, steps=9)
    longer.pretrain("tokens")
    with pytest.raises(SystemExit, match="made with pretrained --steps 8, this command has pretrained --steps 9"):
        longer.tune("tokens", TASK, 0)
    (tmp_path / "tokens" / "sst2_0.done").write_text("")
    with pytest.raises(SystemExit, match="made with a command that was not kept"):
        longer.tune("tokens", TASK, 0)
    assert len(commands) == 3


def test_flags_give_any_architecture() -> None:
    """The random arm is as the weights next to it, of a modern encoder too."""
    for name in ("mini", "albert_base", "xlnet_small"):
        encoder = load(str(ROOT / "configs" / "pretrain" / f"{name}.py")).encoder
        flags = objectives.architecture_flags(encoder)
        found = parse(["--config", str(ROOT / "configs" / "finetune" / "glue.py"), *flags]).run.encoder
        for field in dataclasses.fields(Architecture):
            assert getattr(found, field.name) == getattr(encoder, field.name), (name, field.name)
