"""A decay branch of a stable run equals the run that was planned with that decay, bit for bit, wherever it is killed."""

import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spanjax import train
from spanjax.experiment.session import open_session
from spanjax.storage.inputs import local_copy
from spanjax.training.checkpoint_files import read_meta
from spanjax.training.preemption import StopRequest
from tests.running import ROOT, begin_together, final_leaves, finish, records, shrunk

DEMO = "configs/pretrain/demo.py"
BRANCH, STEPS = 4, 8
# a record of three steps spans the branch; masks and spans change with the step
COMMON = (
    "--data.feed=numpy", "--optimizer.warmup-steps=2", "--encoder.dropout=0.1", "--encoder.attention-dropout=0.1",
    "--cadence.log-every=3", "--cadence.eval-every=2", "--cadence.checkpoint-every=2",
    *("--objective.masking.schedule", "0", "0.3", "6", "0.1"),
)  # fmt: skip
DECAY = (
    "--optimizer.schedule.decay=sqrt",
    "--optimizer.schedule.floor=0.1",
    f"--optimizer.schedule.decay-from={BRANCH}",
)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def arguments(rows: pathlib.Path, workdir: pathlib.Path, *more: str, steps: int = STEPS) -> list[str]:
    return shrunk(DEMO, rows, workdir, steps, *COMMON, *more)


@pytest.fixture(scope="module")
def runs(rows_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A stable run of 6 steps, and the run of 8 that was planned with the decay."""
    folder = tmp_path_factory.mktemp("branches")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        stable = ("--optimizer.schedule.decay=none", "--cadence.keep=9")
        assert train.main(arguments(rows_folder, folder / "stable", *stable, steps=6)) == 0
        assert train.main(arguments(rows_folder, folder / "planned", *DECAY)) == 0
    yield folder


def contents(folder: pathlib.Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a folder: when it was written, and what it holds."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def assert_as_planned(planned: pathlib.Path, branch: pathlib.Path) -> None:
    """The same state, and the same metrics and evaluations of every step that the branch trained."""
    expected, got = final_leaves(planned), final_leaves(branch)
    assert expected.keys() == got.keys() and len(expected) > 50
    for name in expected:
        np.testing.assert_array_equal(expected[name], got[name], err_msg=name)
    for key in (
        "train/mlm/loss",
        "train/sbo/loss",
        "train/gradient_norm",
        "train/learning_rate",
        "data/masked",
        "eval/loss",
    ):
        later = {step: value for step, value in records(planned, key).items() if step > BRANCH}
        assert later and records(branch, key) == later, key
    metas = [read_meta(each / "checkpoints" / str(STEPS)) for each in (planned, branch)]
    assert metas[0]["judged"] == metas[1]["judged"] and len(metas[0]["judged"]) == STEPS // 2


def test_a_branch_is_the_planned_run(
    runs: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a stop inside of it, after which the stable run may be gone; that one is only read."""
    before = contents(runs / "stable")
    command = arguments(rows_folder, tmp_path / "branch", *DECAY, f"--init-from={runs / 'stable'}")
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "agreed", lambda self, step: step == 5)
        assert train.main(command) == 75
    assert contents(runs / "stable") == before
    assert records(tmp_path / "branch", "train/mlm/loss") == {}, "the record of steps 4 to 6 is not due yet"
    (runs / "stable").rename(runs / "away")
    try:
        assert train.main(command) == 0
    finally:
        (runs / "away").rename(runs / "stable")
    assert_as_planned(runs / "planned", tmp_path / "branch")
    described = json.loads((tmp_path / "branch" / "run.json").read_text())
    assert described["init_from"] == str(runs / "stable") and described["optimizer"]["schedule"]["decay_from"] == BRANCH
    rates = records(tmp_path / "branch", "train/learning_rate")
    stable = records(runs / "stable", "train/learning_rate")
    assert rates[8] < rates[6] < stable[6], "it decays"


def test_batches_of_a_branch_are_those_of_the_planned_run(
    runs: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    sessions = []
    for more in ((), (f"--init-from={runs / 'stable'}",)):
        words = arguments(rows_folder, tmp_path / "run", *DECAY, *more)
        sessions.append(open_session(train.parse(words).run, train.named_settings(words)))
    planned, branch = (session.feed(BRANCH) for session in sessions)
    for _ in range(STEPS - BRANCH):
        first, second = next(planned), next(branch)
        assert first.keys() == second.keys()
        for name in first:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.slow
def test_a_start_that_was_killed_while_copying_begins_again(
    runs: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    """Nothing but a leftover is in the folder, as the checkpoint appears by one rename."""
    command = arguments(rows_folder, tmp_path / "branch", *DECAY, f"--init-from={runs / 'stable'}")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("spanjax.experiment.branch.write_checksums", killed)
        with pytest.raises(KeyboardInterrupt):
            train.main(command)
    (left,) = (tmp_path / "branch" / "checkpoints").iterdir()
    assert not left.name.isdigit()
    assert train.main(command) == 0
    assert f"branch      of {runs / 'stable'} at step 4" in capsys.readouterr().out
    assert not left.exists()
    assert_as_planned(runs / "planned", tmp_path / "branch")


def test_curves_elsewhere_are_those_of_the_branch(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A tracker must not continue the curve of the stable run: its ids are not taken over."""
    from spanjax.experiment.branch import Branch

    source = tmp_path / "source" / "checkpoints" / "4"
    shutil.copytree(runs / "stable" / "checkpoints" / "4", source)
    file = source / "meta" / "metadata"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tracking": {"wandb": {"id": "one"}}}))
    Branch(source, ()).copy_into(tmp_path / "branch")
    meta = read_meta(tmp_path / "branch" / "checkpoints" / "4")
    assert "tracking" not in meta and meta["vocabulary"] and "tracking" in read_meta(source)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ("--optimizer.schedule.decay-from=5",),
            ["no checkpoint of step 5, it has 2, 4, 6: give one of", "--cadence.keep"],
        ),
        (
            ("--init-from=configs",),
            ["configs is no run directory with checkpoints", "--optimizer.schedule.decay-steps"],
        ),
        (("--seed=1",), ["a branch has the settings of its run", "  seed: 0 -> 1\n", "use the settings of"]),
        (("--optimizer.warmup-steps=3",), ["  optimizer.warmup_steps: 2 -> 3\n"]),
        (("--encoder.hidden-size=32",), ["  encoder.hidden_size: 16 -> 32\n"]),
        (
            ("--optimizer.schedule.decay-from=6", "--steps=6"),
            ["decay_from is 6, so the decay begins at update 6: expected"],
        ),
    ],
    ids=["step", "no-run", "seed", "optimizer", "encoder", "steps"],
)
def test_a_branch_that_would_not_be_the_planned_run_is_refused(
    runs: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture,
    more: tuple[str, ...], said: list[str],
) -> None:  # fmt: skip
    given = {word.split("=")[0] for word in more}
    words = arguments(rows_folder, tmp_path / "branch", *DECAY, f"--init-from={runs / 'stable'}")
    words = [word for word in words if word.split("=")[0] not in given]
    assert train.main([*words, *more]) == 2
    error = capsys.readouterr().err
    assert all(each in error for each in said), error
    assert not (tmp_path / "branch").exists()


def test_a_run_that_had_decayed_is_refused(
    runs: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    words = arguments(
        rows_folder, tmp_path / "branch", "--optimizer.schedule.decay-from=6", f"--init-from={runs / 'planned'}"
    )
    assert train.main(words) == 2
    error = capsys.readouterr().err
    assert "the learning rate of update 5 was" in error and "stable phase, up to step 5" in error


def test_a_task_has_no_branches(runs: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "train.jsonl").write_text('{"sentence": "the old clock", "label": "no"}\n')
    words = ["--config=configs/finetune/glue.py", f"--train={tmp_path / 'train.jsonl'}", "--objective.length=32"]
    words += [f"--init-from={runs / 'stable'}", f"--workdir={tmp_path / 'tuned'}"]
    assert train.main([*words, "--optimizer.schedule.decay-from=4"]) == 2
    assert "decay_from is set to 4: with --init-from it begins a branch" in capsys.readouterr().err
    assert train.main([*words, "--optimizer.schedule.decay-steps=400"]) == 2
    assert "the decay begins at update -" in capsys.readouterr().err, "steps are known only with the examples"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["--mesh.replica=2", "--mesh.tensor=2", "two"])
def test_a_branch_in_another_layout(
    runs: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, layout: str
) -> None:
    """Copies are made once for all processes, and gradients are the same up to the order of their sums."""
    more = () if layout == "two" else (layout,)
    command = arguments(rows_folder, tmp_path / "branch", *DECAY, f"--init-from={runs / 'stable'}", *more)
    if layout == "two":
        for process in begin_together(2, command):
            finish(process)
    else:
        assert train.main(command) == 0
    for key in ("train/mlm/loss", "train/sbo/loss", "eval/loss"):
        later = {step: value for step, value in records(runs / "planned", key).items() if step > BRANCH}
        assert records(tmp_path / "branch", key) == pytest.approx(later, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("child", ["bucket", "local"])
def test_a_branch_of_a_run_in_a_bucket(
    runs: pathlib.Path,
    rows_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    child: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """The parent's bucket is only read; a branch in a bucket resumes on another machine without the parent."""
    store = MemoryFileSystem.store
    store.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parent = "memory://bucket/stable"
    stable = ("--optimizer.schedule.decay=none", "--cadence.keep=9")
    words = [w for w in arguments(rows_folder, pathlib.Path("x"), *stable, steps=6) if not w.startswith("--workdir")]
    assert train.main([*words, f"--workdir={parent}"]) == 0
    before = {path: bytes(each.getbuffer()) for path, each in store.items()}
    workdir = "memory://bucket/branch" if child == "bucket" else str(tmp_path / "branch")
    words = [w for w in arguments(rows_folder, pathlib.Path("x"), *DECAY) if not w.startswith("--workdir")]
    command = [*words, f"--workdir={workdir}", f"--init-from={parent}", f"--data.cache={tmp_path / 'rows'}"]
    assert train.main([*command, "--optimizer.schedule.decay-from=5"]) == 2
    assert f"{parent}: no checkpoint of step 5 is committed; those kept are 2, 4, 6" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "agreed", lambda self, step: step == 5)
        assert train.main(command) == 75
    assert f"branch      of {parent} at step 4" in capsys.readouterr().out
    assert {path: bytes(each.getbuffer()) for path, each in store.items() if path in before} == before
    assert not (tmp_path / "cache/spanjax/storage").exists(), "copies lie in --data.cache"
    if child == "bucket":
        for path in [path for path in store if path.startswith("/bucket/stable/")]:
            store.pop(path)
        head = json.loads(store["/bucket/branch/commits/HEAD"].getvalue())
        assert head["steps"]["4"]["commit"] == "4-1"
        assert "evaluation.json" not in json.loads(store["/bucket/branch/commits/4-1.json"].getvalue())["files"]
        command = [word for word in command if not word.startswith("--data.cache")] + [f"--data.cache={tmp_path / 'b'}"]
    assert train.main(command) == 0
    assert "continuing" in capsys.readouterr().out
    folder = pathlib.Path(local_copy(workdir)) if child == "bucket" else tmp_path / "branch"
    assert_as_planned(runs / "planned", folder)
    store.clear()
