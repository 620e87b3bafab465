"""Start-up of a process before anything else touches jax, and the rendezvous of all processes of a run.

A rendezvous has a name and a time limit, and names the processes that did not come. Importing this does not import jax.
"""

import collections
import dataclasses
import importlib.metadata
import logging
import os
import pathlib
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from spanjax.bounds import raise_problems
from spanjax.distributed.jax_internals import coordination, detected_pod, jax_on_any_thread, use_gloo_at
from spanjax.distributed.launchers import BARRIER, EXPECTED, TOKEN, Launch, detect, own_variables, startup_limit
from spanjax.distributed.meeting import (
    GREETING,
    ProcessesMissing,
    attend,
    is_local,
    listen,
    loopback_note,
    name_processes,
    receive,
    split_address,
)

log = logging.getLogger(__name__)
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
            "several processes without jax.distributed.initialize: call spanjax.distributed.start() first"
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
    gone = str(error).startswith(("UNAVAILABLE", "DEADLINE_EXCEEDED"))
    return isinstance(error, jax.errors.JaxRuntimeError) and gone


def collective_failed(error: BaseException) -> bool:
    """True for an error of the libraries through which processes exchange arrays: gloo on CPU, NCCL or RCCL on GPU."""
    import jax

    # measured on jax 0.10.2: "UNKNOWN: Gloo ReduceScatter failed: [...] Read timeout" 30 s after a process should have come
    return isinstance(error, jax.errors.JaxRuntimeError) and re.search(r"gloo|nccl|rccl", str(error), re.I) is not None


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
    texts = all_gather_text(name, str(problem) if problem else "")
    if not any(texts):
        return result  # pyright: ignore[reportReturnType]
    if problem and len(set(texts)) == 1:
        raise problem
    failed: dict[str, list[int]] = {}
    for each, text in enumerate(texts):
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


REMEDIES = {"gpu": "pip install 'jax[cuda13]'", "tpu": "pip install 'jax[tpu]'"}


def tpu_chips() -> int:
    """Counts the TPU chips on the PCI bus (vendor Google, class "processing accelerator")."""
    count = 0
    for device in pathlib.Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        count += vendor == "0x1ae0" and kind.startswith("0x12")
    return count


def start() -> Launch:
    """Joins the other processes of the run if a launcher started several, and checks the devices.

    All wait for each other for SPANJAX_STARTUP_TIMEOUT seconds (`startup_limit`); then ProcessesMissing names who has not come.
    ValueError for a half-set environment, and for devices other than those of the launcher. On CPU, processes communicate
    through gloo.
    """
    launch = detect(os.environ, tpu_chips())
    given = own_variables(os.environ).startup_seconds
    if launch.processes is None:
        launch = _ask_jax(launch, float(given or startup_limit(1)))
    for note in launch.notes:
        log.warning("start-up by %s: %s", launch.kind, note)
    import jax

    if launch.processes == 1:
        # of several processes, jax.distributed.initialize sets the same options
        if launch.local_device_ids is not None:
            for name in ("jax_cuda_visible_devices", "jax_rocm_visible_devices"):
                jax.config.update(name, ",".join(map(str, launch.local_device_ids)))
    else:
        _join(launch, float(given or startup_limit(launch.processes or 1)))
    if launch.local_devices is not None or launch.devices is not None or launch.platform is not None:
        found = [device.platform for device in jax.local_devices()]
        raise_problems(device_problems(launch, found, jax.device_count()))
    return launch


def _join(launch: Launch, timeout: float) -> None:
    """Runs the rendezvous, then passes the port to jax."""
    import jax

    assert launch.coordinator is not None and launch.processes is not None and launch.process_id is not None
    began = time.monotonic()
    host = socket.gethostname()
    ours = {"greeting": GREETING, "process": launch.process_id, "processes": launch.processes, "host": host}
    ours |= {"jax": importlib.metadata.version("jax"), "token": os.environ.get(TOKEN, "").strip()}
    address = None
    if launch.process_id == 0:
        asked = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", "")
        server, address = listen(launch.coordinator, asked, began + timeout)
        with server:
            roster = receive(server, ours, launch.hosts, timeout, loopback_note(launch.coordinator))
    else:
        roster = attend(launch.coordinator, ours, timeout)
    # jax's own detection could decide otherwise than `detect`, which the other processes have followed
    jax.distributed.initialize(
        launch.coordinator,
        num_processes=launch.processes,
        process_id=launch.process_id,
        local_device_ids=launch.local_device_ids,
        cluster_detection_method="deactivate",
        initialization_timeout=int(timeout),
        coordinator_bind_address=address,
    )
    here, cpu = own_address(launch.coordinator), jax.config.jax_cpu_collectives_implementation  # pyright: ignore
    if here and cpu == "gloo":
        use_gloo_at(here)  # alone, and not at the address of the host's own name
    HOSTS.update(roster)


def own_address(coordinator: str) -> str | None:
    """Returns this host's address towards the coordinator, loopback for a local one; None if others cannot reach it."""
    host, port = split_address(coordinator)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
            probe.connect((host, port))
            found = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if is_local(found) and not is_local(host) else found


def _ask_jax(launch: Launch, timeout: float) -> Launch:
    """Completes a launch from a TPU VM's metadata about its pod, through jax's own detection."""
    known = (launch.coordinator, launch.processes, launch.process_id)
    try:
        coordinator, processes, index, _ = detected_pod(*known, None, None, int(timeout))
    except Exception as error:
        raise ValueError(
            f"{launch.why}, but the metadata of this machine do not say what pod it belongs to"
            f" ({type(error).__name__}: {error}): set JAX_NUM_PROCESSES=1 to train on this host alone, or"
            " JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID on every host"
        ) from error
    if coordinator is None or processes is None or processes == 1:
        return dataclasses.replace(launch, coordinator=None, processes=1, process_id=0)
    return dataclasses.replace(launch, coordinator=coordinator, processes=processes, process_id=index)


def device_problems(launch: Launch, found: Sequence[str], total: int) -> list[str]:
    """Returns messages on wrong devices of this process (`found` are their platforms) and on a wrong number of all."""
    problems, where = [], f"process {launch.process_id} on {socket.gethostname()}"
    seen = f"{len(found)} x {found[0]}" if found else "no device"
    if launch.platform and set(found) != {launch.platform}:
        problems.append(
            f"{where}: jax sees {seen}, expected {launch.local_devices or 'some'} x {launch.platform} ({launch.kind}:"
            f" {launch.why}); {REMEDIES[launch.platform]} and see `python -m spanjax.doctor`, or set"
            f" JAX_PLATFORMS={found[0] if found else 'cpu'} if you want that"
        )
    elif launch.local_devices is not None and len(found) != launch.local_devices:
        problems.append(
            f"{where}: jax sees {seen}, expected {launch.local_devices} ({launch.kind}: {launch.why}): see CUDA_VISIBLE_DEVICES"
            " and JAX_LOCAL_DEVICE_IDS, and what else holds the devices"
        )
    if launch.devices is not None and total != launch.devices:
        problems.append(
            f"jax sees {total} device(s) on {launch.processes} process(es), expected {launch.devices} ({EXPECTED}):"
            f" start the missing ones, see `python -m spanjax.doctor` on every host, or set {EXPECTED}={total}"
        )
    return problems
