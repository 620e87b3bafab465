"""Planning commands of the tests of pods: a small model that still has every array of SpanBERT base."""

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

from spanjax.plan import topology
from spanjax.plan.hlo import Program, shapes
from tests.running import ROOT

BASE, LARGE = "configs/pretrain/spanbert_base.py", "configs/pretrain/spanbert_large.py"
LENGTH, VOCABULARY = 64, 1024
SMALL = [
    f"--config={BASE}",
    "--encoder.hidden-size=128",
    "--encoder.layers=2",
    "--encoder.heads=2",
    "--encoder.intermediate-size=512",
    "--encoder.positions=64",
    "--objective.terms.1.position-size=128",
    f"--vocab-size={VOCABULARY}",
    f"--length={LENGTH}",
]


def array_types(program: Program) -> set[tuple[str, tuple[int, ...]]]:
    """Every (type, dimensions) that an instruction has as its result."""
    return {shape for body in program.computations.values() for line in body for shape in shapes(line.result)}


def custom_calls(program: Program) -> list[str]:
    """The target of every call of a kernel or library that XLA did not write itself."""
    calls = (line for body in program.computations.values() for line in body if line.opcode.startswith("custom-call"))
    return [target for line in calls for target in re.findall(r'custom_call_target="([^"]*)"', line.rest)]


def planned(folder: pathlib.Path, where: str, *more: str, code: int = 0) -> tuple[dict[str, Any], Program]:
    """What the command prints in a process of its own, and the program that it compiled; skipped without the compiler."""
    lacking = topology.missing(topology.parse(where).chip.platform)
    if lacking:
        pytest.skip(lacking)
    text = folder / "step.txt"
    left_out = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    words = [sys.executable, "-m", "spanjax.plan", *more, f"--topology={where}", f"--hlo={text}", "--json"]
    process = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert process.returncode == code, process.stderr[-3000:]
    return json.loads(process.stdout), Program(text.read_text())
