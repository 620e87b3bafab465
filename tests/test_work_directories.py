"""Runs whose work directory is in a bucket, in processes of their own: on other machines, with faults, paused, killed."""

import json
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

from spanjax.storage.commits import Commits
from spanjax.storage.objects import Place, open_store
from tests.chaos.__main__ import made_rows
from tests.machines import SECONDS, STEPS, Machines, same_bits
from tests.storage.conftest import opened
from tests.storage.servers import MISSING, Fault, Faults
from tests.storage.test_commands import upload

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
RATE = 0.05
"""Share of the requests that fail. Five of a hundred are more than stores have in bad hours."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return made_rows(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def undisturbed(rows: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The same run in a folder of this machine, with nothing in its way: one process with two devices."""
    folder = tmp_path_factory.mktemp("undisturbed")
    machines = Machines(folder, rows)
    machines.finish(machines.start(str(folder / "run"), ("disk",), 2))
    return folder / "run"


@pytest.fixture
def machines(tmp_path: pathlib.Path, rows: pathlib.Path) -> Iterator[Machines]:
    found = Machines(tmp_path, rows)
    yield found
    found.kill()


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_killed_runs_resume_on_other_machines_to_the_same_bits(
    scheme: str, machines: Machines, undisturbed: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """One process, then two on machines that share no disk, then one: killed twice, with faults of the store all the time."""
    faults = Faults(seed=1, rate=RATE, kinds=(Fault.BUSY, Fault.ERROR, Fault.UNAVAILABLE, Fault.RESET, Fault.LOST))
    with opened(scheme, faults, monkeypatch) as address:
        first = machines.start(address, ("one",), 2)
        machines.wait_for(first, "step 28/")
        first[0].kill()
        first[0].wait()
        second = machines.start(address, ("two", "three"), 1)
        machines.wait_for(second, "step 44/")
        second[1].kill()
        for process in second:
            process.wait(SECONDS)
        assert f"continuing {address} from step " in machines.printed()
        third = machines.start(address, ("four",), 2)
        machines.finish(third)
        assert "continuing" in machines.printed() and "Traceback" not in machines.printed()
        faults.rate = 0.0
        place = Place.parse(address)
        head = Commits(open_store(place), place).read()
        assert max(head.steps) == STEPS and head.fencing == 3 and not head.damaged
        # each commit was written by one run, and the objects of others are gone
        names = {entry.name.split("/")[0] for entry in open_store(place).list(place / "checkpoints")}
        assert names == {each.commit for each in head.steps.values()}
        same_bits(address, undisturbed, tmp_path / "reader")
    assert sum(faults.counts.values()) > 10


def test_a_run_that_slept_cannot_commit(
    machines: Machines, undisturbed: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    with opened("s3", Faults(), monkeypatch) as address:
        sleeping = machines.start(address, ("one",), 2)
        machines.wait_for(sleeping, "step 12/")
        sleeping[0].send_signal(signal.SIGSTOP)
        awake = machines.start(address, ("two",), 2)
        machines.wait_for(awake, "step 24/")
        sleeping[0].send_signal(signal.SIGCONT)
        machines.finish(sleeping, 2)
        said = machines.printed(1)
        assert (
            f"spanjax.train: --workdir {address} was taken over by another run, host" in said
            and "Traceback" not in said
        )
        machines.finish(awake)
        same_bits(address, undisturbed, tmp_path / "reader")
        place = Place.parse(address)
        assert {each.commit.partition("-")[2] for each in Commits(open_store(place), place).read().steps.values()} == {
            "2"
        }


def test_of_two_that_start_at_once_one_trains(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened("gs", Faults(), monkeypatch) as address:
        both = [machines.start(address, (name,), 1)[0] for name in ("one", "two")]
        assert sorted(process.wait(SECONDS) for process in both) == [0, 2], machines.printed(1) + machines.printed(2)
        said = machines.printed(1 if both[0].returncode else 2)
        assert f"spanjax.train: --workdir {address} is in use by another run: host" in said


def test_hosts_that_share_a_cache(
    machines: Machines,
    undisturbed: pathlib.Path,
    rows: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    """Rows and work directory in a bucket, one cache for both hosts, of which the second one resumes alone."""
    with opened("gs", Faults(), monkeypatch) as address:
        machines.rows = upload(rows, f"{address}/rows")
        both = machines.start(f"{address}/run", ("one", "two"), 1, cache="shared")
        machines.wait_for(both, "step 24/")
        both[1].terminate()
        machines.finish(both, 75)
        shared = tmp_path / "shared" / "spanjax"
        before = {path: path.stat().st_ino for path in shared.glob("storage/*/rows/**/*.bin")}
        assert len(before) == len(list(rows.rglob("*.bin"))), "one copy of every shard"
        assert {path.name for path in shared.glob("runs/*/process_*")} == {"process_0", "process_1"}
        second = machines.start(f"{address}/run", ("two",), 2, cache="shared")
        machines.finish(second)
        assert f"continuing {address}/run from step" in machines.printed()
        assert {path: path.stat().st_ino for path in shared.glob("storage/*/rows/**/*.bin")} == before
        same_bits(f"{address}/run", undisturbed, tmp_path / "reader")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_stopped_run_has_committed_when_it_ends(
    processes: int, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened("s3", Faults(), monkeypatch) as address:
        running = machines.start(address, ("one", "two")[:processes], 2 // processes)
        machines.wait_for(running, "step 24/")
        running[-1].terminate()
        machines.finish(running, 75)
        place = Place.parse(address)
        store = open_store(place)
        saved = max(Commits(store, place).read().steps)
        logged = [json.loads(line)["step"] for line in store.read(place / "metrics.jsonl")[0].splitlines()]
        assert 24 <= saved < STEPS and max(logged) <= saved < max(logged) + 4
        assert json.loads(store.read(place / "run.lock")[0])["released"] is True
        assert os.environ["AWS_ENDPOINT_URL"]
