"""Runs of the real command line for the tests, in this process or in processes of their own."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spanjax.launch.processes import free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent

TINY = [
    "--encoder.hidden-size=16",
    "--encoder.layers=2",
    "--encoder.heads=2",
    "--encoder.intermediate-size=32",
    "--encoder.positions=128",
    "--encoder.vocab-size=0",
    "--encoder.unroll=1",
    "--batch-size=4",
    "--cadence.log-every=1",
]


def shrunk(config: str, rows: str | pathlib.Path, workdir: pathlib.Path, steps: int, *more: str) -> list[str]:
    """The arguments of a config cut down to a model that trains in seconds; later arguments win."""
    from spanjax.objectives.loss_terms import SpanBoundary
    from spanjax.run import load

    arguments = [f"--config={config}", f"--data.rows={rows}", f"--workdir={workdir}", f"--steps={steps}"]
    terms = getattr(load(str(ROOT / config)).objective, "terms", ())
    places = [place for place, term in enumerate(terms) if isinstance(term, SpanBoundary)]
    arguments += ["--cadence.eval-batches=1", *(f"--objective.terms.{place}.position-size=8" for place in places)]
    given = {word.split("=")[0] for word in more}
    return [*arguments, *(word for word in TINY if word.split("=")[0] not in given), *more]


def final_leaves(workdir: pathlib.Path) -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint by its name."""
    import jax
    import orbax.checkpoint as ocp

    folder = max((p for p in (workdir / "checkpoints").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    with ocp.PyTreeCheckpointer() as reader:
        path = (folder / "state").absolute()
        tree = reader.metadata(path).item_metadata.tree
        arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        restored = reader.restore(path, restore_args=arguments)
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(restored)}


def logged_lines(workdir: pathlib.Path, most_damaged: int = 0) -> list[dict[str, float]]:
    """The records of a run; AssertionError where more lines than these are damaged."""
    lines, damaged = [], 0
    for line in (workdir / "metrics.jsonl").read_bytes().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            damaged += 1
    assert damaged <= most_damaged, f"{damaged} damaged lines"
    return lines


def records(workdir: pathlib.Path, key: str, most_damaged: int = 0) -> dict[int, float]:
    """step -> value of one metric."""
    return {int(line["step"]): line[key] for line in logged_lines(workdir, most_damaged) if key in line}


def environment(devices: int, **more: str) -> dict[str, str]:
    """Environment of a process with so many CPU devices, compiling fast; under pytest as fast as in its own process."""
    flags = os.environ.get("XLA_FLAGS", "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0")
    flags = re.sub(r"(device_count)=\d+", rf"\1={devices}", flags)
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), **more}


def start(arguments: list[str], **options: Any) -> subprocess.Popen:
    """`python -m spanjax.train` in a process of its own."""
    command = [sys.executable, "-m", "spanjax.train", *arguments]
    options = {"env": environment(1), "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)


def begin_group(
    command: list[str],
    ids: Sequence[int],
    count: int = 0,
    devices: int = 1,
    more: Mapping[str, str] | None = None,
    **options: Any,
) -> list[subprocess.Popen]:
    """Processes of one run of `count` (as many as ids), which meet on a free port of this machine."""
    common = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "JAX_NUM_PROCESSES": str(count or len(ids)),
        **(more or {}),
    }
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options}
    return [
        subprocess.Popen(command, cwd=ROOT, env=environment(devices, **common, JAX_PROCESS_ID=str(each)), **options)
        for each in ids
    ]


def begin_together(count: int, arguments: list[str], devices: int = 1) -> list[subprocess.Popen]:
    """`python -m spanjax.train` in several processes of one run."""
    return begin_group([sys.executable, "-m", "spanjax.train", *arguments], range(count), devices=devices)


def wait_until(processes: Sequence[subprocess.Popen], condition: Callable[[], Any], seconds: float) -> bool:
    """Whether it came before one of the processes ended; TimeoutError where nothing did."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        if any(process.poll() is not None for process in processes):
            return bool(condition())
        time.sleep(0.02)
    raise TimeoutError(f"nothing happened for {seconds:.0f} s")


def finish(process: subprocess.Popen, code: int = 0, timeout: float = 280) -> str:
    """Waits for the end, checks the exit code, returns what was printed."""
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == code, output
    return output


def last_step(workdir: pathlib.Path) -> int:
    """The newest step in the metrics file; 0 when there is none."""
    file = workdir / "metrics.jsonl"
    text = file.read_text(errors="replace")[-5000:] if file.exists() else ""
    steps = re.findall(r'"step": (\d+),', text)
    return max(map(int, steps), default=0)


def wait_for_step(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> None:
    """Returns when the metrics file has come to this step, or the process has ended."""
    while process.poll() is None and last_step(workdir) < step:
        time.sleep(0.02)


def kill(process: subprocess.Popen) -> None:
    """kill -9."""
    process.send_signal(signal.SIGKILL)
    process.communicate()
