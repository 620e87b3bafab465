"""Two hosts with addresses of their own, as network namespaces on one machine: training between them, and a cable pulled."""

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.running import ROOT, environment, final_leaves, last_step, shrunk, wait_until

HOSTS = ("spx0", "spx1")
BRIDGE, NETWORK = "spxbr", "10.213.77"


def ip(*words: str) -> bool:
    """`ip ...`; whether it worked."""
    with contextlib.suppress(OSError):
        return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0
    return False


def take_down() -> None:
    for host in HOSTS:
        ip("netns", "del", host)
    ip("link", "del", BRIDGE)


@pytest.fixture
def hosts() -> Iterator[None]:
    """Namespaces with a bridge between them; skipped where this machine does not let us make them."""
    take_down()
    made = ip("link", "add", BRIDGE, "type", "bridge") and ip("link", "set", BRIDGE, "up")
    for number, host in enumerate(HOSTS):
        made = made and ip("netns", "add", host)
        made = made and ip("link", "add", f"{host}v", "type", "veth", "peer", "name", "eth0", "netns", host)
        made = made and ip("link", "set", f"{host}v", "master", BRIDGE, "up")
        made = made and ip("-n", host, "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
        made = made and ip("-n", host, "link", "set", "eth0", "up") and ip("-n", host, "link", "set", "lo", "up")
    try:
        if not made:
            pytest.skip("network namespaces cannot be made here: they need root and the `ip` command")
        yield
    finally:
        take_down()


def cable(host: str, plugged: bool) -> None:
    assert ip("link", "set", f"{host}v", "up" if plugged else "down")


def begin(arguments: list[str], folder: pathlib.Path) -> list[subprocess.Popen]:
    """The command on both hosts, each under a name of its own; what they print goes to files."""
    common = {"JAX_COORDINATOR_ADDRESS": f"{NETWORK}.1:29400", "JAX_NUM_PROCESSES": "2"}
    processes = []
    for number, host in enumerate(HOSTS):
        inside = ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh"]
        with (folder / f"{host}.txt").open("a") as output:
            process = subprocess.Popen(
                [*inside, sys.executable, "-m", "spanjax.train", *arguments],
                cwd=ROOT,
                env=environment(1, **common, JAX_PROCESS_ID=str(number), SPANJAX_STARTUP_TIMEOUT="90"),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
    return processes


def wait(processes: list[subprocess.Popen], condition: Callable[[], bool]) -> bool:
    return wait_until(processes, condition, 240)


def printed(folder: pathlib.Path) -> str:
    return "\n".join((folder / f"{host}.txt").read_text(errors="replace") for host in HOSTS)


def listening(process: int) -> set[str]:
    """Addresses on which the processes of a host listen, as in /proc: little-endian hexadecimal."""
    lines = pathlib.Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    return {line.split()[1].partition(":")[0] for line in lines if line.split()[3] == "0A"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_host_is_cut_off_and_comes_back(hosts: None, rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """For some seconds: training waits, says which host is silent, and goes on. For good: it ends, and the same command goes on.

    The state in the end is that of a run whose cable was never touched, bit for bit.
    """
    settings = (
        "--data.feed=numpy",
        "--cadence.checkpoint-every=20",
        "--cadence.eval-every=0",
        "--guard.stall-seconds=1",
    )
    settings = (*settings, "--guard.stall-exit-seconds=15")

    def words(name: str) -> list[str]:
        return shrunk("configs/pretrain/demo.py", rows_folder, tmp_path / name, 300, *settings)

    whole = tmp_path / "output"
    whole.mkdir()
    processes = begin(words("whole"), whole)
    assert [process.wait(400) for process in processes] == [0, 0], printed(whole)

    cut = tmp_path / "cut"
    cut.mkdir()
    processes = begin(words("cables"), cut)
    assert wait(processes, lambda: last_step(tmp_path / "cables") > 10), printed(cut)
    assert listening(processes[0].pid) <= {"014DD50A", "0100007F"}  # its own address and loopback
    cable("spx1", False)
    said = "process 1 (spx1) has not been heard of"
    assert wait(processes, lambda: said in printed(cut) or "waits for their devices" in printed(cut)), printed(cut)
    at = last_step(tmp_path / "cables")
    cable("spx1", True)
    assert wait(processes, lambda: last_step(tmp_path / "cables") > at + 20), printed(cut)

    cable("spx1", False)
    codes = [process.wait(400) for process in processes]
    assert 0 not in codes and 2 not in codes, (codes, printed(cut))
    before = last_step(tmp_path / "cables")
    assert before < 300
    cable("spx1", True)
    processes = begin(words("cables"), cut)
    assert [process.wait(400) for process in processes] == [0, 0], printed(cut)
    assert "continuing" in printed(cut)
    one, other = final_leaves(tmp_path / "whole"), final_leaves(tmp_path / "cables")
    assert one.keys() == other.keys() and len(one) > 50
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []
