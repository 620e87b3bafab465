"""The relation between two entities of a sentence, by a model that was fine-tuned for it."""

import dataclasses
import itertools

import tyro

from spanjax.command import exit_code
from spanjax.predict.answering import answer, records_of


@dataclasses.dataclass(frozen=True)
class Relations:
    """What is looked at."""

    model: tyro.conf.Positional[str]
    """The folder of a run of fine-tuning, or one checkpoint of it."""
    text: tuple[str, ...] = ()
    """Sentences with <e1>...</e1> around the first entity (the subject) and <e2>...</e2> around the other."""
    file: tuple[str, ...] = ()
    """Files: .jsonl or .json of records in TACRED's form, or with `text`; any other has a sentence a line."""
    output: str = ""
    """File for the answers, a line of JSON each; empty prints them."""
    batch_size: int = 32
    """Rows that go through the model together."""


def relate(options: Relations) -> None:
    """Answers the options' sentences, then those of the files."""
    if not options.text and not options.file:
        raise ValueError("nothing to look at: give --text or --file")
    given = ({"text": text} for text in options.text)
    records = itertools.chain(given, records_of(options.file, lambda line: {"text": line}))
    answer(options.model, ("Relation",), records, options.output, options.batch_size)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = tyro.cli(Relations, args=arguments, prog="python -m spanjax.predict relation", description=__doc__)
    return exit_code("relation", lambda: relate(options), cannot=f"cannot relate with {options.model}")
