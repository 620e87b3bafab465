"""Runs one command in several processes on this machine: prefixes their output, forwards signals, returns one exit code."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, TextIO

from spanjax.cli import LAUNCHER, PROCESSES_MISSING, STOPPED, StopSignals
from spanjax.distributed.launchers import EXPECTED, TOKEN
from spanjax.launch.local import Local

POLL_SECONDS, KILL_SECONDS = 0.05, 5.0
PROGRAM = (sys.executable, "-m", "spanjax.train")
CPU_DEVICES = "--xla_force_host_platform_device_count="


def free_port() -> int:
    """Returns a free port of the loopback interface."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environments(settings: Local, inherited: Mapping[str, str], port: int) -> list[dict[str, str]]:
    """Environment variables of each process; `port` is the coordinator's, on the loopback interface."""
    count = settings.processes
    shared = {**inherited, "PYTHONUNBUFFERED": "1"}
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS", "JAX_COORDINATOR_BIND_ADDRESS"):
        shared.pop(name, None)
    shared["JAX_NUM_PROCESSES"] = str(count)
    shared[EXPECTED] = str(settings.gpus or count * settings.cpu_devices)
    shared |= {TOKEN: secrets.token_hex(16), LAUNCHER: str(os.getpid())}
    if not settings.gpus:
        others = [flag for flag in inherited.get("XLA_FLAGS", "").split() if not flag.startswith(CPU_DEVICES)]
        shared["JAX_PLATFORMS"] = "cpu"
        shared["XLA_FLAGS"] = " ".join([*others, f"{CPU_DEVICES}{settings.cpu_devices}"])
    shared |= settings.variables()
    share = settings.gpus // count
    found = []
    for index in range(count):
        own = dict(shared)
        if count > 1:
            own |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_PROCESS_ID": str(index)}
        if settings.gpus:
            own["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(index * share, (index + 1) * share)))
        found.append(own)
    return found


def _copy(source: BinaryIO, target: TextIO, prefix: str, lock: threading.Lock) -> None:
    """Copies the lines of a process with the prefix; lines of different processes never mix."""
    with source:
        for line in source:
            # a closed terminal must not break the pipe: the process could no longer save
            with lock, contextlib.suppress(OSError):
                target.write(prefix + line.decode(errors="replace").rstrip("\r\n") + "\n")
                target.flush()


class Group:
    """Processes of one run. Each has a session of its own, so that Ctrl-C reaches it once, through `send`.

    spanjax.train gets SIGTERM, and so saves, when this process is killed (`command.end_with_launcher`).
    """

    def __init__(self, commands: Sequence[Sequence[str]], variables: Sequence[Mapping[str, str]]):
        lock, self.copies = threading.Lock(), list[threading.Thread]()
        self.running: list[subprocess.Popen[Any]] = []
        for index, (command, own) in enumerate(zip(commands, variables, strict=True)):
            process = subprocess.Popen(
                command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
            self.running.append(process)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                copy = threading.Thread(target=_copy, args=(source, target, f"[{index}] ", lock), daemon=True)
                copy.start()
                self.copies.append(copy)

    def send(self, number: int) -> None:
        """Sends a signal to every process that still runs."""
        for process in self.running:
            if process.poll() is None:
                process.send_signal(number)

    def _wait(self, until: float) -> bool:
        """True if all have ended by then."""
        while any(process.poll() is None for process in self.running):
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def finish(self, grace: float) -> int:
        """Waits for all processes, ends them `grace` seconds after the first failure, and returns the exit code of the run.

        The code is that of the first process that failed, else 75 if one stopped after saving, else 0. A process killed by a
        signal counts as missing to the others: 3; alone, its code is 128 + the number of the signal.
        """
        failed = None
        while failed is None and any(process.poll() is None for process in self.running):
            time.sleep(POLL_SECONDS)
            failed = self._failed()
        failed = self._failed() if failed is None else failed
        if failed is not None and not self._wait(time.monotonic() + grace):
            index, code = failed
            own = self.running[index].returncode
            how = f"was killed by signal {-own}" if own < 0 else f"ended with {code}"
            print(f"process {index} {how}: the others are ended {grace:g} s later", file=sys.stderr)
            self.send(signal.SIGTERM)
            if not self._wait(time.monotonic() + KILL_SECONDS):
                self.send(signal.SIGKILL)
                self._wait(float("inf"))
        for copy in self.copies:
            copy.join(timeout=KILL_SECONDS)
        if failed is not None:
            return failed[1]
        return STOPPED if any(process.returncode == STOPPED for process in self.running) else 0

    def _failed(self) -> tuple[int, int] | None:
        """Returns index and exit code of a process that has failed, else None."""
        for index, process in enumerate(self.running):
            code = process.poll()
            if code is not None and code < 0:
                return index, PROCESSES_MISSING if len(self.running) > 1 else 128 - code
            if code not in (None, 0, STOPPED):
                return index, code
        return None


def run_local(settings: Local, train: Sequence[str], program: Sequence[str] = PROGRAM) -> int:
    """Trains in several processes on this machine; returns the exit code of the run."""
    command = [*program, *train]
    early: list[int] = []
    group: Group | None = None

    def hand_on(number: int, _: object) -> None:
        early.append(number) if group is None else group.send(number)

    with StopSignals(lambda number: None, hand_on):
        variables = environments(settings, os.environ, free_port())
        group = Group([command] * settings.processes, variables)
        for number in early:
            group.send(number)
        return group.finish(settings.grace)
