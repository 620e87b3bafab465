"""python -m benchmarks.finetune --glue FOLDER [--check] [--json FILE]: RTE, one epoch from MiniLM, beside transformers and torch.

Each run is a whole command in a process of its own: imports, reading, training, evaluation and saving. Run i of both contenders
has seed i, the same hyper-parameters, dropout, and batches of rows of like length (`benchmarks.torch_finetune`). spanjax runs
once with an empty compilation cache, then with what that run left in it. The figure that counts is CPU seconds, user and
system: other load on the machine changes it less than wall time.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

from benchmarks import timing
from benchmarks.made import packaged_weights

ROOT = pathlib.Path(__file__).resolve().parents[1]
COLD, WARM, PEER = "spanjax, cold cache", "spanjax, warm cache", "transformers + torch"
SETTINGS = {"learning-rate": "5e-5", "epsilon": "1e-6", "weight-decay": "0.01"}
BATCH, LENGTH, WARMUP = "16", "128", "0.1"
MOST_CPU = 1.2  # CPU seconds of spanjax over the peer's
POLL = 0.05  # seconds between looks for the first step


class Measured(NamedTuple):
    """One run of a command."""

    cpu: float
    """Seconds, user and system."""
    wall: float
    first_step: float
    """Seconds from the start of the process to the end of its first update."""
    peak: float
    """GiB."""
    score: float
    """Accuracy on the dev examples, percent."""


class Case(NamedTuple):
    """What both contenders train on."""

    model: pathlib.Path
    train: pathlib.Path
    dev: pathlib.Path
    folder: pathlib.Path
    """Of work directories and the compilation cache."""


def spanjax_command(case: Case, seed: int, workdir: pathlib.Path) -> list[str]:
    """`spanjax.train` with the settings of the comparison."""
    settings = [word for name, value in SETTINGS.items() for word in (f"--optimizer.{name}", value)]
    return [
        *(sys.executable, "-m", "spanjax.train", "--config", "configs/finetune/glue.py", "--objective.task", "RTE"),
        *(
            "--init-from",
            str(case.model),
            "--train",
            str(case.train),
            "--dev",
            str(case.dev),
            "--workdir",
            str(workdir),
        ),
        *("--objective.epochs", "1", "--objective.length", LENGTH, "--objective.warmup", WARMUP, "--batch-size", BATCH),
        *("--seed", str(seed), "--cadence.log-every", "1", *settings),
    ]


def peer_command(case: Case, seed: int, output: pathlib.Path) -> list[str]:
    """The loop of transformers and torch with the same settings."""
    settings = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
    return [
        *(sys.executable, "-m", "benchmarks.torch_finetune", "--model", str(case.model), "--train", str(case.train)),
        *("--dev", str(case.dev), "--output", str(output), "--length", LENGTH, "--warmup", WARMUP),
        *("--batch-size", BATCH, "--seed", str(seed), *settings),
    ]


def measure(command: list[str], environment: dict[str, str], log: pathlib.Path, sign: pathlib.Path) -> dict[str, float]:
    """Runs a command; `sign` is a file that has a line when the first update is done. RuntimeError where it fails."""
    begin, first = time.time(), 0.0
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
        while True:
            # wait4 is the one call that gives the resources of this child alone
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if not first and sign.is_file() and sign.stat().st_size:
                first = time.time() - begin
            if ended:
                break
            time.sleep(POLL)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{log.read_text()[-4000:]}")
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "cpu": cpu,
        "wall": time.time() - begin,
        "first_step": first,
        "peak": usage.ru_maxrss / 2**20,
        "begin": begin,
    }


def run(name: str, case: Case, seed: int) -> Measured:
    """One run of a contender."""
    workdir, log = case.folder / f"{name}-{seed}".replace(" ", "_"), case.folder / "log"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_", "SPANJAX_"))}
    environment |= {"XDG_CACHE_HOME": str(case.folder / "cache"), "JAX_PLATFORMS": "cpu"}
    if name != PEER:
        sign = workdir / "metrics.jsonl"
        found = measure(spanjax_command(case, seed, workdir), environment, log, sign)
        score = json.loads((workdir / "summary.json").read_text())["eval"]["score/accuracy"]
    else:
        found = measure(peer_command(case, seed, workdir), environment, log, sign=workdir / "none")
        told = json.loads(log.read_text().splitlines()[-1])
        found["first_step"], score = told["first_step"] - found["begin"], told["accuracy"]
    found.pop("begin")
    return Measured(**found, score=score)


def first_rows(source: pathlib.Path, count: int, target: pathlib.Path) -> pathlib.Path:
    """A file of the first `count` examples of a file with a heading; the file itself where `count` is 0."""
    if not count:
        return source
    target.write_text(
        "".join(source.read_text(encoding="utf-8").splitlines(keepends=True)[: count + 1]), encoding="utf-8"
    )
    return target


def figures(found: dict[str, list[Measured]]) -> dict[str, Any]:
    """Every figure of every contender with its median, lowest and highest."""
    return {
        name: {
            field: {
                "median": statistics.median(values),
                "lowest": min(values),
                "highest": max(values),
                "all": values,
            }
            for field in Measured._fields
            if (values := [getattr(each, field) for each in runs])
        }
        for name, runs in found.items()
        if runs
    }


def apart(ours: list[float], theirs: list[float]) -> float:
    """The difference of two means over its standard error (Welch); 0 where all scores are equal."""
    error = sum(statistics.variance(each) / len(each) for each in (ours, theirs)) ** 0.5
    difference = abs(statistics.mean(ours) - statistics.mean(theirs))
    return difference / error if error else float(difference > 0) * float("inf")


def main() -> int:
    """Runs both contenders in turn; the exit code."""
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--glue", type=pathlib.Path, required=True, help="folder with RTE/train.tsv and RTE/dev.tsv")
    more.add_argument("--model", type=pathlib.Path, help="folder of PyTorch weights; by default those of the package")
    more.add_argument("--rows", type=int, default=0, help="only the first so many training examples; 0 takes all")
    found = timing.options(__doc__ or "", more)
    timing.pin(found.cores)
    model = found.model or packaged_weights()
    runs: dict[str, list[Measured]] = {COLD: [], WARM: [], PEER: []}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        train = first_rows(found.glue / "RTE" / "train.tsv", found.rows, folder / "train.tsv")
        case = Case(model, train, found.glue / "RTE" / "dev.tsv", folder)
        rounds = [(COLD, 0), *((each, seed) for seed in range(1, found.repeats + 1) for each in (WARM, PEER))]
        for each, seed in rounds:
            runs[each].append(run(each, case, seed))
            print(f"{each:22s} seed {seed}: {runs[each][-1]}", flush=True)
    result = figures(runs)
    # each pair ran one after the other, so other work on the machine slowed both
    ratio = statistics.median(ours.cpu / theirs.cpu for ours, theirs in zip(runs[WARM], runs[PEER], strict=True))
    scores = [[each.score for each in runs[name]] for name in (WARM, PEER)]
    targets = [
        timing.Target(
            "CPU seconds, spanjax with a warm cache over transformers, median of the pairs", ratio, most=MOST_CPU
        ),
        timing.Target("difference of the mean scores over its standard error", apart(*scores), most=2.0),
    ]
    return timing.report({"rows": found.rows, "cores": found.cores, "contenders": result}, targets, found)


if __name__ == "__main__":
    sys.exit(main())
