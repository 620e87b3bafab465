"""python -m spanjax.evaluate MODEL --data FILE: predictions of a fine-tuned model, and their official scores.

MODEL is the folder of a fine-tuning run (its best checkpoint counts) or one checkpoint. --output writes the predictions in the
format of the official scripts and leaderboards, with scores.json next to them. Exit codes: 0 done, 2 wrong input: also a file
without examples, and one of which --skip-bad leaves none.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import rich.console
import rich.table
import tyro

from spanjax.bounds import MOST_ROWS, Bounds, flag_problems
from spanjax.cli import exit_code, parse_options, visible_name
from spanjax.scoring.glue import TASKS as GLUE
from spanjax.storage.outputs import files_problem, output_files
from spanjax.training.compilation_cache import CompilationCache, use_compilation_cache

NAMED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "squad1": ("Questions", {"version": "1.1", "answers": "alternatives"}),
    "squad2": ("Questions", {"version": "2.0", "answers": "alternatives"}),
    "mrqa": ("Questions", {"version": "mrqa", "answers": "alternatives"}),
    "quoref": ("Questions", {"version": "1.1", "answers": "set"}),
    "tacred": ("Relation", {"scheme": "tacred"}),
    "semeval": ("Relation", {"scheme": "semeval"}),
    "coref": ("Coref", {}),
}
"""Names of --task that are no `task` of their class -> that class, and their settings."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Options of the evaluation."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """Folder of a fine-tuning run, or one checkpoint of it."""
    data: tuple[str, ...]
    """Files of examples, as for training; where none of them has a label there are predictions and no scores."""
    task: str = ""
    """Score them as this task: squad1, squad2, mrqa, quoref, tacred, semeval, coref, or the name of a task of GLUE; empty: as
    trained."""
    output: str = ""
    """Folder for predictions and scores."""
    overwrite: bool = False
    """Write into a folder that holds files, replacing those of the same names."""
    batch_size: Annotated[int | None, Bounds(1, MOST_ROWS)] = None
    """Rows that go through the model together; by default 32, of coreference one document."""
    threshold: float | None = None
    """Models of SQuAD 2.0: no answer where the null odds are above this; by default the best value on the dev examples of the
    training, 0 without any."""
    dev_half: Literal["", "dev", "test"] = ""
    """Questions: this half of the files alone, as by `objective.dev_half` in training; empty: all of them."""
    skip_bad: bool = False
    """Skip and list examples that cannot be used, instead of refusing the file."""
    json: bool = False
    """Print one JSON object."""
    compilation_cache: CompilationCache = True


def evaluate(options: Evaluate) -> None:
    """Prints the scores; writes predictions if requested."""
    from spanjax.experiment.finetune import read_examples, unlabelled_problems
    from spanjax.inference.task_model import open_model

    kind, named = NAMED.get(options.task, ("", {"task": options.task} if options.task else {}))
    settings = dict(named)
    if options.threshold is not None:
        settings["threshold"] = options.threshold
    problems = flag_problems(options)
    if options.task and options.task not in (known := (*NAMED, *GLUE, "own")):
        problems.append(f"--task is {options.task}: expected one of {', '.join(known)}")
    folder = pathlib.Path(options.output) if options.output else None
    if folder and (problem := files_problem(folder, options.overwrite)):
        problems.append(f"--output {folder}: {problem}")
    if problems:
        raise ValueError("\n".join(problems))
    use_compilation_cache(options.compilation_cache)
    kinds = (kind,) if kind else ()
    model = open_model(options.model, options.batch_size, kinds, skip_bad=options.skip_bad, **settings)
    examples, problems = read_examples(model.task.reader(options.dev_half), options.data, "--data")
    labelled = any(map(model.task.is_labelled, examples))
    problems += unlabelled_problems(model.task, examples, "--data") if labelled else []
    if problems:
        raise ValueError("\n".join(problems))
    found = model.predict(examples)
    scores = model.task.scores(examples, found.predictions) if labelled else {}
    told: dict[str, Any] = {"step": model.model.step, "examples": len(examples), "left_out": len(examples.problems)}
    told |= {"decided": dict(model.decided), "scores": scores}
    notes = [*examples.notes, *model.task.notes(examples), *([] if labelled else ["no labels: predictions, no scores"])]
    files, failed = [], None
    if folder:
        try:
            with output_files(folder) as work:
                (work / "scores.json").write_text(json.dumps(told, indent=2) + "\n")
                names = [file.name for file in model.task.write(work, examples, found.predictions)]
                files = [folder / name for name in (*names, "scores.json")]
        except ValueError as error:  # the scores are printed first
            failed = error
    if options.json:
        print(json.dumps(told))
    else:
        _say(
            model.decided,
            told,
            [*notes, *(f"left out: {each}" for each in examples.problems), *(f"written: {f}" for f in files)],
        )
    if failed:
        raise failed


def _say(decided: Mapping[str, Any], told: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Prints the scores, and lines below them."""
    console = rich.console.Console(soft_wrap=True, highlight=False)
    table = rich.table.Table("score", "percent", box=None)
    for name, value in told["scores"].items():
        table.add_row(name, f"{value:.4f}")
    console.print(f"{told['examples']:,} examples, checkpoint of step {told['step']:,}", markup=False)
    if told["scores"]:
        console.print(table)
    for name, value in decided.items():
        console.print(f"{name} {value}: the best on the dev examples of the training", markup=False)
    for line in lines:
        console.print(visible_name(line), markup=False)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    options = parse_options(Evaluate, args=arguments, prog="python -m spanjax.evaluate", description=__doc__)
    return exit_code("spanjax.evaluate", lambda: evaluate(options), cannot=f"cannot evaluate {options.model}")


if __name__ == "__main__":
    raise SystemExit(main())
