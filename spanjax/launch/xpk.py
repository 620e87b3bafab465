"""A workload of xpk, Google's command for TPU slices on GKE with a queue."""

import dataclasses
import re

from spanjax.bounds import AtLeast0, AtLeast1, collect
from spanjax.cli import PROCESSES_MISSING, STOPPED
from spanjax.distributed.launchers import EXPECTED, STARTUP, TOKEN
from spanjax.launch.quoting import continued, options, word
from spanjax.launch.settings import Settings, plain
from spanjax.launch.tpu import read_slice


@dataclasses.dataclass(frozen=True)
class Xpk(Settings):
    """A call of `xpk workload create` for TPU slices. For GPUs take `jobset`."""

    FILE = "xpk.sh"

    cluster: str = "CLUSTER"
    """The cluster, made by `xpk cluster create`."""
    project: str = "PROJECT"
    """Google Cloud project."""
    zone: str = "us-west4-a"
    """Zone of the cluster."""
    image: str = "REGION-docker.pkg.dev/PROJECT/spanjax/spanjax:tpu"
    """The image, built from launch/Dockerfile."""
    topology: str = "v5e:4x8"
    """TPU slice: v4, v5e, v5p or v6e and the chips along each axis."""
    slices: AtLeast1 = 1
    """Slices of this shape."""
    storage: str = "data"
    """Name of the storage that xpk mounts as /data; empty for none."""
    priority: str = "medium"
    """very-low, low, medium, high or very-high."""
    max_restarts: AtLeast0 = 100
    """Restarts in all; xpk counts those after a preemption too."""
    grace_seconds: AtLeast1 = 600
    """Seconds between the signal and the end of a pod."""
    startup_seconds: AtLeast1 = 1800
    """Seconds that pods wait for each other at the start."""

    def problems(self) -> list[str]:
        """Problems with these values, as text; empty if there are none."""
        found = super().problems() + plain(self, "cluster", "project", "zone", "image")
        found += plain(self, "storage", needed=False)
        collect(found, read_slice, self.topology)
        if not re.fullmatch("(very-)?(low|high)|medium", self.priority):
            found.append(f"--priority is {self.priority!r}: expected very-low, low, medium, high or very-high")
        return found

    def text(self, train: tuple[str, ...]) -> str:
        """The script."""
        shape = read_slice(self.topology)
        codes = f"{PROCESSES_MISSING},{STOPPED}"
        variables = self.variables((EXPECTED, shape.chips * self.slices), (STARTUP, self.startup_seconds))
        given = {
            "cluster": self.cluster,
            "workload": self.name,
            "project": self.project,
            "zone": self.zone,
            "tpu-type": shape.accelerator_type,
            "num-slices": self.slices,
            "docker-image": self.image,
            "priority": self.priority,
            "max-restarts": self.max_restarts,
            "restart-on-exit-codes": codes,
            "termination-grace-period-seconds": self.grace_seconds,
        }
        lines = [f"--{name}={word(value)}" for name, value in given.items()]
        lines += [f"--storage={word(self.storage)}"] if self.storage else []
        lines += [f'--env "{TOKEN}=${TOKEN}"']
        lines += [f"--env {word(f'{name}={value}')}" for name, value in variables.items()]
        command = " ".join(["python -m spanjax.train", *options(train)])
        return self.filled(
            what=f"{self.slices} TPU slice(s) {self.topology}",
            codes=codes.replace(",", " and "),
            command=command.replace("$", "$$"),  # Kubernetes expands $(NAME) in the command of a pod; $$ stays a $
            options=continued([*lines, '--command="$pod_command"'], 2),
        )
