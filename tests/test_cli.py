"""Every command refuses paths of other places than this machine, at once and by name; messages hold no control characters."""

import importlib
import pathlib
import subprocess
import sys

import pytest

from spanjax.cli import exit_code
from tests.running import ROOT

DEMO = str(ROOT / "configs/pretrain/demo.py")
PREPARE = ["--input", "text.txt", "--vocab", "vocab.txt", "--output"]
CASES = (
    ("train", ["--config", DEMO, "--workdir", "gs://bucket/run"], "--workdir gs://bucket/run"),
    ("train", ["--config", DEMO, "--workdir", "w", "--data.rows", "s3://bucket/rows"], "--data.rows s3://bucket/rows"),
    ("train", ["--config", DEMO, "--workdir", "w", "--init-from", "gs:/bucket/x"], "--init-from gs:/bucket/x"),
    ("plan", ["--config", DEMO, "--topology", "h200:8", "--hlo", "gs://b/x"], "--hlo gs://b/x"),
    ("evaluate", ["gs://b/run", "--data", "d.json"], "--model gs://b/run"),
    ("evaluate", ["run", "--data", "http://host/d.json"], "--data http://host/d.json"),
    ("predict", ["qa", "gs://b/run", "--file", "f.jsonl"], "--model gs://b/run"),
    ("predict", ["classify", "run", "--text", "x", "--output", "s3://b/o"], "--output s3://b/o"),
    ("predict", ["coref", "run", "--text", "hdfs://h/t.txt"], "--text hdfs://h/t.txt"),
    ("predict", ["fill-mask", "gs://b/run", "--text", "x"], "--model gs://b/run"),
    ("predict", ["spans", "gs://b/run", "--text", "x"], "--model gs://b/run"),
    ("report", ["gs://b/run"], "--runs gs://b/run"),
    ("report", ["run", "--output", "s3://b/r.html"], "--output s3://b/r.html"),
    ("convert", ["to-torch", "run", "s3://bucket/out"], "--output s3://bucket/out"),
    ("convert", ["to-torch", "s3://run", "out"], "--source s3://run"),
    ("convert", ["from-torch", "hdfs:/x", "gs://y"], "--output gs://y"),
    ("convert", ["verify", "a", "gs://b"], "--other gs://b"),
    ("convert", ["inspect", "file:///x"], "--source file:///x"),
    ("prepare", ["rows", *PREPARE, "gs://b/rows"], "--output gs://b/rows"),
    ("prepare", ["vocab", "--input", "t", "--kind", "wordpiece", "--size", "100", "--output", "s3://b/v"], "--output s3"),
    ("prepare", ["ngrams", "--input", "t", "--output", "s3://b/v"], "--output s3://b/v"),
    ("prepare", ["check-vocab", "--input", "t", "--vocab", "gs://b/v.txt"], "--vocab gs://b/v.txt"),
    ("prepare", ["show", "gs://b/rows"], "--rows gs://b/rows"),
    ("prepare", ["stats", "gs://b/rows"], "--rows gs://b/rows"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("command", "words", "said"), CASES, ids=lambda each: " ".join(each) if isinstance(each, list) else None
)
def test_a_path_elsewhere_is_refused(
    command: str,
    words: list[str],
    said: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"spanjax.{command}").main(words)
    error = capsys.readouterr().err
    assert end.value.code == 2 and f"  - {said}" in error and "only paths of this machine are read and written" in error
    assert list(tmp_path.iterdir()) == []


def test_input_and_texts_may_be_addresses(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    for command, words, said in (
        (
            "prepare",
            ["rows", "--input", "nowhere://a", "--train-vocab", "120", "--output", str(tmp_path / "o")],
            "no filesystem",
        ),
        ("predict", ["fill-mask", str(tmp_path / "none"), "--text", "https://host/ is [MASK]"], "none"),
        (
            "convert",
            ["to-torch", str(tmp_path / "none"), str(tmp_path / "o"), "--license", "https://host/licence"],
            "none",
        ),
    ):
        assert importlib.import_module(f"spanjax.{command}").main(words) == 2
        error = capsys.readouterr().err
        assert said in error and "only paths of this machine" not in error


def test_a_local_folder_with_a_colon_is_named_by_its_place(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    for name in ("./gs:/run", f"{tmp_path}/gs:/run", "C:/run"):
        assert importlib.import_module("spanjax.convert").main(["inspect", name]) == 2
        assert "only paths of this machine" not in capsys.readouterr().err


def test_closed_standard_streams_lead_nowhere(tmp_path: pathlib.Path) -> None:
    """Else the next files that are opened are the standard streams, and what libraries print goes into them."""
    file = tmp_path / "file"
    code = f"""
import os, sys
from spanjax.cli import open_standard_streams
assert sys.stdin is sys.stdout is sys.stderr is None
open_standard_streams()
number = os.open({str(file)!r}, os.O_WRONLY | os.O_CREAT)
print("lost"), sys.stderr.write("lost"), sys.stdout.flush(), os.write(2, b"lost"), os.write(number, str(number).encode())
os._exit(7 if sys.stdin.read() else 0)
"""
    command = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "run", sys.executable, "-c", code]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 0
    assert int(file.read_text()) > 2


def test_control_characters_of_a_message_are_visible(capsys: pytest.CaptureFixture) -> None:
    def work() -> None:
        error = ValueError("a tensor \x1b]0;title\x07\x1b[31m\u202e\r\x9b name ä 東")
        error.add_note("note \x1b[2J")
        raise error

    assert exit_code("inspect", work, cannot="cannot look") == 2
    error = capsys.readouterr().err
    assert r"a tensor \x1b]0;title\x07\x1b[31m\u202e\r\x9b name ä 東" in error and r"note \x1b[2J" in error
    assert {letter for letter in error if not letter.isprintable()} == {"\n"}
