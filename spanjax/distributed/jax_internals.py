"""The private parts of jax that spanjax uses, each with the reason; no other file imports `jax._src`.

`missing` checks all of them on the installed jax, for `spanjax.doctor`. Importing this file does not import jax.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

NAMES: Mapping[str, tuple[str, ...]] = {
    # the key-value store and barriers of the coordinator, which jax's public API reaches only through devices
    "jax._src.distributed": ("global_state.client", "global_state.process_id", "global_state.preemption_sync_manager"),
    # gloo on one network interface: the public options of jax have no address
    "jax._src.xla_bridge": ("make_cpu_client", "register_backend_factory"),
    "jax._src.lib": ("_jax.make_gloo_tcp_collectives",),
    # the answer of a TPU VM's metadata server, without joining the other processes yet
    "jax._src.clusters": ("ClusterEnv.auto_detect_unset_distributed_params",),
    # questions to a GPU that is only planned for, and packed rows, which `jax.nn.dot_product_attention` does not take
    "jax._src.cudnn.fused_attention_stablehlo": (
        *("check_cudnn_version", "check_compute_capability", "is_cuda_compute_capability_equal"),
        *("dot_product_attention", "MaskType.PADDING"),
    ),
    # kernels for GPUs on a CPU, whose parameters jax does not export
    "jax._src.pallas.mosaic_gpu.interpret.params": ("InterpretGPUParams",),
}
"""Module -> the names in it that are used here."""


def missing(names: Mapping[str, tuple[str, ...]] = NAMES) -> list[str]:
    """Lists full names that the installed jax does not have."""
    lacking = []
    for module, used in names.items():
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            lacking.append(module)
            continue
        for name in used:
            value = found
            for part in name.split("."):
                # an attribute that is None until processes have joined exists all the same
                value = getattr(value, part, lacking)
                if value is lacking:
                    lacking.append(f"{module}.{name}")
                    break
    return lacking


def coordination() -> Any:
    """jax's state of `jax.distributed`: `client` and `preemption_sync_manager` (None in a single process), `process_id`."""
    return importlib.import_module("jax._src.distributed").global_state


def jax_on_any_thread() -> Any:
    """Returns jax, in functions that may run on threads.

    tensorflow_datasets replaces `builtins.__import__` for a while, for all threads: an import statement then gets a stand-in of
    the module. `importlib.import_module` does not go through it.
    """
    return importlib.import_module("jax")


def detected_pod(*arguments: Any) -> tuple[Any, ...]:
    """(coordinator, processes, process id, local devices): jax's own detection fills in those of `arguments` that are None."""
    from jax._src import clusters

    return clusters.ClusterEnv.auto_detect_unset_distributed_params(*arguments)


def use_gloo_at(address: str) -> None:
    """Makes the CPU backend, before it starts, reach other processes through gloo at this address of the host."""
    from jax._src import xla_bridge
    from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

    def client() -> Any:
        collectives = _jax.make_gloo_tcp_collectives(distributed_client=coordination().client, hostname=address)
        return xla_bridge.make_cpu_client(collectives)

    xla_bridge.register_backend_factory("cpu", client, priority=0, fail_quietly=False)


@contextlib.contextmanager
def cudnn_answers(version: int, capability: float) -> Iterator[None]:
    """Answers jax's questions about cuDNN and the GPU with these values while a step is traced without either."""
    from jax._src.cudnn import fused_attention_stablehlo as module

    answers: dict[str, Callable[..., Any]] = {
        "check_cudnn_version": lambda: version,
        "check_compute_capability": lambda asked: float(asked) <= capability,
        "is_cuda_compute_capability_equal": lambda asked: float(asked) == capability,
    }
    before = {name: getattr(module, name) for name in answers}
    try:
        for name, answer in answers.items():
            setattr(module, name, answer)
        yield
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def packed_cudnn_attention(
    query_BLNH: Any, key_BLNH: Any, value_BLNH: Any, lengths_BM: Any, begins_BM1: Any, scale: float
) -> Any:
    """cuDNN's fused attention inside of the blocks of each row: [B, L, N, H] -> [B, L, N, H].

    int32 lengths and begins are -1 beyond the blocks of a row; positions of no block are not written. Needs cuDNN and a GPU of
    compute capability 9.0 or later, or `cudnn_answers`, where it is traced.
    """
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    bounds = {"q_seqlen": lengths_BM, "kv_seqlen": lengths_BM, "q_offsets": begins_BM1, "kv_offsets": begins_BM1}
    return dot_product_attention(query_BLNH, key_BLNH, value_BLNH, **bounds, scale=scale, mask_type=MaskType.PADDING)


def gpu_interpreter(detect_races: bool = False) -> Any:
    """The argument `interpret` of a Mosaic GPU kernel that runs it on a CPU, with its barriers and copies."""
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    return InterpretGPUParams(detect_races=detect_races)
