"""python -m tests.fuzz.server: a process that has imported spanjax and runs every command line it reads in a fork of itself.

One JSON object a line on stdin (a `Job`), one on stdout (an `Ended`). jax starts no device and no thread before the fork. A
child that uses more than its share of CPU or memory is killed and reported.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any
from unittest import mock

CPU_SECONDS, WALL_SECONDS, GROWTH = 20.0, 240.0, 2 * 2**30
POLL = 0.02
PAGE = resource.getpagesize()
SAID = 20_000  # characters of the output that are reported, from its end
WARM = (
    "jax",
    "flax.nnx",
    "optax",
    "orbax.checkpoint",
    "sentencepiece",
    "tokenizers",
    *(
        f"spanjax.{name}"
        for name in (
            "train",
            "experiment.pretrain",
            "experiment.finetune",
            "prepare",
            "plan",
            "report",
            "launch",
            "doctor",
            "evaluate",
        )
    ),
    *(f"spanjax.{name}" for name in ("convert", "predict", "training.loop", "training.checkpoint", "nn.encoder")),
)


@dataclasses.dataclass(frozen=True)
class Job:
    """One command line."""

    words: list[str]
    """Module of spanjax first: ["prepare", "rows", "--input", ...]."""
    folder: str
    """Where it runs."""
    stop: str = ""
    """A function ("spanjax.train.train_session") that is reached when the input was accepted: the child then ends with 0."""
    variables: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int
    """Exit code, negative for a signal."""
    said: str
    cpu: float
    """Seconds, user and system, of the child and its children."""
    wall: float
    growth: int
    """Bytes beyond what the server has."""
    killed: str = ""
    """Why the server ended it; empty where it ended itself."""


class _Accepted(BaseException):
    """The function of `Job.stop` was called."""


def _resident(process: int) -> int:
    """Bytes in memory; 0 where the process is gone."""
    try:
        return int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _main(job: Job) -> int:
    package, *words = job.words
    main = importlib.import_module(f"spanjax.{package}").main
    if not job.stop:
        return main(words)
    module, _, name = job.stop.rpartition(".")
    with mock.patch.object(importlib.import_module(module), name, side_effect=_Accepted):
        return main(words)


def _child(job: Job, output: pathlib.Path) -> None:
    """Never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, file), (2, file)):
            os.dup2(descriptor, number)
        os.chdir(job.folder)
        os.environ.update(job.variables)
        resource.setrlimit(resource.RLIMIT_CPU, (int(CPU_SECONDS) + 1, int(CPU_SECONDS) + 5))
        code = _main(job)
    except _Accepted:
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


def run(job: Job, output: pathlib.Path) -> Ended:
    """Runs one command line in a fork."""
    base, most, begin, killed = _resident(os.getpid()), 0, time.monotonic(), ""
    child = os.fork()
    if not child:
        _child(job, output)
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        most = max(most, _resident(child) - base)
        if not killed and most > GROWTH:
            killed = f"over {GROWTH / 2**30:.0f} GiB"
        elif not killed and time.monotonic() - begin > WALL_SECONDS:
            killed = f"over {WALL_SECONDS:.0f} s"
        if killed:
            os.kill(child, signal.SIGKILL)
        time.sleep(POLL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has left behind
    said = output.read_text(errors="replace")[-SAID:] if output.exists() else ""
    cpu = usage.ru_utime + usage.ru_stime
    return Ended(os.waitstatus_to_exitcode(status), said, cpu, time.monotonic() - begin, most, killed)


def serve(lines: Sequence[str] | Any, folder: pathlib.Path) -> None:
    """Answers every line."""
    # what a first fork would have to import is imported here once
    for name in WARM:
        importlib.import_module(name)
    for line in lines:
        answer = run(Job(**json.loads(line)), folder / "output")
        os.write(ANSWERS, (json.dumps(dataclasses.asdict(answer)) + "\n").encode())


if __name__ == "__main__":
    ANSWERS = os.dup(1)
    os.dup2(2, 1)  # a library that prints while it is imported does not answer
    serve(sys.stdin, pathlib.Path(sys.argv[1]))
