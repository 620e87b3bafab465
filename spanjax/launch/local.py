"""Several processes on this machine: the script that starts them, and its settings."""

import dataclasses

from spanjax.bounds import AtLeast0, AtLeast1, NotNegative
from spanjax.launch.quoting import continued, exports, options, word
from spanjax.launch.settings import Settings


@dataclasses.dataclass(frozen=True)
class Local(Settings):
    """Runs spanjax.train in several processes on this machine, and returns its exit code; --print prints a script for it."""

    FILE = "local.sh"
    TRAIN = (
        *("--config", "configs/pretrain/demo.py", "--rows", "runs/demo/rows"),
        *("--workdir", "runs/demo/two_processes"),
    )

    processes: AtLeast1 = 2
    """Processes."""
    cpu_devices: AtLeast1 = 1
    """CPU devices of each process, without --gpus."""
    gpus: AtLeast0 = 0
    """GPUs of this machine, split evenly over the processes; 0 trains on the CPU."""
    grace: NotNegative = 30.0
    """Seconds for the other processes to end on their own after one has failed."""
    python: str = "python"
    """Interpreter of a printed script; without --print, the current one is used."""

    def problems(self) -> list[str]:
        """Problems with these values, as text; empty if there are none."""
        found = super().problems()
        if self.gpus > 0 and self.processes > 0 and self.gpus % self.processes:
            found.append(f"--gpus {self.gpus} cannot be shared by --processes {self.processes}: expected a multiple")
        if not self.python:
            found.append("--python is empty: expected an interpreter")
        return found

    def text(self, train: tuple[str, ...]) -> str:
        """The script."""
        devices = f"--gpus {self.gpus}" if self.gpus else f"--cpu-devices {self.cpu_devices}"
        first = f"{word(self.python)} -m spanjax.launch local --processes {self.processes} {devices}"
        first += f" --grace {self.grace:g}" if self.grace != Local.grace else ""
        return self.filled(exports=exports(self.variables()), command=continued([f"{first} --", *options(train)], 2))
