"""A SkyPilot task: nodes on any cloud, a bucket for the checkpoints, and recovery after a preemption."""

import dataclasses
import re

from spanjax.cli import STOPPED
from spanjax.distributed.variables import EXPECTED, STARTUP, TOKEN
from spanjax.launch.quoting import continued, fill, indented, options, scalar, word
from spanjax.launch.settings import Settings, at_least, merged, plain

GPUS = re.compile(r"([A-Za-z][A-Za-z0-9._-]*):([1-9]\d*)")
BUCKET = re.compile(r"(gs|s3|r2|nebius)://[A-Za-z0-9][A-Za-z0-9._/-]*")
TEMPLATE = """\
# Trains on @@nodes node(s) with @@gpus each, as a managed job: sky jobs launch @@file
# The bucket holds rows/ and, after the first save, runs/. A spot node that is taken, and exit code @@stopped of spanjax.train
# (stopped after saving), start it again as often as it takes; any other failure at most @@max_restarts times.
# Printed by `python -m spanjax.launch skypilot --print`, which has these settings as options.
name: @@name
num_nodes: @@nodes
workdir: .
resources:
  @@infra
  accelerators: @@accelerators
  use_spot: @@spot
  job_recovery:
    max_restarts_on_errors: @@max_restarts
    recover_on_exit_codes: [@@stopped]
file_mounts:
  /data:
    source: @@bucket
    mode: MOUNT
envs:
  @@envs
setup: |
  python3 -m pip install --quiet uv
  python3 -m uv venv --quiet --allow-existing --python @@python ~/spanjax
  python3 -m uv pip install --quiet --python ~/spanjax/bin/python -r requirements.txt 'jax[@@extra]'
run: |
  export @@token="${SKYPILOT_TASK_ID:-}" # by which the nodes know each other: of this job alone
  exec ~/spanjax/bin/@@command
"""


@dataclasses.dataclass(frozen=True)
class SkyPilot(Settings):
    """A SkyPilot task for `sky jobs launch`: one process a node, which takes all of its GPUs."""

    FILE = "skypilot.yaml"

    nodes: int = 2
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
    max_restarts: int = 3
    """Restarts after failures that were no preemption."""
    startup_seconds: int = 1800
    """Seconds that processes wait for each other at the start: at least the slowest set-up minus the fastest."""

    def problems(self) -> list[str]:
        """Problems with these values, as text; empty if there are none."""
        found = super().problems() + at_least(self, nodes=1, max_restarts=0, startup_seconds=1)
        found += plain(self, "infra", needed=False) + plain(self, "extra")
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
        variables = {EXPECTED: str(self.nodes * int(found[2])), STARTUP: str(self.startup_seconds)}
        values = {
            "name": self.name,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "file": word(self.output or f"launch/{self.FILE}"),
            "infra": f"infra: {scalar(self.infra)}" if self.infra else "",
            "accelerators": scalar(self.gpus),
            "spot": str(self.spot).lower(),
            "stopped": STOPPED,
            "max_restarts": self.max_restarts,
            "bucket": scalar(self.bucket),
            "envs": indented((f"{name}: {scalar(value)}" for name, value in merged(variables, self).items()), 2),
            "token": TOKEN,
            "extra": self.extra,
            "python": self.python,
            "command": continued(["python -m spanjax.train", *options(train)], 4),
        }
        return fill(TEMPLATE, values)
