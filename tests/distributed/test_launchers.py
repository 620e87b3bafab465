"""Every launcher's variables as a table: environment in, what is started out. Nothing is started."""

from typing import Any

import pytest

from spanjax.distributed import Launch, detect, device_problems

pytestmark = pytest.mark.unit

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "gpu[08-10],big1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
}
SLURM_EACH = SLURM | {  # two nodes, four tasks with one GPU each
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "7",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n1,n2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_GPUS_ON_NODE": "4",
}
SLURM_PORT = 4711 % 4096 + 65535 - 4096 + 1
TPU = {"TPU_WORKER_HOSTNAMES": "t-0,t-1,t-2,t-3", "TPU_WORKER_ID": "3"}
SLICES = TPU | {
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "first-0:8080",
}
MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPI_HOSTS = MPI | {
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
JOBSET = {
    "JOBSET_NAME": "span",
    "REPLICATED_JOB_NAME": "workers",
    "JOB_COMPLETION_INDEX": "1",
    "JOB_INDEX": "1",
    "PROCESSES_IN_JOB": "4",
    "NNODES": "8",
}
SKY = {"SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "8"}
PLAIN = {"JAX_COORDINATOR_ADDRESS": "h:1234", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}

# environment, then fields of the Launch
CASES: tuple[tuple[str, dict[str, str], dict[str, Any]], ...] = (
    ("nothing", {}, {"kind": "none", "processes": 1, "coordinator": None, "local_devices": None}),
    ("plain", PLAIN, {"kind": "variables", "coordinator": "h:1234", "processes": 3, "process_id": 2}),
    ("one, whatever else is set", SLURM | {"JAX_NUM_PROCESSES": "1"}, {"kind": "variables", "processes": 1}),
    ("ids by hand", PLAIN | {"JAX_LOCAL_DEVICE_IDS": "0,2"}, {"local_device_ids": (0, 2)}),
    ("expected", {"SPANJAX_EXPECTED_DEVICES": "8"}, {"processes": 1, "devices": 8}),
    # TPU
    ("tpu", TPU, {"kind": "tpu", "coordinator": "t-0:8482", "processes": 4, "process_id": 3, "platform": "tpu"}),
    ("tpu names", TPU, {"hosts": {0: "t-0", 1: "t-1", 2: "t-2", 3: "t-3"}, "local_device_ids": None}),
    ("tpu, one host", {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, {"kind": "tpu", "processes": 1}),
    ("tpu, older id", {"TPU_WORKER_HOSTNAMES": "a,b", "CLOUD_TPU_TASK_ID": "1"}, {"process_id": 1, "processes": 2}),
    ("tpu addresses", {"TPU_PROCESS_ADDRESSES": "a:1,b:1", "TPU_WORKER_ID": "0"}, {"coordinator": "a:8482"}),
    ("slices", SLICES, {"coordinator": "first-0:8482", "processes": 8, "process_id": 7}),
    ("slices' names", SLICES, {"hosts": {0: "first-0", 4: "t-0", 5: "t-1", 6: "t-2", 7: "t-3"}}),
    ("tpu in a JobSet", TPU | JOBSET, {"kind": "tpu", "notes": ("jobset is set too and not used",)}),
    ("tpu, but cpu asked for", TPU | {"JAX_PLATFORMS": "cpu"}, {"kind": "tpu", "platform": None}),
    # Open MPI
    ("mpi on one host", MPI, {"kind": "openmpi", "processes": 4, "process_id": 1, "local_device_ids": (1,)}),
    ("mpi is local", MPI, {"coordinator": f"127.0.0.1:{4 + 65535 - 4096 + 1}"}),
    ("mpi's address", MPI_HOSTS, {"coordinator": f"10.96.0.1:{1531576320 // 4096 % 4096 + 65535 - 4096 + 1}"}),
    ("mpi, address by hand", MPI_HOSTS | {"JAX_COORDINATOR_ADDRESS": "n:5"}, {"coordinator": "n:5", "kind": "openmpi"}),
    ("mpi, one a host", MPI_HOSTS | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, {"local_device_ids": None}),
    ("mpi shares", MPI_HOSTS | {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, {"local_device_ids": (2, 3), "local_devices": 2}),
    ("mpi inside slurm", SLURM | MPI, {"kind": "openmpi", "notes": ("slurm is set too and not used",)}),
    # Kubernetes
    ("jobset", JOBSET, {"kind": "jobset", "processes": 8, "process_id": 5}),
    ("jobset's name", JOBSET, {"coordinator": "span-workers-0-0.span:3389"}),
    ("jobset port", JOBSET | {"JAX_COORDINATOR_PORT": "99"}, {"coordinator": "span-workers-0-0.span:99"}),
    ("a Job of independent pods", {"JOB_COMPLETION_INDEX": "3"}, {"kind": "none", "processes": 1}),
    (
        "a Job with count and address",
        {"JOB_COMPLETION_INDEX": "3", "JAX_NUM_PROCESSES": "4", "JAX_COORDINATOR_ADDRESS": "pod-0.svc:1"},
        {"kind": "jobset", "processes": 4, "process_id": 3, "coordinator": "pod-0.svc:1"},
    ),
    # SkyPilot
    ("sky", SKY, {"kind": "skypilot", "coordinator": "10.0.0.5:8476", "process_id": 1, "local_devices": 8}),
    # SLURM
    ("slurm", SLURM, {"kind": "slurm", "coordinator": f"gpu08:{SLURM_PORT}", "processes": 4, "process_id": 2}),
    ("slurm's names", SLURM, {"hosts": {0: "gpu08", 1: "gpu09", 2: "gpu10", 3: "big1"}}),
    ("slurm without GPUs", SLURM, {"local_device_ids": None, "local_devices": None, "platform": None}),
    (
        "one task takes all GPUs of its node",
        SLURM | {"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"},
        {"local_device_ids": None, "local_devices": 4, "platform": "gpu"},
    ),
    ("one task a GPU", SLURM_EACH, {"local_device_ids": (3,), "local_devices": 1, "process_id": 7}),
    (
        "two GPUs a task",
        SLURM_EACH | {"SLURM_GPUS_ON_NODE": "8"},
        {"local_device_ids": (6, 7), "local_devices": 2},
    ),
    (
        "--gpus-per-task shows each task its own",
        SLURM_EACH | {"CUDA_VISIBLE_DEVICES": "3"},
        {"local_device_ids": None, "local_devices": 1},
    ),
    (
        "--gpus-per-task=2",
        SLURM_EACH | {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_PER_TASK": "2", "SLURM_GPUS_ON_NODE": "2"},
        {"local_device_ids": None, "local_devices": 2},
    ),
    ("uneven nodes", SLURM_EACH | {"SLURM_STEP_TASKS_PER_NODE": "7,1"}, {"local_device_ids": None}),
    ("cpu asked for", SLURM_EACH | {"JAX_PLATFORMS": "cpu"}, {"local_device_ids": None, "local_devices": None}),
    ("cuda asked for", SLURM_EACH | {"JAX_PLATFORMS": "cuda"}, {"local_device_ids": (3,), "platform": "gpu"}),
    (
        "one node is local",
        SLURM_EACH | {"SLURM_STEP_NODELIST": "n1", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "8"}
        | {"SLURM_GPUS_ON_NODE": "8"},
        {"coordinator": f"127.0.0.1:{SLURM_PORT}", "hosts": dict.fromkeys(range(8), "n1")},
    ),
    ("sbatch without srun", {"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "2"}, {"processes": 1, "local_devices": 2}),
    ("a value by hand wins", SLURM | {"JAX_NUM_PROCESSES": "5"}, {"processes": 5, "kind": "slurm"}),
    (
        "and that is said",
        SLURM | {"JAX_NUM_PROCESSES": "5"},
        {"notes": ("JAX_NUM_PROCESSES=5 wins over 4 of slurm",)},
    ),
    ("plain in slurm", SLURM_EACH | PLAIN, {"kind": "variables", "process_id": 2, "local_device_ids": (3,)}),
    ("plain in half a slurm", {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"} | PLAIN, {"kind": "variables"}),
)  # fmt: skip

# environment, words of the error
REFUSED: tuple[tuple[dict[str, str], str], ...] = (
    ({"JAX_NUM_PROCESSES": "2"}, "JAX_COORDINATOR_ADDRESS.*JAX_PROCESS_ID.*on every process"),
    (PLAIN | {"JAX_PROCESS_ID": "3"}, "JAX_PROCESS_ID is 3: expected 0 to 2"),
    (PLAIN | {"JAX_PROCESS_ID": "two"}, "JAX_PROCESS_ID is 'two': expected a whole number"),
    (PLAIN | {"JAX_COORDINATOR_ADDRESS": "h"}, "'h': expected HOST:PORT"),
    (PLAIN | {"JAX_LOCAL_DEVICE_IDS": "a"}, "JAX_LOCAL_DEVICE_IDS is 'a'"),
    ({"SPANJAX_EXPECTED_DEVICES": "-1"}, "SPANJAX_EXPECTED_DEVICES is '-1'"),
    ({"SPANJAX_BARRIER_TIMEOUT": "long"}, "SPANJAX_BARRIER_TIMEOUT is 'long': expected a whole number, 1 or more"),
    (PLAIN | {"JAX_PROCESS_ID": "²"}, "JAX_PROCESS_ID is '²': expected a whole number"),
    ({"TPU_WORKER_HOSTNAMES": "a,b"}, "2 TPU hosts are listed .a,b., but TPU_WORKER_ID is not set"),
    (TPU | {"TPU_WORKER_ID": "4"}, "TPU_WORKER_ID is 4: expected 0 to 3"),
    ({"MEGASCALE_NUM_SLICES": "2"}, "TPU_WORKER_HOSTNAMES is not set"),
    (TPU | {"MEGASCALE_NUM_SLICES": "2"}, "MEGASCALE_SLICE_ID is missing"),
    (TPU | {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}, "MEGASCALE_COORDINATOR_ADDRESS is not set"),
    ({"OMPI_COMM_WORLD_RANK": "0"}, "Open MPI has set .*'0'.*, but OMPI_COMM_WORLD_SIZE"),
    (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "the address of process 0: set JAX_COORDINATOR_ADDRESS"),
    ({"JOBSET_NAME": "s", "JOB_COMPLETION_INDEX": "1"}, "JobSet s, but the number of pods is not known"),
    ({"SKYPILOT_NODE_RANK": "1"}, "SKYPILOT_NODE_IPS is not"),
    ({"SKYPILOT_NODE_IPS": "a b"}, "SKYPILOT_NODE_RANK is missing"),
    ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8"}, "8 tasks, but this process was not started by srun.*JAX_NUM_PROCESSES=1"),
    ({k: v for k, v in SLURM.items() if k != "SLURM_PROCID"}, "SLURM_PROCID is missing: start with `srun"),
    (SLURM_EACH | {"SLURM_GPUS_ON_NODE": "6"}, "4 tasks on a host with 6 GPU.*ntasks-per-node"),
    (SLURM_EACH | {"SLURM_GPUS_ON_NODE": "2"}, "expected one task, or 2 with one GPU each"),
)  # fmt: skip


@pytest.mark.parametrize(("environment", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_launcher_is_seen(environment: dict[str, str], expected: dict[str, Any]) -> None:
    launch = detect(environment)
    assert {name: getattr(launch, name) for name in expected} == expected, launch
    assert "\n" not in launch.line() and launch.line().startswith(launch.kind)


@pytest.mark.parametrize(("environment", "words"), REFUSED)
def test_half_an_environment_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        detect(environment)


def test_a_tpu_vm_without_variables_asks_the_metadata() -> None:
    assert (detect({}, tpu_chips=4).kind, detect({}, tpu_chips=4).processes) == ("tpu", None)
    for alone in ({"JAX_PLATFORMS": "cpu"}, {"TPU_SKIP_MDS_QUERY": "1"}, {"JAX_NUM_PROCESSES": "1"}):
        assert detect(alone, tpu_chips=4).processes == 1
    assert detect(PLAIN, tpu_chips=4).processes == 3


def test_line_says_why() -> None:
    assert detect({}).line() == "none: one process (no launcher in the environment)"
    line = detect(SLURM_EACH).line()
    assert line.startswith(f"slurm: process 7 of 8, coordinator n1:{SLURM_PORT}, local devices 3 (SLURM_JOB_ID=4711")
    assert "SLURM_LOCALID=3" in line


@pytest.mark.parametrize(
    ("environment", "found", "total", "words"),
    [
        (SLURM_EACH, ["gpu"], 8, []),
        (SLURM_EACH, ["cpu"], 8, ["sees 1 x cpu, expected 1 x gpu", "pip install 'jax[cuda13]'", "JAX_PLATFORMS=cpu"]),
        (SLURM_EACH, ["gpu"] * 4, 32, ["sees 4 x gpu, expected 1", "CUDA_VISIBLE_DEVICES"]),
        (SLURM | {"SLURM_GPUS_ON_NODE": "4"}, ["gpu"], 4, ["sees 1 x gpu, expected 4", "SLURM_GPUS_ON_NODE=4"]),
        (TPU, ["tpu"] * 4, 16, []),
        (TPU, ["cpu"], 4, ["expected some x tpu", "jax[tpu]"]),
        ({"SPANJAX_EXPECTED_DEVICES": "8"}, ["cpu"] * 8, 8, []),
        ({"SPANJAX_EXPECTED_DEVICES": "8"}, ["cpu"], 1, ["sees 1 device(s) on 1 process(es), expected 8"]),
        ({}, ["cpu"], 1, []),
    ],
)
def test_devices_are_counted(environment: dict[str, str], found: list[str], total: int, words: list[str]) -> None:
    launch: Launch = detect(environment)
    text = "\n".join(device_problems(launch, found, total))
    assert bool(text) == bool(words), text
    for each in words:
        assert each in text
