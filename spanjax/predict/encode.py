"""Vectors of texts by the encoder, as a NumPy array or a Parquet table with a row for every text."""

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Literal

import numpy as np

from spanjax.bounds import flag_problems, raise_problems
from spanjax.cli import Code, Progress
from spanjax.predict.answering import UNREADABLE, AnyModel, Batch, JsonRecord, command, records_of
from spanjax.storage.local import whole_file
from spanjax.storage.outputs import output_problem
from spanjax.training.compilation_cache import CompilationCache

CHUNK = 2048  # texts that are sorted by length and encoded at once
BEGINNINGS = {".npy": b"\x93NUMPY", ".parquet": b"PAR1"}
Write = Callable[[Sequence[str], np.ndarray], None]


@dataclasses.dataclass(frozen=True)
class Encode:
    """Options of `encode`."""

    model: AnyModel
    input: tuple[str, ...]
    """Files: .jsonl, .json, .csv or .tsv with a column of texts; any other has a text a line, blank lines skipped."""
    output: str
    """File to write: .npy, float32 [texts, hidden size], or .parquet with the columns `text` and `vector`."""
    pooling: Literal["mean", "cls"] | None = None
    """Mean over all tokens of a text, or the vector of [CLS]; by default that of the model: cls if it was trained so."""
    field: str = "text"
    """Column of the texts."""
    truncate: bool = False
    """Read the first tokens of texts that are longer than the model's positions instead of refusing them."""
    overwrite: bool = False
    """Replace an existing file of vectors."""
    batch_size: Batch = 32
    code: Code = ()
    compilation_cache: CompilationCache = True


def encode(options: Encode) -> None:
    """Encodes the texts of all files in their order. ValueError, and no file, if one of them cannot be used."""
    # these import jax, which --help does not need
    from spanjax.inference.encode import TextEncoder
    from spanjax.inference.fill_mask import noted
    from spanjax.pretrained.load import load_model

    output = pathlib.Path(options.output)
    problems = [f"--input {name}: no such file" for name in options.input if not pathlib.Path(name).is_file()]
    problems += flag_problems(options)
    problems += [problem] if (problem := _output_problem(output, options)) else []
    raise_problems(problems)
    encoder, count = TextEncoder(noted(load_model(options.model))), 0
    size = encoder.model.encoder.hidden_size
    texts = _texts(records_of(options.input, lambda line: {options.field: line}), options.field)
    # the file appears when all texts are in it: row i belongs to text i, so a part of them would be of no use
    output.absolute().parent.mkdir(parents=True, exist_ok=True)
    with Progress("encoding", unit="texts") as progress, whole_file(output) as file:
        with (_npy if output.suffix == ".npy" else _parquet)(file, size) as write:
            while chunk := list(itertools.islice(texts, CHUNK)):
                try:
                    vectors_BD = encoder.encode(
                        chunk, options.pooling, batch_size=options.batch_size, truncate=options.truncate
                    )
                except ValueError as error:
                    error.add_note(f"index 0 is text {count + 1:,} of the files; --truncate cuts texts")
                    raise
                write(chunk, vectors_BD)
                progress.done = count = count + len(chunk)
        if not count:
            raise ValueError("no text in the files: expected one at least")
    print(f"{count:,} vectors of {size:,} numbers -> {output}")


def _output_problem(path: pathlib.Path, options: Encode) -> str:
    """Returns the reason why --output cannot be written; empty if there is none."""
    if path.suffix not in BEGINNINGS:
        return f"--output {path}: expected a name that ends in {' or '.join(BEGINNINGS)}"
    if problem := output_problem(path.absolute().parent):
        return f"--output {path}: {problem}"
    if path.is_dir():
        return f"--output {path} is a folder: expected the name of a file"
    if any(pathlib.Path(name).resolve() == path.resolve() for name in options.input):
        return f"--output {path} is read as --input: give another name"
    if not path.exists():
        return ""
    if not options.overwrite:
        return f"--output {path} exists already: choose another name, or replace it with --overwrite"
    with open(path, "rb") as file:
        own = file.read(6).startswith(BEGINNINGS[path.suffix])
    return "" if own else f"--output {path} holds no vectors: give another name"


def _texts(records: Iterable[JsonRecord], field: str) -> Iterator[str]:
    """The texts of records. ValueError for one without: row i of the output belongs to text i, so none is skipped."""
    for number, record in enumerate(records, start=1):
        if {*record} == {UNREADABLE}:
            raise ValueError(record[UNREADABLE])
        if not isinstance(record.get(field), str):
            raise ValueError(
                f"record {number}: expected a text in the field {field!r}, got the fields {', '.join(map(str, record))}: name"
                " the field of the texts with --field"
            )
        yield record[field]


@contextlib.contextmanager
def _npy(file: BinaryIO, size: int) -> Iterator[Write]:
    """Appends vectors to a .npy file; NumPy's header has room for any number of rows, so it is written again at the end."""
    count = 0

    def header() -> None:
        shape: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (count, size)}
        np.lib.format.write_array_header_1_0(file, shape)

    def write(_: Sequence[str], vectors_BD: np.ndarray) -> None:
        nonlocal count
        file.write(vectors_BD.astype("<f4").tobytes())
        count += len(vectors_BD)

    header()
    begin = file.tell()
    yield write
    file.seek(0)
    header()
    assert file.tell() == begin
    file.seek(0, 2)


@contextlib.contextmanager
def _parquet(file: BinaryIO, size: int) -> Iterator[Write]:
    # imported here, as only this format needs it
    import pyarrow
    from pyarrow import parquet

    vector = pyarrow.list_(pyarrow.float32(), size)
    schema = pyarrow.schema([("text", pyarrow.string()), ("vector", vector)])

    def write(texts: Sequence[str], vectors_BD: np.ndarray) -> None:
        vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors_BD.ravel()), size)
        table.write_table(pyarrow.table([pyarrow.array(texts, pyarrow.string()), vectors], schema=schema))

    with parquet.ParquetWriter(file, schema) as table:
        yield write


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(Encode, __doc__, encode, "encode", arguments, texts=("field",))
