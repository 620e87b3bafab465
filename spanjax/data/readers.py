"""Documents of one file: text, JSON lines or Parquet, by the name.

*.jsonl, *.ndjson and *.json hold one JSON object a line, *.parquet and *.pq a document a row; any other file is text with a
blank line between documents. Text and JSON lines may be compressed (.gz, .xz, .bz2, .zst). A line is read when it is
asked for, Parquet row group by row group.
"""

import collections
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from typing import Any

from spanjax.data.documents import Document, SourceSettings, Trouble, checked_spans
from spanjax.data.paths import compression, open_bytes, open_decompressed

SPANS_FIELD = "spans"
_JSON, _PARQUET = (".jsonl", ".ndjson", ".json"), (".parquet", ".pq")
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".lz4")
_PARQUET_ROWS = 1_000  # decoded at a time


def file_problem(path: str) -> str:
    """Why a file of this name cannot be read; empty where it can."""
    plain = _plain(path)
    if plain.endswith(_ARCHIVES):
        return (
            f"{path}: expected text, JSON lines or Parquet, plain or .gz, .xz, .bz2 or .zst; unpack the archive first"
        )
    if plain.endswith(_PARQUET) and compression(path):
        return f"{path}: expected Parquet that is not compressed as a whole; unpack the file first"
    return ""


def read_documents(path: str, settings: SourceSettings, skipped: collections.Counter[str]) -> Iterator[Document]:
    """Yields every document; ValueError naming file, line and remedy at the first bad one, unless they are skipped."""
    trouble = Trouble(path, settings.skip_bad, skipped)
    plain = _plain(path)
    if plain.endswith(_PARQUET):
        documents = _parquet_documents(settings.text_field, trouble)
    elif plain.endswith(_JSON):
        documents = _json_documents(_lines(trouble), settings.text_field, trouble)
    else:
        documents = _text_documents(_lines(trouble), trouble)
    some = False
    for document in documents:
        some = True
        yield document
    if not some and not trouble.seen:
        trouble.report("empty files", 0, "the file holds no text; remove it or leave it out of the input")


def _plain(path: str) -> str:
    return path.lower().removesuffix(compression(path))


def _lines(trouble: Trouble) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with open_decompressed(trouble.path) as file:
            for number, content in enumerate(file, start=1):
                try:
                    yield number, content.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    message = f"byte {error.start + 1} of the line is not UTF-8; convert the file (iconv -t UTF-8)"
                    trouble.report("lines not in UTF-8", number, message)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if not compression(trouble.path) or getattr(error, "errno", None) is not None:
            raise  # a decompressor's errors have no number
        trouble.report("damaged files", number + 1, f"the compressed file is damaged ({error}); get it again")


def _text_documents(lines: Iterator[tuple[int, str]], trouble: Trouble) -> Iterator[Document]:
    gathered: list[str] = []
    first = 0
    for number, line in lines:
        if line and not line.isspace():
            first = first if gathered else number
            gathered.append(line.rstrip("\r\n"))
        elif gathered:
            yield Document("\n".join(gathered), f"{trouble.path}:{first}")
            gathered = []
    if gathered:
        yield Document("\n".join(gathered), f"{trouble.path}:{first}")


def _document(text: str, spans: Any, number: int, trouble: Trouble) -> Document | None:
    """The document of a line or row, if it is good and has text."""
    if not text or text.isspace():
        trouble.skipped["empty documents"] += 1
        return None
    where = f"{trouble.path}:{number}"
    if spans is None:
        return Document(text, where)
    try:
        return Document(text, where, checked_spans(spans, len(text)))
    except ValueError as error:
        trouble.report("bad spans", number, f"{error}; correct the field {SPANS_FIELD!r} or leave it out")
        return None


def _json_documents(lines: Iterator[tuple[int, str]], field: str, trouble: Trouble) -> Iterator[Document]:
    for number, line in lines:
        if not line or line.isspace():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            trouble.report("lines not JSON", number, f"not JSON ({error}); expected one JSON object a line")
            continue
        text = fields.get(field) if isinstance(fields, dict) else None
        if isinstance(text, str):
            document = _document(text, fields.get(SPANS_FIELD), number, trouble)
            if document:
                yield document
            continue
        what = f"the fields are {sorted(fields)}" if isinstance(fields, dict) else "not a JSON object"
        trouble.report(
            "lines without text", number, f'no field "{field}" with a string ({what}); name it with --text-field'
        )


def _parquet_documents(field: str, trouble: Trouble) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with open_bytes(trouble.path) as file, parquet.ParquetFile(file) as table:
            problem = _column_problem(table.schema_arrow, field)
            if problem:
                trouble.report("files without text", 0, problem)
                return
            columns = [field] + [SPANS_FIELD] * (SPANS_FIELD in table.schema_arrow.names)
            for group in range(table.num_row_groups):
                for batch in table.iter_batches(_PARQUET_ROWS, [group], columns, use_threads=False):
                    for row in batch.to_pylist():
                        number += 1
                        yield from _row_documents(row, field, number, trouble)
    except (pyarrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        trouble.report("damaged files", number + 1, f"the Parquet file is damaged ({error}); get it again")


def _row_documents(row: dict[str, Any], field: str, number: int, trouble: Trouble) -> Iterator[Document]:
    text = row[field]
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            message = f"byte {error.start + 1} of the text is not UTF-8; convert the column"
            trouble.report("lines not in UTF-8", number, message)
            return
    if text is None:
        trouble.report("lines without text", number, f"the row has no text in {field!r}; fill it in or leave it out")
        return
    document = _document(text, row.get(SPANS_FIELD), number, trouble)
    if document:
        yield document


def _column_problem(schema: Any, field: str) -> str:
    columns = {column.name: str(column.type) for column in schema}
    if field not in columns:
        return f"no column {field!r} (the columns are {sorted(columns)}); name the one of the text with --text-field"
    if not re.search(r"\b(large_)?(string|binary)(_view)?\b", columns[field]) or columns[field].startswith("list"):
        return f"the column {field!r} is {columns[field]}, expected strings; name another one with --text-field"
    return ""
