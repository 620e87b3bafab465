"""A script for TPU VMs: requests a slice, trains in a container on every worker, and requests a new one after a preemption."""

import dataclasses

from spanjax.bounds import AtLeast0, AtLeast1, collect
from spanjax.distributed.launchers import EXPECTED, STARTUP, TOKEN
from spanjax.launch.quoting import continued, options, word
from spanjax.launch.settings import Settings, plain
from spanjax.launch.tpu import read_slice


@dataclasses.dataclass(frozen=True)
class TpuVm(Settings):
    """A script that requests a TPU slice as a queued resource and trains on all of its workers."""

    FILE = "tpu_vm.sh"

    project: str = "PROJECT"
    """Google Cloud project."""
    zone: str = "us-west4-a"
    """Zone of the slice."""
    image: str = "REGION-docker.pkg.dev/PROJECT/spanjax/spanjax:tpu"
    """The image, built from launch/Dockerfile."""
    topology: str = "v5e:4x8"
    """TPU slice: v4, v5e, v5p or v6e and the chips along each axis."""
    spot: bool = True
    """Request a spot slice: cheaper, and preempted at any time."""
    share: str = "ADDRESS:/SHARE"
    """NFS export (Filestore) that every worker mounts as /data."""
    max_restarts: AtLeast0 = 10
    """Failures that leave the slice active, before the script gives up."""
    grace_seconds: AtLeast1 = 600
    """Seconds for an earlier container to save."""
    poll_seconds: AtLeast1 = 60
    """Seconds between two queries of the slice's state."""
    startup_seconds: AtLeast1 = 600
    """Seconds that workers wait for each other at the start."""

    def problems(self) -> list[str]:
        """Problems with these values, as text; empty if there are none."""
        found = super().problems() + plain(self, "project", "zone", "image")
        collect(found, read_slice, self.topology)
        if ":/" not in self.share or plain(self, "share"):
            found.append(f"--share is {self.share!r}: expected an NFS export, as 10.0.0.2:/share")
        return found

    def text(self, train: tuple[str, ...]) -> str:
        """The script."""
        shape = read_slice(self.topology)
        variables = self.variables((EXPECTED, shape.chips), (STARTUP, self.startup_seconds))
        docker = [
            f"--rm --name={self.name} --privileged --net=host --user=0",
            "--volume=/data:/data",
            f'--env="{TOKEN}=${TOKEN}"',
            *(f"--env={word(f'{name}={value}')}" for name, value in variables.items()),
            word(self.image),
            "python -m spanjax.train",
            *options(train),
        ]
        host = self.image.partition("/")[0]
        # gcloud can log Docker in to Google's own registries alone
        registry = host if host.endswith((".pkg.dev", "gcr.io")) else ""
        return self.filled(
            project=word(self.project),
            zone=word(self.zone),
            login=f"sudo gcloud auth configure-docker {registry} --quiet" if registry else "",
            share=word(self.share),
            docker=continued(docker, 2),
            type=shape.accelerator_type,
            runtime=shape.generation.runtime,
            spot="--spot" if self.spot else "",
        )
