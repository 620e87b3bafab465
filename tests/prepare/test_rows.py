"""The prepare command: what it writes, what it refuses, and what a killed one leaves."""

import errno
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from spanjax.prepare import rows as command
from spanjax.data.rows import RowsWriter, open_rows
from spanjax.data.vocab import SPECIAL_PIECES

ROOT = pathlib.Path(__file__).parents[2]
TEXT = "the span encoder reads many words and predicts those that are masked from their boundary"
WORDS = TEXT.split()


@pytest.fixture
def text(tmp_path: pathlib.Path) -> pathlib.Path:
    draw = np.random.default_rng(0)
    documents = [
        "\n".join(" ".join(draw.choice(WORDS, 9)) + "." for _ in range(draw.integers(1, 12))) for _ in range(300)
    ]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, *WORDS, "."]))
    return tmp_path / "text.txt"


def run(text: pathlib.Path, *arguments: str, out: str = "out", vocab: bool = True) -> tuple[int, pathlib.Path]:
    own = ["--input", str(text), "--output", str(text.parent / out), "--length", "32", "--workers", "1"]
    own += ["--vocab", str(text.parent / "vocab.txt")] if vocab else []
    return command.main([*own, *arguments]), text.parent / out


def documents(folder: pathlib.Path) -> int:
    return open_rows(folder).manifest.documents


def test_rows_are_written_and_do_not_depend_on_workers(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(text)
    rows = open_rows(out / "train")
    assert code == 0 and rows.manifest.documents == 300 and rows.manifest.text_tokens == rows.manifest.sentences * 10
    assert "rows" in capsys.readouterr().out and [path.name for path in out.iterdir()] == ["train"]
    _, other = run(text, "--workers", "2", out="two")
    assert open_rows(other / "train").manifest.fingerprint == rows.manifest.fingerprint


def test_holdout_takes_every_kth_document(text: pathlib.Path) -> None:
    _, out = run(text, "--holdout", "0.1", "--max-documents", "200")
    assert (documents(out / "train"), documents(out / "validation")) == (180, 20)


def test_validation_files_are_a_split_of_their_own(text: pathlib.Path) -> None:
    (text.parent / "held.txt").write_text("the span.\n\nwords.")
    _, out = run(text, "--validation", str(text.parent / "held.txt"))
    assert (documents(out / "train"), documents(out / "validation")) == (300, 2)


def test_no_pack_gives_one_block_a_row(text: pathlib.Path) -> None:
    packed, alone = run(text)[1], run(text, "--no-pack", out="alone")[1]
    manifest = open_rows(alone / "train").manifest
    assert (
        manifest.rows == manifest.blocks == open_rows(packed / "train").manifest.blocks
        and len(manifest.text_tokens_by_blocks) == 2
    )


def test_trained_vocabulary_travels_with_the_rows(text: pathlib.Path) -> None:
    draw = np.random.default_rng(0)
    text.write_text(
        "\n\n".join(" ".join("".join(draw.choice(list("abcdefgh"), 4)) for _ in range(20)) for _ in range(200))
    )
    code, out = run(text, "--train-vocab", "100", "--holdout", "0.1", vocab=False)
    train, held = open_rows(out / "train"), open_rows(out / "validation")
    assert code == 0 and train.vocabulary.size == 100 and train.vocabulary.fingerprint == held.vocabulary.fingerprint


def test_every_problem_is_told_in_one_message(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text.parent / "vocab.txt").write_text("a\nb\n")
    code, out = run(
        text, "--input", str(text), "absent-*.txt", "--length", "4", "--train-vocab", "500", "--holdout", "0.1",
        "--validation", "gone.txt", "--max-blocks", "200",
    )  # fmt: skip
    told = capsys.readouterr().err
    assert code == 2 and not out.exists() and "Traceback" not in told
    for word in (
        "absent-*.txt",
        "gone.txt",
        "--length 4",
        "--max-blocks 200",
        "both given",
        "[MASK]",
        "--holdout and --validation",
    ):
        assert word in told, word
    assert run(text, vocab=False)[0] == 2 and "give --vocab FILE or --train-vocab" in capsys.readouterr().err


def test_bad_lines_stop_or_are_counted(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = text.parent / "bad.jsonl"
    bad.write_text('{"text": "the span."}\nnot json\n')
    assert run(bad)[0] == 2 and f"{bad}:2" in capsys.readouterr().err and not (text.parent / "out").exists()
    code, out = run(bad, "--skip-bad")
    assert code == 0 and open_rows(out / "train").manifest.skipped == {"lines not JSON": 1}
    assert "1 lines not JSON" in capsys.readouterr().out


def test_finished_output_is_kept_unless_overwritten(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = run(text)
    assert run(text, "--max-documents", "5")[0] == 2 and "--overwrite" in capsys.readouterr().err
    assert run(text, "--max-documents", "5", "--overwrite")[0] == 0 and documents(out / "train") == 5


def test_full_disk_is_told_and_leaves_nothing(
    text: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(text.parent.iterdir())
    monkeypatch.setattr(RowsWriter, "_write", full)
    assert run(text)[0] == 2 and "No space left on device" in capsys.readouterr().err
    assert sorted(text.parent.iterdir()) == before


def _runs(process: str) -> bool:
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_prepare_leaves_nothing_that_looks_finished(text: pathlib.Path) -> None:
    large = text.parent / "large.txt"
    large.write_text("\n\n".join([text.read_text()] * 200))
    out = text.parent / "out"
    line = [sys.executable, "-m", "spanjax.prepare", "--input", str(large), "--vocab", str(text.parent / "vocab.txt")]
    process = subprocess.Popen([*line, "--output", str(out), "--length", "32", "--workers", "2"], cwd=ROOT)
    deadline = time.monotonic() + 120
    while not (left := list(text.parent.glob(".out.unfinished-*/.train.unfinished-*/rows-00000.bin"))):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists() and left[0].exists()
    while any(_runs(child) for child in children):
        assert time.monotonic() < deadline, "worker processes outlive a killed prepare"
        time.sleep(0.05)
    assert run(text)[0] == 0 and documents(out / "train") == 300
    assert not list(text.parent.glob(".out*"))


def test_two_that_write_the_same_folder_do_not_meet(text: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    from spanjax.data.staging import finished_folder

    with finished_folder(text.parent / "out"):
        assert run(text)[0] == 2 and "another process is writing" in capsys.readouterr().err


def test_prepare_imports_neither_tensorflow_nor_jax() -> None:
    code = "import sys, spanjax.prepare.rows; sys.exit(bool({'tensorflow', 'jax', 'seqio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
