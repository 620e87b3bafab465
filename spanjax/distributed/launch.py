"""Launcher detection: a pure function from environment variables to a Launch.

The order is TPU pods, Open MPI, Kubernetes, SkyPilot, SLURM (`mpirun` inside of a SLURM job is Open MPI's). A plain variable
(JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID) wins over the launcher's, value by value; the three alone are a
launcher of their own, and JAX_NUM_PROCESSES=1 is one process, whatever else is set.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

from spanjax.distributed.launchers import (
    Environment,
    Found,
    find_jobset,
    find_openmpi,
    find_skypilot,
    find_slurm,
    find_tpu,
    number,
)
from spanjax.distributed.variables import own_variables

Kind = Literal["none", "variables", "tpu", "openmpi", "jobset", "skypilot", "slurm"]
LAUNCHERS: tuple[tuple[Kind, str, Callable[[Environment], Found | None]], ...] = (
    ("tpu", "TPU_WORKER_HOSTNAMES", find_tpu),
    ("openmpi", "OMPI_COMM_WORLD_RANK", find_openmpi),
    ("jobset", "JOBSET_NAME", find_jobset),
    ("skypilot", "SKYPILOT_NODE_IPS", find_skypilot),
    ("slurm", "SLURM_JOB_ID", find_slurm),
)
"""Name, a variable that reveals it, and the function that reads it."""
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


@dataclasses.dataclass(frozen=True)
class Launch:
    """Place of this process in a run of one or several."""

    kind: Kind
    why: str = ""
    """The variables that show it."""
    coordinator: str | None = None
    """host:port of process 0; None for one process."""
    processes: int | None = 1
    """None if only the metadata of the TPU knows: then jax must detect it."""
    process_id: int | None = 0
    local_device_ids: tuple[int, ...] | None = None
    """GPUs of this host that this process takes; None for all that it sees."""
    local_devices: int | None = None
    """Devices that this process should see, by the launcher."""
    devices: int | None = None
    """Devices that all processes together should see: SPANJAX_EXPECTED_DEVICES."""
    platform: str | None = None
    """"gpu" or "tpu" if the launcher gave such devices."""
    hosts: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Process id -> host, as far as known before the rendezvous."""
    notes: tuple[str, ...] = ()
    """Messages on variables that are set and not used."""

    def line(self) -> str:
        """Describes the start-up in one line."""
        if self.processes == 1:
            what = "one process"
        elif self.processes is None:
            what = "several processes if the metadata of the TPU says so"
        else:
            what = f"process {self.process_id} of {self.processes}, coordinator {self.coordinator}"
        if self.local_device_ids is not None:
            what += f", local devices {', '.join(map(str, self.local_device_ids))}"
        elif self.local_devices is not None:
            what += f", {self.local_devices} local {self.platform or 'device'}(s)"
        why = self.why or "no launcher in the environment"
        return "; ".join([f"{self.kind}: {what} ({why})", *self.notes])


def detect(environment: Environment, tpu_chips: int = 0) -> Launch:
    """Reads the environment; `tpu_chips` are those of this machine, for TPU VMs whose pod only the metadata knows.

    ValueError if it is half set or contradicts itself.
    """
    expected = own_variables(environment).expected_devices
    if number(environment, COUNT) == 0:
        raise ValueError(f"{COUNT} is 0: expected the number of processes, 1 or more; unset it for one process")
    if number(environment, COUNT) == 1:
        return Launch("variables", f"{COUNT}=1", devices=expected)
    plain = {key: environment[key] for key in (ADDRESS, COUNT, INDEX) if environment.get(key)}
    kind, found, also = _launcher(environment, tpu_chips, told=len(plain) == 3)
    notes = [f"{other} is set too and not used" for other in also]
    if plain:
        found, said = _override(found, plain, kind)
        notes += said
        kind = "variables" if len(plain) == 3 else kind
    if found.processes is not None and found.processes > 1:
        _check(found, kind)
    ids, count = found.local_device_ids, found.local_devices
    if given := environment.get("JAX_LOCAL_DEVICE_IDS"):
        ids = _device_ids(given)
        count = None if count is None else len(ids)
    platform = found.platform
    chosen = environment.get("JAX_PLATFORMS", "").replace("cuda", "gpu").replace("rocm", "gpu")
    if platform and chosen and platform not in chosen.split(","):
        ids = count = platform = None  # the user wants another platform than the launcher's
    alone = found.processes == 1
    return Launch(
        kind=kind,
        why=", ".join(found.why),
        coordinator=None if alone else found.coordinator,
        processes=found.processes,
        process_id=0 if alone else found.process_id,
        local_device_ids=ids,
        local_devices=count,
        devices=expected,
        platform=platform,
        hosts=found.hosts,
        notes=tuple(notes),
    )


def _launcher(environment: Environment, tpu_chips: int, told: bool) -> tuple[Kind, Found, list[Kind]]:
    """Returns the first launcher found, and the others.

    If the plain variables give everything (`told`), it supplies only the share of the host's GPUs and may be half set.
    """
    for place, (kind, _, find) in enumerate(LAUNCHERS):
        try:
            found = find(environment)
        except ValueError:
            if not told:
                raise
            continue
        if found:
            return kind, found, [other for other, marker, _ in LAUNCHERS[place + 1 :] if environment.get(marker)]
    wanted = environment.get("JAX_PLATFORMS") or "tpu"
    if tpu_chips and not told and "tpu" in wanted.split(",") and not environment.get("TPU_SKIP_MDS_QUERY"):
        return "tpu", Found(why=(f"{tpu_chips} TPU chips on this host",), platform="tpu"), []
    return "none", Found(processes=1, process_id=0), []


def _override(found: Found, plain: Mapping[str, str], kind: Kind) -> tuple[Found, list[str]]:
    """Overrides the launcher's values with the plain variables; also returns messages on the replaced ones."""
    values = {"coordinator": plain.get(ADDRESS), "processes": number(plain, COUNT), "process_id": number(plain, INDEX)}
    names = {"coordinator": ADDRESS, "processes": COUNT, "process_id": INDEX}
    missing = sorted({ADDRESS, COUNT, INDEX} - plain.keys())
    if kind == "none" and missing:
        raise ValueError(
            f"several processes were requested by {dict(plain)}, but {missing} is not set: set all of"
            f" {[ADDRESS, COUNT, INDEX]} on every process, or none of them for one process"
        )
    said = [
        f"{names[field]}={value} wins over {getattr(found, field)} of {kind}"
        for field, value in values.items()
        if kind != "none" and value is not None and getattr(found, field) not in (None, value)
    ]
    given = {field: value for field, value in values.items() if value is not None}
    return dataclasses.replace(found, **given, why=(*(f"{k}={v}" for k, v in plain.items()), *found.why)), said


def _check(found: Found, kind: Kind) -> None:
    """Raises ValueError if several processes cannot start with this."""
    if found.coordinator is None or found.process_id is None:
        raise ValueError(
            f"{found.processes} processes by {kind} ({', '.join(found.why)}), but not known: "
            + " and ".join(
                words
                for words, value in (("the address of process 0", found.coordinator), ("its own id", found.process_id))
                if value is None
            )
            + f": set {ADDRESS}=HOST:PORT (and {INDEX}) on every process"
        )
    host, _, port = found.coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{ADDRESS} is {found.coordinator!r}: expected HOST:PORT, as node001:12345")
    assert found.processes is not None
    if not 0 <= found.process_id < found.processes:
        raise ValueError(
            f"{INDEX} is {found.process_id}: expected 0 to {found.processes - 1} ({COUNT} is {found.processes};"
            f" {kind}: {', '.join(found.why)})"
        )


def _device_ids(given: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in given.split(","))
    except ValueError:
        raise ValueError(f"JAX_LOCAL_DEVICE_IDS is {given!r}: expected whole numbers with commas, as 0,1") from None
