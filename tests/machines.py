"""Simulated machines for runs in buckets: processes of this machine that share a bucket and nothing else."""

import contextlib
import pathlib
import signal
import subprocess
import sys

import pytest

from spanjax.launch.processes import free_port
from spanjax.storage.inputs import local_copy
from tests.running import ROOT, environment, final_leaves, logged_lines, shrunk, wait_until

STEPS, SECONDS = 60, 280
SHORT = ROOT / "tests" / "short_lease.py"


class Machines:
    """Starts `spanjax.train` on simulated machines: each has a cache folder of its own, and nothing else is shared."""

    def __init__(self, folder: pathlib.Path, rows: pathlib.Path | str, steps: int = STEPS):
        self.folder, self.rows, self.steps, self.started = folder, rows, steps, list[subprocess.Popen]()
        self.launches = 0

    def start(self, workdir: str, machines: tuple[str, ...], devices: int, cache: str = "") -> list[subprocess.Popen]:
        """One process on each machine; `cache` names a folder that all share as their cache, as on a network disk."""
        more = ["--cadence.checkpoint-every=10", "--cadence.eval-every=20", "--encoder.dropout=0.1", "--batch-size=12"]
        more += ["--data.feed=numpy", "--cadence.log-every=4", "--cadence.retry-save-steps=3"]
        arguments = shrunk("configs/pretrain/demo.py", self.rows, pathlib.Path("x"), self.steps, *more)
        arguments = [f"--workdir={workdir}" if word.startswith("--workdir") else word for word in arguments]
        common, self.launches, found = dict[str, str](), self.launches + 1, list[subprocess.Popen]()
        common |= {"JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"), "MACHINE_STEP_SECONDS": "0.05"}
        common |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        if len(machines) > 1:
            common |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": str(len(machines))}
        for index, machine in enumerate(machines):
            own = {"XDG_CACHE_HOME": str(self.folder / (cache or machine)), "MACHINE": machine}
            (temporary := self.folder / f"tmp-{machine}").mkdir(exist_ok=True)
            own["TMPDIR"] = str(temporary)
            own |= {"JAX_PROCESS_ID": str(index)} if len(machines) > 1 else {}
            with self.output(index).open("w") as output:
                found.append(
                    subprocess.Popen(
                        [sys.executable, str(SHORT), *arguments],
                        cwd=ROOT, env=environment(devices, **common, **own), stdout=output, stderr=subprocess.STDOUT,
                    )
                )  # fmt: skip
        self.started += found
        return found

    def output(self, index: int, launch: int = 0) -> pathlib.Path:
        return self.folder / f"output-{launch or self.launches}-{index}.txt"

    def printed(self, launch: int = 0) -> str:
        """What process 0 and 1 of a launch printed, by default of the last."""
        files = [self.output(index, launch) for index in (0, 1)]
        return "\n".join(file.read_text() for file in files if file.exists())

    def wait_for(self, processes: list[subprocess.Popen], text: str) -> None:
        assert wait_until(processes, lambda: text in self.printed(), SECONDS), self.printed()

    def finish(self, processes: list[subprocess.Popen], code: int = 0) -> None:
        for process in processes:
            process.wait(SECONDS)
        assert {process.returncode for process in processes} == {code}, self.printed()

    def kill(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(30)


def same_bits(address: str, undisturbed: pathlib.Path, cache: pathlib.Path) -> None:
    """Compares the newest checkpoint array by array, and the curve of losses with no record missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        copy = pathlib.Path(local_copy(address))
    one, other = final_leaves(undisturbed), final_leaves(copy)
    assert one.keys() == other.keys() and len(one) > 100
    assert not [name for name in one if one[name].tobytes() != other[name].tobytes()]
    losses = [{line["step"]: line["train/mlm/loss"] for line in logged_lines(each) if "train/mlm/loss" in line}
              for each in (undisturbed, copy)]  # fmt: skip
    assert losses[0] == losses[1]
