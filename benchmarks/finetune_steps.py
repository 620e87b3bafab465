"""python -m benchmarks.finetune_steps --glue FOLDER [--tasks NAME ...] [--check] [--json FILE]: fine-tuning in steady state.

Every contender is a process of its own on the same cores that starts from the same weights, the classifier included, and trains
on the same rows again and again: some batches of an epoch, from its shortest to its longest. The contenders take one pass over
these rows in turn. spanjax runs `training.loop.fit` with its logs; its batches are those of its own feed, padded to the lengths
that it compiled. "transformers, grouped" is the loop of `benchmarks.torch_finetune` over exactly the same batches, padded to
their longest row, with torch's fused AdamW. "Trainer" is transformers' Trainer as its guide to text classification sets it up:
dynamic padding, random order. "Trainer, padded" is that of the script run_glue, which pads every row to 128 by default. Before
anything is timed, the losses of all batches without dropout are compared. The time to compile is reported apart.
"""

import argparse
import contextlib
import dataclasses
import multiprocessing
import pathlib
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.made import packaged_weights

OURS, GROUPED, TRAINER, PADDED = "spanjax", "transformers, grouped", "Trainer", "Trainer, padded"
LABELS = {"RTE": ("entailment", "not_entailment"), "SST-2": ("0", "1")}
BATCH, LENGTH, EPOCHS = 16, 128, 3
SAME = 1e-4  # of a loss


@dataclasses.dataclass(frozen=True)
class Work:
    """What all contenders train on."""

    model: pathlib.Path
    """Folder of weights with a classifier, as transformers writes it."""
    glue: pathlib.Path
    """Folder of the task's files."""
    task: str
    folder: pathlib.Path
    """For what contenders write."""
    cores: int
    count: int
    """Batches of a pass."""
    passes: int
    rows: tuple[tuple[str, str | None, str], ...] = ()
    """(first sentence, second, label) of every row of these batches, in their order; spanjax's process chooses them."""


class Turns:
    """One contender's end of the pipe: it waits for its turn, and reports the seconds of every pass."""

    def __init__(self, pipe: Connection, count: int):
        self._pipe, self._count, self._done = pipe, count, 0
        self._begun: tuple[float, float] | None = None

    def before_step(self, finish: Callable[[], None]) -> None:
        """Called before every step; `finish` waits for the steps so far. EOFError when the benchmark has ended."""
        if self._done % self._count == 0:
            finish()
            if self._begun:
                wall, cpu = self._begun
                self._pipe.send((time.perf_counter() - wall, time.process_time() - cpu))
            self._pipe.recv()
            self._begun = time.perf_counter(), time.process_time()
        self._done += 1


def chosen_steps(lengths_S: np.ndarray, count: int) -> list[int]:
    """Numbers of `count` of S full batches by the lengths of their longest rows: equally many of every range."""
    order_S = np.argsort(lengths_S, kind="stable")
    return order_S[((np.arange(count) + 0.5) * len(order_S) / count).astype(int)].tolist()


def own(pipe: Connection, work: Work) -> None:
    """spanjax: sends the rows of its batches, their losses, and the seconds of compiling; then trains in turns."""
    import jax

    from configs.finetune import glue
    from spanjax.experiment.finetune import TaskSession, open_task_session
    from spanjax.sharding import to_global
    from spanjax.tasks.base import LOSS
    from spanjax.tasks.rows import batches_of_epoch, host_share, rows_of_step
    from spanjax.train import train_session
    from spanjax.training.heap import keep_freed_blocks
    from spanjax.training.metrics import Terminal
    from spanjax.training.preemption import StopRequest

    keep_freed_blocks()
    files = {"train": (str(work.glue / work.task / "train.tsv"),), "dev": ()}
    base: Any = glue.RUN.objective
    task: Any = dataclasses.replace(base, task=work.task, length=LENGTH, epochs=EPOCHS, **files)
    session = open_task_session(
        dataclasses.replace(glue.RUN, objective=task, batch_size=BATCH, init_from=str(work.model))
    )
    packed, run = session.training.packed, session.run
    if run.steps < work.passes * work.count:
        raise ValueError(
            f"{work.task}: {len(packed):,} rows are {run.steps} steps in {EPOCHS} epochs, and {work.passes} passes of"
            f" {work.count} batches need {work.passes * work.count}: give fewer --batches or --repeats"
        )
    full = batches_of_epoch(len(packed), BATCH) - 1
    index_SB = [rows_of_step(packed, run.seed, step, BATCH) for step in range(full + 1)]
    index_SB = [index_B for index_B in index_SB if index_B.min() >= 0]
    steps = chosen_steps(np.array([packed.lengths_N[index_B].max() for index_B in index_SB]), work.count)
    batches = [host_share(packed, index_SB[step], 0, 1) for step in steps]
    examples = [session.training.examples[row] for step in steps for row in index_SB[step]]
    turns = Turns(pipe, work.count)

    class InTurns(TaskSession):
        """The session with these batches alone, which waits for its turns and evaluates nothing."""

        def feed(self, start: int) -> Iterator[Any]:
            for step in range(start, run.steps):
                yield host_share(packed, index_SB[steps[step % len(steps)]], 0, 1)

        def open_step(self, start: int) -> Callable[[Any, Any], Any]:
            begin, step, last = time.perf_counter(), super().open_step(start), None
            pipe.send((time.perf_counter() - begin, list(packed.buckets)))

            def in_turn(state: Any, batch: Any) -> Any:
                nonlocal last
                turns.before_step(lambda: jax.block_until_ready(last))
                state, last = step(state, batch)
                return state, last

            return in_turn

    weights = session.initial_weights()
    assert weights is not None
    params, measure = session.fresh_state(weights).params, session.builder.eval_step()
    means = [measure(params, to_global(batch, session.mesh))[LOSS] for batch in batches]
    tokens = [int((batch["segments_BL"] > 0).sum()) for batch in batches]
    pipe.send(
        (
            [(each.first, each.second, each.label) for each in examples],
            [float(mean.total / mean.count) for mean in means],
            {"tokens": sum(tokens), "padded": sum(batch["segments_BL"].size for batch in batches)},
        )
    )
    del params
    in_turns = InTurns(**vars(session))
    with contextlib.ExitStack() as resources, StopRequest(None) as stop, contextlib.closing(Terminal()) as terminal:
        train_session(in_turns, weights, work.folder, [], terminal, stop, resources)


def serve(contender: Callable[[Connection, Work], None], pipe: Connection, work: Work, log: pathlib.Path) -> None:
    """Runs a contender until the pipe closes; its output goes into a file, with its error if it has one."""
    with log.open("w") as lines, contextlib.redirect_stdout(lines), contextlib.redirect_stderr(lines):
        try:
            contender(pipe, work)
        except (EOFError, BrokenPipeError):  # the benchmark has ended
            return
        except Exception as error:  # noqa: BLE001  (the benchmark reports it)
            traceback.print_exc()
            # the benchmark ends this process when it reads the error
            lines.flush()
            pipe.send(error)


class Contender:
    """The benchmark's end of the pipe."""

    def __init__(self, name: str, run: Callable[[Connection, Work], None], work: Work):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        log = work.folder.parent / f"{name.replace(', ', '_')}.log"
        # without daemon: a DataLoader of the process could not start workers
        self._process = context.Process(target=serve, args=(run, theirs, work, log))
        self._process.start()
        theirs.close()

    def told(self) -> Any:
        """The next message. RuntimeError if the contender failed."""
        found = self._pipe.recv()
        if isinstance(found, Exception):
            raise RuntimeError(f"a contender failed: {found!r}")
        return found

    def turn(self) -> None:
        """Lets the contender begin its next pass."""
        self._pipe.send(True)

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.terminate()
        self._process.join(10)


def with_classifier(weights: pathlib.Path, labels: tuple[str, ...], folder: pathlib.Path) -> pathlib.Path:
    """Writes the weights with a fresh classifier for these labels."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    names = dict(enumerate(labels))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        weights, num_labels=len(labels), id2label=names, label2id={name: number for number, name in names.items()}
    )
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(weights).save_pretrained(folder)
    return folder


def compared(name: str, ours: list[float], theirs: list[float]) -> float:
    """The largest difference of the losses; SystemExit where it is more than SAME of a loss."""
    apart = max(abs(their - our) / abs(our) for our, their in zip(ours, theirs, strict=True))
    if apart > SAME:
        raise SystemExit(f"{name} has other losses without dropout: {theirs}, here {ours}")
    return apart


def measured(work: Work, wanted: list[str], repeats: int) -> dict[str, Any]:
    """Starts every contender, compares losses, and times passes in turn."""
    from benchmarks.finetune_peers import grouped, trainer, trainer_padded

    peers = {GROUPED: grouped, TRAINER: trainer, PADDED: trainer_padded}
    with contextlib.ExitStack() as resources:
        running = {OURS: Contender(OURS, own, dataclasses.replace(work, folder=work.folder / "own"))}
        resources.callback(running[OURS].close)
        rows, losses, sizes = running[OURS].told()
        compiling, lengths = running[OURS].told()
        seconds: dict[str, list[float]] = {OURS: []}
        cpu: dict[str, list[float]] = {OURS: []}
        apart = {}
        for name in wanted:
            theirs = dataclasses.replace(work, rows=tuple(rows), folder=work.folder / "peer")
            running[name] = Contender(name, peers[name], theirs)
            resources.callback(running[name].close)
            apart[name] = compared(name, losses, running[name].told())
            seconds[name], cpu[name] = [], []
        # one pass that is not timed: caches, the allocator, the first calls of every library
        for number in range(repeats + 1):
            for name, contender in running.items():
                contender.turn()
                wall, used = contender.told()
                print(f"{name:24s}{wall:8.3f} s{used:8.3f} CPU s{'   (warm-up)' * (number == 0)}", flush=True)
                if number:
                    seconds[name].append(wall)
                    cpu[name].append(used)
    return {
        **{"task": work.task, "batches": work.count, "batch": BATCH, **sizes, "lengths": lengths},
        **{"compiling_seconds": compiling, "largest_difference": apart, "seconds": seconds, "cpu_seconds": cpu},
    }


def targets_of(figures: dict[str, Any]) -> list[timing.Target]:
    """Rates over those of the peers, medians over medians; all contenders have the same rows."""
    middle = {name: statistics.median(values) for name, values in figures["seconds"].items()}
    missing, task = float("nan"), figures["task"]
    return [
        timing.Target(
            f"{task}, examples a second over {GROUPED}", middle.get(GROUPED, missing) / middle[OURS], least=1.0
        ),
        timing.Target(
            f"{task}, examples a second over {TRAINER}", middle.get(TRAINER, missing) / middle[OURS], least=1.3
        ),
    ]


def main() -> int:
    """Measures every task; the exit code."""
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--glue", type=pathlib.Path, required=True, help="folder with RTE/train.tsv and SST-2/train.tsv")
    more.add_argument("--tasks", nargs="+", default=["RTE", "SST-2"], choices=sorted(LABELS))
    more.add_argument("--model", type=pathlib.Path, help="folder of PyTorch weights; by default those of the package")
    more.add_argument("--batches", type=int, default=12, help="batches of a pass")
    more.add_argument("--peers", nargs="*", default=[GROUPED, TRAINER, PADDED], help="peers to run; others miss")
    found = timing.options(__doc__ or "", more)
    timing.pin(found.cores)
    figures, targets = {}, []
    for task in found.tasks:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            model = with_classifier(found.model or packaged_weights(), LABELS[task], folder / "model")
            # one pass is the warm-up
            work = Work(model, found.glue, task, folder, found.cores, found.batches, found.repeats + 1)
            figures[task] = measured(work, found.peers, found.repeats)
        rows = found.batches * BATCH
        for contender, values in figures[task]["seconds"].items():
            middle = statistics.median(values)
            rate = f"{rows / middle:8.1f} examples/s{figures[task]['tokens'] / middle:10.0f} tokens/s"
            print(f"{task} {contender:24s}{middle:8.3f} s{rate}   ({min(values):.3f} to {max(values):.3f} s)")
        targets += targets_of(figures[task])
    return timing.report(figures, targets, found)


if __name__ == "__main__":
    sys.exit(main())
