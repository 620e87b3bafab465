"""Trials of the project's kernels on the devices of a run: whether they are right and faster there, before it takes them."""

import hashlib
import json
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

import spanjax.nn
from spanjax.distributed import all_gather_text
from spanjax.json_files import JsonError, read_json
from spanjax.storage.local import user_cache, write_whole
from spanjax.training.compilation_cache import OFF, VARIABLE

SECONDS = 120
Trial = Callable[[], tuple[float, float]]
"""Returns the seconds of a kernel and of what it replaces; raises if the kernel computes something else."""


def stuck(name: str, setting: str) -> str:
    """Returns the message on a kernel whose trial takes long."""
    return (
        f"the kernel {name} has not ended its trial on this device after {SECONDS} s: if it takes minutes, stop the run, and"
        f" start it with --{setting} xla"
    )


def tried(
    wanted: str, reason: str, trial: Trial, name: str, other: str = "xla", setting: str = "encoder.attention"
) -> tuple[str, str]:
    """Returns the kernel `name` where it is right on every process's device, and faster than `other` unless it was named, else
    `other`; the same on all processes, with the reason. A kernel that was named and is wrong raises ValueError."""
    # a kernel that never ends cannot be stopped from here, but its user can learn what the run waits for
    slow = threading.Timer(SECONDS, lambda: print(stuck(name, setting), file=sys.stderr, flush=True))
    slow.daemon = True
    slow.start()
    try:
        own, plain = trial()
        spent = f"{own * 1e3:.2f} ms in place of {plain * 1e3:.2f} a layer of some rows"
        problem = "" if own < plain or wanted != "auto" else f"it is slower than {other} on this device: {spent}"
    except Exception as error:
        # whatever keeps it from running: unless it was named, a run without it is better than none
        spent, problem = "", f"{type(error).__name__}: {error}"
    finally:
        slow.cancel()
    # processes that took different backends would compile different steps, and wait for each other
    problem = next(filter(None, all_gather_text(f"kernel of {setting}", problem)), "")
    if problem and wanted != "auto":
        raise ValueError(f"{setting} {name!r} cannot be used: {problem}")
    if problem:
        return other, f"not {name}: {problem}"
    return name, f"{reason}; equal to xla on this device, {spent}"


def remembered(name: str, shape: Sequence[Any], trial: Trial) -> tuple[float, float]:
    """The seconds of a trial: those of an earlier one, from this user's cache, where the kind of device, jax, the kernels' source
    and the shape are the same. Trials that failed are not kept, and SPANJAX_COMPILATION_CACHE=off keeps none."""
    base = user_cache(os.environ)
    if base is None or os.environ.get(VARIABLE, "").strip().lower() in OFF:
        return trial()
    about = {
        "kernel": name,
        "shape": [str(each) for each in shape],
        "device": jax.local_devices()[0].device_kind,
        "jax": jax.__version__,
        "source": _source(),
    }
    file = base / "trials" / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}.json"
    try:
        found = read_json(file)
        own, plain = (float(each) for each in found["seconds"])
        if found["trial"] == about and min(own, plain) > 0:
            return own, plain
    except (OSError, JsonError, KeyError, TypeError, ValueError):
        pass  # no entry, or a broken one: it is made anew
    own, plain = trial()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(file, json.dumps({"trial": about, "seconds": [own, plain]}))
    except OSError:
        pass  # the cache only saves time
    return own, plain


def _source() -> str:
    """Digest of the modules that define the kernels and the formulas that they are compared with."""
    files = sorted(pathlib.Path(spanjax.nn.__path__[0]).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
