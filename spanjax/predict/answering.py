"""Shared code of the commands for fine-tuned models: records from options or files in, a line of JSON for each out."""

import dataclasses
import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, cast

import tyro

from spanjax.bounds import BatchSize, flag_problems, raise_problems
from spanjax.cli import Code, SomeFailedError, exit_code, parse_options
from spanjax.data.sources.columns import Columns
from spanjax.data.sources.tables import is_table, read_lines, read_records
from spanjax.storage.outputs import output_problem
from spanjax.storage.remote_outputs import on_local_files
from spanjax.training.compilation_cache import use_compilation_cache

if TYPE_CHECKING:
    from spanjax.inference.task_model import TaskModel

JsonRecord = Mapping[str, Any]
UNREADABLE = "unreadable"
"""Only field of the placeholder for a line of a file that is no record."""
Folder = Annotated[
    tyro.conf.Positional[str],
    tyro.conf.arg(metavar="MODEL", help="The folder of a run of fine-tuning, or one checkpoint of it."),
]
AnyModel = Annotated[
    tyro.conf.Positional[str],
    tyro.conf.arg(
        metavar="MODEL",
        help="A run directory, a checkpoint, a folder of PyTorch weights, or an installed model (spanbert-mini).",
    ),
]
Output = Annotated[str, tyro.conf.arg(help="File for the answers, a line of JSON each; empty prints them.")]
NamedColumns = Annotated[
    tuple[str, ...],
    tyro.conf.arg(
        metavar="ROLE=COLUMN [...]",
        help="Columns of the files with other names than the usual ones: text=review; by default those of the training.",
    ),
]
Batch = Annotated[BatchSize, tyro.conf.arg(help="Rows that go through the model together.")]


class WithModel(Protocol):
    """Common options of all commands."""

    @property
    def model(self) -> str:
        """Path of the model, as in `Folder`."""
        ...

    @property
    def compilation_cache(self) -> bool:
        """Setting of `CompilationCache`."""
        ...

    @property
    def code(self) -> Code:
        """Files and modules with classes of the user's own."""
        ...


class Options(WithModel, Protocol):
    """Common options of the commands for records."""

    @property
    def file(self) -> tuple[str, ...]:
        """Files of records, each command's own."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the files, as in `NamedColumns`."""
        ...

    @property
    def output(self) -> str:
        """File for the answers, as in `Output`."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Rows per batch, as in `Batch`."""
        ...


Given = TypeVar("Given", bound=WithModel)


def command(
    kind: type[Given],
    doc: str | None,
    work: Callable[[Given], None],
    verb: str,
    words: list[str] | None,
    texts: Sequence[str] = ("question", "context", "text", "pair"),
) -> int:
    """Runs the command line of the module that defines `kind`; returns the exit code. `verb` is for 'cannot VERB with MODEL',
    `texts` are the options that are not paths."""
    name = kind.__module__.rpartition(".")[2].replace("_", "-")
    fields = {field.name for field in dataclasses.fields(cast(Any, kind))} - {*texts}
    inputs = sorted(fields & {"model", "models", "file", "input", "text"})
    outputs = sorted(fields & {"output"})
    options = parse_options(
        kind,
        args=words,
        prog=f"python -m spanjax.predict {name}",
        description=doc,
        elsewhere=texts,
        stores=(*inputs, *outputs, "rows"),
    )

    def run() -> None:
        from spanjax.run_format import load_code  # imports jax, which --help does not need

        use_compilation_cache(options.compilation_cache)
        load_code(options.code)
        on_local_files(work, options, inputs, outputs)

    return exit_code(name, run, cannot=f"cannot {verb} with {options.model}")


def answer_options(
    options: Options,
    command: str,
    given: Sequence[JsonRecord],
    of_text: Callable[[str], JsonRecord],
    nothing: str,
    **settings: Any,
) -> None:
    """Answers the records of the options, then those of the files, see `answer`.

    One ValueError lists all problems of the options; `nothing` is the message if there are no records.
    """
    from spanjax.inference.task_model import open_model  # imports jax, which --help does not need

    problems = [f"--file {name}: no such file" for name in options.file if not pathlib.Path(name).exists()]
    if not given and not options.file:
        problems.append(nothing)
    problems += flag_problems(options)
    problems += [problem] if (problem := file_problem(options.output, options.file)) else []
    raise_problems(problems)
    settings |= {"columns": options.columns} if options.columns else {}
    model = open_model(options.model, options.batch_size, predict_command=command, **settings)
    raise_problems(model.task.column_problems())
    # columns of the training need not be in these files: they may have the usual names
    records = records_of(options.file, of_text, model.task.table, strict=bool(options.columns))
    answer(model, itertools.chain(given, records), options.output)


def file_problem(output: str, files: Sequence[str] = ()) -> str:
    """Returns the reason why --output cannot be written or is one of these files; empty if there is none."""
    path = pathlib.Path(output)
    if not output:
        return ""
    if problem := output_problem(path.absolute().parent):
        return f"--output {output}: {problem}"
    if path.is_dir():
        return f"--output {output} is a folder: expected the name of a file"
    if any(pathlib.Path(name).resolve() == path.resolve() for name in files):
        return f"--output {output} is read as --file: give another name"
    return "" if _is_answers(path) else f"--output {output} is there and holds no answers: give another name"


def _is_answers(path: pathlib.Path) -> bool:
    """True if no file would be lost: there is none, or it begins as `answer` writes it."""
    if not path.is_file():  # nothing, or /dev/stdout
        return True
    with open(path, "rb") as file:
        start = file.read(9)
    return not start or start.startswith((b'{"input":', b'{"error":'))


def records_of(
    files: Iterable[str], of_text: Callable[[str], JsonRecord], table: Columns | None = None, strict: bool = False
) -> Iterator[JsonRecord]:
    """Yields the records of tables, and one for each line of any other text file. A line that is no record yields its problem
    instead, see `answer`. ValueError for a file without the columns of `table`; see `Columns.checked` for `strict`."""
    for name in files:
        path = pathlib.Path(name)
        if is_table(path):
            records = read_records(path)
            for place, record, problem in table.checked(records, path, strict) if table else records:
                yield {UNREADABLE: f"{place}: {problem}"} if record is None else record
        else:
            yield from (of_text(line) for _, line in read_lines(path) if line.strip())


def answer(model: "TaskModel", records: Iterable[JsonRecord], output: str) -> None:
    """Writes {"input", and the model's answer} for each record, in order, as they are answered; {"error"} for a line
    that is no record. Records may have the columns that the model's task names.

    ValueError without records, and if none could be answered; SomeFailedError if some could not be answered, after all others
    are.
    """
    from spanjax.experiment.finetune import SHOWN  # imports jax, which --help does not need

    table = model.task.table
    given: list[JsonRecord] = []
    failed: list[str] = []
    total = 0

    # The model reads records ahead to fill its batches, so each waits in `given` until its answer comes.
    def noted() -> Iterator[JsonRecord]:
        for record in records:
            given.append(record)
            yield table.renamed(record) if table else record

    if output:
        pathlib.Path(output).absolute().parent.mkdir(parents=True, exist_ok=True)
    with open(output, "w", encoding="utf-8") if output else _Standard() as out:
        for answered in model.answers(noted()):
            record, total = given.pop(0), total + 1
            value = {"input": dict(record), **answered}
            if {*record} == {UNREADABLE}:
                failed.append(record[UNREADABLE])
                value = {"error": record[UNREADABLE]}
            elif "error" in answered:
                failed.append(f"record {total}: {answered['error']}")
            out.write(json_line(value, "utf-8") + "\n")
    if not total:
        raise ValueError("no record in the files: expected one at least")
    if failed:
        more = [f"and {len(failed) - SHOWN:,} more"] if len(failed) > SHOWN else []
        if len(failed) == total:
            raise ValueError(
                "\n".join([*failed[:SHOWN], *more, f"none of {total:,} records is answered: correct them"])
            )
        some = f"{len(failed):,} of {total:,} records could not be answered: correct them; all others are answered"
        raise SomeFailedError("\n".join([*failed[:SHOWN], *more, some]))


def json_line(value: Any, encoding: str) -> str:
    """JSON in one line; escaped to ASCII if the encoding lacks a character, as all lack halves of surrogate pairs."""
    line = json.dumps(value, ensure_ascii=False)
    try:
        line.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value)
    return line


class _Standard:
    """Standard output, not closed."""

    def __enter__(self) -> Any:
        return sys.stdout

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
