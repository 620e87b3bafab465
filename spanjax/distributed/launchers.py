"""Launcher detection: a pure function from environment variables to a Launch.

The order is TPU pods, Open MPI, Kubernetes, SkyPilot, SLURM (`mpirun` inside of a SLURM job is Open MPI's). A plain variable
(JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID) wins over the launcher's, value by value; the three alone are a
launcher of their own, and JAX_NUM_PROCESSES=1 is one process, whatever else is set. Every `find_` returns None if its launcher
did not start this process; a value that the launcher does not give is None.

spanjax's own variables are read and checked here, too. They are no settings of `Run`: they describe the machines of one start and
not the training, may differ when a run is resumed, belong to the launch file, and are needed before jax starts and before a
config file, which imports jax, is read.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from spanjax.bounds import raise_problems

Environment = Mapping[str, str]
Kind = Literal["none", "variables", "tpu", "openmpi", "jobset", "skypilot", "slurm"]
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
TPU_PORT, JOBSET_PORT, SKYPILOT_PORT = 8482, 3389, 8476
LOCAL = "127.0.0.1"


EXPECTED, STARTUP, BARRIER = "SPANJAX_EXPECTED_DEVICES", "SPANJAX_STARTUP_TIMEOUT", "SPANJAX_BARRIER_TIMEOUT"
TOKEN = "SPANJAX_MEETING_TOKEN"
"""Word that the launcher gives to all processes of one start, and that strangers lack; unset if it gives none."""
STARTUP_SECONDS, BARRIER_SECONDS = 300, 600
FEW_PROCESSES, SECONDS_A_PROCESS = 64, 2
_UNSET = {
    EXPECTED: "no check",
    STARTUP: f"{STARTUP_SECONDS} s, or more for many processes",
    BARRIER: f"{BARRIER_SECONDS} s",
}


class Variables(NamedTuple):
    """Values of the variables."""

    expected_devices: int | None
    """Devices that all processes together should see; None if it is not set."""
    startup_seconds: int | None
    """Seconds that processes wait for each other at the start; None if it is not set, which means `startup_limit`."""
    barrier_seconds: int
    """Seconds that they wait for each other later."""


def own_variables(environment: Mapping[str, str]) -> Variables:
    """Reads the three variables, or their defaults. ValueError lists every one that is not a whole number above 0."""
    given = {name: environment.get(name, "").strip() for name in _UNSET}
    problems = [
        f"{name} is {value!r}: expected a whole number, 1 or more; leave it unset for {_UNSET[name]}"
        for name, value in given.items()
        if value and not re.fullmatch("0*[1-9][0-9]*", value)
    ]
    raise_problems(problems)
    expected, startup, barrier = (int(value) if value else None for value in given.values())
    return Variables(expected, startup, barrier or BARRIER_SECONDS)


def startup_limit(processes: int) -> int:
    """Seconds that so many processes wait for each other at the start: 300, and 2 more for each above 64.

    A process opens 0.4 GB of libraries before the rendezvous (jax 0.10.2, measured), and all hosts read them at once from a file
    system that they share: at 0.2 GB/s (assumed) every host takes 2 s of it. The processes are an upper bound of the hosts, which
    not all launchers tell.
    """
    return STARTUP_SECONDS + SECONDS_A_PROCESS * max(0, processes - FEW_PROCESSES)


def xla_flag(environment: Mapping[str, str], name: str) -> str | None:
    """Returns the value of a flag in XLA_FLAGS, the last of several; None if it is not set."""
    words = (word.partition("=") for word in environment.get("XLA_FLAGS", "").split())
    return next((value for key, _, value in reversed([*words]) if key == name), None)


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


def number(environment: Environment, name: str) -> int | None:
    """Reads a variable as a whole number, None if it is not set; ValueError for anything else."""
    value = environment.get(name, "").strip()
    if not value:
        return None
    if not re.fullmatch("[0-9]+", value):  # str.isdigit holds for "²", which int refuses
        raise ValueError(f"{name} is {value!r}: expected a whole number, 0 or more")
    return int(value)


def _needed(environment: Environment, launcher: str, remedy: str, *names: str) -> list[int]:
    """Reads variables that a launcher sets together, as numbers."""
    missing = [name for name in names if not environment.get(name)]
    if missing:
        given = {name: environment[name] for name in names if environment.get(name)}
        raise ValueError(f"{launcher} has set {given}, but {', '.join(missing)} is missing: {remedy}")
    return [number(environment, name) or 0 for name in names]


def _why(environment: Environment, *names: str, first: str = "") -> str:
    return ", ".join(filter(None, [first, *(f"{name}={environment[name]}" for name in names if environment.get(name))]))


def _port(environment: Environment, default: int) -> int:
    return number(environment, "JAX_COORDINATOR_PORT") or default


def _ephemeral(seed: int) -> int:
    """Derives the same port above 61,439 on all processes of a job: jax's own rule for SLURM and Open MPI."""
    return seed % 2**12 + 65535 - 2**12 + 1


def find_tpu(environment: Environment) -> Launch | None:
    """Reads TPU pods on GKE and slices over MEGASCALE: the hosts of a slice are listed."""
    listed = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")
    names = ("TPU_WORKER_ID", "CLOUD_TPU_TASK_ID", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")
    slices = number(environment, "MEGASCALE_NUM_SLICES") or 1
    if not listed:
        if slices > 1:
            raise ValueError(
                f"MEGASCALE_NUM_SLICES is {slices}, but TPU_WORKER_HOSTNAMES is not set: name the hosts of this slice there,"
                " with commas, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
            )
        return None
    hosts = [re.sub(r":\d+$", "", host.strip()) for host in listed.split(",")]
    why = _why(environment, *names, first=f"{len(hosts)} TPU host(s) listed")
    if len(hosts) * slices == 1:
        return Launch("tpu", why, platform="tpu")
    worker = number(environment, "TPU_WORKER_ID")
    # not `or`: 0 is the first worker
    worker = number(environment, "CLOUD_TPU_TASK_ID") if worker is None else worker
    if worker is None:
        raise ValueError(f"{len(hosts)} TPU hosts are listed ({listed}), but TPU_WORKER_ID is not set: set it, from 0")
    if worker >= len(hosts):
        raise ValueError(f"TPU_WORKER_ID is {worker}: expected 0 to {len(hosts) - 1}, hosts listed: {listed}")
    index, leader = 0, hosts[0]
    if slices > 1:
        remedy = "set it on every host, as the launcher of the slices does"
        _, index = _needed(environment, "MEGASCALE", remedy, "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")
        if not environment.get("MEGASCALE_COORDINATOR_ADDRESS"):
            raise ValueError(f"{slices} TPU slices, but MEGASCALE_COORDINATOR_ADDRESS is not set: name the first host")
        leader = environment["MEGASCALE_COORDINATOR_ADDRESS"].split(":")[0]
    first = index * len(hosts)
    return Launch(
        "tpu",
        why,
        f"{leader}:{_port(environment, TPU_PORT)}",
        len(hosts) * slices,
        first + worker,
        platform="tpu",
        hosts={0: leader} | {first + place: host for place, host in enumerate(hosts)},
    )


def find_openmpi(environment: Environment) -> Launch | None:
    """Reads mpirun's ranks and sizes; over several hosts the address is mpirun's own, or JAX_COORDINATOR_ADDRESS."""
    prefix = "OMPI_COMM_WORLD_"
    names = [prefix + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    if not any(environment.get(name) for name in names):
        return None
    rank, size, local, on_host = _needed(environment, "Open MPI", "start with mpirun, or unset them", *names)
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    job = re.match(r"(\d+)\.", uri)
    port = _port(environment, _ephemeral(int(job[1]) // 2**12 if job else size))
    address = (
        re.search(r"tcp6?://\[?([^,:\]]+(?::[^,\]]*)?)", uri) if "tcp6" in uri else re.search(r"tcp://([^,:]+)", uri)
    )
    coordinator = f"{LOCAL}:{port}" if on_host == size else None
    if coordinator is None and address:
        coordinator = f"[{address[1]}]:{port}" if ":" in address[1] else f"{address[1]}:{port}"
    ids, count = _share(on_host, local, None, _visible(environment), "mpirun --map-by ppr:N:node")
    if ids is None and count is None and on_host > 1:
        ids = (local,)  # as many processes as GPUs, which Open MPI does not count
    why, platform = _why(environment, *names), "gpu" if count else None
    return Launch("openmpi", why, coordinator, size, rank, ids, count, platform=platform)


def find_jobset(environment: Environment) -> Launch | None:
    """Reads an indexed Job of Kubernetes, alone or in a JobSet. The manifest must set the number of pods."""
    index = number(environment, "JOB_COMPLETION_INDEX")
    name = environment.get("JOBSET_NAME")
    names = ("JAX_NUM_PROCESSES", "NNODES", "PROCESSES_IN_JOB")
    counts = [count for count in (number(environment, each) for each in names) if count is not None]
    if index is None:
        return None
    # an indexed Job that sets nothing more has independent pods
    if not name and not counts and not environment.get("JAX_COORDINATOR_ADDRESS"):
        return None
    if not counts:
        raise ValueError(
            f"JOB_COMPLETION_INDEX is {index} in the JobSet {name}, but the number of pods is not known: set"
            " JAX_NUM_PROCESSES in the manifest (parallelism x replicas; 1 for pods that are independent)"
        )
    part = number(environment, "JOB_INDEX") or number(environment, "JOBSET_JOB_INDEX") or 0
    in_job = number(environment, "PROCESSES_IN_JOB") or counts[0]
    replicated = environment.get("REPLICATED_JOB_NAME") or environment.get("JOBSET_REPLICATEDJOB_NAME")
    coordinator, hosts = None, {}
    if name and replicated:
        coordinator = f"{name}-{replicated}-0-0.{name}:{_port(environment, JOBSET_PORT)}"
        hosts = {each: f"{name}-{replicated}-{each // in_job}-{each % in_job}" for each in range(counts[0])}
    why = _why(environment, "JOB_COMPLETION_INDEX", "JOB_INDEX", "JOBSET_NAME", *names[1:])
    return Launch("jobset", why, coordinator, counts[0], part * in_job + index, hosts=hosts)


def find_skypilot(environment: Environment) -> Launch | None:
    """Reads the nodes of SkyPilot: one process a node."""
    names = ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
    if not any(environment.get(name) for name in names):
        return None
    if not environment.get(names[1]):
        raise ValueError(f"{names[0]} is set, but {names[1]} is not: start from the `run` section of a task")
    hosts = environment[names[1]].split()
    (rank,) = _needed(environment, "SkyPilot", "start from the `run` section of a task", names[0])
    gpus = number(environment, "SKYPILOT_NUM_GPUS_PER_NODE") or None
    why = _why(environment, names[0], first=f"{len(hosts)} SkyPilot node(s)")
    coordinator = f"{hosts[0]}:{_port(environment, SKYPILOT_PORT)}"
    by_id, platform = dict(enumerate(hosts)), "gpu" if gpus else None
    return Launch("skypilot", why, coordinator, len(hosts), rank, local_devices=gpus, platform=platform, hosts=by_id)


def find_slurm(environment: Environment) -> Launch | None:
    """Reads srun's tasks: one task a node takes all of its GPUs; several share them evenly, by SLURM_LOCALID."""
    if not environment.get("SLURM_JOB_ID"):
        return None
    tasks = number(environment, "SLURM_NTASKS") or 1
    why = _why(environment, "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_GPUS_ON_NODE")
    if not environment.get("SLURM_STEP_NODELIST"):
        if tasks > 1:
            raise ValueError(
                f"the SLURM job has {tasks} tasks, but this process was not started by srun: start with `srun python -m ...`,"
                " or set JAX_NUM_PROCESSES=1 for one process"
            )
        gpus = _visible(environment) or _gpus(environment)
        return Launch("slurm", why, local_devices=gpus, platform="gpu" if gpus else None)
    needed = ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
    remedy = "start with `srun python -m ...`"
    tasks, index, local = _needed(environment, "SLURM", remedy, *needed)
    nodes = _nodes(environment["SLURM_STEP_NODELIST"])
    on_node = _tasks_on_node(environment, tasks, len(nodes))
    visible = _visible(environment)
    ids, count = None, visible
    # with SLURM_GPUS_PER_TASK, the visible GPUs are already those of this task alone
    if not visible or visible != number(environment, "SLURM_GPUS_PER_TASK"):
        ids, count = _share(on_node, local, _gpus(environment), visible, "srun --ntasks-per-node=N")
    step = number(environment, "SLURM_STEP_ID") or 0
    port = _port(environment, _ephemeral((number(environment, "SLURM_JOB_ID") or 0) + step))
    coordinator = f"{LOCAL if len(nodes) == 1 else nodes[0]}:{port}"
    hosts = {0: nodes[0]}
    if len(nodes) in (1, tasks):
        hosts = dict(enumerate(nodes)) if len(nodes) == tasks else dict.fromkeys(range(tasks), nodes[0])
    platform = "gpu" if count else None
    return Launch("slurm", why, coordinator, tasks, index, ids, count, platform=platform, hosts=hosts)


def _visible(environment: Environment) -> int | None:
    """Counts the GPUs that the launcher left visible to this process."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        value = environment.get(name, "")
        if value and value not in ("-1", "NoDevFiles"):
            return len(value.split(","))
    return None


def _gpus(environment: Environment) -> int | None:
    """Counts the GPUs of the job on this node."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        last = environment.get(name, "").rpartition(":")[2]  # "4", "h100:4"
        if last.isdigit():
            return int(last) or None
    return None


def _share(
    tasks: int, local: int, gpus: int | None, visible: int | None, option: str
) -> tuple[tuple[int, ...] | None, int | None]:
    """(GPUs that this process takes, how many it should see) on a host with `tasks` tasks of ours."""
    if visible and (visible == 1 or (gpus and visible < gpus)):
        return None, visible  # the launcher has given each task its own
    gpus = gpus or visible
    if not gpus or tasks == 1:
        return None, gpus
    if gpus % tasks:
        raise ValueError(
            f"{tasks} tasks on a host with {gpus} GPU(s): expected one task, or {gpus} with one GPU each; set {option}"
        )
    each = gpus // tasks
    return tuple(range(local * each, (local + 1) * each)), each


def _nodes(listed: str) -> list[str]:
    """ "gpu[01-03,7],login" -> gpu01, gpu02, gpu03, gpu7, login."""
    nodes = []
    for prefix, inside, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", listed):
        for part in inside.split(",") if inside else [""]:
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last) + 1) if last else [part]
            nodes += [f"{prefix}{str(each).zfill(len(first))}{suffix}" for each in numbers]
    return nodes


def _tasks_on_node(environment: Environment, tasks: int, nodes: int) -> int:
    """Tasks of the step on this node: SLURM writes "4(x2),1"."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE", "")
    counts = [int(n) for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text) for _ in range(int(times or 1))]
    place = number(environment, "SLURM_NODEID") or 0
    return counts[place] if place < len(counts) else -(-tasks // nodes)


LAUNCHERS: tuple[tuple[Kind, str, Callable[[Environment], Launch | None]], ...] = (
    ("tpu", "TPU_WORKER_HOSTNAMES", find_tpu),
    ("openmpi", "OMPI_COMM_WORLD_RANK", find_openmpi),
    ("jobset", "JOBSET_NAME", find_jobset),
    ("skypilot", "SKYPILOT_NODE_IPS", find_skypilot),
    ("slurm", "SLURM_JOB_ID", find_slurm),
)
"""Name, a variable that reveals it, and the function that reads it."""


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
    launch, also = _launcher(environment, tpu_chips, plain_complete=len(plain) == 3)
    notes = [f"{other} is set too and not used" for other in also]
    if plain:
        launch, overrides = _override(launch, plain)
        notes += overrides
    if launch.processes is not None and launch.processes > 1:
        _check(launch)
    ids, count, platform = launch.local_device_ids, launch.local_devices, launch.platform
    if given := environment.get("JAX_LOCAL_DEVICE_IDS"):
        ids = _device_ids(given)
        count = None if count is None else len(ids)
    chosen = environment.get("JAX_PLATFORMS", "").replace("cuda", "gpu").replace("rocm", "gpu")
    if platform and chosen and platform not in chosen.split(","):
        ids = count = platform = None  # the user wants another platform than the launcher's
    if launch.processes == 1:
        launch = dataclasses.replace(launch, coordinator=None, process_id=0)
    devices = {"local_device_ids": ids, "local_devices": count, "platform": platform, "devices": expected}
    return dataclasses.replace(launch, **devices, notes=tuple(notes))


def _launcher(environment: Environment, tpu_chips: int, plain_complete: bool) -> tuple[Launch, list[Kind]]:
    """Returns the first launcher found, and the others.

    If the plain variables give everything (`plain_complete`), it supplies only the share of the host's GPUs and may be half set.
    """
    for place, (_, _, find) in enumerate(LAUNCHERS):
        try:
            found = find(environment)
        except ValueError:
            if not plain_complete:
                raise
            continue
        if found:
            return found, [other for other, marker, _ in LAUNCHERS[place + 1 :] if environment.get(marker)]
    wanted = environment.get("JAX_PLATFORMS") or "tpu"
    if tpu_chips and not plain_complete and "tpu" in wanted.split(",") and not environment.get("TPU_SKIP_MDS_QUERY"):
        return Launch("tpu", f"{tpu_chips} TPU chips on this host", None, None, None, platform="tpu"), []
    return Launch("none"), []


def _override(found: Launch, plain: Mapping[str, str]) -> tuple[Launch, list[str]]:
    """Overrides the launcher's values with the plain variables; also returns messages on the replaced ones."""
    values = {"coordinator": plain.get(ADDRESS), "processes": number(plain, COUNT), "process_id": number(plain, INDEX)}
    names = {"coordinator": ADDRESS, "processes": COUNT, "process_id": INDEX}
    missing = sorted({ADDRESS, COUNT, INDEX} - plain.keys())
    if found.kind == "none" and missing:
        raise ValueError(
            f"several processes were requested by {dict(plain)}, but {missing} is not set: set all of"
            f" {[ADDRESS, COUNT, INDEX]} on every process, or none of them for one process"
        )
    overrides = [
        f"{names[field]}={value} wins over {getattr(found, field)} of {found.kind}"
        for field, value in values.items()
        if found.kind != "none" and value is not None and getattr(found, field) not in (None, value)
    ]
    given = {field: value for field, value in values.items() if value is not None}
    why = ", ".join(filter(None, [*(f"{name}={value}" for name, value in plain.items()), found.why]))
    return dataclasses.replace(found, **given, why=why, kind=found.kind if missing else "variables"), overrides


def _check(found: Launch) -> None:
    """Raises ValueError if several processes cannot start with this."""
    if found.coordinator is None or found.process_id is None:
        raise ValueError(
            f"{found.processes} processes by {found.kind} ({found.why}), but not known: "
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
            f" {found.kind}: {found.why})"
        )


def _device_ids(given: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in given.split(","))
    except ValueError:
        raise ValueError(f"JAX_LOCAL_DEVICE_IDS is {given!r}: expected whole numbers with commas, as 0,1") from None
