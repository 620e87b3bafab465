"""A script for TPU VMs: requests a slice, trains in a container on every worker, and requests a new one after a preemption."""

import dataclasses

from spanjax.cli import DONE, WRONG_INPUT
from spanjax.distributed.variables import EXPECTED, STARTUP, TOKEN
from spanjax.launch.quoting import continued, fill, options, word
from spanjax.launch.settings import DRAWN_TOKEN, Settings, at_least, merged, plain
from spanjax.launch.tpu import read_slice, slice_problems

TEMPLATE = """\
#!/usr/bin/env bash
# Trains on the TPU slice @@topology: bash @@file, on a machine that stays on, with gcloud logged in.
# It requests the slice, runs the container of launch/Dockerfile on every worker, and continues with a new slice when this one is
# taken. It ends when the run is done (the slice is deleted), on wrong input, and after @@max_restarts other failures.
# Printed by `python -m spanjax.launch tpu-vm --print`, which has these settings as options.

set -u
name=@@name
place=(--project=@@project --zone=@@zone)

# what every worker runs: mounts the folder that they share, ends an earlier container (it saves), trains
worker_command=$(
  cat <<'END'
set -eu
@@login
command -v mount.nfs >/dev/null || sudo apt-get install --yes --quiet nfs-common
sudo mkdir -p /data
mountpoint -q /data || sudo mount -t nfs @@share /data
sudo docker stop --time=@@grace @@name >/dev/null 2>&1 || true
exec sudo docker run @@docker
END
)

state() {
  gcloud compute tpus queued-resources describe "$name" "${place[@]}" --format='value(state.state)' 2>/dev/null
}

create() {
  gcloud compute tpus queued-resources create "$name" "${place[@]}" --node-id="$name" \\
    --accelerator-type=@@type --runtime-version=@@runtime @@spot
}

delete() {
  gcloud compute tpus queued-resources delete "$name" "${place[@]}" --force --quiet
}

train() { # with a new word by which the workers know each other
  local @@token_name
  @@token
  gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --worker=all \\
    --command="@@token_name=$@@token_name"$'\\n'"$worker_command"
}

failures=0
while true; do
  case "$(state)" in
    "")
      create || exit
      ;;
    ACTIVE)
      train
      code=$?
      if [ "$code" -eq @@done ]; then
        delete
        exit 0
      fi
      echo "the run ended with $code" >&2
      if [ "$(state)" = ACTIVE ]; then # the slice is still there, so it was not a preemption
        failures=$((failures + 1))
      fi
      if [ "$code" -eq @@wrong ] || [ "$failures" -gt @@max_restarts ]; then
        echo "the slice is kept: gcloud compute tpus queued-resources delete $name ${place[*]} --force" >&2
        exit "$code"
      fi
      ;;
    SUSPENDED | FAILED)
      delete
      ;;
  esac
  sleep @@poll
done
"""


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
    max_restarts: int = 10
    """Failures that leave the slice active, before the script gives up."""
    grace_seconds: int = 600
    """Seconds for an earlier container to save."""
    poll_seconds: int = 60
    """Seconds between two queries of the slice's state."""
    startup_seconds: int = 600
    """Seconds that workers wait for each other at the start."""

    def problems(self) -> list[str]:
        """Problems with these values, as text; empty if there are none."""
        found = super().problems() + plain(self, "project", "zone", "image") + slice_problems(self.topology)
        found += at_least(self, max_restarts=0, grace_seconds=1, poll_seconds=1, startup_seconds=1)
        if ":/" not in self.share or plain(self, "share"):
            found.append(f"--share is {self.share!r}: expected an NFS export, as 10.0.0.2:/share")
        return found

    def text(self, train: tuple[str, ...]) -> str:
        """The script."""
        shape = read_slice(self.topology)
        variables = merged({EXPECTED: str(shape.chips), STARTUP: str(self.startup_seconds)}, self)
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
        values = {
            "topology": self.topology,
            "file": word(self.output or f"launch/{self.FILE}"),
            "name": self.name,
            "project": word(self.project),
            "zone": word(self.zone),
            "login": f"sudo gcloud auth configure-docker {registry} --quiet" if registry else "",
            "share": word(self.share),
            "grace": self.grace_seconds,
            "docker": continued(docker, 2),
            "type": shape.accelerator_type,
            "runtime": shape.generation.runtime,
            "spot": "--spot" if self.spot else "",
            "token_name": TOKEN,
            "token": DRAWN_TOKEN,
            "done": DONE,
            "wrong": WRONG_INPUT,
            "max_restarts": self.max_restarts,
            "poll": self.poll_seconds,
        }
        return fill(TEMPLATE, values)
