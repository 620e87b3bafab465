"""Answers to questions from passages, by a model that was fine-tuned for extractive question answering."""

import dataclasses

from spanjax.bounds import BatchSize
from spanjax.cli import Code
from spanjax.predict.answering import Folder, NamedColumns, Output, answer_options, command
from spanjax.training.compilation_cache import CompilationCache


@dataclasses.dataclass(frozen=True)
class Qa:
    """Options of `qa`."""

    model: Folder
    question: tuple[str, ...] = ()
    """Questions on --context."""
    context: str = ""
    """The passage."""
    file: tuple[str, ...] = ()
    """Tables of questions (.jsonl, .json, .csv, .tsv, .parquet, ...) with `question` and `context`, and an optional `id`."""
    columns: NamedColumns = ()
    output: Output = ""
    batch_size: BatchSize = 32
    """Windows that go through the model together."""
    threshold: float | None = None
    """Models of SQuAD 2.0: no answer if the null odds exceed this; by default the best value on the dev examples of the
    training, 0 without any."""
    code: Code = ()
    compilation_cache: CompilationCache = True


def qa(options: Qa) -> None:
    """Answers the options' questions, then those of the files."""
    nothing = "nothing to answer: give --question with --context, or --file"
    if bool(options.question) != bool(options.context):
        raise ValueError(nothing)
    asked = [{"question": question, "context": options.context} for question in options.question]
    settings = {} if options.threshold is None else {"threshold": options.threshold}
    answer_options(options, "qa", asked, lambda line: {"question": line}, nothing, **settings)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(Qa, __doc__, qa, "answer", arguments)
