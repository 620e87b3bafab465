"""Freed blocks stay with the process: counted in page faults."""

import platform
import subprocess
import sys

import pytest

from spanjax.training.heap import computes_on_cpu

PAGES_OF_BLOCK = """
import resource, sys, threading
import numpy as np
from spanjax.training.heap import keep_freed_blocks

print(keep_freed_blocks() if sys.argv[1] == "kept" else "left")
faults = []


def step():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    np.ones(2**27, np.uint8)
    faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)


worker = threading.Thread(target=lambda: [step() for _ in range(3)])
worker.start()
worker.join()
print(*faults)
"""


def faults(kind: str, **environment: str) -> tuple[str, list[int]]:
    """(what was said, page faults of three steps that each fill 128 MiB on a thread)."""
    given = {"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "NUMPY_MADVISE_HUGEPAGE": "0", **environment}
    done = subprocess.run(
        [sys.executable, "-c", PAGES_OF_BLOCK, kind], capture_output=True, text=True, check=True, env=given
    )
    said, counted = done.stdout.splitlines()
    return said, [int(each) for each in counted.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_a_block_that_was_freed_is_not_asked_for_again():
    said, (_, second, third) = faults("kept")
    assert said == "True"
    assert max(second, third) < 100
    said, (_, second, third) = faults("left")
    assert min(second, third) > 10_000


def test_an_allocator_that_the_user_has_set_stays():
    assert faults("kept", MALLOC_ARENA_MAX="4")[0] == "False"


def test_an_accelerator_leaves_the_allocator_alone():
    assert faults("kept", JAX_PLATFORMS="cuda")[0] == "False"
    assert computes_on_cpu({"JAX_PLATFORMS": "cpu"})
    assert not computes_on_cpu({"JAX_PLATFORMS": "tpu,cpu"})
