"""A SkyPilot task: nodes on any cloud, a bucket for the checkpoints, and recovery after a preemption."""

import dataclasses
import re

from spanjax.bounds import AtLeast0, AtLeast1
from spanjax.distributed.launchers import EXPECTED, STARTUP
from spanjax.launch.quoting import continued, indented, options, scalar
from spanjax.launch.settings import Settings, plain

GPUS = re.compile(r"([A-Za-z][A-Za-z0-9._-]*):([1-9]\d*)")
BUCKET = re.compile(r"(gs|s3|r2|nebius)://[A-Za-z0-9][A-Za-z0-9._/-]*")


@dataclasses.dataclass(frozen=True)
class SkyPilot(Settings):
    """A SkyPilot task for `sky jobs launch`: one process a node, which takes all of its GPUs."""

    FILE = "skypilot.yaml"

    nodes: AtLeast1 = 2
    """Nodes."""
    gpus: str = "H100:8"
    """Kind and number of the GPUs of each node, as SkyPilot names them."""
    infra: str = ""
    """Cloud, or cloud/region, as gcp/us-central1; empty lets SkyPilot choose."""
    spot: bool = True
    """Take spot nodes."""
    bucket: str = "gs://BUCKET"
    """Bucket to mount as /data on every node."""
    extra: str = "cuda13"
    """Extra of the jax package to install on the nodes: jax[EXTRA]."""
    python: str = "3.12"
    """Version of Python on the nodes; 3.11 or newer."""
    max_restarts: AtLeast0 = 3
    """Restarts after failures that were no preemption."""
    startup_seconds: AtLeast1 = 1800
    """Seconds that processes wait for each other at the start: at least the slowest set-up minus the fastest."""

    def problems(self) -> list[str]:
        """Problems with these values, as text; empty if there are none."""
        found = super().problems() + plain(self, "infra", needed=False) + plain(self, "extra")
        if not re.fullmatch(r"3\.(1[1-9]|[2-9]\d)", self.python):
            found.append(f"--python is {self.python!r}: expected a version from 3.11 on")
        if not GPUS.fullmatch(self.gpus):
            found.append(f"--gpus is {self.gpus!r}: expected a kind and a number, as H100:8")
        if not BUCKET.fullmatch(self.bucket):
            found.append(f"--bucket is {self.bucket!r}: expected gs://NAME, s3://NAME, r2://NAME or nebius://NAME")
        return found

    def text(self, train: tuple[str, ...]) -> str:
        """The task."""
        found = GPUS.fullmatch(self.gpus)
        assert found is not None
        variables = self.variables((EXPECTED, self.nodes * int(found[2])), (STARTUP, self.startup_seconds))
        return self.filled(
            infra=f"infra: {scalar(self.infra)}" if self.infra else "",
            accelerators=scalar(self.gpus),
            spot=str(self.spot).lower(),
            bucket=scalar(self.bucket),
            envs=indented((f"{name}: {scalar(value)}" for name, value in variables.items()), 2),
            command=continued(["python -m spanjax.train", *options(train)], 4),
        )
