"""A prepare that dies at any moment is continued by the same command, and ends with the same files."""

import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from spanjax.data.feed.rows import open_rows
from spanjax.data.shards import passes
from spanjax.data.shards.portions import PortionRows
from spanjax.prepare import rows as command

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = ["--length", "32", "--holdout", "0.1", "--deduplicate", "--portion", "20000"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """500 kB in two files, some documents twice."""
    folder = tmp_path_factory.mktemp("text")
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abcdefghij"), draw.integers(2, 6))) for _ in range(200)]
    documents = [" ".join(draw.choice(words, draw.integers(5, 80))) + "." for _ in range(2500)]
    for number in range(2):
        some = draw.permutation(documents[number * 1000 : number * 1000 + 1500])
        (folder / f"{number}.txt").write_text("\n\n".join(some))
    return folder


@pytest.fixture(scope="module")
def whole(text: pathlib.Path) -> dict[str, bytes]:
    """What a prepare that nothing stops writes."""
    assert command.main(line(text, text / "whole", workers=1)) == 0
    return files(text / "whole")


def line(text: pathlib.Path, out: pathlib.Path, *more: str, workers: int = 2, vocab: str = "") -> list[str]:
    chosen = ["--vocab", vocab] if vocab else ["--train-vocab", "150"]
    return ["--input", f"{text}/?.txt", "--output", str(out), "--workers", str(workers), *SETTINGS, *chosen, *more]


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def written(folder: pathlib.Path) -> int:
    return len(list(folder.glob(".out.unfinished/figures/train/*.npz")))


def runs(process: str) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def start(text: pathlib.Path, out: pathlib.Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "spanjax.prepare", *line(text, out)], cwd=ROOT, start_new_session=True
    )


def stopped(process: subprocess.Popen[bytes], out: pathlib.Path, portions: int, with_signal: signal.Signals) -> None:
    """Waits until so many portions are written, or for 0 until the work begins, then stops the process."""
    deadline = time.monotonic() + 120
    while not (out.parent / ".out.unfinished" / "plan.json").exists() or written(out.parent) < portions:
        assert time.monotonic() < deadline and process.poll() is None, "ended before it could be stopped"
        time.sleep(0.002)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(with_signal)
    process.wait()
    while any(runs(child) for child in children):
        assert time.monotonic() < deadline, "worker processes outlive a killed prepare"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "portions", [8, pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)]
)
def test_a_killed_prepare_is_continued(
    text: pathlib.Path, whole: dict[str, bytes], tmp_path: pathlib.Path, portions: int, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    stopped(start(text, out), out, portions, signal.SIGKILL)
    assert not out.exists() and written(tmp_path) >= portions
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob(".out.unfinished/result/*/*.bin")}
    finished = {path.stem for path in tmp_path.glob(".out.unfinished/figures/validation/*.npz")}
    caplog.set_level("INFO")
    shutil.copytree(tmp_path, tmp_path / "second", copy_function=shutil.copy2)
    assert command.main(line(text, out, workers=1)) == 0
    assert files(out) == whole and [path.name for path in tmp_path.glob("*out*")] == ["out"]
    assert not finished or f"train: {len(finished)} portions are written already" in caplog.text
    for path, written_at in before.items():
        if path.stem in finished:  # what was finished was not made again
            assert (out / path.parent.name / path.name).stat().st_mtime_ns == written_at
    assert command.main(line(text, tmp_path / "second" / "out", "--overwrite")) == 0  # it continues as well
    assert files(tmp_path / "second" / "out") == whole


@pytest.mark.slow
def test_killed_again_and_again(text: pathlib.Path, whole: dict[str, bytes], tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    for portions in (2, 5, 9, 14):
        stopped(start(text, out), out, portions, signal.SIGKILL)
    assert command.main(line(text, out)) == 0 and files(out) == whole


@pytest.mark.slow
def test_ctrl_c_says_that_the_same_command_continues(
    text: pathlib.Path, whole: dict[str, bytes], tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "spanjax.prepare", *line(text, out)]
    process = subprocess.Popen(arguments, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
    stopped(process, out, 3, signal.SIGINT)
    assert process.returncode == 130 and process.stderr
    with process.stderr as stderr:
        told = stderr.read().decode()
    assert "stopped" in told and "the same command continues" in told and "Traceback" not in told
    assert command.main(line(text, out)) == 0 and files(out) == whole


@pytest.mark.parametrize("moment", ["finish train", "finish validation", "write", "vocabulary"])
def test_an_error_at_any_step_is_continued(
    text: pathlib.Path, whole: dict[str, bytes], tmp_path: pathlib.Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, write = passes.finish_rows, PortionRows.write

    def die_finishing(folder: pathlib.Path, *arguments: Any, **settings: Any) -> Any:
        found = finish(folder, *arguments, **settings)
        if folder.name == moment.split()[-1]:
            raise KeyboardInterrupt
        return found

    def die_writing(self: Any, portion: Any) -> Any:
        if moment == "vocabulary" or portion.number == 5:
            raise KeyboardInterrupt
        return write(self, portion)

    with monkeypatch.context() as patch:
        patch.setattr(passes, "finish_rows", die_finishing)
        if "finish" not in moment:
            patch.setattr(PortionRows, "write", die_writing)
        assert command.main(line(text, tmp_path / "out", workers=1)) == 130
    trained = tmp_path / ".out.unfinished" / "vocabulary"
    assert trained.is_dir() and not (tmp_path / "out").exists()
    monkeypatch.setattr(command, "train_sentencepiece", None)  # it is not trained again
    assert command.main(line(text, tmp_path / "out", workers=1)) == 0 and files(tmp_path / "out") == whole


def test_other_settings_and_changed_input_are_refused(
    text: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in text.glob("?.txt"):
        shutil.copy2(path, tmp_path / path.name)
    out = tmp_path / "out"
    write = PortionRows.write

    def die(self: Any, portion: Any) -> Any:
        if portion.number == 3:
            raise KeyboardInterrupt
        return write(self, portion)

    with monkeypatch.context() as patch:
        patch.setattr(PortionRows, "write", die)
        assert command.main(line(tmp_path, out, workers=1)) == 130
    assert command.main(line(tmp_path, out, "--max-blocks", "4", workers=1)) == 2
    told = capsys.readouterr().err
    assert "settings.max_blocks: 16 there, 4 now" in told and "--overwrite" in told
    (tmp_path / "1.txt").write_text("another text.")
    assert command.main(line(tmp_path, out, workers=1)) == 2 and "1.txt" in capsys.readouterr().err
    assert written(tmp_path) == 3
    assert command.main(line(tmp_path, out, "--overwrite", workers=1)) == 0
    assert open_rows(out / "train").manifest.source and not written(tmp_path)


@pytest.mark.usefixtures("whole")
def test_a_bad_line_is_skipped_without_losing_what_is_finished(
    text: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = (text / "0.txt").read_bytes()
    (tmp_path / "0.txt").write_bytes(good + b"\n\n\xff\n\n" + good)
    settings: dict[str, Any] = {"workers": 1, "vocab": str(text / "whole" / "train" / "vocabulary")}
    assert command.main(line(tmp_path, tmp_path / "out", **settings)) == 2 and written(tmp_path) > 3
    caplog.set_level("INFO")
    assert command.main(line(tmp_path, tmp_path / "out", "--skip-bad", **settings)) == 0
    assert "portions are written already" in caplog.text
    assert command.main(line(tmp_path, tmp_path / "alone", "--skip-bad", **settings)) == 0
    assert files(tmp_path / "out") == files(tmp_path / "alone")
