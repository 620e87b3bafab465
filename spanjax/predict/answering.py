"""What the commands of fine-tuned models have in common: records from options or files in, a line of JSON for each out."""

import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from spanjax.applying import Applied, open_model
from spanjax.data.paths import output_problem
from spanjax.tasks.tables import kind_of, read_lines, read_records

Record = Mapping[str, Any]


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
    model = opened(path, tasks, batch_size, **settings)
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


def opened(path: str, tasks: tuple[str, ...], batch_size: int, **settings: Any) -> Applied:
    """The model, where it is of one of these tasks."""
    model = open_model(path, batch_size, **settings)
    found = type(model.task).__name__
    if found not in tasks:
        raise ValueError(f"{path} was trained for {found}: expected a model of {' or '.join(tasks)}")
    return model
