"""Predictions for records of any task, by a model that was fine-tuned for it; the form that a task of a user's own has too."""

import dataclasses
from typing import Annotated

from spanjax.bounds import MOST_ROWS, Bounds
from spanjax.cli import Code
from spanjax.predict.answering import Folder, NamedColumns, Output, answer_options, command
from spanjax.training.compilation_cache import CompilationCache


@dataclasses.dataclass(frozen=True)
class Records:
    """Options of `task`."""

    model: Folder
    file: tuple[str, ...] = ()
    """Tables of records as the task reads them (its `example`): .jsonl, .json, .csv, .tsv, .parquet; any other has a `text` a
    line."""
    columns: NamedColumns = ()
    output: Output = ""
    batch_size: Annotated[int | None, Bounds(1, MOST_ROWS)] = None
    """Rows that go through the model together; by default the task's own number."""
    code: Code = ()
    compilation_cache: CompilationCache = True


def predict(options: Records) -> None:
    """Answers the records of the files."""
    from spanjax.tasks.base import ANY_TASK  # imports jax, which --help does not need

    answer_options(options, ANY_TASK, (), lambda line: {"text": line}, "nothing to predict: give --file")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(Records, __doc__, predict, "predict", arguments)
