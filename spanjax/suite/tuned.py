"""Fine-tuning suites: every encoder on every task by one grid of settings, chosen on one half of the dev examples.

WORKDIR/tuned/TASK is a sweep (`spanjax.train --sweep`) with an arm for each encoder and entry of the grid; halves.json in a
run's folder has its scores on both halves of every dev set. Data, programs and compilations are shared by the runs of a task.
"""

import dataclasses
import json
import math
import os
import pathlib
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spanjax.bounds import raise_problems
from spanjax.data.sources.tfds import TFDS_PREFIX
from spanjax.json_files import read_json
from spanjax.scoring.checks import listed
from spanjax.scoring.paired import Paired, paired
from spanjax.storage.inputs import RESULT
from spanjax.storage.local import write_whole
from spanjax.suite.quick_data import share_of

HALVES = "halves.json"
DEFAULT_GRID: Mapping[str, str] = {"2e-5": "--optimizer.learning-rate 2e-5", "5e-5": "--optimizer.learning-rate 5e-5"}


@dataclasses.dataclass(frozen=True)
class TunedTask:
    """A task of a suite. Files are relative to the data folder, or tfds:NAME@SPLIT."""

    config: str
    """Preset or config file of `spanjax.train`."""
    train: tuple[str, ...]
    dev: Mapping[str, tuple[str, ...]]
    """Name of a column -> its files."""
    settings: str = ""
    """Further words of the command line."""
    score_as: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Column -> name of `spanjax.evaluate --task`, where it is not the task of the training."""


SPLITS = {"MNLI-m": "validation_matched", "MNLI-mm": "validation_mismatched", "AX": ""}
"""Column -> its split of TFDS where that is not `validation`; AX has no labels there."""


def glue_task(name: str, folder: str, tfds: str, *more: str) -> TunedTask:
    """Builds a task of GLUE with its folder of files and its data set of TFDS; `more` are its columns, where it has several."""
    dev = {}
    for column in more or (name,):
        split = SPLITS.get(column, "validation")
        dev[column] = (f"glue/{folder}/{column if more else 'dev'}.tsv",)
        dev[column] += (f"{TFDS_PREFIX}glue/{tfds}@{split}",) if split else ()
    return TunedTask(
        "configs/finetune/glue.py",
        (f"glue/{folder}/train.tsv", f"{TFDS_PREFIX}glue/{tfds}@train"),
        dev,
        f"--objective.task {name}",
        {each: each for each in more},
    )


GLUE: Mapping[str, TunedTask] = {
    "CoLA": glue_task("CoLA", "CoLA", "cola"),
    "SST-2": glue_task("SST-2", "SST-2", "sst2"),
    "MRPC": glue_task("MRPC", "MRPC", "mrpc"),
    "STS-B": glue_task("STS-B", "STS-B", "stsb"),
    "QQP": glue_task("QQP", "QQP", "qqp"),
    "MNLI": glue_task("MNLI-m", "MNLI", "mnli", "MNLI-m", "MNLI-mm", "AX"),
    "QNLI": glue_task("QNLI", "QNLI", "qnli"),
    "RTE": glue_task("RTE", "RTE", "rte"),
    "WNLI": glue_task("WNLI", "WNLI", "wnli"),
}
SPANS: Mapping[str, TunedTask] = {
    "SQuAD 1.1": TunedTask(
        "configs/finetune/squad1.py", ("squad/train-v1.1.json",), {"SQuAD 1.1": ("squad/dev-v1.1.json",)}
    ),
    "MRQA": TunedTask(
        "configs/finetune/mrqa.py",
        ("mrqa/NaturalQuestionsShort-train.jsonl.gz",),
        {"MRQA": ("mrqa/NaturalQuestionsShort-dev.jsonl.gz",)},
    ),
    "NER": TunedTask(
        "configs/finetune/conll2003.py", ("ner/conll2003/eng.train.gz",), {"NER": ("ner/conll2003/eng.valid.gz",)}
    ),
    "relations": TunedTask(
        "configs/finetune/semeval.py",
        ("relation/semeval2010_task8/TRAIN_FILE.TXT.gz",),
        {"relations": ("relation/semeval2010_task8/TEST_FILE_FULL.TXT.gz",)},
    ),
    "coreference": TunedTask(
        "configs/finetune/coref.py", ("coref/litbank/train.conll.gz",), {"coreference": ("coref/litbank/dev.conll.gz",)}
    ),
}
SUITES: Mapping[str, Mapping[str, TunedTask]] = {"glue": GLUE, "spans": SPANS, "full": {**GLUE, **SPANS}}


def read_tasks(path: str) -> tuple[dict[str, TunedTask], dict[str, str]]:
    """Reads tasks and the grid of a TOML file: tables [tasks.NAME] and [grid]. ValueError with all problems."""
    try:
        content = tomllib.loads(pathlib.Path(path).read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--tasks {path} is no TOML: {error}") from error
    problems, tasks = [f"{name}: expected tasks and grid" for name in content if name not in ("tasks", "grid")], {}
    for name, table in content.get("tasks", {}).items():
        known = {field.name for field in dataclasses.fields(TunedTask)}
        unknown = sorted(table.keys() - known) if isinstance(table, dict) else ["no table"]
        missing = [each for each in ("config", "train", "dev") if isinstance(table, dict) and each not in table]
        if unknown or missing:
            problems.append(f"tasks.{name}: unknown {listed(unknown) or 'none'}, missing {listed(missing) or 'none'}")
            continue
        dev = table["dev"] if isinstance(table["dev"], dict) else {name: table["dev"]}
        files = {column: (each,) if isinstance(each, str) else tuple(each) for column, each in dev.items()}
        train = table["train"]
        train = (train,) if isinstance(train, str) else tuple(train)
        tasks[name] = TunedTask(table["config"], train, files, table.get("settings", ""), table.get("score_as", {}))
    grid = content.get("grid", dict(DEFAULT_GRID))
    if not isinstance(grid, dict) or not grid or not all(isinstance(each, str) for each in grid.values()):
        problems.append(f"grid is {grid!r}: expected names with settings as on the command line")
    problems += [] if tasks else ["no task: expected a table [tasks.NAME]"]
    raise_problems([f"  - {problem}" for problem in problems], f"--tasks {path}:")
    return tasks, grid


def existing(tasks: Mapping[str, TunedTask], folder: pathlib.Path) -> tuple[dict[str, TunedTask], list[str]]:
    """Returns the tasks with their files as paths: of each list the files that exist, or a data set of TFDS that is prepared;
    and the names of tasks without them."""
    found, missing = dict[str, TunedTask](), list[str]()
    for name, task in tasks.items():
        train = _first_existing(task.train, folder)
        dev = {column: each for column, files in task.dev.items() if (each := _first_existing(files, folder))}
        if train and dev:
            found[name] = dataclasses.replace(task, train=train, dev=dev)
        else:
            missing.append(name)
    return found, missing


def _first_existing(names: Sequence[str], folder: pathlib.Path) -> tuple[str, ...]:
    files = [str(path) for name in names for path in _files(folder / name)]
    return tuple(files) or tuple(name for name in names if name.startswith(TFDS_PREFIX) and _prepared(name))[:1]


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    plain = [path] if path.is_file() else []
    return (
        plain or [packed for ending in (".gz", ".xz") if (packed := path.with_name(path.name + ending)).is_file()][:1]
    )


def _prepared(name: str) -> bool:
    from spanjax.data.sources.tfds import Place, open_split
    from spanjax.tasks.tfds_records import FOLDER

    try:
        return not open_split(name, Place(os.environ.get(FOLDER) or None, False, FOLDER, ""))[3]
    except (ImportError, ValueError, OSError):
        return False


def arm_name(encoder: str, entry: str) -> str:
    """Returns the arm of an encoder with an entry of the grid."""
    return f"{encoder}={entry}"


def sweep_command(
    task: TunedTask, encoders: Mapping[str, str], grid: Mapping[str, str], seeds: Sequence[int], folder: pathlib.Path
) -> list[str]:
    """Writes the grid file of a task, and returns the command of its sweep."""
    arms = {
        arm_name(name, entry): ["--init-from", path, *words.split()]
        for name, path in encoders.items()
        for entry, words in grid.items()
    }
    lines = [f"seeds = {json.dumps(list(seeds))}", "[arms]"]
    lines += [f"{json.dumps(name)} = {json.dumps([_quoted(word) for word in words])}" for name, words in arms.items()]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "grid.toml", "\n".join(lines) + "\n")
    command = [
        sys.executable,
        "-m",
        "spanjax.train",
        "--config",
        task.config,
        "--train",
        *task.train,
        *task.settings.split(),
    ]
    return [*command, "--sweep", str(folder / "grid.toml"), "--workdir", str(folder)]


def _quoted(word: str) -> str:
    return shlex.quote(word)


def run_task(
    task: TunedTask, encoders: Mapping[str, str], grid: Mapping[str, str], seeds: Sequence[int], folder: pathlib.Path
) -> int:
    """Trains what is missing of a task, and scores what is not scored yet; returns the exit code of the sweep."""
    command = sweep_command(task, encoders, grid, seeds, folder)
    code = subprocess.run(command, check=False).returncode
    runs = (folder / arm_name(name, entry) / str(seed) for name in encoders for entry in grid for seed in seeds)
    for run in runs:
        finished = (run / RESULT).is_file() and "error" not in read_json(run / RESULT, dict)
        if finished and not (run / HALVES).is_file():
            write_whole(run / HALVES, json.dumps(halves_of(task, run)) + "\n")
    return code


def halves_of(task: TunedTask, run: pathlib.Path) -> dict[str, Any]:
    """Returns column -> half -> scores of a finished run, and the name of the score that counts."""
    from spanjax.experiment.finetune import read_examples
    from spanjax.inference.task_model import open_model

    found = {}
    for column, files in task.dev.items():
        model = open_model(str(run), score_name=task.score_as.get(column, ""))
        examples, problems = read_examples(model.task.reader(""), files, "dev")
        raise_problems(problems)
        predictions = model.predict(examples).predictions
        half_of = [share_of("half", str(place)) < 0.5 for place in range(len(examples))]
        scores: dict[str, Any] = {"metric": model.task.metric}
        for half, side in (("choose", True), ("report", False)):
            own = [place for place, each in enumerate(half_of) if each == side]
            given = model.task.scores([examples[place] for place in own], [predictions[place] for place in own])
            scores[half] = given[model.task.metric]
        found[column] = {**scores, "examples": len(examples)}
    return found


class TunedScore(NamedTuple):
    """An encoder on a column, with the entry of the grid that won on the first half."""

    entry: str
    values: dict[int, float]
    """Seed -> score on the other half."""

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return math.fsum(self.values.values()) / len(self.values)


def tuned_scores(
    folder: pathlib.Path,
    tasks: Mapping[str, TunedTask],
    encoders: Sequence[str],
    grid: Sequence[str],
    seeds: Sequence[int],
) -> dict[str, dict[str, TunedScore]]:
    """Reads encoder -> column -> score of the finished runs."""
    found: dict[str, dict[str, TunedScore]] = {name: {} for name in encoders}
    for task_name, task in tasks.items():
        for name in encoders:
            runs = {
                (entry, seed): read_json(file, dict)
                for entry in grid
                for seed in seeds
                if (file := folder / slug(task_name) / arm_name(name, entry) / str(seed) / HALVES).is_file()
            }
            for column in task.dev:
                # one whole set of seeds is a fair choice: an entry with fewer runs waits
                full = [entry for entry in grid if all((entry, seed) in runs for seed in seeds)]
                if full:
                    best = max(full, key=lambda entry: math.fsum(runs[entry, s][column]["choose"] for s in seeds))
                    values = {seed: float(runs[best, seed][column]["report"]) for seed in seeds}
                    found[name][column] = TunedScore(best, values)
    return found


def slug(name: str) -> str:
    """Returns the folder of a task."""
    return name.replace(" ", "-")


def compared(base: TunedScore | None, other: TunedScore | None) -> Paired | None:
    """Returns other minus base, paired by seed; None where one is missing."""
    if base is None or other is None:
        return None
    return paired([other.values[seed] for seed in base.values], [base.values[seed] for seed in base.values])
