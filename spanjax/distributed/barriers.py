"""Rendezvous of all processes of a run. Each has a name and a time limit, and names the processes that did not come."""

import collections
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from spanjax.distributed.jax_internals import coordination, jax_on_any_thread
from spanjax.distributed.meeting import ProcessesMissing, name_processes
from spanjax.distributed.variables import BARRIER, own_variables

Result = TypeVar("Result")
PARTING_SECONDS = 3.0

# Both are state of the process, as jax's client is: the coordinator numbers barriers for as long as that client lives, so an
# object that could be made anew would start again at numbers that are taken.
HOSTS: dict[int, str] = {}
"""Process id -> host, from the rendezvous at start-up."""
_ROUNDS: collections.Counter[str] = collections.Counter()


def _client() -> Any:
    """jax's connection to the coordinator."""
    client = coordination().client
    if client is None:
        raise RuntimeError(
            "several processes without jax.distributed.initialize: call spanjax.distributed.startup.start() first"
        )
    return client


def all_gather_text(name: str, value: str = "", timeout_s: float | None = None) -> list[str]:
    """Returns every process's text, by process id; all must call it equally often, in the same order for each name.

    It uses the coordinator and does not wait for devices. ProcessesMissing names the barrier and who did not come within
    `timeout_s` (SPANJAX_BARRIER_TIMEOUT, 600 s).
    """
    jax = jax_on_any_thread()
    if jax.process_count() == 1:
        return [value]
    client, count, me = _client(), jax.process_count(), jax.process_index()
    limit = timeout_s or own_variables(os.environ).barrier_seconds
    _ROUNDS[name] += 1
    folder = f"spanjax/{name}/{_ROUNDS[name]}"
    try:
        client.key_value_set(f"{folder}/{me}", value)
        client.wait_at_barrier(folder, int(1000 * limit))
        found = dict(client.key_value_dir_get(folder))
    except jax.errors.JaxRuntimeError as error:
        raise _missing(client, name, folder, limit, error) from error
    if _ROUNDS[name] > 1:  # everybody has come here, so everybody has read the round before
        client.key_value_delete(f"spanjax/{name}/{_ROUNDS[name] - 1}/{me}")
    return [found[f"{folder}/{each}"] for each in range(count)]


def _missing(client: Any, name: str, folder: str, limit: float, error: Exception) -> ProcessesMissing:
    """Builds the error of a failed barrier, with the processes that have left no mark."""
    jax = jax_on_any_thread()
    if "DEADLINE_EXCEEDED" not in str(error):
        return ProcessesMissing(f"barrier {name!r} failed: {str(error).splitlines()[0]}; see the output of the others")
    marks = {int(key.rpartition("/")[2]) for key, _ in client.key_value_dir_get(folder)}
    absent = [each for each in range(jax.process_count()) if each not in marks]
    if not absent:
        return ProcessesMissing(
            f"process {jax.process_index()} came too late to barrier {name!r}: the others waited {limit:.0f} s and gave up;"
            f" find out what held it, or wait longer with {BARRIER}=SECONDS"
        )
    return ProcessesMissing(
        f"barrier {name!r}: {name_processes(absent, HOSTS)} did not come within {limit:.0f} s; look at the output there, and run"
        f" the same command again on all ({BARRIER}=SECONDS waits longer)"
    )


def barrier(name: str, timeout_s: float | None = None) -> None:
    """Returns when all processes are here; ProcessesMissing, which names it and them, after the time limit."""
    all_gather_text(name, "", timeout_s)


def any_process(flag: bool, name: str = "any process") -> bool:
    """Returns True if the flag is set on any process; all processes must call it at the same step."""
    return "1" in all_gather_text(name, "1" if flag else "0")


def ask(name: str, why: str) -> None:
    """Leaves a mark for all processes; does not wait for them."""
    _client().key_value_set(f"spanjax/{name}", why, allow_overwrite=True)


def asked(name: str, timeout_s: float) -> bool:
    """Returns True if a process has left this mark, after waiting up to `timeout_s` for it."""
    jax = jax_on_any_thread()
    try:
        return bool(_client().blocking_key_value_get(f"spanjax/{name}", int(1000 * timeout_s)))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return False
        raise


def put_mark(name: str, value: str) -> None:
    """Sets this process's mark of a name, which the others read at any time."""
    jax = jax_on_any_thread()
    _client().key_value_set(f"spanjax/{name}/{jax.process_index()}", value, allow_overwrite=True)


def marks(name: str) -> dict[int, str]:
    """Process id -> its mark of a name."""
    return {int(key.rpartition("/")[2]): value for key, value in _client().key_value_dir_get(f"spanjax/{name}")}


def coordinator_gone(error: BaseException) -> bool:
    """True for an error of jax that reports that the coordinator does not answer: its process is dead or cut off."""
    import jax

    # measured on jax 0.10.2: "UNAVAILABLE: Socket closed" after a kill of process 0; DEADLINE_EXCEEDED is gRPC's for no answer
    told = str(error).startswith(("UNAVAILABLE", "DEADLINE_EXCEEDED"))
    return isinstance(error, jax.errors.JaxRuntimeError) and told


def name_of(process: int) -> str:
    """ "process 3 (node004)" """
    return name_processes([process], HOSTS)


def preempted(step: int) -> bool:
    """True if jax's preemption service stops all processes after this step; must be called at every step, on all."""
    manager = coordination().preemption_sync_manager
    return manager is not None and manager.reached_sync_point(step)


def collective_call(name: str, work: Callable[[], Result]) -> Result:
    """Does the work on every process, with one outcome: a ValueError on any of them is one on all, naming the process."""
    result, problem = None, None
    try:
        result = work()
    except ValueError as error:
        problem = error
    said = all_gather_text(name, str(problem) if problem else "")
    if not any(said):
        return result  # pyright: ignore[reportReturnType]
    if problem and len(set(said)) == 1:
        raise problem
    failed: dict[str, list[int]] = {}
    for each, text in enumerate(said):
        if text:
            failed.setdefault(text, []).append(each)
    lines = [f"{name_processes(ids, HOSTS)}: {text}" for text, ids in failed.items()]
    raise ValueError("\n".join(lines)) from problem


def abort_process(code: int, error: Exception | None = None) -> int:
    """Ends one of several processes at once, after an error: jax would hold it for minutes, waiting for the others to end.

    Prints the error's traceback. In a single process, only returns the code.
    """
    if not HOSTS:
        return code
    if error is not None:
        traceback.print_exception(error)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if coordination().process_id == 0:  # the coordinator ends with it, and the others may still have messages to send
        time.sleep(PARTING_SECONDS)
    os._exit(code)
