"""What the commands of fine-tuned models have in common: records from options or files in, a line of JSON for each out."""

import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeVar

import tyro

from spanjax.applying import open_model
from spanjax.command import exit_code
from spanjax.data.paths import output_problem
from spanjax.tasks.tables import kind_of, read_lines, read_records

Record = Mapping[str, Any]
Folder = Annotated[
    tyro.conf.Positional[str], tyro.conf.arg(help="The folder of a run of fine-tuning, or one checkpoint of it.")
]
Output = Annotated[str, tyro.conf.arg(help="File for the answers, a line of JSON each; empty prints them.")]
Batch = Annotated[int, tyro.conf.arg(help="Rows that go through the model together.")]


class WithModel(Protocol):
    """What the options of every command have."""

    @property
    def model(self) -> str:
        """See `Folder`."""
        ...


class Options(WithModel, Protocol):
    """What the options of commands for records have."""

    @property
    def file(self) -> tuple[str, ...]:
        """Files of records, each command's own."""
        ...

    @property
    def output(self) -> str:
        """See `Output`."""
        ...

    @property
    def batch_size(self) -> int:
        """See `Batch`."""
        ...


Given = TypeVar("Given", bound=WithModel)


def command(
    kind: type[Given], doc: str | None, work: Callable[[Given], None], verb: str, words: list[str] | None
) -> int:
    """The command line of the module that `kind` is of; returns the exit code. `verb` is for 'cannot VERB with MODEL'."""
    name = kind.__module__.rpartition(".")[2]
    options = tyro.cli(kind, args=words, prog=f"python -m spanjax.predict {name}", description=doc)
    return exit_code(name, lambda: work(options), cannot=f"cannot {verb} with {options.model}")


def answer_options(
    options: Options,
    task: str,
    given: Sequence[Record],
    of_text: Callable[[str], Record],
    nothing: str,
    **settings: Any,
) -> None:
    """Answers the records of the options, then those of the files, see `answer`.

    One ValueError lists all that is wrong with the options; `nothing` says that there are no records.
    """
    problems = [f"--file {name}: no such file" for name in options.file if not pathlib.Path(name).is_file()]
    if not given and not options.file:
        problems.append(nothing)
    problems += batch_problems(options.batch_size)
    if problems:
        raise ValueError("\n".join(problems))
    records = itertools.chain(given, records_of(options.file, of_text))
    answer(options.model, (task,), records, options.output, options.batch_size, **settings)


def batch_problems(size: int) -> list[str]:
    """What is wrong with --batch-size, in words."""
    return [] if size > 0 else [f"--batch-size is {size}: expected at least 1"]


def records_of(files: Iterable[str], of_text: Callable[[str], Record]) -> Iterator[Record]:
    """The records of .jsonl, .json and tab-separated files, and one for each line of any other file of text."""
    for name in files:
        path = pathlib.Path(name)
        if kind_of(path) in (".jsonl", ".json", ".tsv"):
            for place, record, problem in read_records(path):
                if record is None:
                    raise ValueError(f"{place}: {problem}")
                yield record
        else:
            yield from (of_text(line) for _, line in read_lines(path) if line.strip())


def answer(
    path: str, tasks: tuple[str, ...], records: Iterable[Record], output: str, batch_size: int, **settings: Any
) -> None:
    """Writes {"input", and what the model says} for each record, in order, as they are answered.

    `tasks` are the classes of tasks that the command is for. ValueError for a model of another one.
    """
    if output and (problem := output_problem(pathlib.Path(output))):
        raise ValueError(f"--output {output}: {problem}")
    model = open_model(path, batch_size, tasks, **settings)
    given: list[Record] = []

    def noted() -> Iterator[Record]:
        for record in records:
            given.append(record)
            yield record

    with open(output, "w", encoding="utf-8") if output else _Standard() as out:
        for answered in model.answers(noted()):
            out.write(json.dumps({"input": dict(given.pop(0)), **answered}, ensure_ascii=False) + "\n")


class _Standard:
    """Standard output, not closed."""

    def __enter__(self) -> Any:
        return sys.stdout

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
