"""One cache of compiled programs per user, shared by every run, evaluation and prediction on a machine.

Every batch length is a program that takes seconds to compile, and a second run compiles the same programs. The cache is jax's
own (it evicts the least recently used entries); this module sets its folder, and no fault of the cache fails a run.
"""

import contextlib
import hashlib
import importlib.util
import os
import pathlib
import platform
import stat
import sys
from collections.abc import Mapping
from typing import Annotated

import tyro

from spanjax.storage.local import user_cache

VARIABLE = "SPANJAX_COMPILATION_CACHE"
OFF = ("off", "0", "false", "no")
JAX_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
SETTINGS: Mapping[str, float] = {
    # the programs of a MiniLM fine-tune take 0.04 to 0.2 MiB each, so this holds thousands of them
    "jax_compilation_cache_max_size": 2**30,
    # jax's default of 1 s leaves the small programs of a start-up out
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
"""Options of jax for the user's cache; an environment variable of the same name, in capitals, has precedence."""
ENTRY, USED = "-cache", "-atime"  # endings of jax's two files of a program: itself, and when it was last used

CompilationCache = Annotated[
    bool,
    tyro.conf.arg(
        help="Keep compiled programs in ~/.cache/spanjax/compiled for the next command (docs/tasks.md); also"
        f" {VARIABLE}=off."
    ),
]
"""The flag of every command line that compiles."""


def use_compilation_cache(wanted: bool = True) -> None:
    """Points jax at the cache of this user; call it before anything is compiled.

    A folder in JAX_COMPILATION_CACHE_DIR keeps jax's own options. `wanted` False or SPANJAX_COMPILATION_CACHE=off turns every
    cache off. Process 0 reports an unusable folder once, on stderr.
    """
    import jax

    if not wanted or os.environ.get(VARIABLE, "").strip().lower() in OFF:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if os.environ.get(JAX_VARIABLE):
        return
    try:
        folder = cache_folder()
        open_folder(folder)
    except (OSError, RuntimeError) as error:
        # a cache only saves time, so that a command without one runs on
        if jax.process_index() == 0:
            print(
                f"no compilation cache: {error}; every command compiles anew. Set XDG_CACHE_HOME or {JAX_VARIABLE} to a folder"
                f" of yours, or {VARIABLE}=off",
                file=sys.stderr,
            )
        return
    for name, value in SETTINGS.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    jax.config.update("jax_compilation_cache_dir", str(folder))


def cache_folder(environment: Mapping[str, str] = os.environ) -> pathlib.Path:
    """$XDG_CACHE_HOME/spanjax/compiled/MACHINE, else ~/.cache/...; RuntimeError without a home."""
    base = user_cache(environment)
    if base is None:
        raise RuntimeError("HOME is not set")
    return base / "compiled" / machine_kind()


def machine_kind(cpuinfo: pathlib.Path = pathlib.Path("/proc/cpuinfo")) -> str:
    """Name of this kind of host, such as x86_64-2-1f0c6d3a: processor, cores of this process, digest of its instructions.

    Unlike machines share homes, and code that XLA compiles for one CPU can be an illegal instruction on another; it also
    divides loops by the number of cores.
    """
    features = platform.processor()
    with contextlib.suppress(OSError):
        lines = cpuinfo.read_text(errors="replace").splitlines()
        # "flags" of x86, "Features" of Arm
        features = next((line for line in lines if line.startswith(("flags", "Features"))), features)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()}-{cores}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


def open_folder(folder: pathlib.Path) -> None:
    """Makes the folder, checks that it is this user's alone, and repairs what a killed process left in it.

    OSError if it cannot be written, RuntimeError if others could write: entries are code that will be run.
    """
    if importlib.util.find_spec("filelock") is None:
        raise RuntimeError("the package filelock is not installed, which jax needs to keep the cache small")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise RuntimeError(f"{folder} belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RuntimeError(f"{folder} can be written by others (chmod 700 makes it yours alone)")
    import filelock

    # jax takes the same lock around every read and write
    with filelock.FileLock(folder / ".lockfile", timeout=10):
        for entry in folder.glob(f"*{ENTRY}"):
            # jax writes the time last: without it the entry may be cut short, and jax would fail at every later write
            if not entry.with_name(entry.name.removesuffix(ENTRY) + USED).is_file():
                entry.unlink()
