"""Sweeps whose work directory is in a bucket: interrupted on one machine, continued on another, reported."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spanjax import train
from spanjax.cli import STOPPED
from spanjax.experiment.sweep_folder import SweepFolder
from spanjax.report import main as report
from spanjax.storage import lease as leases
from spanjax.storage.commits import FencedError
from spanjax.storage.inputs import SWEEP, local_copy
from spanjax.storage.lease import HeldError
from spanjax.storage.objects import Place, open_store
from tests.experiment.test_sweep import CONFIG, GRID
from tests.running import shrunk

ADDRESS = "memory://bucket/sweeps/one"


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict]:
    """Objects in memory, none before and after; path -> object. Leases that are taken over within a second."""
    monkeypatch.setattr(leases, "VALID_SECONDS", 0.4)
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(leases, "WATCH_SECONDS", 0.02)
    MemoryFileSystem.store.clear()
    yield MemoryFileSystem.store
    MemoryFileSystem.store.clear()


def content(name: str) -> dict[str, Any]:
    place = Place.parse(ADDRESS) / name
    return json.loads(open_store(place).read(place)[0])


@pytest.mark.slow
def test_a_sweep_in_a_bucket_continues_on_another_machine(
    rows_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    store: dict,
) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(GRID)

    def sweep(machine: str, workdir: str = ADDRESS) -> int:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        words = shrunk(CONFIG, rows_folder, pathlib.Path("x"), 3, "--data.feed=numpy", f"--sweep={file}")
        return train.main([*(word for word in words if not word.startswith("--workdir")), f"--workdir={workdir}"])

    real, begun = train.train, list[str]()

    def interrupted(command: Any, named: Any) -> int:
        begun.append(command.workdir)
        if len(begun) == 2:
            raise ValueError("not finite")
        return STOPPED if len(begun) == 3 else real(command, named)

    monkeypatch.setattr(train, "train", interrupted)
    assert sweep("first") == STOPPED
    assert begun == [f"{ADDRESS}/base/0", f"{ADDRESS}/fast/0", f"{ADDRESS}/base/1"]
    assert content("fast/0/result.json")["error"] == "not finite" and content("base/0/result.json")["steps"] == 3
    assert content("base/0/commits/HEAD")["steps"].keys() == {"3"}, "an ordinary run in the bucket"
    assert not list((tmp_path / "first/spanjax/runs").glob("*/*/checkpoints")), "no copies of runs that have ended"
    assert not content("run.lock").get("holder") or content("run.lock")["released"]

    monkeypatch.setattr(train, "train", lambda command, named: begun.append(command.workdir) or real(command, named))
    begun.clear()
    assert sweep("second") == 0 and begun == [f"{ADDRESS}/fast/0", f"{ADDRESS}/base/1", f"{ADDRESS}/fast/1"]
    assert "4 of 4 runs are finished: python -m spanjax.report memory://bucket/sweeps/one" in capsys.readouterr().out
    assert sweep("third") == 0 and len(begun) == 3
    # the same results as on a disk
    assert sweep("third", str(tmp_path / "local")) == 0
    for run in ("base/0", "base/1", "fast/0", "fast/1"):
        local = json.loads((tmp_path / "local" / run / "result.json").read_text())
        assert {**content(f"{run}/result.json"), "seconds": 0} == {**local, "seconds": 0}
    copy = pathlib.Path(local_copy(ADDRESS))
    assert {path.name for path in copy.rglob("*") if path.is_file()} == {SWEEP, "result.json"}, "no checkpoints"
    output = tmp_path / "sweep.json"
    assert report([ADDRESS, "--output=", f"--json={output}"]) == 0
    found = json.loads(output.read_text())["sweeps"][ADDRESS]
    assert found["arms"]["fast"]["seeds"].keys() == {"0", "1"}
    # settings that have changed are found in the bucket
    file.write_text(GRID.replace("0.5", "0.25"))
    assert sweep("fourth") == 2
    assert f"arm fast: {ADDRESS}/fast/1 has other settings" in capsys.readouterr().err


def test_one_sweep_at_a_time(store: dict) -> None:
    one, other = SweepFolder(ADDRESS), SweepFolder(ADDRESS)
    with one.sole():
        one.write(SWEEP, {"arms": {}})
        with pytest.raises(HeldError, match=f"--workdir {ADDRESS} is in use by another run"), other.sole():
            pytest.fail("two sweeps")
        assert one.read(SWEEP) == {"arms": {}} and not one.finished("base", 0)
        one.write("base/0/result.json", {"error": "x"})
        assert not one.finished("base", 0)
        one.write("base/0/result.json", {"steps": 3})
        assert one.finished("base", 0)
        assert one._lease is not None
        one._lease.lost = FencedError("taken over")
        with pytest.raises(FencedError, match="taken over"):
            one.write(SWEEP, {})
    with SweepFolder(ADDRESS).sole():
        pass
    MemoryFileSystem().pipe_file("/bucket/sweeps/one/base/0/result.json", b"{")
    with pytest.raises(ValueError, match=r"base/0/result.json is not readable JSON .*restore it, or remove it"):
        one.finished("base", 0)
