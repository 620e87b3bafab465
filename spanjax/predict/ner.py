"""Named entities of texts, by a model that was fine-tuned for them."""

import dataclasses

from spanjax.cli import Code
from spanjax.predict.answering import Batch, Folder, NamedColumns, Output, answer_options, command
from spanjax.training.compilation_cache import CompilationCache


@dataclasses.dataclass(frozen=True)
class Entities:
    """Options of `ner`."""

    model: Folder
    text: tuple[str, ...] = ()
    """Sentences; blanks separate words, and punctuation at their ends counts as words."""
    file: tuple[str, ...] = ()
    """Tables (.jsonl, .json, .parquet, a folder saved by `datasets`, .csv, .tsv) with `words` (a list), `tokens` or `text`; any
    other file has a sentence a line."""
    columns: NamedColumns = ()
    output: Output = ""
    batch_size: Batch = 32
    code: Code = ()
    compilation_cache: CompilationCache = True


def find(options: Entities) -> None:
    """Answers the options' sentences, then those of the files."""
    given = [{"text": text} for text in options.text]
    answer_options(options, "ner", given, lambda line: {"text": line}, "nothing to look through: give --text or --file")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(Entities, __doc__, find, "find entities", arguments)
