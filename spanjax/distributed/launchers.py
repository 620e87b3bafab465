"""Variables of each launcher. Every `find_` returns None if its launcher did not start this process."""

import dataclasses
import re
from collections.abc import Mapping

Environment = Mapping[str, str]
TPU_PORT, JOBSET_PORT, SKYPILOT_PORT = 8482, 3389, 8476
LOCAL = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Found:
    """Values that a launcher gives; None for the others."""

    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None
    why: tuple[str, ...] = ()
    local_device_ids: tuple[int, ...] | None = None
    local_devices: int | None = None
    platform: str | None = None
    hosts: Mapping[int, str] = dataclasses.field(default_factory=dict)


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


def _why(environment: Environment, *names: str) -> tuple[str, ...]:
    return tuple(f"{name}={environment[name]}" for name in names if environment.get(name))


def _port(environment: Environment, default: int) -> int:
    return number(environment, "JAX_COORDINATOR_PORT") or default


def _ephemeral(seed: int) -> int:
    """Derives the same port above 61,439 on all processes of a job: jax's own rule for SLURM and Open MPI."""
    return seed % 2**12 + 65535 - 2**12 + 1


def find_tpu(environment: Environment) -> Found | None:
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
    why = (f"{len(hosts)} TPU host(s) listed", *_why(environment, *names))
    if len(hosts) * slices == 1:
        return Found(None, 1, 0, why, platform="tpu")
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
    return Found(
        f"{leader}:{_port(environment, TPU_PORT)}",
        len(hosts) * slices,
        first + worker,
        why,
        platform="tpu",
        hosts={0: leader} | {first + place: host for place, host in enumerate(hosts)},
    )


def find_openmpi(environment: Environment) -> Found | None:
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
    return Found(coordinator, size, rank, _why(environment, *names), ids, count, "gpu" if count else None)


def find_jobset(environment: Environment) -> Found | None:
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
    return Found(coordinator, counts[0], part * in_job + index, why, hosts=hosts)


def find_skypilot(environment: Environment) -> Found | None:
    """Reads the nodes of SkyPilot: one process a node."""
    names = ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
    if not any(environment.get(name) for name in names):
        return None
    if not environment.get(names[1]):
        raise ValueError(f"{names[0]} is set, but {names[1]} is not: start from the `run` section of a task")
    hosts = environment[names[1]].split()
    (rank,) = _needed(environment, "SkyPilot", "start from the `run` section of a task", names[0])
    gpus = number(environment, "SKYPILOT_NUM_GPUS_PER_NODE") or None
    why = (f"{len(hosts)} SkyPilot node(s)", *_why(environment, names[0]))
    coordinator = f"{hosts[0]}:{_port(environment, SKYPILOT_PORT)}"
    return Found(coordinator, len(hosts), rank, why, None, gpus, "gpu" if gpus else None, dict(enumerate(hosts)))


def find_slurm(environment: Environment) -> Found | None:
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
        return Found(None, 1, 0, why, None, *_counted(_visible(environment) or _gpus(environment)))
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
    return Found(coordinator, tasks, index, why, ids, *_counted(count), hosts)


def _counted(gpus: int | None) -> tuple[int | None, str | None]:
    return (gpus, "gpu") if gpus else (None, None)


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
