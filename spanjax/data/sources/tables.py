"""Tables of records, the one reader of all commands: tab-separated, comma-separated, JSON lines, a JSON list, Parquet, and the
Arrow files of a folder that the `datasets` library saved. Text may be compressed; records have their place in the file.
"""

import contextlib
import csv
import io
import pathlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, TypeGuard

from spanjax.data.sources.documents import MAX_DOCUMENT
from spanjax.data.sources.paths import dataset_files, open_decompressed
from spanjax.json_files import parse_json

SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
JSON_LINES = (".jsonl", ".jsonlines", ".ndjson")
PARQUET, ARROW = (".parquet", ".pq"), ".arrow"
JSON_KINDS = (*JSON_LINES, ".json")
"""Kinds whose records need not share their columns."""
TYPED = (*PARQUET, ARROW)
"""Kinds that store types, and names of classes if the `datasets` library wrote them."""
TABLES = (*JSON_KINDS, ".tsv", ".csv", *TYPED)
"""Kinds of files with a record for each example."""
ROWS = 1000
"""Rows of Parquet and Arrow that become Python values at once."""
TableRecord = tuple[str, dict[str, Any] | None, str]
"""(place 'FILE:LINE', the columns by name or None, the problem of the line or "")."""
NumberedRecord = tuple[int, dict[str, Any] | None, str]
"""A `TableRecord` with the line in place of 'FILE:LINE'."""
HIDDEN = -1
"""Number of a class in the place of a label that is not published."""


def kind_of(path: pathlib.Path) -> str:
    """The ending of a file's name without that of its compression: '.tsv', '.jsonl'; '.arrow' of a folder."""
    if path.is_dir():
        return ARROW
    bare = path.with_suffix("") if path.suffix in SUFFIXES else path
    return bare.suffix.lower()


def is_table(path: pathlib.Path) -> bool:
    """True for a file, or a saved folder, that has a record for each example."""
    return kind_of(path) in TABLES


def is_whole(value: Any) -> TypeGuard[int]:
    """True for a whole number of JSON."""
    return isinstance(value, int) and not isinstance(value, bool)


def quoted(value: Any) -> str:
    """The value for a message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def list_in_text(value: Any) -> Any:
    """A list that a table of text holds: as JSON, or of words between blanks, whole numbers as such. Others stay unchanged."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return parse_json(value)
        except ValueError:
            return value.split()
    parts = value.split()
    return [int(part) for part in parts] if parts and all(part.isdecimal() for part in parts) else parts


def number_in_text(value: Any) -> Any:
    """The whole number that a cell of a table of text holds; other values stay unchanged."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


_LINE_ENDS = "\r\n"


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a file of text, plain or compressed. ValueError where it is missing, not readable or not UTF-8."""
    if not path.is_file():
        raise ValueError(f"{path}: {'a folder, expected a file' if path.is_dir() else 'no such file'}")
    try:
        with open_decompressed(str(path)) as content:
            yield content
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read ({error}): copy it again") from error


def read_lines(
    path: pathlib.Path, most: int = MAX_DOCUMENT << 20, ends: bool = False
) -> Generator[tuple[int, str], None, None]:
    """(number from 1, line) of a text file; lines without their ends unless `ends`.

    ValueError where it is missing, not readable or not UTF-8, or where a line has more than `most` characters (-1: any number).
    """
    with opened(path) as content, io.TextIOWrapper(content, "utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(most), ""), start=1):
            if len(line) == most and not line.endswith("\n"):
                raise ValueError(f"{path}:{number}: the line has {most:,} characters or more; split it")
            yield number, line if ends else line.rstrip("\r\n")


def read_records(path: pathlib.Path, columns: Sequence[str] = ()) -> Iterator[TableRecord]:
    """The records of a file of `TABLES`, or of a folder that `datasets` saved; a file of another name is tab-separated.

    `columns` names those of a tab-separated file without a header. Numbers of classes become their names where the file has
    them, None where hidden. ValueError for a file that cannot be read at all.
    """
    kind = kind_of(path)
    if kind in TYPED:
        yield from _typed(path)
        return
    if kind == ".json":
        yield from _json_list(path)
        return
    lines = read_lines(path)
    if kind in JSON_LINES:
        numbered = json_lines(lines)
    else:
        numbered = comma_separated(lines) if kind == ".csv" else tab_separated(lines, columns)
    for number, record, problem in numbered:
        yield f"{path}:{number}", record, problem


def json_lines(lines: Iterable[tuple[int, str]]) -> Iterator[NumberedRecord]:
    """The records of JSON lines, given as (number, line)."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError as error:
            yield number, None, f"not JSON ({error}): correct the line"
            continue
        yield number, *_object(record)


def _object(record: Any) -> tuple[dict[str, Any] | None, str]:
    if isinstance(record, dict):
        return record, ""
    return None, f"a JSON {type(record).__name__}: expected an object with the columns by name"


def read_json(path: pathlib.Path) -> Any:
    """The content of a JSON file. ValueError, with the place, where it is not JSON."""
    text = "\n".join(line for _, line in read_lines(path, most=-1))
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}): correct the file") from None


def _json_list(path: pathlib.Path) -> Iterator[TableRecord]:
    content = read_json(path)
    if not isinstance(content, list):
        raise ValueError(f"{path}: a JSON {type(content).__name__}: expected a list of objects")
    for number, record in enumerate(content, start=1):
        yield f"{path}:record {number}", *_object(record)


def comma_separated(lines: Iterable[tuple[int, str]]) -> Iterator[NumberedRecord]:
    """The records of CSV as spreadsheets write it: quoted values may hold commas, doubled quotes and line ends."""
    # Python's own limit of 131,072 characters is below a long document
    csv.field_size_limit(max(csv.field_size_limit(), MAX_DOCUMENT << 20))
    names: list[str] = []
    rows = csv.reader((f"{line.rstrip(_LINE_ENDS)}\n" for _, line in lines), strict=True)
    try:
        for values in rows:
            if not any(value.strip() for value in values):
                continue
            if not names:
                names = values
            elif len(values) == len(names):
                yield rows.line_num, dict(zip(names, values, strict=True)), ""
            else:
                problem = f"{len(values)} columns: expected the {len(names)} columns {', '.join(names)}"
                yield rows.line_num, None, problem
    except csv.Error as error:
        yield rows.line_num, None, f"no comma-separated values from here on ({error}): correct the quotes"


def tab_separated(lines: Iterable[tuple[int, str]], columns: Sequence[str] = ()) -> Iterator[NumberedRecord]:
    """The records of lines with tabs, whose first line has the names unless `columns` has them."""
    names = list(columns)
    for number, line in lines:
        if not line.strip():
            continue
        values = line.rstrip(_LINE_ENDS).split("\t")
        if not names:
            names = values
        elif len(values) < len(names):
            yield number, None, f"{len(values)} columns: expected the {len(names)} columns {', '.join(names)}"
        else:
            yield number, dict(zip(names, values, strict=False)), ""


# -- Parquet and Arrow


class TypedRows(NamedTuple):
    """Rows of Parquet or Arrow: the columns, the names of those that hold classes, and batches of rows."""

    columns: Mapping[str, str]
    """Name of each column -> its type, as pyarrow writes it."""
    classes: Mapping[str, Sequence[str]]
    batches: Iterator[Any]
    """pyarrow's RecordBatch objects."""


def arrow_rows(file: IO[bytes]) -> TypedRows:
    """The rows of an Arrow file, as a stream (`datasets`) or with a footer. pyarrow's errors where it is damaged."""
    from pyarrow import ipc

    footer = file.read(6) == b"ARROW1"
    file.seek(0)
    reader: Any = ipc.open_file(file) if footer else ipc.open_stream(file)
    batches = (reader.get_batch(each) for each in range(reader.num_record_batches)) if footer else iter(reader)
    return TypedRows(types_of(reader.schema), class_names(reader.schema), batches)


def types_of(schema: Any) -> dict[str, str]:
    """Name of each column of a pyarrow schema -> its type as text."""
    return {field.name: str(field.type) for field in schema}


def class_names(schema: Any) -> dict[str, Sequence[str]]:
    """Names of the classes of columns that hold a class or a list of them, from the metadata that `datasets` writes."""
    try:
        features = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"), dict)["info"]["features"]
        found = {name: _names_of(feature) for name, feature in features.items()}
    except (ValueError, KeyError, TypeError, AttributeError):  # another library's metadata: its numbers stay numbers
        return {}
    return {name: names for name, names in found.items() if names}


def _names_of(feature: Any) -> Sequence[str]:
    """Names of a described ClassLabel, or of a list of it in any of the forms that versions of `datasets` write."""
    if isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        feature = feature.get("feature")
    names = feature.get("names") if isinstance(feature, dict) else None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def _typed(path: pathlib.Path) -> Iterator[TableRecord]:
    """The rows of a Parquet or Arrow file, or of the files of a saved folder, counted through from 1."""
    number = 0
    for file in dataset_files(path) if path.is_dir() else [path]:
        if path.suffix in SUFFIXES:
            raise ValueError(f"{path}: expected a file that is not compressed as a whole; unpack it first")
        for record, problem in _typed_file(file):
            number += 1
            yield f"{path}:row {number}", record, problem


def _typed_file(path: pathlib.Path) -> Iterator[tuple[dict[str, Any] | None, str]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{path}: reading Parquet and Arrow needs pyarrow: pip install pyarrow") from None
    try:
        with opened(path) as file:
            if kind_of(path) in PARQUET:
                table = parquet.ParquetFile(file)
                names, batches = class_names(table.schema_arrow), table.iter_batches(ROWS, use_threads=False)
            else:
                _, names, batches = arrow_rows(file)
            for batch in batches:
                # in slices: a batch of Arrow can be the whole file
                for start in range(0, batch.num_rows, ROWS):
                    for record in batch.slice(start, ROWS).to_pylist():
                        yield _with_names(record, names)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): copy it again") from error


def _with_names(record: dict[str, Any], classes: Mapping[str, Sequence[str]]) -> tuple[dict[str, Any] | None, str]:
    for column in classes.keys() & record.keys():
        try:
            record[column] = named_classes(record[column], classes[column])
        except ValueError as error:
            return None, f"`{column}` {error}"
    return record, ""


def named_classes(value: Any, names: Sequence[str]) -> Any:
    """The name of a class by its number, or those of a list of numbers; None where hidden. ValueError for other numbers.

    Values that are no whole numbers stay unchanged.
    """
    if isinstance(value, list):
        return [named_classes(each, names) for each in value]
    if not is_whole(value):
        return value
    if not HIDDEN <= value < len(names):
        raise ValueError(f"has the class {value}: expected 0 to {len(names) - 1}")
    return None if value == HIDDEN else names[value]
