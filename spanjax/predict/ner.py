"""Named entities of texts, by a model that was fine-tuned for them."""

import dataclasses
import itertools

import tyro

from spanjax.command import exit_code
from spanjax.predict.answering import answer, records_of


@dataclasses.dataclass(frozen=True)
class Entities:
    """Where entities are looked for."""

    model: tyro.conf.Positional[str]
    """The folder of a run of fine-tuning, or one checkpoint of it."""
    text: tuple[str, ...] = ()
    """Sentences; words are what lies between blanks, and punctuation at their ends."""
    file: tuple[str, ...] = ()
    """Files: .jsonl or .json with `words` (a list) or `text`, .tsv with `text`; any other has a sentence a line."""
    output: str = ""
    """File for the answers, a line of JSON each; empty prints them."""
    batch_size: int = 32
    """Rows that go through the model together."""


def find(options: Entities) -> None:
    """Answers the options' sentences, then those of the files."""
    if not options.text and not options.file:
        raise ValueError("nothing to look through: give --text or --file")
    given = ({"text": text} for text in options.text)
    records = itertools.chain(given, records_of(options.file, lambda line: {"text": line}))
    answer(options.model, ("Ner",), records, options.output, options.batch_size)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = tyro.cli(Entities, args=arguments, prog="python -m spanjax.predict ner", description=__doc__)
    return exit_code("ner", lambda: find(options), cannot=f"cannot find entities with {options.model}")
