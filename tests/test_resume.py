"""A run goes on bit for bit after a stop, a kill at any moment, or damage to its newest checkpoint."""

import pathlib
import random
import signal
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from spanjax import train
from spanjax.training.preemption import StopRequest
from tests.running import (
    ROOT,
    begin_group,
    begin_together,
    final_leaves,
    finish,
    kill,
    last_step,
    records,
    shrunk,
    start,
    wait_for_step,
)

DEMO, XLNET = "configs/pretrain/demo.py", "configs/pretrain/xlnet_small.py"
# steps 0 and 1 take four rows each, step 2 eight, and the others whole batches of sixteen
WARMUP = ("--batch-size=16", "--batch-warmup", "0:4", "2:8", "3:16")
DROPOUT = ("--encoder.dropout=0.1", "--encoder.attention-dropout=0.1")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def assert_same_state(first: pathlib.Path, second: pathlib.Path) -> None:
    expected, got = final_leaves(first), final_leaves(second)
    assert expected.keys() == got.keys() and len(expected) > 50
    for name in expected:
        np.testing.assert_array_equal(expected[name], got[name], err_msg=name)


def whole_and_in_parts(arguments: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains "whole" in one go, and "parts" with a stop after step 2."""
    assert train.main(arguments("whole")) == 0
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "agreed", lambda self, step: step == 2)
        assert train.main(arguments("parts")) == 75
    assert train.main(arguments("parts")) == 0


@pytest.mark.slow
def test_four_steps_equal_two_and_two(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arguments(name: str) -> list[str]:
        more = ("--data.feed=numpy", "--cadence.log-every=3", *DROPOUT)
        return shrunk(DEMO, rows_folder, tmp_path / name, 4, *more)

    whole_and_in_parts(arguments, monkeypatch)
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    for key in ("train/mlm/loss", "train/sbo/loss", "train/gradient_norm", "eval/loss", "data/masked"):
        assert records(tmp_path / "whole", key) == records(tmp_path / "parts", key)
    assert [*records(tmp_path / "parts", "train/mlm/loss")] == [3, 4]
    lines = (tmp_path / "parts" / "metrics.jsonl").read_bytes()
    assert train.main(arguments("parts")) == 0
    assert (tmp_path / "parts" / "metrics.jsonl").read_bytes() == lines, "a finished run adds nothing"


SCHEDULES = {
    "cosine": ("--optimizer.schedule.decay=cosine", "--optimizer.schedule.floor=0.1"),
    "constant": ("--optimizer.schedule.decay=none",),
    "wsd": ("--optimizer.schedule.decay=sqrt", "--optimizer.schedule.decay-steps=2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_is_resumed(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    """The decay of the last one begins at the stop."""

    def arguments(name: str) -> list[str]:
        more = ("--data.feed=numpy", "--optimizer.warmup-steps=1", *SCHEDULES[schedule], *DROPOUT)
        return shrunk(DEMO, rows_folder, tmp_path / name, 4, *more)

    whole_and_in_parts(arguments, monkeypatch)
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    rates = [records(tmp_path / name, "train/learning_rate") for name in ("whole", "parts")]
    assert rates[0] == rates[1] and len(set(rates[0].values())) == {"cosine": 3, "constant": 1, "wsd": 2}[schedule]


@pytest.mark.slow
def test_a_batch_warm_up_is_resumed_where_a_stage_begins(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arguments(name: str) -> list[str]:
        return shrunk(
            DEMO, rows_folder, tmp_path / name, 5, *WARMUP, "--data.feed=tf", "--cadence.log-every=1", *DROPOUT
        )

    whole_and_in_parts(arguments, monkeypatch)
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    for key in ("train/mlm/loss", "train/gradient_norm", "eval/loss", "data/masked"):
        assert records(tmp_path / "whole", key) == records(tmp_path / "parts", key)
    assert [*records(tmp_path / "parts", "train/mlm/loss")] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_what_rows_hand_on_is_resumed(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLNet's memory: four steps equal two and two, bit for bit, and it is in the checkpoint."""

    def arguments(name: str) -> list[str]:
        memory = ("--objective.memory=16", "--objective.block=32", "--data.feed=numpy")
        return shrunk(XLNET, rows_folder, tmp_path / name, 4, *memory, *DROPOUT)

    whole_and_in_parts(arguments, monkeypatch)
    assert_same_state(tmp_path / "whole", tmp_path / "parts")
    assert any("memory_states" in name for name in final_leaves(tmp_path / "whole"))
    assert records(tmp_path / "whole", "train/plm/loss") == records(tmp_path / "parts", "train/plm/loss")


@pytest.mark.slow
def test_the_two_feeds_train_alike(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for feed in ("tf", "numpy"):
        assert train.main(shrunk(DEMO, rows_folder, tmp_path / feed, 3, f"--data.feed={feed}", *DROPOUT)) == 0
    assert_same_state(tmp_path / "tf", tmp_path / "numpy")


def test_sigterm_saves_and_exits_75(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    arguments = shrunk(DEMO, rows_folder, tmp_path / "run", 100_000, "--data.feed=numpy")
    process = start(arguments)
    wait_for_step(process, tmp_path / "run", 3)
    process.send_signal(signal.SIGTERM)
    said = finish(process, code=75)
    assert "saved. Run the same command to continue" in said
    (saved,) = (tmp_path / "run" / "checkpoints").glob("[0-9]*")
    assert int(saved.name) >= 3


def killed_run(rows: pathlib.Path, folder: pathlib.Path, steps: int, kills: int, seed: int, *given: str) -> None:
    """An undisturbed run and one killed at random moments; their final states must be identical.

    A fifth of the kills falls on starting up, the others on a step beyond what was reached before (saving included: every
    third step is saved).
    """
    rng, workdir = random.Random(seed), folder / "killed"
    more = ("--data.feed=numpy", "--cadence.checkpoint-every=3", "--cadence.eval-every=50", *DROPOUT, *given)
    finish(start(shrunk(DEMO, rows, folder / "calm", steps, *more)))
    arguments = shrunk(DEMO, rows, workdir, steps, *more)
    reached = []
    for number in range(kills):
        process, before = start(arguments), last_step(workdir)
        if rng.random() < 0.2:
            time.sleep(rng.uniform(0.0, 8.0))
        else:
            most = max(1, 2 * (steps - 20 - before) // (kills - number + 1))
            wait_for_step(process, workdir, before + rng.randint(1, most))
            time.sleep(rng.uniform(0.0, 0.2))
        assert process.poll() is None, finish(process)
        kill(process)
        reached.append((before, last_step(workdir)))
    said = finish(start(arguments))
    assert "continuing" in said and len({after for _, after in reached}) > kills // 2, reached
    print("steps reached before each kill:", [after for _, after in reached])
    assert_same_state(folder / "calm", workdir)
    assert records(folder / "calm", "train/mlm/loss") == records(workdir, "train/mlm/loss")


@pytest.mark.slow  # `make chaos-short` kills too
def test_killed_three_times(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    killed_run(rows_folder, tmp_path, steps=60, kills=3, seed=0)


@pytest.mark.slow
def test_killed_three_times_in_a_batch_warm_up(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Stages begin at steps 8 and 24, around which the kills fall."""
    stages = ("--batch-size=16", "--batch-warmup", "0:4", "8:8", "24:16")
    killed_run(rows_folder, tmp_path, 60, 3, 2, *stages)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_twenty_times(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    killed_run(rows_folder, tmp_path, steps=400, kills=20, seed=1)


@pytest.mark.parametrize(
    "damage", ["flip", *(pytest.param(each, marks=pytest.mark.slow) for each in ("truncate", "delete"))]
)
def test_damaged_newest_checkpoint_is_set_aside(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    workdir = tmp_path / "run"
    arguments = shrunk(DEMO, rows_folder, workdir, 4, "--data.feed=numpy", "--cadence.checkpoint-every=2")
    assert train.main(arguments) == 0
    before = final_leaves(workdir)
    victim = max((workdir / "checkpoints" / "4" / "state").rglob("d/*"), key=lambda p: p.stat().st_size)
    content = bytearray(victim.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    elif damage == "truncate":
        victim.write_bytes(content[: len(content) // 2])
    else:
        victim.unlink()
    assert train.main(arguments) == 0
    assert "checkpoint 4 is damaged" in caplog.text and (workdir / "checkpoints" / "4.damaged").is_dir()
    after = final_leaves(workdir)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)


def test_no_whole_checkpoint_left_is_an_error(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    workdir = tmp_path / "run"
    arguments = shrunk(DEMO, rows_folder, workdir, 2, "--data.feed=numpy")
    assert train.main(arguments) == 0
    for file in (workdir / "checkpoints" / "2" / "state").rglob("d/*"):
        file.write_bytes(b"")
    for _ in range(2):
        assert train.main(arguments) == 2
        assert "none of the checkpoints [2]" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("batches", [(), WARMUP], ids=["whole", "warm_up"])
def test_two_processes_equal_one(rows_folder: pathlib.Path, tmp_path: pathlib.Path, batches: tuple[str, ...]) -> None:
    more = ("--data.feed=numpy", "--cadence.log-every=1", *DROPOUT, *batches)
    arguments = shrunk(DEMO, rows_folder, tmp_path / "two", 4, *more)
    for process in begin_together(2, arguments):
        finish(process)
    assert train.main(shrunk(DEMO, rows_folder, tmp_path / "one", 4, *more)) == 0
    for key in ("train/mlm/loss", "train/sbo/loss", "eval/mlm/loss"):
        one, two = records(tmp_path / "one", key), records(tmp_path / "two", key)
        assert one.keys() == two.keys()
        assert list(two.values()) == pytest.approx(list(one.values()), rel=1e-5)


FAILING = """
import os, sys, threading
import orbax.checkpoint as ocp
from spanjax import train
original, failing = ocp.CheckpointManager.wait_until_finished, iter([True])
def full(self):
    original(self)
    if os.environ["JAX_PROCESS_ID"] == "1" and threading.current_thread().name == "spanjax-checkpoint" and next(failing, False):
        raise OSError(28, "No space left on device")
ocp.CheckpointManager.wait_until_finished = full
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_processes_agree_on_a_save_that_failed_on_one(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The second process says that its disk is full; both go on, and the save of later is whole."""
    more = ("--data.feed=numpy", "--cadence.checkpoint-every=9", "--cadence.eval-every=0")
    arguments = shrunk(DEMO, rows_folder, tmp_path / "run", 23, *more)
    pair = begin_group([sys.executable, "-c", FAILING, *arguments], range(2))
    said = [finish(process) for process in pair]
    line = "the checkpoint of step 9 could not be written"
    assert line in said[0] and "No space left on device" in said[0] and line not in said[1]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["18", "23"]
