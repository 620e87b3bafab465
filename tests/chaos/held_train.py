"""`spanjax.train` that can be held up: its batches come late while the file exists that SPANJAX_CHAOS_SLOW names, and its
evaluations do not begin while that with ".evaluation" behind the name does. Each held evaluation leaves the file ".evaluating".
The main thread of the process that the file ".blocked" names stops for ever; all other threads live.
"""

import os
import pathlib
import time

from spanjax import train
from spanjax.experiment import finetune, pretrain
from spanjax.training.watchdog import DEVICES, STEP, Watchdog

SLOW = pathlib.Path(os.environ["SPANJAX_CHAOS_SLOW"])
HELD, EVALUATING = SLOW.with_name(SLOW.name + ".evaluation"), SLOW.with_name(SLOW.name + ".evaluating")
BLOCKED = SLOW.with_name(SLOW.name + ".blocked")
SECONDS = 60.0
original = pretrain.open_feed


def wait(file: pathlib.Path) -> None:
    until = time.monotonic() + SECONDS
    while file.exists() and time.monotonic() < until:
        time.sleep(0.05)


def late(*arguments, **options):
    for batch in original(*arguments, **options):
        wait(SLOW)
        yield batch


def held(kind: type) -> None:
    """The main thread is blocked where it evaluates, as by a compiler: it asks nothing and hears of no signal."""
    evaluator = kind.evaluator

    def opened(self):
        evaluate = evaluator(self)

        def run(params, between):
            if HELD.exists():
                EVALUATING.touch()
                wait(HELD)
            return evaluate(params, between)

        return run

    kind.evaluator = opened


def blocked(at):
    """One of several processes never comes to the collective of a step; one alone waits for devices that never end."""
    me = os.environ.get("JAX_PROCESS_ID", "0")
    where = STEP if "JAX_PROCESS_ID" in os.environ else DEVICES

    def block(self, phase, step):
        at(self, phase, step)
        while phase == where and BLOCKED.exists() and BLOCKED.read_text() == me:
            time.sleep(1e6)

    return block


if __name__ == "__main__":
    pretrain.open_feed = late
    held(pretrain.PretrainingSession)
    held(finetune.TaskSession)
    Watchdog.at = blocked(Watchdog.at)
    train.end(train.main())
