"""Faults of a cluster: what is done to a job, and what SLURM and the run must make of it."""

import contextlib
import dataclasses
import math
import os
import pathlib
import random
import re
import signal
import sys
import time
from collections.abc import Callable

from tests.clusters.slurm import NODES, PENDING, Cluster, Job, written
from tests.running import last_step, shrunk

SAVE_SECONDS, STALL_SECONDS = 40, 20
"""Seconds before the time limit at which SLURM signals; seconds of waiting for others after which a run ends."""
EVERY, LOG, APART = 10, 4, 25
"""Steps between checkpoints, between records, and at most between two faults."""
WAIT_SECONDS, LIMIT = 300.0, "1:00:00"
LONGEST_START = 8.0


class Run:
    """A training run as a job of two tasks on two nodes, by the script that spanjax writes, unchanged."""

    def __init__(self, cluster: Cluster, folder: pathlib.Path, rows: pathlib.Path, steps: int, seed: int = 0):
        """`rows` lie next to the compiled programs that all runs share."""
        self.cluster, self.folder, self.rows, self.steps = cluster, folder, rows, steps
        self.random, self.workdir, self.jobs = random.Random(seed), folder / "run", list[Job]()

    @property
    def job(self) -> Job:
        """The job that was submitted last."""
        return self.jobs[-1]

    def submit(self, *more: str) -> None:
        """Writes the script, with these arguments of spanjax.train too, and submits it."""
        settings = [f"--nodes={len(NODES)}", "--gpus-per-node=0", "--cpus-per-task=1", "--partition=low"]
        settings += [f"--time=0{LIMIT}", f"--save-seconds={SAVE_SECONDS}", f"--python={sys.executable}"]
        own = [f"--cadence.checkpoint-every={EVERY}", f"--cadence.log-every={LOG}", "--cadence.eval-every=1000"]
        own += ["--encoder.dropout=0.1", "--batch-size=12", "--data.feed=numpy", *more]
        train = shrunk("configs/pretrain/demo.py", self.rows, self.workdir, self.steps, *own)
        cache = {"JAX_COMPILATION_CACHE_DIR": str(self.rows.parent / "compiled")}
        cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        self.jobs.append(self.cluster.submit(written(self.folder, settings, train), cache))

    def logged(self) -> int:
        """The newest step in the metrics."""
        return last_step(self.workdir)

    def saved(self) -> int:
        """The newest step with a whole checkpoint."""
        found = self.workdir.glob("checkpoints/[0-9]*/checksums.json")
        return max((int(path.parent.name) for path in found if path.parent.name.isdigit()), default=0)

    def come_to(self, step: int) -> None:
        """Waits until the run has logged this step; AssertionError if the job ends before."""
        self.job.wait(lambda: self.logged() >= step or self.job.over(), WAIT_SECONDS, f"step {step} was not reached")
        assert self.logged() >= step, self.job.described()

    def task(self, rank: int) -> int:
        """The process of a rank."""
        (found,) = self.job.tasks(rank)
        return found


def usr1(run: Run) -> None:
    run.cluster.run("scancel", "--batch", "--signal=USR1", str(run.job.number))


PREEMPTED = "CANCELLED AT"  # what slurmstepd prints into the job's output


def hold_until(run: Run, come: Callable[[], bool]) -> None:
    """Slows the tasks down until something has come: the run is short."""
    tasks = run.job.tasks()

    def signal_tasks(number: signal.Signals) -> None:
        for each in tasks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, number)

    until = time.monotonic() + WAIT_SECONDS
    while not come() and time.monotonic() < until:
        signal_tasks(signal.SIGSTOP)
        # gloo waits 30 s for the other side
        with contextlib.suppress(TimeoutError):
            run.job.wait(come, 8)
        signal_tasks(signal.SIGCONT)
        time.sleep(0.2)
    assert come(), run.job.described()


def preempt(run: Run) -> None:
    """Another job that needs all cores, in a partition that goes first. SLURM may take a while to see it."""
    before = run.job.output().count(PREEMPTED)
    script = run.folder / "other.sbatch"
    script.write_text("#!/usr/bin/env bash\nsleep 1\n")
    words = ("--partition=high", f"--nodes={len(NODES)}", "--ntasks-per-node=2", "--output=other-%j.out")
    other = run.cluster.submit(script, {}, *words)
    hold_until(run, lambda: run.job.output().count(PREEMPTED) > before)
    assert other.ended(WAIT_SECONDS)["JobState"] == "COMPLETED", other.described()


def cancel(run: Run) -> None:
    run.cluster.run("scancel", str(run.job.number))


def node_down(run: Run) -> None:
    """A node is set down by the administrator, and comes back when the job is in the queue again."""
    node = run.random.choice(NODES)
    run.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        run.job.wait(lambda: run.job.shown()["JobState"] in PENDING, WAIT_SECONDS, "the job was not queued again")
    finally:
        run.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")


def kill(rank: int) -> Callable[[Run], None]:
    """kill -9 of the task of this rank."""
    return lambda run: os.kill(run.task(rank), signal.SIGKILL)


def stop(rank: int) -> Callable[[Run], None]:
    """SIGSTOP of the task of this rank: it is alive, and never comes to the next collective."""
    return lambda run: os.kill(run.task(rank), signal.SIGSTOP)


def reach_the_limit(run: Run) -> None:
    """The time is nearly over; the next go has its old time limit again.

    SLURM looks at time limits twice a minute.
    """
    warned = f"send_job_warn_signal: warning signal {signal.SIGUSR1.value} to"
    log, before = run.cluster.folder / "slurmctld.log", run.job.restarts()
    sent = log.read_text().count(warned)
    limit_soon(run)
    hold_until(run, lambda: log.read_text().count(warned) > sent)
    restore_the_limit(run, before)


def reach_the_limit_stopped(run: Run) -> None:
    """One task does not answer the signal, so the other cannot agree with it on the last step."""
    before = run.job.restarts()
    stop(1)(run)
    limit_soon(run)
    restore_the_limit(run, before)


def limit_soon(run: Run) -> None:
    """Sets the time limit, in whole minutes as SLURM counts, to the next that leaves time to save."""
    hours, minutes, seconds = map(int, run.job.shown()["RunTime"].split(":"))
    limit = math.ceil((3600 * hours + 60 * minutes + seconds + SAVE_SECONDS) / 60)
    run.cluster.run("scontrol", "update", f"jobid={run.job.number}", f"TimeLimit={limit}")


def restore_the_limit(run: Run, restarts: int) -> None:
    """Waits until the job is in the queue again, and gives it the time limit of the script."""
    run.job.wait(lambda: run.job.restarts() > restarts or run.job.over(), WAIT_SECONDS, "the job was not queued again")
    if not run.job.over():
        run.cluster.run("scontrol", "update", f"jobid={run.job.number}", f"TimeLimit={LIMIT}")


def lose_the_rows(run: Run) -> None:
    """The rows are gone when the job starts again."""
    away = run.rows.with_name("away")
    run.rows.rename(away)
    try:
        run.cluster.run("scontrol", "requeue", str(run.job.number))
        found = run.job.ended(WAIT_SECONDS)
        assert (found["ExitCode"], found["Restarts"]) == ("2:0", "1"), run.job.described()
    finally:
        away.rename(run.rows)


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of fault; without `state`, SLURM starts the job again, once."""

    act: Callable[[Run], None]
    prints: tuple[str, ...] = ()
    """Patterns of what the job prints of it."""
    saves: bool = False
    """Nothing that was logged is lost."""
    starting: bool = False
    """It comes at some moment of the start, not while the run trains."""
    state: str = ""
    """In which the job ends, not to be queued again; then a person submits the same script once more."""
    more: tuple[str, ...] = ()
    """Arguments of spanjax.train."""
    count: int = 5
    """How often a whole run tries it: those that take minutes each come less often."""


SAVED, LOST = r"stopped after saving: job \d+ goes back", r"processes were lost \(exit code {}\): job \d+ goes back"
# the other task names the lost one at once in a step; in a rendezvous of a save srun does, when it gives the other up
GONE = r"process {0} \(\S+\) (is gone|has not been heard of)|task {0}: (Killed|Aborted)"
STALL = (f"--guard.stall-exit-seconds={STALL_SECONDS}", "--guard.stall-seconds=3")
KINDS: dict[str, Kind] = {
    "USR1 to the script": Kind(usr1, (SAVED,), saves=True),
    "preemption": Kind(preempt, saves=True),
    "scancel": Kind(cancel, saves=True, state="CANCELLED"),
    "node set down": Kind(node_down),
    "kill -9 of task 0": Kind(kill(0), (LOST.format(r"\d+"),)),
    "kill -9 of task 1": Kind(kill(1), (LOST.format("137"), GONE.format(1))),
    "time limit": Kind(reach_the_limit, (SAVED,), saves=True, count=3),
    "time limit, one task stopped": Kind(reach_the_limit_stopped, ("the time is nearly over: job",), count=2),
    "task 1 stopped for ever": Kind(stop(1), (LOST.format("137"), GONE.format(1)), more=STALL, count=2),
    "USR1 while the job starts": Kind(usr1, starting=True),
    "rows missing": Kind(lose_the_rows, ("no such folder",), state="FAILED", count=3),
}


@dataclasses.dataclass
class Fault:
    """One disturbance and what came of it."""

    step: int
    lost: int = 0
    """Steps that had been logged and were done again."""
    seconds: float = 0.0
    """From the fault until the run trained again."""


def trained(text: str) -> int:
    """How many goes of a job have printed a record of a step: each prints its devices first."""
    goes = re.split(r"^(?=0: devices )", text, flags=re.MULTILINE)
    return sum(re.search(r"^0: step [\d,]+/", each, re.MULTILINE) is not None for each in goes)


def disturb(run: Run, kind: Kind) -> Fault:
    """One fault, from a job that runs to one that runs again; AssertionError if the job does not take it as it should."""
    if kind.starting:
        run.job.wait(lambda: run.job.shown()["JobState"] == "RUNNING", WAIT_SECONDS, "the job did not start")
        time.sleep(run.random.uniform(0, LONGEST_START))
    else:
        run.come_to(run.logged() + run.random.randrange(LOG, APART))
    job, printed, restarts, began = run.job, len(run.job.output()), run.job.restarts(), time.monotonic()
    fault, goes = Fault(run.logged()), trained(job.output())
    kind.act(run)
    if kind.state:
        found = job.ended(WAIT_SECONDS)
        assert found["JobState"] == kind.state, job.described()
    else:
        job.wait(lambda: job.restarts() > restarts or job.over(), WAIT_SECONDS, "the job was not queued again")
        assert not job.over() and job.restarts() == restarts + 1, job.described()
    fault.step = run.logged()
    if kind.saves:
        assert 0 <= run.saved() - fault.step < LOG, (run.saved(), fault.step, job.described())
    absent = [pattern for pattern in kind.prints if not re.search(pattern, job.output()[printed:])]
    assert not absent, f"not printed: {absent}\n{job.described()}"
    saved = run.saved()
    if kind.state:
        run.submit(*kind.more)
    if not kind.starting:
        before = 0 if kind.state else goes
        run.job.wait(
            lambda: trained(run.job.output()) > before or run.job.over(), WAIT_SECONDS, "it did not train again"
        )
        fault.lost, fault.seconds = max(0, fault.step - saved), time.monotonic() - began
    return fault


def undisturbed(run: Run) -> None:
    """A job that nobody disturbs."""
    run.submit()
    finish(run, 0)


def finish(run: Run, restarts: int) -> None:
    """Waits for the end of the job, which has succeeded after so many restarts."""
    found = run.job.ended(2 * WAIT_SECONDS)
    assert (found["JobState"], found["ExitCode"]) == ("COMPLETED", "0:0"), run.job.described()
    assert int(found["Restarts"]) == restarts, run.job.described()
    assert run.logged() == run.steps, (run.logged(), run.job.described())


def steps_for(faults: int) -> int:
    """Steps of runs that go through so many faults: each comes before the last step."""
    return 20 + faults * (APART + EVERY)


def through_faults(run: Run, name: str, count: int) -> list[Fault]:
    """A run that goes through so many faults of a kind, and ends."""
    kind, faults = KINDS[name], list[Fault]()
    run.submit(*kind.more)
    for _ in range(count):
        faults.append(disturb(run, kind))
    finish(run, 0 if kind.state else count)
    return faults
