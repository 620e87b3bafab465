"""python -m spanjax.evaluate [run] MODEL --data FILE: predictions of a fine-tuned model, and their official scores.

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

from spanjax.bounds import MOST_ROWS, Bounds, flag_problems, raise_problems
from spanjax.cli import Code, Progress, exit_code, parse_options, visible_name
from spanjax.storage.outputs import files_problem, output_files
from spanjax.storage.remote_outputs import on_local_files
from spanjax.training.compilation_cache import CompilationCache, use_compilation_cache


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Options of the evaluation."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """Folder of a fine-tuning run, or one checkpoint of it."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE [...]")]
    """Files of examples, as for training; where none of them has a label there are predictions and no scores."""
    task: str = ""
    """Score them as this task: squad1, squad2, mrqa, quoref, tacred, semeval, coref, coref-gold-mentions, coref-no-singletons,
    corefud, gap, gap-given, the name of a task of GLUE, or one that the class of a task of your own has; empty: as trained."""
    output: Annotated[str, tyro.conf.arg(metavar="FOLDER")] = ""
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
    columns: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ROLE=COLUMN [...]")] = ()
    """Columns of the files, as for training: text=review label=stars; by default those of the training."""
    skip_bad: bool = False
    """Skip and list examples that cannot be used, instead of refusing the file."""
    json: bool = False
    """Print one JSON object."""
    code: Code = ()
    compilation_cache: CompilationCache = True


def evaluate(options: Evaluate) -> None:
    """Prints the scores; writes predictions if requested."""
    from spanjax.experiment.finetune import read_examples, unlabelled_problems
    from spanjax.inference.task_model import open_model
    from spanjax.run_format import load_code
    from spanjax.tasks.included import score_names

    settings: dict[str, Any] = {} if options.threshold is None else {"threshold": options.threshold}
    settings |= {"columns": options.columns} if options.columns else {}
    # a model of a user's own task may have another name, which only opening it shows
    known, problems = score_names(), flag_problems(options)
    unknown = (
        [f"--task is {options.task}: expected one of {', '.join(known)}"] if options.task not in ("", *known) else []
    )
    folder = pathlib.Path(options.output) if options.output else None
    unwritable = files_problem(folder, options.overwrite) if folder else ""
    if problems or unwritable:
        raise ValueError(
            "\n".join([*problems, *unknown, *([f"--output {folder}: {unwritable}"] if unwritable else [])])
        )
    use_compilation_cache(options.compilation_cache)
    load_code(options.code)
    with Progress("loading the model") as progress:
        model = open_model(
            options.model, options.batch_size, score_name=options.task, skip_bad=options.skip_bad, **settings
        )
        raise_problems(model.task.column_problems())
        progress.name = "reading the examples"
        examples, problems = read_examples(model.task.reader(options.dev_half), options.data, "--data")
        labelled = any(map(model.task.is_labelled, examples))
        problems += unlabelled_problems(model.task, examples, "--data") if labelled else []
        raise_problems(problems)
        found = model.predict(examples, progress)
        progress.name, progress.unit, progress.total = "scoring", "", None
        scores = model.task.scores(examples, found.predictions) if labelled else {}
        if labelled:
            scores |= model.task.calibration(examples, found.rows, found.predictions, found.outputs)
    result: dict[str, Any] = {"step": model.model.step, "examples": len(examples), "left_out": len(examples.problems)}
    result |= {"decided": dict(model.inferred_settings), "scores": scores}
    notes = [*examples.notes, *model.task.notes(examples), *([] if labelled else ["no labels: predictions, no scores"])]
    files, failed = [], None
    if folder:
        try:
            with output_files(folder) as work:
                (work / "scores.json").write_text(json.dumps(result, indent=2) + "\n")
                names = [file.name for file in model.task.write(work, examples, found.predictions)]
                files = [folder / name for name in (*names, "scores.json")]
        except ValueError as error:  # the scores are printed first
            failed = error
    if options.json:
        print(json.dumps(result))
    else:
        _say(
            model.inferred_settings,
            result,
            [*notes, *(f"skipped: {each}" for each in examples.problems), *(f"written: {f}" for f in files)],
        )
    if failed:
        raise failed


def _say(inferred: Mapping[str, Any], result: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Prints the scores, and lines below them."""
    console = rich.console.Console(soft_wrap=True, highlight=False)
    table = rich.table.Table("score", "percent", box=None)
    for name, value in result["scores"].items():
        table.add_row(name, f"{value:.4f}")
    console.print(f"{result['examples']:,} examples, checkpoint of step {result['step']:,}", markup=False)
    if result["scores"]:
        console.print(table)
    for name, value in inferred.items():
        console.print(f"{name} {value}: the best on the dev examples of the training", markup=False)
    for line in lines:
        console.print(visible_name(line), markup=False)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    inputs, program = ("model", "data"), "python -m spanjax.evaluate"
    options = parse_options(Evaluate, args=arguments, prog=program, description=__doc__, stores=(*inputs, "output"))

    def work() -> None:
        on_local_files(evaluate, options, inputs, ["output"])

    return exit_code("spanjax.evaluate", work, cannot=f"cannot evaluate {options.model}")
