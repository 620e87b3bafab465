"""`python -m spanjax.doctor`: versions, devices, memory, settings, and every known trap of the stack.

A package that cannot be imported must not take the doctor down with it, so heavy imports happen in subprocesses with a
time limit; this process imports nothing heavier than rich.
"""

import concurrent.futures
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import rich.console
import rich.table
import rich.text
import tyro

from spanjax.distributed import tpu_chips
from spanjax.distributed.launchers import detect
from spanjax.distributed.meeting import loopback_note
from spanjax.doctor import checks, kernels
from spanjax.doctor.storage import check_storage
from spanjax.pretrained.packaged import packaged_models

_PACKAGES = """
jax jaxlib flax optax orbax-checkpoint numpy numba ml-dtypes tensorflow tensorflow-text tensorflow-datasets seqio
sentencepiece protobuf tokenizers safetensors tyro rich matplotlib tensorboardx libtpu torch transformers apache-beam
"""
SHOWN = _PACKAGES.split()
_VARIABLES = """
JAX_PLATFORMS JAX_COMPILATION_CACHE_DIR JAX_DEBUG_NANS JAX_LOG_COMPILES JAX_ENABLE_X64 JAX_DEFAULT_PRNG_IMPL
JAX_THREEFRY_PARTITIONABLE JAX_NUM_CPU_DEVICES JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES JAX_PROCESS_ID JAX_LOCAL_DEVICE_IDS
SPANJAX_EXPECTED_DEVICES SPANJAX_STARTUP_TIMEOUT SPANJAX_BARRIER_TIMEOUT XLA_FLAGS XLA_CLIENT_MEM_FRACTION
XLA_PYTHON_CLIENT_MEM_FRACTION XLA_PYTHON_CLIENT_PREALLOCATE XLA_PYTHON_CLIENT_ALLOCATOR LIBTPU_INIT_ARGS TPU_NAME
CUDA_VISIBLE_DEVICES NCCL_DEBUG LD_LIBRARY_PATH TF_CPP_MIN_LOG_LEVEL OMP_NUM_THREADS
"""
ENVIRONMENT = _VARIABLES.split()
MARK = "spanjax-doctor:"

JAX_PROBE = f"""
import json, jax
from spanjax.distributed.jax_internals import missing
def memory(device):
    try:
        return (device.memory_stats() or {{}}).get("bytes_limit")
    except RuntimeError:  # XLA's errors: a platform that does not tell
        return None
print("{MARK}" + json.dumps([[(d.platform, d.device_kind, memory(d)) for d in jax.devices()], missing()]))
"""
SEQIO_PROBE = f"""
import json, time
start = time.perf_counter()
import seqio, tensorflow, tensorflow_text
seconds = time.perf_counter() - start
print("{MARK}" + json.dumps([seconds, len(tensorflow.config.list_physical_devices("GPU"))]))
"""


@dataclasses.dataclass(frozen=True)
class Options:
    """Prints what this machine has and every known trap as `ok` or one line saying what to do; exits 1 on a failure."""

    json: bool = False
    """Print one JSON object instead of text."""
    expect_devices: int | None = None
    """Fail unless jax sees exactly this many devices."""
    expect_platform: Literal["cpu", "gpu", "tpu"] | None = None
    """Fail unless every device is of this platform."""
    storage: tuple[str, ...] = ()
    """Folders in buckets (gs://BUCKET/FOLDER, s3://...): try to list, write on a condition, read and delete there."""
    kernels: bool = False
    """Try the project's kernels on the first device, each in a process of its own: whether they are right and faster there."""
    timeout: float = 120.0
    """Seconds to wait for each import and each kernel that is tried."""


def run_probe(program: str, timeout: float) -> tuple[Any, str]:
    """Runs the program; returns its JSON output after MARK, and its error: one of the two is empty."""
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", program]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {timeout:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK)), ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return None, lines[-1].strip() if lines else f"ended with status {done.returncode}"


def installed_versions() -> dict[str, str]:
    """Version of every installed distribution by its normalised name."""
    versions = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return versions


def required_jaxlib() -> str:
    """Bounds on jaxlib that the installed jax names, empty without jax."""
    try:
        requirements = importlib.metadata.requires("jax") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    plain = [line for line in requirements if line.startswith("jaxlib") and ";" not in line]
    return plain[0].removeprefix("jaxlib").strip() if plain else ""


def sentencepiece_gencode() -> str:
    """Protobuf version that sentencepiece's generated messages require, read without importing them."""
    spec = importlib.util.find_spec("sentencepiece")
    if spec is None or spec.origin is None:
        return ""
    path = pathlib.Path(spec.origin).with_name("sentencepiece_model_pb2.py")
    match = re.search(r"Protobuf Python Version: ([\d.]+)", path.read_text(errors="replace")) if path.exists() else None
    return match.group(1) if match else ""


def host_memory() -> tuple[int | None, int | None]:
    """Bytes of host memory, total and available; None if the system does not report them."""
    path = pathlib.Path("/proc/meminfo")
    found = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", path.read_text(), re.M)) if path.exists() else {}
    total, available = (int(found[key]) * 1024 if key in found else None for key in ("MemTotal", "MemAvailable"))
    return total, available


def start_up_line(environment: Mapping[str, str], chips: int) -> tuple[str, str, str]:
    """Returns the start-up that a run here would take with the reason, its problem, and a note on the coordinator's address.

    One of the first two is empty.
    """
    try:
        launch = detect(environment, chips)
    except ValueError as error:
        return "", str(error), ""
    return launch.line(), "", loopback_note(launch.coordinator) if launch.coordinator else ""


def collect(timeout: float) -> checks.Facts:
    """Collects facts about this machine; takes about as long as `import seqio`."""
    versions = installed_versions()
    # side by side, as each import can take up to the whole timeout
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked_jax = pool.submit(run_probe, JAX_PROBE, timeout)
        asked_seqio = pool.submit(run_probe, SEQIO_PROBE, timeout) if "seqio" in versions else None
    found, jax_error = asked_jax.result()
    devices, private_missing = found or ([], [])
    seqio, seqio_error = asked_seqio.result() if asked_seqio else (None, "")
    seconds, gpus = seqio or (0.0, 0)
    total, available = host_memory()
    chips = tpu_chips()
    start_up, start_up_error, start_up_note = start_up_line(os.environ, chips)
    return checks.Facts(
        python=platform.python_version(),
        system=platform.platform(),
        versions=versions,
        environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        devices=tuple(checks.Device(*device) for device in devices),
        jax_probe=checks.Probe(jax_error),
        seqio_probe=checks.Probe(seqio_error, seconds) if asked_seqio else None,
        jaxlib_required=required_jaxlib(),
        sentencepiece_gencode=sentencepiece_gencode(),
        tensorflow_gpus=gpus,
        nvidia_gpu=any(os.path.exists(path) for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")),
        tpu_chips=chips,
        memory_total=total,
        memory_available=available,
        disk_free=shutil.disk_usage(".").free,
        start_up=start_up,
        models=tuple(packaged_models()),
        start_up_error=start_up_error,
        start_up_note=start_up_note,
        private_missing=tuple(private_missing),
    )


def describe_memory(size: int | None) -> str:
    """Formats bytes as GiB, or "unknown"."""
    return "unknown" if size is None else f"{size / checks.GIB:.1f} GiB"


def fact_lines(facts: checks.Facts) -> list[tuple[str, str]]:
    """Facts about the machine, as (name, value) lines."""
    lines = [("Python", facts.python), ("system", facts.system)]
    lines += [(name, facts.versions[name]) for name in SHOWN if name in facts.versions]
    kinds: dict[checks.Device, int] = {}
    for device in facts.devices:
        kinds[device] = kinds.get(device, 0) + 1
    lines += [("installed models", ", ".join(facts.models))] if facts.models else []
    for device, count in kinds.items():
        lines.append(("devices", f"{count} x {device.platform} {device.kind}, memory {describe_memory(device.memory)}"))
    available, total = describe_memory(facts.memory_available), describe_memory(facts.memory_total)
    lines += [("start-up", facts.start_up)] if facts.start_up else []
    lines += [
        ("host memory", f"{available} available of {total}"),
        ("disk free here", describe_memory(facts.disk_free)),
    ]
    if facts.seqio_probe and not facts.seqio_probe.error:
        lines.append(("import seqio", f"{facts.seqio_probe.seconds:.1f} s"))
    return lines + sorted(facts.environment.items())


def as_json(facts: checks.Facts, findings: Sequence[checks.Finding]) -> str:
    """Facts and findings as one JSON object; `versions` holds the stack only."""
    described = dataclasses.asdict(facts) | {"versions": {k: v for k, v in facts.versions.items() if k in SHOWN}}
    ok = all(finding.status != "fail" for finding in findings)
    return json.dumps({"ok": ok, "facts": described, "findings": [dataclasses.asdict(f) for f in findings]}, indent=2)


def show(console: rich.console.Console, facts: checks.Facts, findings: Sequence[checks.Finding]) -> None:
    """Prints tables on a terminal, plain lines elsewhere."""
    rows = [(finding.name, finding.status, finding.message) for finding in findings]
    if not console.is_terminal:
        for name, value in fact_lines(facts):
            console.print(f"{name}: {value}", markup=False, soft_wrap=True, highlight=False)
        for name, status, message in rows:
            text = f"{status:4} {name}" + (f": {message}" if message else "")
            console.print(text, markup=False, soft_wrap=True, highlight=False)
        return
    machine = rich.table.Table("", "", title="machine", show_header=False)
    for name, value in fact_lines(facts):
        machine.add_row(rich.text.Text(name), rich.text.Text(value))
    known = rich.table.Table("trap", "", "what to do", title="known traps")
    for name, status, message in rows:
        style = {"ok": "green", "note": "yellow", "fail": "bold red"}[status]
        known.add_row(name, rich.text.Text(status, style=style), rich.text.Text(message))
    console.print(machine, known)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit status is 1 when something failed."""
    options = tyro.cli(Options, prog="python -m spanjax.doctor", args=arguments)
    facts = collect(options.timeout)
    findings = checks.diagnose(facts)
    findings += checks.check_expected(facts, options.expect_devices, options.expect_platform)
    findings += [finding for address in options.storage for finding in check_storage(address)]
    if options.kernels:
        findings += kernels.check_kernels(
            lambda call: run_probe(kernels.PROGRAM.format(mark=MARK, call=call), options.timeout)
        )
    if options.json:
        print(as_json(facts, findings))
    else:
        show(rich.console.Console(), facts, findings)
    return int(any(finding.status == "fail" for finding in findings))
