"""Start-up on one or many processes, before anything else touches jax."""

import os

import jax

_PROCESS_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def start() -> None:
    """Joins the other processes of the run when the environment names them; one process needs nothing.

    Reads JAX_COORDINATOR_ADDRESS (host:port), JAX_NUM_PROCESSES and JAX_PROCESS_ID. On CPU the processes talk through gloo.
    Raises ValueError when only a part of the three is set.
    """
    given = {name: os.environ[name] for name in _PROCESS_VARIABLES if os.environ.get(name)}
    if not given:
        return
    if len(given) < len(_PROCESS_VARIABLES):
        missing = sorted(set(_PROCESS_VARIABLES) - set(given))
        raise ValueError(
            f"several processes were asked for by {given}, but {missing} is not set: set all of {list(_PROCESS_VARIABLES)}"
            " on every process, or none of them for one process"
        )
    count, index = int(given["JAX_NUM_PROCESSES"]), int(given["JAX_PROCESS_ID"])
    if not 0 <= index < count:
        raise ValueError(f"JAX_PROCESS_ID is {index}: expected 0 to {count - 1} (JAX_NUM_PROCESSES is {count})")
    jax.distributed.initialize(given["JAX_COORDINATOR_ADDRESS"], num_processes=count, process_id=index)


def any_process(flag: bool) -> bool:
    """Whether the flag is set on any process; all processes must call it at the same step."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(flag).any())
