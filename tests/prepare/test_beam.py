"""The Beam runner writes the files of the local runner, byte for byte: in this process, in several, on a Dask cluster."""

import builtins
import contextlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.prepare import rows as command

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEVERAL = "--runner=DirectRunner --direct_running_mode=multi_processing --direct_num_workers=2"
IN_PROCESS = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"


@pytest.fixture(autouse=True)
def every_file_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files share a group otherwise."""
    monkeypatch.setattr("spanjax.data.sources.corpus._GROUP_BYTES", 1)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Three files, some documents in two of them, and a bad line."""
    folder = tmp_path_factory.mktemp("text")
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abcdefghij"), draw.integers(2, 6))) for _ in range(200)]
    documents = [" ".join(draw.choice(words, draw.integers(5, 80))) + "." for _ in range(500)]
    for number in range(3):
        lines = [json.dumps({"text": each}) for each in documents[number * 120 : number * 120 + 240]]
        (folder / f"{number}.jsonl").write_text("\n".join([*lines, "no json"] if number == 1 else lines))
    (folder / "held.txt").write_text("\n\n".join(documents[-20:]))
    pieces = [*SPECIAL_PIECES, *words[:150], *"abcdefghij.", *(f"##{letter}" for letter in "abcdefghij")]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)))
    return folder


def run(text: pathlib.Path, out: pathlib.Path, *more: str) -> int:
    own = ["--input", f"{text}/?.jsonl", "--output", str(out), "--vocab", str(text / "vocab.txt"), "--skip-bad"]
    return command.main([*own, "--length", "64", "--portion", "9000", *more])


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def beam() -> None:
    """Apache Beam, which is no requirement of the tests."""
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed (spanjax[beam])")


@pytest.mark.usefixtures("beam")
@pytest.mark.parametrize("settings", ["", "--deduplicate --holdout 0.1", "--deduplicate --validation {}/held.txt"])
def test_beam_writes_the_files_of_the_local_runner(text: pathlib.Path, tmp_path: pathlib.Path, settings: str) -> None:
    more = settings.format(text).split()
    assert run(text, tmp_path / "local", "--workers", "1", *more) == 0
    assert run(text, tmp_path / "beam", "--runner", "beam", "--beam-options", IN_PROCESS, *more) == 0
    found = files(tmp_path / "beam")
    assert found == files(tmp_path / "local")
    assert len([name for name in found if name.startswith("train/rows-00002")]) > 1
    skipped = json.loads(found["train/manifest.json"])["skipped"]
    assert skipped["lines not JSON"] == 1 and bool(more) == ("duplicate documents" in skipped)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beam", "local"]


def run_apart(text: pathlib.Path, out: pathlib.Path, options: str, *more: str) -> None:
    """`run` by Beam in a process of its own, which its workers import spanjax like."""
    own = ["--input", f"{text}/?.jsonl", "--output", str(out), "--vocab", str(text / "vocab.txt"), "--skip-bad"]
    words = [*own, "--length", "64", "--portion", "9000", "--runner", "beam", f"--beam-options={options}", *more]
    found = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "spanjax.prepare", *words]
    done = subprocess.run(command, env=found, cwd=text, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]


@contextlib.contextmanager
def dask_cluster(folder: pathlib.Path, workers: int) -> Iterator[str]:
    """Address of a scheduler on loopback with so many worker processes, which end with the block or after ten minutes."""
    code = (
        "import sys, time\n"
        "from distributed import LocalCluster\n"
        "if __name__ == '__main__':\n"
        f"    cluster = LocalCluster(n_workers={workers}, threads_per_worker=1, processes=True, host='127.0.0.1',"
        " dashboard_address=None)\n"
        "    print(cluster.scheduler_address, flush=True)\n"
        "    time.sleep(600)\n"
    )
    (folder / "cluster.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(folder / "cluster.py")], stdout=subprocess.PIPE, text=True, cwd=folder, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"tcp://127\.0\.0\.1:\d+", process.stdout.readline())
            assert found, "the cluster did not start"
            yield found.group()
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("beam")
@pytest.mark.parametrize("more", [(), ("--deduplicate", "--holdout", "0.1")], ids=["plain", "deduplicated"])
def test_several_processes_write_the_same_files(
    text: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.undo()  # the processes know nothing of the small groups of this one
    assert run(text, tmp_path / "local", "--workers", "1", *more) == 0
    run_apart(text, tmp_path / "several", SEVERAL, *more)
    assert files(tmp_path / "several") == files(tmp_path / "local")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("beam")
def test_a_dask_cluster_writes_the_same_files(
    text: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed (pip install distributed)")
    monkeypatch.undo()
    assert run(text, tmp_path / "local", "--workers", "1", "--deduplicate") == 0
    with dask_cluster(tmp_path, workers=2) as address:
        run_apart(text, tmp_path / "dask", f"--runner=DaskRunner --dask_client_address={address}", "--deduplicate")
    assert files(tmp_path / "dask") == files(tmp_path / "local")


@pytest.mark.usefixtures("beam")
@pytest.mark.parametrize("deduplicate", [False, True])
def test_either_runner_continues_the_other(
    text: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, deduplicate: bool
) -> None:
    from spanjax.data.shards import portions

    more = ["--deduplicate"] * deduplicate
    write = portions.PortionRows.write

    def die(self: Any, portion: Any) -> Any:
        if portion.number == 1:
            raise OSError("the disk is gone")
        return write(self, portion)

    beam_options = ["--runner", "beam", f"--beam-options={IN_PROCESS}"]
    for first, second in ((["--workers", "1"], beam_options), (beam_options, ["--workers", "1"])):
        name = f"{first[1]}-first"
        with monkeypatch.context() as patch:
            patch.setattr(portions.PortionRows, "write", die)
            assert run(text, tmp_path / name, *first, *more) == 2
        left = list(tmp_path.glob(f".{name}.unfinished/figures/train/*.npz"))
        assert left and not (tmp_path / name).exists()
        assert run(text, tmp_path / name, *second, *more) == 0
    assert files(tmp_path / "1-first") == files(tmp_path / "beam-first")


@pytest.mark.usefixtures("beam")
def test_bad_input_ends_as_in_the_local_runner(
    text: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text("no json\n")
    own = [
        "--input",
        str(tmp_path / "bad.jsonl"),
        "--output",
        str(tmp_path / "out"),
        "--vocab",
        str(text / "vocab.txt"),
    ]
    assert command.main([*own, "--runner", "beam", f"--beam-options={IN_PROCESS}"]) == 2
    told = capsys.readouterr().err
    assert "bad.jsonl:1: not JSON" in told and "Traceback" not in told


def test_without_beam_one_error_says_what_to_install(
    text: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = builtins.__import__

    def absent(name: str, *arguments: Any) -> Any:
        if name.split(".")[0] == "apache_beam":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.delitem(sys.modules, "spanjax.data.shards.beam_runner", raising=False)
    assert run(text, tmp_path / "out", "--runner", "beam") == 2
    assert "pip install 'spanjax[beam]'" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--runner=DaskRunner"], ["--runner", "DaskRunner"]])
def test_dask_is_known_by_its_short_name(words: list[str]) -> None:
    from spanjax.data.shards.beam_runner import DASK, with_runner

    words = [*words, "--dask_client_address=tcp://host:1"]
    assert " ".join(with_runner(words)).replace("=", " ", 1).split()[1] == DASK
    assert importlib.util.find_spec(DASK.rpartition(".")[0].rpartition(".")[0])
    assert with_runner(["--runner=FlinkRunner"]) == ["--runner=FlinkRunner"]
