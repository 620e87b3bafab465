"""Every command refuses paths that it cannot read or write, at once and by name; messages hold no control characters."""

import importlib
import os
import pathlib
import pty
import subprocess
import sys

import pytest

from spanjax.cli import exit_code
from tests.running import ROOT

DEMO = str(ROOT / "configs/pretrain/demo.py")
PREPARE = ["--input", "text.txt", "--vocab", "vocab.txt", "--output"]
CASES = (
    ("train", ["--config", DEMO, "--workdir", "hdfs://host/run"], "--workdir hdfs://host/run"),
    ("train", ["--config", DEMO, "--workdir", "w", "--data.rows", "hdfs://h/rows"], "--data.rows hdfs://h/rows"),
    ("train", ["--config", DEMO, "--workdir", "w", "--init-from", "gs:/bucket/x"], "--init-from gs:/bucket/x"),
    ("plan", ["--config", DEMO, "--topology", "h200:8", "--hlo", "hdfs://b/x"], "--hlo hdfs://b/x"),
    ("evaluate", ["hdfs://b/run", "--data", "d.json"], "--model hdfs://b/run"),
    ("evaluate", ["run", "--data", "http://host/d.json"], "--data http://host/d.json"),
    ("predict", ["qa", "gs:/b/run", "--file", "f.jsonl"], "--model gs:/b/run"),
    ("predict", ["classify", "run", "--text", "x", "--output", "http://b/o"], "--output http://b/o"),
    ("predict", ["coref", "run", "--text", "hdfs://h/t.txt"], "--text hdfs://h/t.txt"),
    ("predict", ["fill-mask", "http://b/run", "--text", "x"], "--model http://b/run"),
    ("predict", ["spans", "http://b/run", "--text", "x"], "--model http://b/run"),
    ("report", ["hf://b/run"], "--runs hf://b/run"),
    ("report", ["run", "--output", "s3:/b/r.html"], "--output s3:/b/r.html"),
    ("convert", ["to-torch", "run", "az://bucket/out"], "--output az://bucket/out"),
    ("convert", ["to-torch", "az://run", "out"], "--source az://run"),
    ("convert", ["from-torch", "hdfs:/x", "gs://y"], "--source hdfs:/x"),
    ("convert", ["verify", "a", "http://b"], "--other http://b"),
    ("convert", ["inspect", "file:///x"], "--source file:///x"),
    ("prepare", ["rows", *PREPARE, "hdfs://b/rows"], "--output hdfs://b/rows"),
    ("prepare", ["vocab", "--input", "t", "--kind", "wordpiece", "--size", "100", "--output", "az://b/v"], "--output az"),
    ("prepare", ["ngrams", "--input", "t", "--output", "az://b/v"], "--output az://b/v"),
    ("prepare", ["check-vocab", "--input", "t", "--vocab", "http://b/v.txt"], "--vocab http://b/v.txt"),
    ("prepare", ["show", "hdfs://b/rows"], "--rows hdfs://b/rows"),
    ("prepare", ["stats", "hdfs://b/rows"], "--rows hdfs://b/rows"),
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
    assert end.value.code == 2 and f"  - {said}" in error and "paths of this machine" in error
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


HELPS = [
    *(f"prepare {name}" for name in ("rows", "vocab", "check-vocab", "show", "stats", "ngrams")),
    *(f"convert {name}" for name in ("to-torch", "from-torch", "to-onnx", "verify", "inspect", "push")),
    *(
        f"predict {name}"
        for name in ("fill-mask", "spans", "encode", "task", "qa", "classify", "relation", "ner", "coref")
    ),
    *("evaluate run", "evaluate suite", "score", "serve", "report", "doctor", "launch local", "launch slurm"),
]


def test_help_imports_no_jax_and_names_every_argument() -> None:
    """All in one process, in which jax and TensorFlow cannot be imported."""
    code = f"""
import sys
for name in ("jax", "jaxlib", "flax", "tensorflow"):
    sys.modules[name] = None
from spanjax.__main__ import main
for command in {HELPS!r}:
    try:
        code = main([*command.split(), "--help"])
    except SystemExit as end:
        code = end.code
    assert not code, (command, code)
    print("=== end")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    pages = done.stdout.split("=== end\n")[:-1]
    assert len(pages) == len(HELPS)
    for command, page in zip(HELPS, pages, strict=True):
        usage = page.split("\n\n")[0].split()
        # what follows [OPTIONS] are positional arguments
        assert usage[0] == "usage:" and not {"STR", "INT"} & {*usage[usage.index("[-h]") :]}, (command, usage)


def test_help_for_a_reader_that_closes_early() -> None:
    command = f"{sys.executable} -m spanjax.prepare vocab --help | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(
        "usage: python -m spanjax.prepare vocab"
    )


def test_a_bar_on_a_terminal_leaves_results_and_cursor_alone() -> None:
    master, slave = pty.openpty()
    code = "from spanjax.cli import Progress; import time; Progress.SOON = 0\n"
    code += "with Progress('loading', 4, 'files') as bar:\n    bar.done = 1; time.sleep(0.6); print('a result')\n"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=slave, timeout=60, env={**os.environ, "TERM": "xterm"}
    )
    os.close(slave)
    text = os.read(master, 65536).decode()
    os.close(master)
    assert done.stdout == b"a result\n" and "loading" in text and "1 of 4 files" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is visible again"


def test_a_flag_of_another_command_is_named(capsys: pytest.CaptureFixture) -> None:
    for command, wrong, right in (("show", "--rows", "--count"), ("stats", "--count=3", "--rows")):
        with pytest.raises(SystemExit) as end:
            importlib.import_module("spanjax.prepare").main([command, "rows", wrong, "2"])
        assert end.value.code == 2
        assert (
            capsys.readouterr().err == f"spanjax.prepare {command}: {wrong.partition('=')[0]} is called {right} here\n"
        )


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
