"""The SLURM of the tests, two jobs under it, and the table of `make test-clusters`."""

import contextlib
import pathlib
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.chaos.__main__ import compare
from tests.clusters import __main__ as clusters
from tests.clusters import slurm
from tests.clusters.scenarios import KINDS, Run, steps_for, through_faults, trained, undisturbed
from tests.clusters.slurm import NODES, Cluster, Job, configuration, free_ports, missing, parsed

SHOWN = (
    "JobId=7 JobName=spanjax\n   UserId=root(0) Priority=1\n   JobState=RUNNING Reason=None Restarts=2 ExitCode=0:15\n"
)


def test_what_slurm_says_of_a_job() -> None:
    found = parsed(SHOWN)
    assert (found["JobState"], found["Restarts"], found["ExitCode"]) == ("RUNNING", "2", "0:15")


def test_the_configuration_is_on_loopback_and_in_its_folder(tmp_path: pathlib.Path) -> None:
    """Nothing of it reaches another SLURM of the machine: addresses, ports, and every path."""
    settings = dict(line.split("=", 1) for line in configuration(tmp_path, "host", 7000, 7001).splitlines())
    paths = [value for name, value in settings.items() if name.endswith(("File", "Location", "Dir", "Config"))]
    assert len(paths) == 7 and all(path.startswith(f"{tmp_path}/") for path in paths)
    assert settings["AuthInfo"].startswith(f"socket={tmp_path}/")
    assert settings["SlurmctldHost"] == "host(127.0.0.1)" and "NodeAddr=127.0.0.1" in settings["NodeName"]
    assert "Port=[7001-7002]" in settings["NodeName"] and "spx[1-2]" in settings["NodeName"] and len(NODES) == 2
    assert {"NoCtldInAddrAny", "NoInAddrAny"} == {*settings["CommunicationParameters"].split(",")}


def test_ports_in_a_row_are_free() -> None:
    first = free_ports(3)
    with contextlib.ExitStack() as held:
        for port in range(first, first + 3):
            held.enter_context(socket.socket()).bind(("127.0.0.1", port))


def test_variables_of_another_slurm_do_not_reach_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SBATCH_PARTITION", "gpu")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    found = Cluster(tmp_path).variables({"A": "1"})
    assert found["SLURM_CONF"] == str(tmp_path / "slurm.conf") and found["A"] == "1"
    assert not {"SLURM_JOB_ID", "SBATCH_PARTITION"} & found.keys()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(slurm, "program", lambda name: None if name in ("slurmd", "munged") else f"/usr/sbin/{name}")
    assert missing() == "munged, slurmd missing: install the packages slurm-wlm and munge"
    monkeypatch.setattr("sys.argv", ["tests.clusters"])
    assert clusters.main() == 0 and "skipped: munged, slurmd missing" in capsys.readouterr().out


def test_daemons_that_do_not_start_are_ended_and_shown(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[subprocess.Popen[bytes]]()

    def daemon(self: Cluster, name: str, *_: str) -> None:
        text = f"echo {name} cannot start; exit 1" if name == "slurmd" else "sleep 60"
        with (self.folder / f"{name}.out").open("w") as output:
            self.daemons.append(subprocess.Popen(["sh", "-c", text], stdout=output))
        started.append(self.daemons[-1])
        (self.folder / "munge" / "socket").touch()

    monkeypatch.setattr(Cluster, "_daemon", daemon)
    monkeypatch.setattr(Cluster, "run", lambda *_: "")
    monkeypatch.setattr(slurm, "program", lambda name: "false")
    with pytest.raises(TimeoutError, match="slurmd cannot start"), Cluster(tmp_path / "c"):
        pass
    assert len(started) == 2 + len(NODES) and all(process.poll() is not None for process in started)


def test_a_job_that_does_not_come_is_described(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "run", lambda *_: SHOWN)
    (tmp_path / "spanjax-7.out").write_text("the last line")
    job = Job(Cluster(tmp_path), 7, tmp_path)
    assert not job.over() and job.restarts() == 2 and job.tasks() == []
    with pytest.raises(TimeoutError, match="(?s)no step within 0 s.*RUNNING.*the last line"):
        job.wait(lambda: False, 0.2, "no step")


def test_goes_that_trained_are_counted() -> None:
    go = "0: devices     2 x cpu\n1: devices     2 x cpu\n0: compiled\n"
    assert trained("") == trained(go) == 0 and trained(go + "0: step 4/40  mlm\n0: step 8/40  mlm\n") == 1
    assert trained(2 * (go + "0: step 1,004/4,000  mlm\nslurmstepd: error\n") + go) == 2


def test_the_table() -> None:
    each = [{"step": 20, "lost": 4, "seconds": 20.4}, {"step": 30, "lost": 0, "seconds": 31.0}]
    kinds = {"scancel": {"tried": 2, "survived": 2, "each": each}, "limit": {"tried": 1, "survived": 0, "each": []}}
    text = clusters.table({"kinds": kinds})
    assert text.splitlines()[2:] == [
        "| scancel | 2 | 2 | 2.0 (4) | 20 to 31 |",
        "| limit | 1 | 0 | 0.0 (0) |  |",
        "| all | 3 | 2 | | |",
    ]


def test_a_whole_run_has_40_faults() -> None:
    assert sum(kind.count for kind in KINDS.values()) >= 40 and all(kind.count > 1 for kind in KINDS.values())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    with Cluster(tmp_path_factory.mktemp("cluster") / "slurm") as found:
        yield found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jobs_end_where_an_undisturbed_one_ends(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    """One that nobody disturbs, and one that saves at a signal and is queued again; the other kinds: `make test-clusters`."""
    rows = clusters.made_rows(tmp_path / "made")
    first = Run(cluster, tmp_path / "undisturbed", rows, steps_for(1))
    undisturbed(first)
    second = Run(cluster, tmp_path / "disturbed", rows, steps_for(1))
    (fault,) = through_faults(second, "USR1 to the script", 1)
    assert fault.lost == 0
    compare(first.workdir, second.workdir)
