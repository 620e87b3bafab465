"""The label, or number, of sentences or pairs of sentences, by a model that was fine-tuned for such a task."""

import dataclasses

from spanjax.cli import Code
from spanjax.predict.answering import Batch, Folder, NamedColumns, Output, answer_options, command
from spanjax.training.compilation_cache import CompilationCache


@dataclasses.dataclass(frozen=True)
class Classify:
    """Options of `classify`."""

    model: Folder
    text: tuple[str, ...] = ()
    """Sentences."""
    pair: tuple[str, ...] = ()
    """The second sentences, one for each of --text."""
    file: tuple[str, ...] = ()
    """Tables (.csv, .tsv, .jsonl, .json, .parquet, a folder saved by `datasets`) with `sentence`, or `sentence1` and `sentence2`;
    any other file has a sentence a line."""
    columns: NamedColumns = ()
    output: Output = ""
    batch_size: Batch = 32
    code: Code = ()
    compilation_cache: CompilationCache = True


def classify(options: Classify) -> None:
    """Answers the options' sentences, then those of the files."""
    if options.pair and len(options.pair) != len(options.text):
        raise ValueError(f"{len(options.pair)} --pair for {len(options.text)} --text: give one each")
    given = [{"sentence": text} for text in options.text]
    if options.pair:
        given = [{"sentence1": a, "sentence2": b} for a, b in zip(options.text, options.pair, strict=True)]
    nothing = "nothing to classify: give --text or --file"
    answer_options(options, "classify", given, lambda line: {"sentence": line}, nothing)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(Classify, __doc__, classify, "classify", arguments)
