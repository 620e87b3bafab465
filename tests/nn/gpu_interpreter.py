"""jax's interpreter of Mosaic GPU kernels for tests: without compiling every program of the grid again, and its races."""

import threading
from typing import Any

import jax
import pytest
from jax._src.pallas.mosaic.interpret import thread_map  # pyright: ignore[reportPrivateImportUsage]
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks  # pyright: ignore[reportPrivateImportUsage]


def compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all programs of a grid, and all their groups, run one compiled function. jax compiles each, a second at a time."""
    lock, compiled = threading.Lock(), dict[int, tuple[Any, Any]]()

    def run(jaxpr: Any, constants: Any, *arguments: Any) -> None:
        with lock:
            if id(jaxpr) not in compiled:
                traced = jax.jit(lambda constants, *given: jax.core.eval_jaxpr(jaxpr, constants, *given) and None)
                # the entry keeps the program alive, so that no other one gets its number
                compiled[id(jaxpr)] = jaxpr, traced.lower(constants, *arguments).compile()
        compiled[id(jaxpr)][1](constants, *arguments)

    monkeypatch.setattr(thread_map, "_run_jaxpr", run)


def races_found() -> bool:
    """Did the last kernel read or write shared memory at the same time from two sides? It was run to detect races."""
    return bool(gpu_callbacks.get_races().races_found)


def reset() -> None:
    """Forgets the state of a kernel that raised."""
    gpu_callbacks.reset_gpu_interpret_mode_state()
