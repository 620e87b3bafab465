"""Answers to questions from passages, by a model that was fine-tuned for extractive question answering."""

import dataclasses
import itertools

import tyro

from spanjax.command import exit_code
from spanjax.predict.answering import answer, records_of


@dataclasses.dataclass(frozen=True)
class Qa:
    """What is asked."""

    model: tyro.conf.Positional[str]
    """The folder of a run of fine-tuning, or one checkpoint of it."""
    question: tuple[str, ...] = ()
    """Questions on --context."""
    context: str = ""
    """The passage."""
    file: tuple[str, ...] = ()
    """Files of questions: .jsonl, .json or .tsv with `question` and `context`, and an `id` where wanted."""
    output: str = ""
    """File for the answers, a line of JSON each; empty prints them."""
    batch_size: int = 32
    """Windows that go through the model together."""
    threshold: float | None = None
    """Models of SQuAD 2.0: no answer where the null odds are above this; by default what was best on the dev examples of the
    training, 0 without any."""


def qa(options: Qa) -> None:
    """Answers the options' questions, then those of the files."""
    if bool(options.question) != bool(options.context) or not (options.question or options.file):
        raise ValueError("nothing to answer: give --question with --context, or --file")
    asked = ({"question": question, "context": options.context} for question in options.question)
    records = itertools.chain(asked, records_of(options.file, lambda line: {"question": line}))
    settings = {} if options.threshold is None else {"threshold": options.threshold}
    answer(options.model, ("Questions",), records, options.output, options.batch_size, **settings)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = tyro.cli(Qa, args=arguments, prog="python -m spanjax.predict qa", description=__doc__)
    return exit_code("qa", lambda: qa(options), cannot=f"cannot answer with {options.model}")
