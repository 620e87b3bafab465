"""The label, or number, of sentences or pairs of sentences, by a model that was fine-tuned for such a task."""

import dataclasses
import itertools

import tyro

from spanjax.command import exit_code
from spanjax.predict.answering import answer, records_of


@dataclasses.dataclass(frozen=True)
class Classify:
    """What is classified."""

    model: tyro.conf.Positional[str]
    """The folder of a run of fine-tuning, or one checkpoint of it."""
    text: tuple[str, ...] = ()
    """Sentences."""
    pair: tuple[str, ...] = ()
    """The second sentences, one for each of --text."""
    file: tuple[str, ...] = ()
    """Files: .jsonl, .json or .tsv with `sentence`, or `sentence1` and `sentence2`; any other has a sentence a line."""
    output: str = ""
    """File for the answers, a line of JSON each; empty prints them."""
    batch_size: int = 32
    """Rows that go through the model together."""


def classify(options: Classify) -> None:
    """Answers the options' sentences, then those of the files."""
    if options.pair and len(options.pair) != len(options.text):
        raise ValueError(f"{len(options.pair)} --pair for {len(options.text)} --text: give one each")
    if not options.text and not options.file:
        raise ValueError("nothing to classify: give --text or --file")
    firsts = [{"sentence": text} for text in options.text]
    if options.pair:
        firsts = [{"sentence1": a, "sentence2": b} for a, b in zip(options.text, options.pair, strict=True)]
    records = itertools.chain(firsts, records_of(options.file, lambda line: {"sentence": line}))
    answer(options.model, ("Glue",), records, options.output, options.batch_size)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = tyro.cli(Classify, args=arguments, prog="python -m spanjax.predict classify", description=__doc__)
    return exit_code("classify", lambda: classify(options), cannot=f"cannot classify with {options.model}")
