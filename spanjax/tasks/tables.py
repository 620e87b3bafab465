"""Files of examples: tab-separated with or without a header, comma-separated with one, JSON lines, a JSON list; plain or
compressed; with line numbers."""

import contextlib
import csv
import io
import pathlib
from collections.abc import Generator, Iterator, Sequence
from typing import IO, Any, TypeGuard

from spanjax.data.sources.documents import MAX_DOCUMENT
from spanjax.data.sources.paths import open_decompressed
from spanjax.json_files import parse_json

SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
TABLES = (".jsonl", ".jsonlines", ".json", ".tsv", ".csv")
"""Kinds of files with a record for each example."""
TableRecord = tuple[str, dict[str, Any] | None, str]
"""(place 'FILE:LINE', the columns by name or None, the problem of the line or "")."""


def kind_of(path: pathlib.Path) -> str:
    """The ending of a file's name without that of its compression: '.tsv', '.jsonl'."""
    bare = path.with_suffix("") if path.suffix in SUFFIXES else path
    return bare.suffix.lower()


def is_whole(value: Any) -> TypeGuard[int]:
    """True for a whole number of JSON."""
    return isinstance(value, int) and not isinstance(value, bool)


def quoted(value: Any) -> str:
    """The value for a message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a file of text, plain or compressed. ValueError where it is missing, not readable or not UTF-8."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with open_decompressed(str(path)) as content:
            yield content
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read ({error}): copy it again") from error


def read_lines(path: pathlib.Path, most: int = MAX_DOCUMENT << 20) -> Generator[tuple[int, str], None, None]:
    """(number from 1, line without its end) of a text file.

    ValueError where it is missing, not readable or not UTF-8, or where a line has more than `most` characters (-1: any number).
    """
    with opened(path) as content, io.TextIOWrapper(content, "utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(most), ""), start=1):
            if len(line) == most and not line.endswith("\n"):
                raise ValueError(f"{path}:{number}: the line has {most:,} characters or more; split it")
            yield number, line.rstrip("\r\n")


def read_records(path: pathlib.Path, columns: Sequence[str] = ()) -> Iterator[TableRecord]:
    """The records of a .jsonl (or .jsonlines), .json, .csv or tab-separated file. `columns` names those of a tab-separated file
    without a header."""
    kind = kind_of(path)
    if kind in (".jsonl", ".jsonlines"):
        yield from _json_lines(path)
    elif kind == ".json":
        yield from _json_list(path)
    elif kind == ".csv":
        yield from _comma_separated(path)
    else:
        yield from _tab_separated(path, columns)


def _json_lines(path: pathlib.Path) -> Iterator[TableRecord]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError as error:
            yield f"{path}:{number}", None, f"not JSON ({error}): correct the line"
            continue
        yield _object(f"{path}:{number}", record)


def _object(place: str, record: Any) -> TableRecord:
    if isinstance(record, dict):
        return place, record, ""
    return place, None, f"a JSON {type(record).__name__}: expected an object with the columns by name"


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
        yield _object(f"{path}:record {number}", record)


def _comma_separated(path: pathlib.Path) -> Iterator[TableRecord]:
    """Reads CSV as spreadsheets write it: quoted values may hold commas, doubled quotes and line ends."""
    names: list[str] = []
    rows = csv.reader((f"{line}\n" for _, line in read_lines(path)), strict=True)
    try:
        for values in rows:
            if not any(value.strip() for value in values):
                continue
            if not names:
                names = values
                continue
            place = f"{path}:{rows.line_num}"
            if len(values) == len(names):
                yield place, dict(zip(names, values, strict=True)), ""
            else:
                yield place, None, f"{len(values)} columns: expected the {len(names)} columns {', '.join(names)}"
    except csv.Error as error:
        yield f"{path}:{rows.line_num}", None, f"no comma-separated values from here on ({error}): correct the quotes"


def _tab_separated(path: pathlib.Path, columns: Sequence[str]) -> Iterator[TableRecord]:
    names = list(columns)
    for number, line in read_lines(path):
        if not line.strip():
            continue
        values = line.split("\t")
        if not names:
            names = values
            continue
        place = f"{path}:{number}"
        if len(values) < len(names):
            yield place, None, f"{len(values)} columns: expected the {len(names)} columns {', '.join(names)}"
        else:
            yield place, dict(zip(names, values, strict=False)), ""
