"""The project's kernels, tried on this machine's device by the trials of a run: right, and faster than what a run takes else.

Each is tried in a process of its own, as a kernel can crash or never end. What these processes run is `supported` and `tried`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from spanjax.doctor.checks import Finding

LENGTH, HEAD_SIZE, WIDTH, DTYPE, RATE = 512, 64, 768, "bfloat16", 0.1  # of SpanBERT base
LOCAL = (2048, 64)
"""Length of rows and window of local layers."""
PROGRAM = """
import json
from spanjax.doctor.kernels import supported, tried
print({mark!r} + json.dumps({call}))
"""

Trial = Callable[[], tuple[float, float]]


def check_kernels(ask: Callable[[str], tuple[Any, str]]) -> list[Finding]:
    """Tries every kernel of the project that this machine's device supports, one after the other; a finding for each.

    `ask` evaluates a call of this module's `supported` or `tried` in a new process, and returns its value and its error: one of
    the two is empty. A kernel that is slower is a note, one that is wrong or does not run a failure.
    """
    found, problem = ask("supported()")
    if problem:
        return [Finding("kernels", "fail", problem)]
    kind, names = found
    if not names:
        return [Finding("kernels", "note", f"none of the project's kernels is for this device ({kind})")]
    findings = []
    for name in names:
        seconds, problem = ask(f"tried({name!r})")
        if problem:
            advice = "a run by auto does without it; report this with the versions above"
            findings.append(Finding(f"kernel {name}", "fail", f"{problem}: {advice}"))
            continue
        own, plain, other = seconds
        text = f"equal to xla, {own * 1e3:.2f} ms in place of {plain * 1e3:.2f} by {other}" if own else "equal to xla"
        slower = own > plain
        text += ": a run by auto does without it" * slower
        findings.append(Finding(f"kernel {name}", "note" if slower else "ok", text))
    return findings


def supported() -> tuple[str, list[str]]:
    """(kind of this machine's first device, names of the kernels that it supports)."""
    kind, trials = _here()
    return kind, list(trials)


def tried(name: str) -> tuple[float, float, str]:
    """(seconds of a kernel, of what a run takes else, its name) for some rows; 0 seconds where nothing is timed.

    ValueError if the kernel computes something else than `xla`.
    """
    other, trial = _here()[1][name]
    return *trial(), other


def _here() -> tuple[str, Mapping[str, tuple[str, Trial]]]:
    """(kind of this machine's first device, its trials)."""
    import jax

    from spanjax.nn.attention import platform_name

    device = jax.devices()[0]
    return device.device_kind, _trials(platform_name(device.platform), device.device_kind)


def _trials(platform: str, kind: str) -> Mapping[str, tuple[str, Trial]]:
    """Name of a kernel that such a device supports -> (what it replaces, its trial in the sizes of SpanBERT base)."""
    import jax.numpy as jnp

    from spanjax.nn import relative, residual_norm
    from spanjax.nn.attention import DROPPING, KERNELS, cudnn_packed, pallas_tpu
    from spanjax.nn.attention.request import Request

    dtype, plain = jnp.dtype(DTYPE), "xla_chunked" if platform == "tpu" else "xla"
    request = Request(platform, LENGTH, HEAD_SIZE, dtype, RATE, kind)
    length, window = LOCAL
    # without dropout a TPU's local layers are those of splash, which skips on its own
    rate, beside = (RATE, plain) if platform == "tpu" else (0.0, "cudnn")
    local = Request(platform, length, HEAD_SIZE, dtype, rate, kind, window)
    trials: dict[str, tuple[str, Trial]] = {}
    for name in DROPPING:
        verify: Any = KERNELS[name].verify
        if KERNELS[name].supports(request) is None:
            trials[name] = plain, functools.partial(verify, LENGTH, HEAD_SIZE, DTYPE, 0, RATE, plain)
        if KERNELS[name].supports(local) is None:
            of_local = functools.partial(verify, length, HEAD_SIZE, DTYPE, window, rate, beside)
            trials[f"{name}, window {window}"] = beside, of_local
    if cudnn_packed.supports(Request(platform, LENGTH, HEAD_SIZE, dtype, 0.0, kind)) is None:
        trials["cudnn_packed"] = "cudnn", lambda: cudnn_packed.verify(LENGTH, HEAD_SIZE, DTYPE) or (0.0, 0.0)
    if pallas_tpu.supports_distances(request, LENGTH) is None:
        trials["pallas_tpu of XLNet"] = "xla", lambda: relative.verify(LENGTH, LENGTH, HEAD_SIZE, DTYPE, RATE)
    if residual_norm.supports(platform, kind, WIDTH, dtype) is None:
        trials["residual_norm"] = "xla", lambda: residual_norm.verify(WIDTH, DTYPE, RATE, 1e-12)
    return trials
