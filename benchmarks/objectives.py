"""python -m benchmarks.objectives --rows ROWS --tasks NAME=CONFIG:TRAIN:DEV:METRIC ...: all objectives for the same compute.

Every arm of configs/ablations/objective_*.py is pretrained on the same rows for as many FLOPs as `--steps` steps of SpanBERT's
take, and what it gives is fine-tuned on each task with each seed, as is an encoder with random weights. Settings of
`spanjax.train` may follow a task's metric behind further colons.

`--weights NAME=FOLDER` are further arms that are fine-tuned as they are; with them the random weights are as large as the first.
Everything is a run of `spanjax.train` in `--workdir` and is not repeated when the command is given again, so it can be stopped,
and two commands with other `--arms` can share the folder; what was made there with other rows, steps or settings of a task stops
it. Prints a table in Markdown and writes it as JSON.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any, NamedTuple

ARMS = (
    "spanbert",
    "tokens",
    "bert",
    "roberta",
    "ernie",
    "albert",
    "electra",
    "electra_spans",
    "xlnet",
    "relative",
    "modern",
)
RANDOM = "random"


class TaskOf(NamedTuple):
    """A task of `--tasks`."""

    name: str
    config: str
    train: str
    dev: str
    metric: str
    settings: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> "TaskOf":
        """ValueError where a part is missing."""
        name, _, rest = text.partition("=")
        parts = rest.split(":")
        if len(parts) < 4 or not name:
            raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=CONFIG:TRAIN:DEV:METRIC[:SETTING...]")
        config, training, dev, metric = parts[:4]
        return cls(name, config, training, dev, metric, tuple(parts[4:]))


class Cost(NamedTuple):
    """What a step of an arm takes."""

    steps: int
    flops: float
    bytes: int


@dataclasses.dataclass(frozen=True)
class Ablation:
    """The runs in one folder."""

    rows: str
    workdir: pathlib.Path
    tasks: tuple[TaskOf, ...]
    seeds: tuple[int, ...]
    steps: int
    weights: dict[str, str]
    """Further arms: name -> a run directory, a folder of weights or an installed model."""
    rate: str
    """Learning rate of fine-tuning."""

    def cost(self, arm: str) -> Cost:
        """Steps for the common compute; FLOPs and memory of one step. Kept beside the run, as measuring compiles the step."""
        kept = self.workdir / arm / f"cost_{self.steps}.json"
        if not kept.is_file():
            flops, peak = measured(arm, self.rows)
            steps = round(self.steps * (measured("spanbert", self.rows, compiled=False)[0] / flops))
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({"rows": self.rows, **Cost(steps, flops, peak)._asdict()}))
        found = json.loads(kept.read_text())
        stop_at_others((kept,), [f"--rows {found.pop('rows', '(not kept)')}"], [f"--rows {self.rows}"])
        return Cost(**found)

    def pretrain(self, arm: str) -> pathlib.Path:
        """The work directory of the pretrained arm."""
        workdir = self.workdir / arm / "pretrained"
        steps = self.cost(arm).steps
        given = ["--rows", self.rows, "--feed", "numpy", "--steps", str(steps)]
        train(config_of(arm), workdir, *given, *stages(arm, steps))
        return workdir

    def tune(self, arm: str, task: TaskOf, seed: int) -> float:
        """The best score of one fine-tuning."""
        workdir = self.workdir / arm / f"{task.name}_{seed}"
        before = self.workdir / arm / "pretrained.done"
        start = ["--init-from", self.weights.get(arm, str(before.with_suffix("")))]
        if arm == RANDOM:
            start = fresh(self.rows, next(iter(self.weights.values()), ""), self.workdir / arm)
        files = ["--train", task.train, "--dev", task.dev, "--objective.length", "128", "--seed", str(seed)]
        rate = ["--optimizer.learning-rate", self.rate]
        lines = before.read_text().splitlines() if before.is_file() else []
        train(
            task.config, workdir, *start, *files, *rate, *task.settings, before=[f"pretrained {each}" for each in lines]
        )
        return max(values(workdir, f"eval/score/{task.metric}"))


def config_of(arm: str) -> str:
    """The config file of an arm."""
    return f"configs/ablations/objective_{arm}.py"


def stages(arm: str, steps: int) -> list[str]:
    """Settings that put the stages of an arm's masking where they are in its config, in proportion to its steps."""
    from spanjax.run import load

    run: Any = load(config_of(arm))
    firsts = [round(each.first_step * steps / run.steps) for each in getattr(run.objective.masking, "stages", ())]
    return [f"--objective.masking.stages.{number}.first-step={first}" for number, first in enumerate(firsts)]


def measured(arm: str, rows: str, compiled: bool = True) -> tuple[float, int]:
    """(model FLOPs of a training step on full rows, bytes that the compiled step takes with its state)."""
    from spanjax.experiment.pretrain import open_pretraining_session
    from spanjax.experiment.summary import compiled_peak
    from spanjax.experiment.sweep import step_flops
    from spanjax.sharding import to_global
    from spanjax.train import parse

    session: Any = open_pretraining_session(parse(["--config", config_of(arm), "--rows", rows, "--feed", "numpy"]).run)
    flops = step_flops(session)
    if not compiled:
        return flops, 0
    feed = session.feed(0)
    peak = compiled_peak(session, to_global(next(feed), session.mesh)) or 0
    feed.close()
    return flops, peak


def fresh(rows: str, like: str, folder: pathlib.Path) -> list[str]:
    """Settings of an encoder with random weights: sizes and vocabulary of the weights `like` (their vocabulary is written into
    `folder`), else those of the arms and their rows.
    """
    from spanjax.data.vocab.loading import save_vocabulary
    from spanjax.pretrained.load import load_model
    from spanjax.run import load

    vocabulary = pathlib.Path(rows) / "train" / "vocabulary"
    if like:
        model = load_model(like)
        encoder, vocabulary = model.encoder, folder / "vocabulary"
        if model.vocabulary is None:
            raise SystemExit(f"{like} has no vocabulary: expected a run, or a folder with its tokenizer's files")
        save_vocabulary(model.vocabulary, vocabulary)
    else:
        encoder = load(config_of("base")).encoder
    return ["--init-from=", f"--objective.vocabulary={vocabulary}", *architecture_flags(encoder)]


def architecture_flags(encoder: Any) -> list[str]:
    """Flags of `spanjax.train` that give an encoder of this architecture; the size of the vocabulary follows from its files."""
    from spanjax.nn.config import Architecture

    flags = []
    for field in dataclasses.fields(Architecture):
        name, value = field.name.replace("_", "-"), getattr(encoder, field.name)
        if field.name == "vocab_size" or value == field.default:
            continue
        flags.append(
            f"--encoder.{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--encoder.{name}={value}"
        )
    return flags


def options_of(words: list[str]) -> list[str]:
    """The words of a command, each option with its values: ["--steps 8", ...]."""
    found: list[str] = []
    for word in words:
        if word.startswith("--") or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found


def stop_at_others(made: tuple[pathlib.Path, ...], then: list[str], now: list[str]) -> None:
    """SystemExit where the files `made` were made with other options, with the difference."""
    gone, new = ([each for each in one if each not in other] for one, other in ((then, now), (now, then)))
    if gone or new:
        before, here = (", ".join(each) or "fewer options" for each in (gone, new))
        remedy = f"give another --workdir, or remove {' and '.join(map(str, made))}"
        raise SystemExit(f"{made[0]} was made with {before}, this command has {here}: {remedy}")


def stop_at_unreadable(arms: list[str], rows: str) -> None:
    """SystemExit with every arm that cannot read the rows, before any of them trains."""
    problems = []
    for arm in arms:
        try:
            measured(arm, rows, compiled=False)
        except ValueError as error:
            problems.append(f"{arm}: {error}")
    if problems:
        raise SystemExit("\n".join([*problems, "prepare such rows, or name the arms that can do without, with --arms"]))


def train(config: str, workdir: pathlib.Path, *settings: str, before: list[str] | None = None) -> None:
    """A run of `spanjax.train`, on this process's cores; a finished one is left alone. Its output is beside its folder.

    What finished it lies there too: its command without the folder, and `before`, what its weights came from. SystemExit where a
    finished run had another one, or a run fails.
    """
    done, folder = workdir.with_suffix(".done"), f"{workdir.parent.parent}/"
    options = [
        *(each.replace(folder, "WORKDIR/") for each in options_of([f"--config {config}", *settings])),
        *(before or []),
    ]
    if done.is_file():
        stop_at_others((workdir, done), done.read_text().splitlines() or ["a command that was not kept"], options)
        return
    workdir.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "spanjax.train", "--config", config, "--workdir", str(workdir), *settings]
    threads = str(len(os.sched_getaffinity(0)))
    with workdir.with_suffix(".log").open("w") as log:
        code = subprocess.run(
            command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": threads}
        ).returncode
    if code:
        raise SystemExit(f"{' '.join(command)}\nended with {code}: {workdir.with_suffix('.log')}")
    done.write_text("".join(f"{each}\n" for each in options))


def values(workdir: pathlib.Path, name: str) -> list[float]:
    """All values of a figure of a run, in the order of its steps."""
    lines = (json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def told(found: list[float]) -> str:
    """A mean with its standard deviation, where there are several."""
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.1f}{spread}"


def table(found: dict[str, dict[str, Any]], tasks: tuple[TaskOf, ...]) -> list[str]:
    """Rows of Markdown."""
    heads = ["arm", "steps", "GFLOP a step", "ms a step", "MiB", *(f"{task.name} ({task.metric})" for task in tasks)]
    lines = [heads, ["---"] * len(heads)]
    for arm, each in found.items():
        costs = ["-"] * 4
        if "cost" in each:
            cost = Cost(**each["cost"])
            costs = [f"{cost.steps:,}", f"{cost.flops / 1e9:.1f}", f"{each['ms']:.0f}", f"{cost.bytes / 2**20:.0f}"]
        lines.append([arm, *costs, *(told(each["scores"][task.name]) for task in tasks)])
    return [f"| {' | '.join(line)} |" for line in lines]


def main() -> int:
    """Runs what is missing; prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows",
        required=True,
        help="a folder of `spanjax.prepare`, of rows of 128; the arm ernie reads tags (configs/ablations/objective_ernie.py)",
    )
    parser.add_argument(
        "--tasks", required=True, nargs="+", type=TaskOf.read, help="NAME=CONFIG:TRAIN:DEV:METRIC[:SETTING...]"
    )
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/objectives"))
    parser.add_argument("--arms", nargs="*", default=[RANDOM, *ARMS], choices=[RANDOM, *ARMS])
    parser.add_argument("--weights", nargs="+", default=[], help="NAME=FOLDER: weights that are fine-tuned as they are")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--steps", type=int, default=800, help="steps of SpanBERT; the others get as many FLOPs")
    parser.add_argument("--rate", default="1e-3", help="learning rate of fine-tuning")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    weights = dict(each.split("=", 1) for each in options.weights)
    tasks, seeds = tuple(options.tasks), tuple(options.seeds)
    ablation = Ablation(options.rows, options.workdir, tasks, seeds, options.steps, weights, options.rate)
    stop_at_unreadable([arm for arm in options.arms if arm in ARMS], options.rows)
    found: dict[str, dict[str, Any]] = {}
    for arm in [*options.arms, *weights]:
        found[arm] = {}
        if arm in ARMS:
            run = ablation.pretrain(arm)
            found[arm] |= {"cost": ablation.cost(arm)._asdict(), "ms": statistics.median(values(run, "speed/step_ms"))}
            found[arm] |= {"held_out": json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])}
        found[arm]["scores"] = {
            task.name: [ablation.tune(arm, task, seed) for seed in ablation.seeds] for task in ablation.tasks
        }
        print("\n".join(table({arm: found[arm]}, ablation.tasks)[-1:]), flush=True)
    print("\n".join(["", *table(found, ablation.tasks)]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
