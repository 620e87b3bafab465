"""The kinds of faults: what is done to a run, and how it takes it."""

import contextlib
import dataclasses
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Literal

from tests.chaos.supervisor import STALL_EXIT_SECONDS, Supervisor, Surroundings

FULL_SECONDS = 120.0


def kill_one(run: Supervisor) -> None:
    run.victim().kill()


def kill_all(run: Supervisor) -> None:
    run.signal_all(signal.SIGKILL)


def kill_while_saving(run: Supervisor) -> None:
    folder = run.workdir / "checkpoints"
    run.wait(lambda: any("tmp" in p.name for p in folder.iterdir()))
    run.signal_all(signal.SIGKILL)


def starting(run: Supervisor) -> None:
    """All processes at some moment of their start."""
    run.kill()
    run.launch()
    time.sleep(run.random.uniform(0.5, 8))


def kill_while_starting(run: Supervisor) -> None:
    starting(run)
    run.victim().kill()


def terminate_while_starting(run: Supervisor) -> None:
    starting(run)
    run.victim().terminate()


def terminate_all_while_starting(run: Supervisor) -> None:
    starting(run)
    run.signal_all(signal.SIGTERM)


def send_one(number: signal.Signals) -> Callable[[Supervisor], None]:
    """The signal to any process."""
    return lambda run: run.victim().send_signal(number)


def usr1_all(run: Supervisor) -> None:
    run.signal_all(signal.SIGUSR1)


def terminate_twice(run: Supervisor) -> None:
    """A scheduler that does not wait."""
    run.signal_all(signal.SIGTERM)
    time.sleep(run.random.uniform(0.01, 0.5))
    run.signal_all(signal.SIGTERM)


def pause(run: Supervisor) -> None:
    victim = run.victim()
    victim.send_signal(signal.SIGSTOP)
    time.sleep(run.random.uniform(1, 5))
    victim.send_signal(signal.SIGCONT)


def block(run: Supervisor) -> None:
    """One process lives, sends its heartbeats, and never comes to the next collective (jax issue 38503)."""
    file, stuck = run.slow.with_name(run.slow.name + ".blocked"), run.running.index(run.victim())
    file.write_text(str(stuck))
    try:
        named_and_left(run, stuck if run.processes > 1 else None)
    finally:
        file.unlink()


def stop_for_ever(run: Supervisor) -> None:
    """SIGSTOP, to the process of the coordinator or to another one; not even its threads run."""
    victim = run.victim()
    victim.send_signal(signal.SIGSTOP)
    named_and_left(run, run.running.index(victim))


def named_and_left(run: Supervisor, stuck: int | None) -> None:
    """A process names this one and ends with 3, or this one itself does; then a launcher kills those that are left."""
    assert not run.wait(lambda: False, STALL_EXIT_SECONDS + END_OF_SECOND)
    left = [process for process in run.running if process.poll() is None]
    codes = {each: process.returncode for each, process in enumerate(run.running) if process not in left}
    assert 3 in codes.values() and {*codes.values()} <= {3, -signal.SIGABRT}, (codes, run.printed())
    blame = "this process waits for its devices" if stuck is None else rf"process {stuck} \(\S+\)"
    words = rf"guard.stall_exit_seconds\): {blame}|^spanjax.train: after step \d+: .*{blame}"
    assert re.search(words, run.printed(), re.MULTILINE), run.printed()
    run.signal_all(signal.SIGKILL)


def slow_feed(run: Supervisor) -> None:
    run.slow.touch()
    run.wait(lambda: "waits for rows" in run.printed(), 30)
    run.slow.unlink()


def wait_for_a_failed_save(run: Supervisor) -> None:
    assert run.wait(lambda: "could not be written" in run.printed(), FULL_SECONDS), run.printed()


def full_disk(run: Supervisor) -> None:
    filler = run.workdir.parent / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    try:
        wait_for_a_failed_save(run)
    finally:
        filler.unlink()


@contextlib.contextmanager
def read_only(folder: pathlib.Path) -> Iterator[None]:
    """A folder that refuses writes, also those of root; what is open stays open."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def read_only_disk(run: Supervisor) -> None:
    with read_only(run.workdir / "checkpoints"):
        wait_for_a_failed_save(run)


def read_only_start(run: Supervisor) -> None:
    run.victim().terminate()
    run.ended()
    with read_only(run.workdir):
        run.launch()
        run.ended()


def limited(run: Supervisor, kind: int, most: int) -> None:
    """All processes under a limit of the system until a save has failed."""
    before = [resource.prlimit(process.pid, kind) for process in run.running]
    for process, (_, hard) in zip(run.running, before, strict=True):
        resource.prlimit(process.pid, kind, (most, hard))
    try:
        wait_for_a_failed_save(run)
    finally:
        for process, limits in zip(run.running, before, strict=True):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, kind, limits)


def no_more_open_files(run: Supervisor) -> None:
    limited(run, resource.RLIMIT_NOFILE, 3)


def small_files(run: Supervisor) -> None:
    """Small enough for no checkpoint, large enough for what is printed."""
    printed = max(run.output(each).stat().st_size for each in range(run.processes))
    limited(run, resource.RLIMIT_FSIZE, printed + 4096)


def newest_file(run: Supervisor) -> pathlib.Path:
    """The largest file of the newest checkpoint's state, the processes having been killed."""
    run.kill()
    folder = run.workdir / "checkpoints" / str(run.saved()[-1]) / "state"
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


@contextlib.contextmanager
def held_evaluation(run: Supervisor) -> Iterator[None]:
    """All processes at the beginning of an evaluation, their main threads blocked there."""
    held, evaluating = (run.slow.with_name(run.slow.name + end) for end in (".evaluation", ".evaluating"))
    evaluating.unlink(missing_ok=True)
    held.touch()
    try:
        run.wait(evaluating.exists)
        time.sleep(2)  # the others come there too, and the save before it ends
        yield
    finally:
        held.unlink()


def terminate_evaluation(run: Supervisor) -> None:
    with held_evaluation(run):
        run.victim().terminate()
        run.ended(30)


def kill_evaluation(run: Supervisor) -> None:
    with held_evaluation(run):
        run.victim().kill()
        time.sleep(1)


def truncate_checkpoint(run: Supervisor) -> None:
    file = newest_file(run)
    os.truncate(file, file.stat().st_size // 2)


def flip_byte(run: Supervisor) -> None:
    file = newest_file(run)
    content = bytearray(file.read_bytes())
    content[run.random.randrange(len(content))] ^= 1 << run.random.randrange(8)
    file.write_bytes(content)


def remove_file(run: Supervisor) -> None:
    newest_file(run).unlink()


def half_a_line(run: Supervisor) -> None:
    run.kill()
    file = run.workdir / "metrics.jsonl"
    os.truncate(file, file.stat().st_size - run.random.randrange(2, 40))


def bad_byte(run: Supervisor) -> None:
    run.kill()
    file = run.workdir / "metrics.jsonl"
    content = bytearray(file.read_bytes())
    content.insert(run.random.randrange(len(content) - 1), 0xFF)
    file.write_bytes(content)


def damaged_cache(run: Supervisor) -> None:
    run.kill()
    for file in run.cache.rglob("*"):
        if file.is_file():
            os.truncate(file, file.stat().st_size // 2)


def shard(run: Supervisor) -> pathlib.Path:
    """A file of tokens that training reads."""
    return next(path for path in sorted((run.rows / "train").rglob("*.bin")) if path.stat().st_size)


def cut_rows(run: Supervisor) -> None:
    file = shard(run)
    content = file.read_bytes()
    os.truncate(file, 64)
    try:
        run.ended()
    finally:
        file.write_bytes(content)


def zeroed_rows(run: Supervisor) -> None:
    run.victim().terminate()
    run.ended()
    file = shard(run)
    content = file.read_bytes()
    file.write_bytes(bytes(len(content)))
    try:
        run.launch()
        run.ended()
    finally:
        file.write_bytes(content)


def same_folder(run: Supervisor) -> None:
    """The same command once more, while the first runs."""
    second = run.start(run.arguments(run.workdir), "second")
    codes = {process.wait(END_OF_SECOND) for process in second}
    assert 2 in codes and codes <= {2, 3}, (codes, run.printed("second"))
    assert "another" in run.printed("second"), run.printed("second")


END_OF_SECOND = 120.0
Way = Literal["ends", "saves", "goes on", "damaged", "starts", "refuses", "surroundings"]
"""How a run takes a fault: it ends; ends after saving; goes on; finds a damaged checkpoint; ends while it starts, with something
saved or not; says what a person has to change and ends; or runs for a while in other surroundings and ends after saving."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    way: Way
    act: Callable[[Supervisor], None] = lambda run: None
    surroundings: Surroundings = Surroundings()
    mounts: bool = False
    """It needs the right to mount."""
    several: bool = False
    """Only several processes survive it."""


def within(**surroundings: object) -> Kind:
    """A while in these surroundings."""
    return Kind("surroundings", surroundings=Surroundings(**surroundings))  # pyright: ignore[reportArgumentType]


BAD_BYTE = "kill -9, a bad byte in the metrics"
NOWHERE = "/dev/null/nowhere"
NO_CACHE = {"JAX_COMPILATION_CACHE_DIR": None}
KINDS: dict[str, Kind] = {
    "kill -9 of one process": Kind("ends", kill_one),
    "kill -9 of all processes": Kind("ends", kill_all),
    "kill -9 while a checkpoint is being written": Kind("ends", kill_while_saving),
    "kill -9 of one process while all start": Kind("ends", kill_while_starting),
    "SIGTERM to one process while all start": Kind("starts", terminate_while_starting),
    "SIGTERM to all processes while they start": Kind("starts", terminate_all_while_starting),
    "SIGTERM to one process": Kind("saves", send_one(signal.SIGTERM)),
    "SIGHUP to one process": Kind("saves", send_one(signal.SIGHUP)),
    "SIGINT to one process": Kind("saves", send_one(signal.SIGINT)),
    "SIGUSR1 to all processes": Kind("saves", usr1_all),
    "SIGTERM to all processes, and again": Kind("saves", terminate_twice),
    "SIGSTOP of one process for 1 to 5 s": Kind("goes on", pause),
    "a process that is alive and blocked for ever": Kind("ends", block),
    "SIGSTOP of one process for ever": Kind("ends", stop_for_ever, several=True),
    "rows that do not come for a while": Kind("goes on", slow_feed),
    "the same command a second time": Kind("goes on", same_folder),
    "a full disk, until a save has failed": Kind("goes on", full_disk, mounts=True),
    "a read-only disk, until a save has failed": Kind("goes on", read_only_disk, mounts=True),
    "no more open files, until a save has failed": Kind("goes on", no_more_open_files),
    "only small files, until a save has failed": Kind("goes on", small_files),
    "a start on a read-only disk": Kind("refuses", read_only_start, mounts=True),
    "a shard of the rows cut": Kind("refuses", cut_rows),
    "a start with a shard of zeros": Kind("refuses", zeroed_rows),
    "kill -9, newest checkpoint cut to half": Kind("damaged", truncate_checkpoint),
    "kill -9, one bit of the newest checkpoint turned": Kind("damaged", flip_byte),
    "kill -9, a file of the newest checkpoint missing": Kind("damaged", remove_file),
    "kill -9, last line of the metrics cut": Kind("ends", half_a_line),
    BAD_BYTE: Kind("ends", bad_byte),
    "kill -9, the compilation cache cut to half": Kind("ends", damaged_cache),
    "SIGTERM to one process in an evaluation": Kind("saves", terminate_evaluation),
    "kill -9 of one process in an evaluation": Kind("ends", kill_evaluation),
    "HOME is no folder": within(variables={"HOME": NOWHERE, **NO_CACHE}),
    "no HOME, no USER": within(variables={"HOME": None, "USER": None, "LOGNAME": None, **NO_CACHE}),
    "TMPDIR is no folder": within(variables={"TMPDIR": NOWHERE}),
    "locale C, output in ASCII": within(
        variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    ),
    "a terminal of no name and a column": within(variables={"TERM": None, "COLUMNS": "1", "LINES": "1"}),
    "closed output": within(redirect=">&- 2>&-"),
    "closed input, output and errors": within(redirect="<&- >&- 2>&-"),
    "output on a full device": within(redirect=">/dev/full 2>&1"),
    "output into head": within(head=True),
    "at most 128 open files": within(shell="ulimit -n 128;"),
    "umask 077": within(shell="umask 077;"),
}
TASK_KINDS = (
    "SIGTERM to one process in an evaluation",
    "kill -9 of one process in an evaluation",
    "SIGTERM to one process",
    "kill -9 of all processes",
    "SIGTERM to all processes while they start",
    "SIGHUP to one process",
    "a full disk, until a save has failed",
    "output into head",
)
"""Those that a task goes through as well: it trains and evaluates by code of its own."""


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, size: int) -> Iterator[bool]:
    """A file system of so many bytes, where this machine lets us mount one; else a plain folder."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "spanjax-chaos", str(folder)]
    mounted = shutil.which("mount") is not None and not subprocess.run(command, capture_output=True).returncode
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
