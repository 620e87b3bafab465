"""Timing for the benchmarks: cores pinned, contenders alternating, medians, targets, JSON."""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

REPEATS = 7
VERSIONS = (
    *("numpy", "numba", "tensorflow", "seqio", "jax", "jaxlib", "flax", "optax", "tokenizers", "sentencepiece"),
    *("torch", "transformers", "accelerate", "keras", "keras-hub", "onnx", "onnxruntime"),
)
"""Distributions whose versions are told, as far as they are installed."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A figure that a benchmark has to reach."""

    name: str
    value: float
    least: float = float("-inf")
    most: float = float("inf")

    @property
    def met(self) -> bool:
        """Whether the value is in the range."""
        return self.least <= self.value <= self.most

    def line(self) -> str:
        """The figure beside what was asked for."""
        bound = f">= {self.least:,.6g}" if self.least > float("-inf") else f"<= {self.most:,.6g}"
        return f"{'ok    ' if self.met else 'MISSED'}  {self.name}: {self.value:,.6g} (target {bound})"


def pin(cores: int) -> None:
    """Keeps this process, and every thread pool that starts later, on the first `cores` cores it may use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ[name] = str(cores)


def alternating(contenders: Mapping[str, Callable[[], Any]], repeats: int = REPEATS) -> dict[str, list[float]]:
    """Seconds of every contender: one untimed call each, then `repeats` rounds in which all run in turn."""
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def rates(work: Mapping[str, float], seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Units a second of every contender: median, lowest and highest of its repeats."""
    return {
        name: {
            "median": work[name] / statistics.median(each),
            "lowest": work[name] / max(each),
            "highest": work[name] / min(each),
        }
        for name, each in seconds.items()
    }


def machine() -> dict[str, Any]:
    """What a figure was measured on: processor, cores in use, versions, date, and the device where jax is loaded."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    found = {name: _version(name) for name in VERSIONS}
    jax = sys.modules.get("jax")
    return {
        "date": datetime.date.today().isoformat(),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: version for name, version in found.items() if version},
        **({"device": jax.devices()[0].device_kind} if jax else {}),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def options(description: str, *more: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line of every benchmark, with the options of `more`."""
    parser = argparse.ArgumentParser(description=description, parents=more)
    parser.add_argument("--json", type=pathlib.Path, help="file to write the figures to")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--cores", type=int, default=2, help="cores to keep to")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="timed rounds; medians are reported")
    found = parser.parse_args()
    if found.repeats < 5:
        parser.error(f"--repeats {found.repeats}: expected at least 5")
    return found


def report(figures: Mapping[str, Any], targets: Sequence[Target], found: argparse.Namespace) -> int:
    """Prints targets, writes the JSON; the exit code."""
    for target in targets:
        print(target.line())
    if found.json:
        content = {
            "machine": machine(),
            "figures": figures,
            "targets": [{**dataclasses.asdict(target), "met": target.met} for target in targets],
        }
        text = json.dumps(content, indent=1, default=float).replace("-Infinity", "null").replace("Infinity", "null")
        found.json.parent.mkdir(parents=True, exist_ok=True)
        found.json.write_text(text + "\n")
    missed = [target.name for target in targets if not target.met]
    if missed:
        print(f"missed: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed and found.check else 0
