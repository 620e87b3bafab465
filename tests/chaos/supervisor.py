"""What a scheduler does: starts the processes of a run, and starts them again when they have ended."""

import contextlib
import dataclasses
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from spanjax.launch.processes import free_port
from tests.running import ROOT, TINY, environment, last_step, shrunk, wait_until

EVERY, ADVANCE = 10, 12
LOG = 4
"""Steps between records: stops and checkpoints lie between them, and every record is that of the undisturbed run."""
DISK = 64 * 2**20
END_SECONDS, START_SECONDS = 240.0, 40
STALL_EXIT_SECONDS = 25
"""More than any other fault makes a process wait for the others, and less than the 30 s that gloo waits."""


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """In what the processes of one launch find themselves."""

    variables: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    """Environment variables; None removes one."""
    shell: str = ""
    """What a shell does before the command takes its place, such as "umask 077;"."""
    redirect: str = ""
    """How the shell redirects the command."""
    head: bool = False
    """The output is a pipe into `head`, which ends after a line."""


ORDINARY = Surroundings()


class Supervisor:
    """A run of some processes in a folder of its own."""

    def __init__(
        self, folder: pathlib.Path, rows: pathlib.Path, processes: int, steps: int, seed: int, task: bool = False
    ):
        """`rows` for pretraining; for a `task`, a folder with train.jsonl, dev.jsonl and a vocabulary."""
        self.folder, self.processes, self.steps, self.task = folder, processes, steps, task
        self.random, self.running = random.Random(seed), list[subprocess.Popen]()
        self.workdir, self.slow, self.launches = folder / "disk" / "run", folder / "slow", 0
        self.cache = folder / "compiled"
        # in the background of a shell; children would ignore Ctrl-C too
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.rows = folder / "rows"  # faults damage them
        shutil.copytree(rows, self.rows)

    def arguments(self, workdir: pathlib.Path) -> list[str]:
        """Those of spanjax.train."""
        more = [f"--cadence.checkpoint-every={EVERY}", f"--cadence.eval-every={2 * EVERY}", "--encoder.dropout=0.1"]
        more += [f"--cadence.log-every={LOG}", "--cadence.retry-save-steps=3", "--guard.stall-seconds=1"]
        more += [f"--guard.stall-exit-seconds={STALL_EXIT_SECONDS}", "--batch-size=12"]
        if not self.task:
            return shrunk("configs/pretrain/demo.py", self.rows, workdir, self.steps, "--data.feed=numpy", *more)
        arguments = ["--config=configs/finetune/glue.py", *TINY, f"--workdir={workdir}", f"--steps={self.steps}"]
        arguments += [f"--objective.{name}={self.rows / name}.jsonl" for name in ("train", "dev")]
        return [*arguments, f"--objective.vocabulary={self.rows / 'vocabulary'}", "--objective.length=32", *more]

    def launch(self, workdir: pathlib.Path | None = None, surroundings: Surroundings = ORDINARY) -> None:
        """Starts all processes; what they print goes to a file each."""
        self.launches += 1
        self.running = self.start(self.arguments(workdir or self.workdir), str(self.launches), surroundings)

    def start(self, arguments: list[str], name: str, surroundings: Surroundings = ORDINARY) -> list[subprocess.Popen]:
        """The processes of one command, which meet at a port of their own."""
        common = {"SPANJAX_CHAOS_SLOW": str(self.slow), "SPANJAX_STARTUP_TIMEOUT": str(START_SECONDS)}
        common |= {"JAX_COMPILATION_CACHE_DIR": str(self.cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        if self.processes > 1:
            port = free_port()
            common |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": str(self.processes)}
        command = [sys.executable, "-m", "tests.chaos.held_train", *arguments]
        if surroundings.shell or surroundings.redirect:
            command = ["bash", "-c", f'{surroundings.shell} exec "$@" {surroundings.redirect}', "run", *command]
        started = []
        for each in range(self.processes):
            mine = {**common, "JAX_PROCESS_ID": str(each)} if self.processes > 1 else common
            variables = {**environment(1, **mine), **surroundings.variables}
            with self.output(each, name).open("w") as output:
                target: Any = output
                if surroundings.head:
                    head = subprocess.Popen(["head", "-n1"], stdin=subprocess.PIPE, stdout=output)
                    target = head.stdin
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={key: value for key, value in variables.items() if value is not None},
                    stdout=target,
                    stderr=subprocess.STDOUT,
                )
                if surroundings.head:
                    target.close()
            started.append(process)
        return started

    def output(self, process: int, name: str = "") -> pathlib.Path:
        """The file with what a process printed."""
        return self.folder / f"output-{name or self.launches}-{process}.txt"

    def printed(self, name: str = "") -> str:
        """What all have printed since they were launched last."""
        return "\n".join(self.output(each, name).read_text(errors="replace") for each in range(self.processes))

    def wait(self, condition: Callable[[], Any], seconds: float = END_SECONDS) -> bool:
        """Waits for it, or for the end of a process; whether it came."""
        try:
            return wait_until(self.running, condition, seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}:\n{self.printed()}") from None

    def ended(self, seconds: float = END_SECONDS) -> tuple[int, ...]:
        """Waits until all have ended; TimeoutError where one hangs on, all of them killed."""
        until = time.monotonic() + seconds
        for process in self.running:
            try:
                process.wait(max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.signal_all(signal.SIGKILL)
                raise TimeoutError(f"a process did not end:\n{self.printed()}") from None
        return tuple(process.returncode for process in self.running)

    def signal_all(self, number: int) -> None:
        """The signal, to every process that is there."""
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def kill(self) -> None:
        """All processes, and waits until they are gone."""
        self.signal_all(signal.SIGKILL)
        self.ended()

    def logged(self) -> int:
        """The newest step in the metrics."""
        return last_step(self.workdir)

    def saved(self) -> list[int]:
        """Steps with a finished checkpoint."""
        folder = self.workdir / "checkpoints"
        return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []

    def victim(self) -> subprocess.Popen:
        """Any process."""
        return self.random.choice(self.running)
