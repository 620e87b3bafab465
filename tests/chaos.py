"""python -m tests.chaos --faults 60 --processes 3: a run of several processes through one fault after another.

At the end its state is that of a run that nobody disturbed, bit for bit, and so is every number that was logged. Writes
chaos.json: for each kind of fault how often it was tried and survived, the steps of work lost, and how it ended.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from spanjax.launch.processes import free_port
from tests.running import ROOT, TINY, environment, final_leaves, last_step, records, shrunk, wait_until

EVERY, ADVANCE, DISK = 10, 12, 64 * 2**20
LOG = (
    4  # steps between records: stops and checkpoints lie between them, and every record is that of the undisturbed run
)
FULL_SECONDS, END_SECONDS, RUN_SECONDS = 120.0, 240.0, 1800.0
TIMED = ("speed/", "memory/")  # metrics that are another in every run


@dataclasses.dataclass
class Fault:
    """One disturbance and what came of it."""

    kind: str
    step: int = 0
    lost: int = 0
    """Steps that had been logged and were done again."""
    codes: tuple[int, ...] = ()
    """How the processes ended; empty where the run went on."""
    said: str = ""
    failed: str = ""
    """What was not as it should be."""


class Supervisor:
    """What a scheduler does: starts the processes of a run, and starts them again when they have ended."""

    def __init__(
        self, folder: pathlib.Path, rows: pathlib.Path, processes: int, steps: int, seed: int, task: bool = False
    ):
        """`rows` for pretraining; for a `task`, a folder with train.jsonl, dev.jsonl and a vocabulary."""
        self.folder, self.rows, self.processes, self.steps, self.task = folder, rows, processes, steps, task
        self.random, self.running = random.Random(seed), list[subprocess.Popen]()
        self.workdir, self.slow, self.launches = folder / "disk" / "run", folder / "slow", 0
        self.cache = folder / "compiled"

    def launch(self, workdir: pathlib.Path | None = None) -> None:
        """Starts all processes; what they print goes to a file each."""
        more = [f"--cadence.checkpoint-every={EVERY}", f"--cadence.eval-every={2 * EVERY}", "--encoder.dropout=0.1"]
        more += [
            f"--cadence.log-every={LOG}",
            "--cadence.retry-save-steps=3",
            "--guard.stall-seconds=1",
            "--batch-size=12",
        ]
        folder = workdir or self.workdir
        if self.task:
            arguments = ["--config=configs/finetune/glue.py", *TINY, f"--workdir={folder}", f"--steps={self.steps}"]
            arguments += [f"--objective.{name}={self.rows / name}.jsonl" for name in ("train", "dev")]
            arguments += [f"--objective.vocabulary={self.rows / 'vocabulary'}", "--objective.length=32", *more]
        else:
            more.append("--data.feed=numpy")
            arguments = shrunk("configs/pretrain/demo.py", self.rows, folder, self.steps, *more)
        common = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": str(self.processes)}
        common |= {
            "SPANJAX_CHAOS_SLOW": str(self.slow),
            "SPANJAX_STARTUP_TIMEOUT": "60",
            "JAX_COMPILATION_CACHE_DIR": str(self.cache),
        }
        common |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        self.running, self.launches = [], self.launches + 1
        for each in range(self.processes):
            with self.output(each).open("w") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.chaos_train", *arguments],
                    cwd=ROOT,
                    env=environment(1, **common, JAX_PROCESS_ID=str(each)),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            self.running.append(process)

    def output(self, process: int, launch: int | None = None) -> pathlib.Path:
        """The file with what a process printed."""
        return self.folder / f"output-{launch or self.launches}-{process}.txt"

    def printed(self) -> str:
        """What all have printed since they were launched last."""
        return "\n".join(self.output(each).read_text(errors="replace") for each in range(self.processes))

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


def kill_one(run: Supervisor) -> None:
    run.victim().kill()


def kill_all(run: Supervisor) -> None:
    run.signal_all(signal.SIGKILL)


def kill_while_saving(run: Supervisor) -> None:
    folder = run.workdir / "checkpoints"
    run.wait(lambda: any("tmp" in p.name for p in folder.iterdir()))
    run.signal_all(signal.SIGKILL)


def kill_while_starting(run: Supervisor) -> None:
    run.signal_all(signal.SIGKILL)
    run.ended()
    run.launch()
    time.sleep(run.random.uniform(0.5, 8))
    run.victim().kill()


def terminate_one(run: Supervisor) -> None:
    run.victim().terminate()


def usr1_all(run: Supervisor) -> None:
    run.signal_all(signal.SIGUSR1)


def pause(run: Supervisor) -> None:
    victim = run.victim()
    victim.send_signal(signal.SIGSTOP)
    time.sleep(run.random.uniform(1, 5))
    victim.send_signal(signal.SIGCONT)


def slow_feed(run: Supervisor) -> None:
    run.slow.touch()
    run.wait(lambda: "waits for rows" in run.printed(), 30)
    run.slow.unlink()


def full_disk(run: Supervisor) -> None:
    filler = run.workdir.parent / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    try:
        run.wait(lambda: "could not be written" in run.printed(), FULL_SECONDS)
    finally:
        filler.unlink()


def newest_file(run: Supervisor) -> pathlib.Path:
    """The largest file of the newest checkpoint's state, the processes having been killed."""
    run.signal_all(signal.SIGKILL)
    run.ended()
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
    run.signal_all(signal.SIGKILL)
    run.ended()
    file = run.workdir / "metrics.jsonl"
    os.truncate(file, file.stat().st_size - run.random.randrange(2, 40))


KINDS: dict[str, tuple[Callable[[Supervisor], None], str]] = {
    "kill -9 of one process": (kill_one, "ends"),
    "kill -9 of all processes": (kill_all, "ends"),
    "kill -9 while a checkpoint is being written": (kill_while_saving, "ends"),
    "kill -9 of one process while all start": (kill_while_starting, "ends"),
    "SIGTERM to one process": (terminate_one, "saves"),
    "SIGUSR1 to all processes": (usr1_all, "saves"),
    "SIGSTOP of one process for 1 to 5 s": (pause, "goes on"),
    "rows that do not come for a while": (slow_feed, "goes on"),
    "a full disk, until a save has failed": (full_disk, "goes on"),
    "kill -9, newest checkpoint cut to half": (truncate_checkpoint, "damaged"),
    "kill -9, one bit of the newest checkpoint turned": (flip_byte, "damaged"),
    "kill -9, a file of the newest checkpoint missing": (remove_file, "damaged"),
    "kill -9, last line of the metrics cut": (half_a_line, "ends"),
    "SIGTERM to one process in an evaluation": (terminate_evaluation, "saves"),
    "kill -9 of one process in an evaluation": (kill_evaluation, "ends"),
}
"""What is done, and how the run takes it: it ends, ends after saving, goes on, or finds a damaged checkpoint."""
TASK_KINDS = (
    "SIGTERM to one process in an evaluation",
    "kill -9 of one process in an evaluation",
    "SIGTERM to one process",
    "kill -9 of all processes",
)
"""Those that a task goes through as well: it trains and evaluates by code of its own."""


def disturb(run: Supervisor, kind: str) -> Fault:
    """One fault, from the state "all run" to the state "all run"; AssertionError where the run did not take it as it should."""
    act, way = KINDS[kind]
    fault = Fault(kind, step=run.logged())
    if way == "damaged":
        run.wait(lambda: len(run.saved()) > 1)
    act(run)
    if way == "goes on":
        fault.said = "; ".join(line[8:] for line in run.printed().splitlines() if line.startswith("WARNING"))[-400:]
        now = run.logged()
        assert run.wait(lambda: run.logged() > now + 2), run.printed()
        return fault
    fault.codes = run.ended()
    before, saved = run.logged(), run.saved()
    if way == "saves":
        assert set(fault.codes) == {75}, (fault.codes, run.printed())
        assert 0 <= saved[-1] - before < LOG, (saved, before)
    else:
        assert 0 not in fault.codes and 2 not in fault.codes, (fault.codes, run.printed())
    if 3 in fault.codes:
        fault.said = next(line for line in run.printed().splitlines() if line.startswith("spanjax.train: "))
    run.launch()
    # "step 21/120 ...": the evaluation that a resumed run makes first is a line "step 20  held-out ..."
    trained = re.compile(r"^step ([\d,]+)/", re.MULTILINE)
    assert run.wait(lambda: trained.search(run.printed())), run.printed()
    resumed = re.search(r"^continuing \S+ from step ([\d,]+)", run.printed(), re.MULTILINE)
    fault.lost = max(0, before - (int(resumed[1].replace(",", "")) if resumed else 0))
    if way == "damaged":
        assert f"checkpoint {saved[-1]} is damaged" in run.printed(), run.printed()
        assert (run.workdir / "checkpoints" / f"{saved[-1]}.damaged").is_dir()
        shutil.rmtree(run.workdir / "checkpoints" / f"{saved[-1]}.damaged")
    return fault


def attempt(run: Supervisor, kind: str) -> Fault:
    """One fault; where the run does not take it as it should, that is noted and the run started again."""
    step = run.logged()
    try:
        return disturb(run, kind)
    except (AssertionError, TimeoutError) as error:
        print(f"NOT SURVIVED: {kind} after step {step}: {error}", flush=True)
        run.signal_all(signal.SIGKILL)
        run.ended()
        run.launch()
        return Fault(kind, step, failed=str(error)[-2000:])


@contextlib.contextmanager
def small_disk(folder: pathlib.Path) -> Iterator[bool]:
    """A file system of 64 MiB, where this machine lets us mount one; else a plain folder."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "spanjax-chaos", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def plan(kinds: list[str], count: int, seed: int) -> list[str]:
    """So many faults, each kind as often as any other, shuffled."""
    chosen = (kinds * (count // len(kinds) + 1))[:count]
    random.Random(seed).shuffle(chosen)
    return chosen


def chaos(
    folder: pathlib.Path, rows: pathlib.Path, kinds: list[str], processes: int, seed: int, task: bool = False
) -> dict[str, Any]:
    """The run through these faults next to one without; what came of each. AssertionError where they differ."""
    began = time.monotonic()
    # a fault in an evaluation waits for the next one, up to 2 * EVERY steps
    run = Supervisor(folder, rows, processes, len(kinds) * (ADVANCE + 8) + 40 + 2 * EVERY, seed, task)
    faults: list[Fault] = []
    run.launch(folder / "undisturbed")
    assert set(run.ended(RUN_SECONDS)) == {0}, run.printed()
    with small_disk(run.workdir.parent) as small:
        if not small:
            kinds = [kind for kind in kinds if KINDS[kind][0] is not full_disk]
        try:
            run.launch()
            for kind in kinds:
                goal = run.logged() + run.random.randrange(2, ADVANCE)
                assert run.wait(lambda goal=goal: run.logged() >= goal), run.printed()
                faults.append(attempt(run, kind))
                fault = faults[-1]
                print(
                    f"{len(faults)}/{len(kinds)} after step {fault.step}: {kind}; lost {fault.lost}, {fault.codes}",
                    flush=True,
                )
            assert set(run.ended(RUN_SECONDS)) == {0}, run.printed()
        finally:
            run.signal_all(signal.SIGKILL)
        compare(folder / "undisturbed", run.workdir)
    table: dict[str, dict[str, Any]] = collections.defaultdict(
        lambda: {"tried": 0, "survived": 0, "lost": [], "ends": []}
    )
    for fault in faults:
        row = table[fault.kind]
        row["tried"] += 1
        row["survived"] += not fault.failed
        row["lost"].append(fault.lost)
        row["ends"] = sorted({*row["ends"], *fault.codes})
    return {
        "faults": len(faults),
        "processes": processes,
        "steps": run.steps,
        "checkpoint_every": EVERY,
        "seed": seed,
        "full_disk": small,
        "seconds": round(time.monotonic() - began),
        "kinds": dict(table),
        "each": [dataclasses.asdict(fault) for fault in faults],
    }


def compare(expected: pathlib.Path, got: pathlib.Path) -> None:
    """The final state bit for bit, and every number that both logged."""
    one, other = final_leaves(expected), final_leaves(got)
    assert one.keys() == other.keys() and len(one) > 40
    different = [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert not different, different
    lines = (json.loads(line) for line in (expected / "metrics.jsonl").read_text().splitlines())
    metrics = {key for line in lines for key in line if not key.startswith(TIMED)} - {"step"}
    assert {"train/gradient_norm", "eval/loss"} <= metrics or "train/task/loss" in metrics, metrics
    for key in sorted(metrics):
        first, second = records(expected, key), records(got, key)
        both = first.keys() & second.keys()
        assert len(both) > 0.5 * len(first), (key, len(both), len(first))
        assert all(first[step] == second[step] for step in both), key


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=60, help="how many faults, of all kinds in turn")
    parser.add_argument("--task-faults", type=int, default=8, help="how many, while a task is trained")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="runs/chaos", help="a folder, made anew")
    found = parser.parse_args()
    folder = pathlib.Path(found.output).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    runs = [(False, made_rows, [*KINDS], found.faults), (True, made_task, [*TASK_KINDS], found.task_faults)]
    failed = False
    for task, make, kinds, count in runs:
        part = folder / ("task" if task else "pretraining")
        part.mkdir()
        result = chaos(part, make(part), plan(kinds, count, found.seed), found.processes, found.seed, task)
        (part / "chaos.json").write_text(json.dumps(result, indent=1) + "\n")
        print("| fault | tried | survived | steps lost, mean (most) | exit codes |\n|---|---|---|---|---|")
        for kind, row in result["kinds"].items():
            lost = f"{sum(row['lost']) / len(row['lost']):.1f} ({max(row['lost'])})"
            ends = ", ".join(map(str, row["ends"])) or "goes on"
            print(f"| {kind} | {row['tried']} | {row['survived']} | {lost} | {ends} |")
        print(
            f"{part.name}: {result['faults']} faults in {result['seconds']} s: the state of the undisturbed run, bit for bit"
        )
        failed |= any(each["failed"] for each in result["each"])
    return int(failed)


def made_rows(folder: pathlib.Path) -> pathlib.Path:
    """Rows of made text."""
    from spanjax import prepare
    from tests.made import made_documents

    (folder / "corpus.txt").write_text("\n\n".join(made_documents(400)) + "\n")
    arguments = ["--input", str(folder / "corpus.txt"), "--train-vocab", "120", "--length", "64", "--holdout", "0.1"]
    assert prepare.main([*arguments, "--workers", "1", "--output", str(folder / "rows")]) == 0
    return folder / "rows"


def made_task(folder: pathlib.Path) -> pathlib.Path:
    """Labelled sentences of made text, and its vocabulary."""
    from tests.made import made_sentences

    rows = made_rows(folder)
    for name, count, seed in (("train", 120, 0), ("dev", 30, 1)):
        lines = (
            {"sentence": text, "label": "near" if "near" in text else "far"} for text in made_sentences(count, seed)
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copytree(rows / "train" / "vocabulary", folder / "vocabulary")
    return folder


if __name__ == "__main__":
    sys.exit(main())
