"""Wrong environments of `spanjax.train`, and of the commands that start jax."""

import functools
import socket
from typing import Any

from tests.bad_inputs import Case, World


def good(world: World) -> list[Any]:
    """A good training."""
    return world.train()


@functools.cache
def _listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def busy_port() -> int:
    """A port on which this process listens to its end."""
    return _listening().getsockname()[1]


train = functools.partial(Case, "train", arguments=good)
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
SLURM |= {"SLURM_LOCALID": "0", "SLURM_TASKS_PER_NODE": "2(x2)"}
THREE = {"JAX_COORDINATOR_ADDRESS": "n1:1234", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}
STARTED = r"(?<=initialize backend 'quantum': ).*?(?=\): correct)|(?<=wrong of ).*?(?=; `)"
"""What jax itself says, and the other variables that are set."""

ENVIRONMENT_CASES = (
    train("JAX_* half set", ("JAX_COORDINATOR_ADDRESS", "n1:1234", "'JAX_PROCESS_ID'", "or none of them"),
          variables={"JAX_COORDINATOR_ADDRESS": "n1:1234"}),
    train("a number of processes that is none", ("JAX_NUM_PROCESSES is 'two'", "expected a whole number"),
          variables=THREE | {"JAX_NUM_PROCESSES": "two"}),
    train("no processes", ("JAX_NUM_PROCESSES is 0", "1 or more", "unset it"), variables=THREE | {"JAX_NUM_PROCESSES": "0"}),
    train("an address without a port", ("JAX_COORDINATOR_ADDRESS is 'n1'", "expected HOST:PORT"),
          variables=THREE | {"JAX_COORDINATOR_ADDRESS": "n1"}),
    train("an id beyond the processes", ("JAX_PROCESS_ID is 2", "expected 0 to 1", "JAX_NUM_PROCESSES is 2"),
          variables=THREE | {"JAX_PROCESS_ID": "2"}),
    train("device ids that are none", ("JAX_LOCAL_DEVICE_IDS is 'all'", "expected whole numbers", "0,1"),
          variables={"JAX_LOCAL_DEVICE_IDS": "all"}),
    train("a waiting time that is none", ("SPANJAX_STARTUP_TIMEOUT is 'long'", "expected a whole number"),
          variables={"SPANJAX_STARTUP_TIMEOUT": "long"}),
    train("other devices than expected", ("jax sees 4 device(s)", "expected 8", "SPANJAX_EXPECTED_DEVICES=4"),
          variables={"SPANJAX_EXPECTED_DEVICES": "8"}),
    train("a SLURM job with several tasks, not started by srun", ("4 tasks", "srun python -m", "JAX_NUM_PROCESSES=1"),
          variables={"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}),
    train("a SLURM step without its rank", ("SLURM_PROCID is missing", "srun python -m"),
          variables=SLURM | {"SLURM_PROCID": ""}),
    train("SLURM tasks that GPUs do not divide", ("2 tasks on a host with 3 GPU(s)", "--ntasks-per-node"),
          variables=SLURM | {"SLURM_GPUS_ON_NODE": "3", "JAX_PLATFORMS": "cuda"}),
    train("an Open MPI rank without its size", ("OMPI_COMM_WORLD_SIZE", "start with mpirun"),
          variables={"OMPI_COMM_WORLD_RANK": "0"}),
    train("a JobSet that does not say how many pods", ("JOB_COMPLETION_INDEX is 0", "JAX_NUM_PROCESSES in the manifest"),
          variables={"JOB_COMPLETION_INDEX": "0", "JOBSET_NAME": "mine"}),
    train("TPU hosts without a number of this one", ("TPU_WORKER_ID is not set", "a,b"),
          variables={"TPU_WORKER_HOSTNAMES": "a,b"}),
    train("a SkyPilot rank without the nodes", ("SKYPILOT_NODE_IPS", "`run` section"),
          variables={"SKYPILOT_NODE_RANK": "0"}),
    train("a platform that jax does not know", ("JAX_PLATFORMS", "'quantum'", "spanjax.doctor"),
          variables={"JAX_PLATFORMS": "quantum"}, apart=True, library=STARTED),
    train("a switch of jax that is none", ("JAX_ENABLE_X64", "'perhaps'", "unset"),
          variables={"JAX_ENABLE_X64": "perhaps"}, apart=True, library=STARTED),
    Case("convert inspect", "a switch of jax that is none", ("JAX_ENABLE_X64", "'perhaps'", "unset"),
         lambda world: [world.run],
         variables={"JAX_ENABLE_X64": "perhaps"}, apart=True, library=STARTED),
    train("a number of jax that is none", ("JAX_NUM_CPU_DEVICES", "many", "unset"),
          variables={"JAX_NUM_CPU_DEVICES": "many"}, apart=True, library=STARTED),
    Case("predict fill-mask", "a platform that jax does not know", ("JAX_PLATFORMS", "'quantum'", "spanjax.doctor"),
         lambda world: [world.run, "--text", "the [MASK]"], variables={"JAX_PLATFORMS": "quantum"}, apart=True,
         library=STARTED),
    Case("serve", "a port that is none", ("--port is 70000", "at most 65,535"), lambda world: [world.run, "--port=70000"]),
    Case("serve", "an empty host", ("--host is empty", "127.0.0.1"), lambda world: [world.run, "--host="]),
    Case("serve", "a host that is not this machine", ("no.such.host.invalid", "address of this machine"),
         lambda world: [world.run, "--host=no.such.host.invalid"], library=r"(?<=8000 \().*?(?=\): give)"),
    Case("serve", "a port that is in use", ("cannot listen", "--port", "0 takes a free one"),
         lambda world: [world.run, f"--port={busy_port()}"], library=r"(?<=--port )\d+"),
    Case("serve", "no model of that name", ("none does not exist", "expected a run directory"),
         lambda world: [world.here / "none", "--port=0"]),
    Case("doctor", "a platform that is none", ("--expect-platform", "quantum", "tpu"),
         lambda world: ["--expect-platform=quantum"]),
)  # fmt: skip
