"""Start-up of a process, before anything else touches jax."""

import dataclasses
import importlib.metadata
import logging
import os
import pathlib
import socket
import time
from collections.abc import Sequence

from spanjax.bounds import raise_problems
from spanjax.distributed.barriers import HOSTS
from spanjax.distributed.jax_internals import detected_pod, use_gloo_at
from spanjax.distributed.launchers import Launch, detect
from spanjax.distributed.meeting import GREETING, attend, is_local, listen, receive, split_address
from spanjax.distributed.variables import EXPECTED, TOKEN, own_variables

log = logging.getLogger(__name__)
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

    All wait for each other for SPANJAX_STARTUP_TIMEOUT seconds (300); then ProcessesMissing names who has not come. ValueError
    for a half-set environment, and for devices other than those of the launcher. On CPU, processes communicate through gloo.
    """
    launch = detect(os.environ, tpu_chips())
    timeout = float(own_variables(os.environ).startup_seconds)
    if launch.processes is None:
        launch = _ask_jax(launch, timeout)
    for note in launch.notes:
        log.warning("start-up by %s: %s", launch.kind, note)
    import jax

    if launch.processes == 1:
        # of several processes, jax.distributed.initialize sets the same options
        if launch.local_device_ids is not None:
            for name in ("jax_cuda_visible_devices", "jax_rocm_visible_devices"):
                jax.config.update(name, ",".join(map(str, launch.local_device_ids)))
    else:
        _join(launch, timeout)
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
            roster = receive(server, ours, launch.hosts, timeout)
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
