"""A JobSet for Kubernetes (GKE): the same pod on every host, restarted together when one of them ends.

Exit code 2 of spanjax.train (wrong input) ends it at once. Code 75 (stopped after saving) and the loss of a node restart all
pods as often as it takes, anything else up to `max_restarts` times. Only the message of a Job names the rule of its
podFailurePolicy that failed it, so the rules of the JobSet match that rule's number: they need Kubernetes 1.31 and JobSet 0.10.
"""

import dataclasses

from spanjax.bounds import AtLeast0, AtLeast1, collect
from spanjax.distributed.launchers import EXPECTED, STARTUP, TOKEN
from spanjax.launch.quoting import indented, pod_scalar, scalar
from spanjax.launch.settings import Settings, plain
from spanjax.launch.tpu import read_slice

GROUP, PORT = "workers", 3389
AS_ROOT = "securityContext: {privileged: true, runAsUser: 0} # the devices of a TPU are root's"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool"
SPOT_TOLERATION = '{key: cloud.google.com/gke-spot, operator: Equal, value: "true", effect: NoSchedule}'


@dataclasses.dataclass(frozen=True)
class JobSet(Settings):
    """A JobSet for Kubernetes, on a TPU slice of GKE or several of them, or on nodes with GPUs."""

    FILE = "gke_jobset.yaml"

    image: str = "REGION-docker.pkg.dev/PROJECT/spanjax/spanjax:tpu"
    """The image, built from launch/Dockerfile."""
    topology: str = "v5e:4x8"
    """TPU slice: v4, v5e, v5p or v6e and the chips along each axis."""
    chips_per_host: AtLeast1 = 4
    """TPU chips of each node: its machine type ends in this number (ct5lp-hightpu-4t)."""
    slices: AtLeast1 = 1
    """TPU slices of that shape."""
    gpus_per_node: AtLeast0 = 0
    """GPUs of each node; more than 0 takes nodes with NVIDIA GPUs, and no TPU."""
    nodes: AtLeast1 = 2
    """Nodes with GPUs."""
    gpu: str = ""
    """Label cloud.google.com/gke-accelerator of these nodes, as nvidia-h200-141gb; empty takes any."""
    spot: bool = True
    """Take spot nodes."""
    claim: str = "spanjax-data"
    """PersistentVolumeClaim with ReadWriteMany, mounted as /data."""
    bucket: str = ""
    """Cloud Storage bucket (its name alone) to mount as /data instead of the claim, by the Cloud Storage FUSE driver of GKE."""
    service_account: str = "default"
    """Service account of the pods; a bucket needs one that may write to it."""
    max_restarts: AtLeast0 = 10
    """Restarts after failures that were neither wrong input nor a preemption."""
    grace_seconds: AtLeast1 = 600
    """Seconds between the signal and the end of a pod; a spot node may go sooner."""
    startup_seconds: AtLeast1 = 1800
    """Seconds that pods wait for each other at the start: the longest time that nodes may take to come up."""

    def problems(self) -> list[str]:
        """Problems with these values, as text; empty if there are none."""
        found = super().problems() + plain(self, "image", "service_account")
        found += plain(self, "gpu", "bucket", needed=False) + ([] if self.bucket else plain(self, "claim"))
        if self.gpus_per_node > 0:
            return found
        shape = collect(found, read_slice, self.topology)
        if shape and self.chips_per_host > 0 and shape.chips % self.chips_per_host:
            found.append(
                f"--chips-per-host is {self.chips_per_host}: expected a divisor of the {shape.chips} chips of {self.topology}"
            )
        return found

    def text(self, train: tuple[str, ...]) -> str:
        """The manifest."""
        gpus = self.gpus_per_node > 0
        hosts = self.nodes if gpus else read_slice(self.topology).chips // self.chips_per_host
        chips = self.gpus_per_node if gpus else self.chips_per_host
        slices = 1 if gpus else self.slices  # nodes with GPUs have no slices: they form one Job, whatever is set
        tpus = f"{slices} TPU slice(s) {self.topology} of {hosts} host(s)"
        return self.filled(
            what=f"{hosts} nodes with {chips} GPUs" if gpus else tpus,
            annotations="" if gpus else f"annotations: {{{EXCLUSIVE}}}",
            group=GROUP,
            slices=slices,
            hosts=hosts,
            pod_metadata='metadata: {annotations: {gke-gcsfuse/volumes: "true"}}' if self.bucket else "",
            selector=self._selector(),
            tolerations=f"tolerations: [{SPOT_TOLERATION}]" if self.spot else "",
            pod_security=indented(self._accounts(), 14),
            image=scalar(self.image),
            args=indented((f"- {pod_scalar(each)}" for each in ("python", "-m", "spanjax.train", *train)), 20),
            env=indented(self._variables(hosts * slices, chips), 20),
            ports=f"ports: [{{containerPort: {PORT}}}]" if gpus else "",
            security="" if gpus else AS_ROOT,
            resource="nvidia.com/gpu" if gpus else "google.com/tpu",
            chips=chips,
            volume=self._volume(),
        )

    def _accounts(self) -> list[str]:
        own = [f"serviceAccountName: {self.service_account}"]
        return own + (["securityContext: {runAsNonRoot: true, fsGroup: 1000}"] if self.gpus_per_node > 0 else [])

    def _selector(self) -> str:
        labels = {"cloud.google.com/gke-spot": "true"} if self.spot else {}
        if self.gpus_per_node > 0:
            labels |= {"cloud.google.com/gke-accelerator": self.gpu} if self.gpu else {}
        else:
            shape = read_slice(self.topology)
            labels["cloud.google.com/gke-tpu-accelerator"] = shape.generation.node
            labels["cloud.google.com/gke-tpu-topology"] = shape.topology
        lines = [f"{name}: {scalar(value)}" for name, value in labels.items()]
        return indented(["nodeSelector:", *(f"  {line}" for line in lines)], 14) if lines else ""

    def _variables(self, pods: int, chips: int) -> list[str]:
        """Entries of `env`. GKE adds its own to pods with TPUs; pods with GPUs get the JobSet's names from its annotations.

        The JobSet's uid, which only users with access to the cluster can read, is the token of the pods' rendezvous.
        """
        annotations = {} if TOKEN in self.variables() else {TOKEN: "jobset-uid"}
        own: list[tuple[str, object]] = [(EXPECTED, pods * chips), (STARTUP, self.startup_seconds)]
        if self.gpus_per_node > 0:
            own.append(("NNODES", pods))
            annotations |= {"JOBSET_NAME": "jobset-name", "REPLICATED_JOB_NAME": "replicatedjob-name"}
        named = []
        for name, key in annotations.items():
            path = scalar(f"metadata.annotations['jobset.sigs.k8s.io/{key}']")
            named += [f"- name: {name}", f"  valueFrom: {{fieldRef: {{fieldPath: {path}}}}}"]
        return named + [
            f"- {{name: {name}, value: {pod_scalar(value)}}}" for name, value in self.variables(*own).items()
        ]

    def _volume(self) -> str:
        if not self.bucket:
            return f"persistentVolumeClaim: {{claimName: {scalar(self.claim)}}}"
        owner = ",uid=1000,gid=1000" if self.gpus_per_node > 0 else ""
        attributes = f'{{bucketName: {scalar(self.bucket)}, mountOptions: "implicit-dirs{owner}"}}'
        return f"csi: {{driver: gcsfuse.csi.storage.gke.io, volumeAttributes: {attributes}}}"
