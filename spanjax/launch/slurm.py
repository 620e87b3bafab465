"""A SLURM batch script: saves before the time limit, requeues itself, and resumes."""

import dataclasses
import re
from typing import Annotated

from spanjax.bounds import AtLeast0, AtLeast1, Bounds
from spanjax.distributed.launchers import EXPECTED, STARTUP, startup_limit
from spanjax.launch.quoting import continued, exports, options, word
from spanjax.launch.settings import Settings, plain

SPARE_SECONDS = 20  # for SLURM to take a running job back into the queue before its time is over. Chosen, not measured.
TIME = re.compile(r"(\d+-)?\d{1,2}:\d{2}:\d{2}")


@dataclasses.dataclass(frozen=True)
class Slurm(Settings):
    """A SLURM batch script. It runs one task a node, which takes all of its GPUs, and requeues itself until the run is done."""

    FILE = "slurm.sbatch"

    nodes: AtLeast1 = 2
    """Nodes of the job."""
    gpus_per_node: AtLeast0 = 8
    """GPUs of each node; 0 for CPUs alone."""
    tasks_per_node: AtLeast1 = 1
    """Processes a node: 1 takes all GPUs, as many as there are GPUs take one each."""
    cpus_per_task: AtLeast1 = 16
    """Cores of each process."""
    time: str = "24:00:00"
    """Time limit of one go, HH:MM:SS or D-HH:MM:SS; a longer run continues in the next."""
    save_seconds: Annotated[int, Bounds(2)] = 300
    """Seconds before that limit at which the run gets the signal to save: an evaluation, a step and a save must fit in."""
    max_restarts: AtLeast0 = 20
    """Restarts in all (SLURM counts those after saving too) up to which a job that lost processes is queued again."""
    partition: str = ""
    """Partition; empty takes the cluster's default."""
    account: str = ""
    """Account; empty takes yours."""
    python: str = "python"
    """The interpreter on the nodes, as .venv/bin/python."""
    startup_seconds: AtLeast0 = 0
    """Seconds that processes wait for each other at the start; 0: 600, and 4 more for each node above 64."""

    def problems(self) -> list[str]:
        """Problems with these values, as text; empty if there are none."""
        found = super().problems() + plain(self, "partition", "account", needed=False)
        if not TIME.fullmatch(self.time):
            found.append(f"--time is {self.time!r}: expected HH:MM:SS or D-HH:MM:SS")
        if not self.python:
            found.append("--python is empty: expected the interpreter on the nodes")
        if self.gpus_per_node and self.tasks_per_node > 0 and self.gpus_per_node % self.tasks_per_node:
            found.append(
                f"--gpus-per-node {self.gpus_per_node} cannot be shared by --tasks-per-node {self.tasks_per_node}:"
                f" expected 1 or {self.gpus_per_node} tasks"
            )
        return found

    def _startup_limit(self) -> int:
        """Twice the limit of a run by hand, as nodes of a job boot and start prologues before the first command."""
        return 2 * startup_limit(self.nodes)

    def text(self, train: tuple[str, ...]) -> str:
        """The batch script."""
        expected = [(EXPECTED, self.nodes * self.gpus_per_node)] if self.gpus_per_node else []
        each = f" with {self.gpus_per_node} GPUs each" if self.gpus_per_node else ""
        what = f"{self.nodes} node(s){each}, {self.tasks_per_node} task(s) a node"
        spare = min(SPARE_SECONDS, self.save_seconds // 2)  # at most half, or a short time would leave none to save
        return self.filled(
            gpus=f"#SBATCH --gpus-per-node={self.gpus_per_node}" if self.gpus_per_node else "",
            partition=f"#SBATCH --partition={self.partition}" if self.partition else "",
            account=f"#SBATCH --account={self.account}" if self.account else "",
            signal=f"USR1@{self.save_seconds}",
            what=what,
            exports=exports(self.variables((STARTUP, self.startup_seconds or self._startup_limit()), *expected)),
            command=continued([f"{word(self.python)} -m spanjax.train", *options(train)], 4),
            spare=spare,
            patience=self.save_seconds - spare,
        )
