"""python -m tests.chaos.buckets: a run whose work directory is in a bucket, through one fault after another.

Every launch is on machines with empty disks, in turn with one and with two processes, and a share of the store's requests fails
all the time. At the end the state is that of a run on a disk that nobody disturbed, bit for bit. Prints a row for each kind.
"""

import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from spanjax.storage.commits import Commits
from spanjax.storage.objects import Place, open_store
from tests.chaos.__main__ import made_rows
from tests.machines import SECONDS, Machines, same_bits
from tests.running import last_step, wait_until
from tests.storage.servers import BUCKET, Fault, Faults, serving

RATE = 0.03
KINDS_OF_FAULTS = (Fault.BUSY, Fault.ERROR, Fault.UNAVAILABLE, Fault.RESET, Fault.LOST, Fault.HALF, Fault.DELAY)


class Run:
    """The run in the bucket, and where it is at work."""

    def __init__(self, folder: pathlib.Path, rows: pathlib.Path, steps: int, address: str, faults: Faults, seed: int):
        self.machines, self.address, self.faults = Machines(folder, rows, steps), address, faults
        self.random, self.running = random.Random(seed), list[subprocess.Popen]()
        self.place = Place.parse(address)

    def launch(self) -> None:
        number = self.machines.launches + 1
        names = (f"m{number}a", f"m{number}b") if number % 2 else (f"m{number}a",)
        self.running = self.machines.start(self.address, names, 2 // len(names))

    def logged(self) -> int:
        """The newest step that process 0 of the last launch has logged."""
        number = self.machines.launches
        return max(
            (last_step(each) for each in self.machines.folder.glob(f"m{number}a/spanjax/runs/*/process_0")), default=0
        )

    def saved(self) -> list[int]:
        return sorted(Commits(open_store(self.place), self.place).read().steps)

    def wait(self, condition: Callable[[], object]) -> None:
        assert wait_until(self.running, condition, SECONDS), self.machines.printed()

    def kill(self) -> None:
        for process in self.running:
            process.kill()
        self.ended()

    def ended(self) -> set[int]:
        for process in self.running:
            process.wait(SECONDS)
        return {process.returncode for process in self.running}


def kill_all(run: Run) -> None:
    run.kill()


def kill_one(run: Run) -> None:
    run.random.choice(run.running).kill()
    assert 0 not in run.ended()


def kill_in_an_upload(run: Run) -> None:
    """Objects of a checkpoint are in the bucket and its commit is not."""

    def uncommitted() -> bool:
        head = Commits(open_store(run.place), run.place).read()
        listed = {each.name.split("/")[0] for each in open_store(run.place).list(run.place / "checkpoints")}
        return bool(listed - {each.commit for each in head.steps.values()})

    run.wait(uncommitted)
    run.kill()


def terminate(run: Run) -> None:
    run.random.choice(run.running).terminate()
    assert run.ended() == {75}, run.machines.printed()
    assert run.saved()[-1] >= run.logged(), (run.saved(), run.logged())


def sleep_beyond_the_lease(run: Run) -> None:
    """All processes sleep, others take over, and the sleepers wake up."""
    sleepers, number = run.running, run.machines.launches
    for process in sleepers:
        process.send_signal(signal.SIGSTOP)
    run.launch()
    goal = run.saved()[-1]
    run.wait(lambda: run.saved()[-1] > goal)
    for process in sleepers:
        process.send_signal(signal.SIGCONT)
    codes = [process.wait(SECONDS) for process in sleepers]
    assert codes[0] == 2 and 0 not in codes, (codes, run.machines.printed(number))
    assert "was taken over by another run" in run.machines.printed(number)
    run.kill()


def second_command(run: Run) -> None:
    """The same command elsewhere is refused and disturbs nothing."""
    first, number = run.running, run.machines.launches
    run.launch()
    assert 2 in run.ended() and "is in use by another run" in run.machines.printed(), run.machines.printed()
    assert all(process.poll() is None for process in first), run.machines.printed(number)
    for process in first:
        process.kill()
        process.wait(SECONDS)


def cut_newest(run: Run) -> None:
    run.wait(lambda: len(run.saved()) > 1)
    run.kill()
    store = open_store(run.place)
    newest = run.place / "checkpoints" / Commits(store, run.place).read().steps[run.saved()[-1]].commit
    largest = max(store.list(newest), key=lambda each: each.size)
    store.write(newest / largest.name, store.read(newest / largest.name)[0][: largest.size // 2])


def refuse_writes(run: Run) -> None:
    """The store refuses all writes until a save has failed; the run continues and saves again."""
    run.faults.deny = frozenset({"PUT", "POST"})
    try:
        run.wait(lambda: "could not be written to" in run.machines.printed())
    finally:
        run.faults.deny = frozenset()
    before = run.saved()[-1] if run.saved() else 0
    run.wait(lambda: (run.saved() or [0])[-1] > before)
    run.kill()


KINDS: dict[str, Callable[[Run], None]] = {
    "kill -9 of all processes": kill_all,
    "kill -9 of one process": kill_one,
    "kill -9 while a checkpoint is uploaded": kill_in_an_upload,
    "SIGTERM to one process": terminate,
    "SIGSTOP of all beyond the lease, another run takes over": sleep_beyond_the_lease,
    "the same command on another machine": second_command,
    "kill -9, newest checkpoint cut in the bucket": cut_newest,
    "a store that refuses writes, until a save has failed": refuse_writes,
}


def chaos(folder: pathlib.Path, scheme: str, kinds: list[str], seed: int) -> list[tuple[str, int, int]]:
    """Takes the run through these faults; returns (kind, step, steps done again) of each; AssertionError if one ends it."""
    folder.mkdir(parents=True)
    rows, steps, found = made_rows(folder / "made"), 60 * len(kinds) + 60, list[tuple[str, int, int]]()
    undisturbed = Machines(folder / "undisturbed", rows, steps)
    undisturbed.folder.mkdir()
    undisturbed.finish(undisturbed.start(str(folder / "undisturbed" / "run"), ("disk",), 2))
    faults = Faults(seed, RATE, KINDS_OF_FAULTS)
    with serving(scheme, faults) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        run = Run(folder, rows, steps, f"{scheme}://{BUCKET}/run", faults, seed)
        with contextlib.ExitStack() as stack:
            stack.callback(run.machines.kill)
            for kind in kinds:
                run.launch()
                start = run.saved()[-1] if run.saved() else 0
                goal = start + run.random.randrange(12, 30)
                run.wait(lambda goal=goal: run.logged() >= goal)
                step = run.logged()
                KINDS[kind](run)
                step, saved = max(step, run.logged()), run.saved()[-1] if run.saved() else 0
                found.append((kind, step, max(0, step - saved)))
                print(
                    f"{len(found)}/{len(kinds)} after step {step}: {kind}; {sum(faults.counts.values())} faults",
                    flush=True,
                )
            run.launch()
            assert run.ended() == {0}, run.machines.printed()
        faults.rate = 0.0
        same_bits(run.address, folder / "undisturbed" / "run", folder / "reader")
        print(f"{sum(faults.counts.values())} faults of the store in {sum(faults.requests.values())} requests")
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.buckets", description=__doc__)
    parser.add_argument("--scheme", choices=("s3", "gs"), default="gs")
    parser.add_argument("--faults", type=int, default=8, help="how many, of all kinds in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="runs/chaos/bucket", help="a folder, made anew")
    options = parser.parse_args()
    folder = pathlib.Path(options.output).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    kinds, began = [*KINDS] * (options.faults // len(KINDS) + 1), time.monotonic()
    kinds = kinds[: options.faults]
    random.Random(options.seed).shuffle(kinds)
    found = chaos(folder, options.scheme, kinds, options.seed)
    print("| fault | tried | survived | steps done again, mean (most) |\n|---|---|---|---|")
    for kind in KINDS:
        if again := [each[2] for each in found if each[0] == kind]:
            print(f"| {kind} | {len(again)} | {len(again)} | {sum(again) / len(again):.1f} ({max(again)}) |")
    print(f"{len(found)} faults in {time.monotonic() - began:.0f} s: the undisturbed state, bit for bit", flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
