"""The relation between two entities of a sentence, by a model that was fine-tuned for it."""

import dataclasses

from spanjax.cli import Code
from spanjax.predict.answering import Batch, Folder, NamedColumns, Output, answer_options, command
from spanjax.training.compilation_cache import CompilationCache


@dataclasses.dataclass(frozen=True)
class Relations:
    """Options of `relation`."""

    model: Folder
    text: tuple[str, ...] = ()
    """Sentences with <e1>...</e1> around the first entity (the subject) and <e2>...</e2> around the other."""
    file: tuple[str, ...] = ()
    """Tables (.jsonl, .json, .parquet, .csv, ...) of records in TACRED's form, or with `text`; any other has a sentence a line,
    after a number and a tab in SemEval's form."""
    columns: NamedColumns = ()
    output: Output = ""
    batch_size: Batch = 32
    code: Code = ()
    compilation_cache: CompilationCache = True


def relate(options: Relations) -> None:
    """Answers the options' sentences, then those of the files."""
    given = [{"text": text} for text in options.text]
    answer_options(options, "relation", given, of_line, "nothing to look at: give --text or --file")


def of_line(line: str) -> dict[str, str]:
    """The record of a line of text: a sentence, or SemEval's number, tab and sentence."""
    number, tab, sentence = line.partition("\t")
    return {"id": number, "text": sentence} if tab and number.isdigit() else {"text": line}


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(Relations, __doc__, relate, "relate", arguments)
