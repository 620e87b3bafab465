"""Documents of one file: text or a table of `data.sources.tables`, by the name.

*.jsonl, *.jsonlines and *.ndjson hold one JSON object a line, *.json the same or a list of objects, *.csv, *.tsv, *.parquet,
*.pq and *.arrow a document a row; any other file is text with a blank line between documents. All but Parquet and Arrow may
be compressed (.gz, .xz, .bz2, .zst). Lines are read on demand, Parquet row group by row group, Arrow batch by batch. No line
and no document is larger than `SourceSettings.max_document`; a JSON list is read as a whole.
"""

import collections
import contextlib
import functools
import io
import itertools
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spanjax.data.sources.columns import Columns, Role, listed
from spanjax.data.sources.documents import Document, SourceSettings, Trouble, checked_spans
from spanjax.data.sources.paths import compression, open_bytes, open_decompressed
from spanjax.data.sources.tables import (
    ARROW,
    JSON_KINDS,
    PARQUET,
    ROWS,
    TYPED,
    NumberedRecord,
    arrow_rows,
    comma_separated,
    tab_separated,
    types_of,
)
from spanjax.json_files import parse_json

SPANS_FIELD = "spans"
TEXT = Role("text", ("text",))
"""The only role that `--columns` names for documents."""
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".lz4")
_PARQUET_ROWS, _PARQUET_BYTES = 1_000, 64 << 20  # decoded at a time
_SEGMENT_BYTES = 1 << 20
_TEXT_COLUMN = re.compile(r"(large_)?(string|binary)(_view)?|dictionary<values=(large_)?(string|binary).*")
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
_RETURNS = re.compile(r"\r+(?=\n)")


def file_problem(path: str) -> str:
    """Reason why a file of this name cannot be read; empty where it can."""
    plain = _plain(path)
    if plain.endswith(_ARCHIVES):
        return (
            f"{path}: expected text, JSON lines or Parquet, plain or .gz, .xz, .bz2 or .zst; unpack the archive first"
        )
    if plain.endswith(TYPED) and compression(path):
        kind = "Arrow" if plain.endswith(ARROW) else "Parquet"
        return f"{path}: expected {kind} that is not compressed as a whole; unpack the file first"
    return ""


def read_documents(path: str, settings: SourceSettings, skipped: collections.Counter[str]) -> Iterator[Document]:
    """Yields every document; ValueError naming file, line and remedy at the first bad one, unless they are skipped."""
    trouble = Trouble(path, settings.skip_bad, skipped, settings.max_document)
    plain = _plain(path)
    if plain.endswith(PARQUET):
        documents = _typed_documents("Parquet", settings.text_field, trouble)
    elif plain.endswith(ARROW):
        documents = _typed_documents("Arrow", settings.text_field, trouble)
    elif plain.endswith(JSON_KINDS):
        values = (_json_list if plain.endswith(".json") else _json_lines)(_lines(trouble), trouble)
        documents = _json_documents(values, settings.text_field, trouble)
    elif plain.endswith((".csv", ".tsv")):
        read = comma_separated if plain.endswith(".csv") else tab_separated
        documents = _cell_documents(read(_lines(trouble)), settings.text_field, trouble)
    else:
        documents = _text_documents(_segments(trouble), trouble)
    some = False
    for document in documents:
        some = True
        yield document
    if not some and not trouble.seen:
        trouble.report("empty files", 0, "the file holds no text; remove it or leave it out of the input")


def _plain(path: str) -> str:
    return path.lower().removesuffix(compression(path))


@contextlib.contextmanager
def _opened(trouble: Trouble, lines: list[int]) -> Iterator[io.BufferedReader]:
    """The content of a file; damage is reported at the line after `lines`."""
    try:
        with open_decompressed(trouble.path) as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if not compression(trouble.path) or getattr(error, "errno", None) is not None:
            raise  # a decompressor's errors have no number
        trouble.report("damaged files", lines[0] + 1, f"the compressed file is damaged ({error}); get it again")


def _decoded(content: bytes, number: int, trouble: Trouble) -> str | None:
    try:
        return content.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        message = f"byte {error.start + 1} of the line is not UTF-8; convert the file (iconv -t UTF-8)"
        trouble.report("lines not in UTF-8", number, message)
        return None


def _lines(trouble: Trouble) -> Iterator[tuple[int, str]]:
    """Number and text of every good line."""
    count = [0]
    with _opened(trouble, count) as file:
        for number, content in enumerate(iter(functools.partial(file.readline, trouble.most + 1), b""), start=1):
            line = None
            if len(content) <= trouble.most:
                line = _decoded(content, number, trouble)
            else:
                trouble.report_size(number, "line")
                while content and not content.endswith(b"\n"):
                    content = file.readline(_SEGMENT_BYTES)
            count[0] = number
            if line is not None:
                yield number, line


def _segments(trouble: Trouble) -> Iterator[tuple[int, str]]:
    """Number of the first line and text of parts of a file that end where a line ends: much faster than line by line."""
    count = [0]
    rest: list[bytes] = []
    too_large = False
    with _opened(trouble, count) as file:
        while content := file.read1(_SEGMENT_BYTES):
            if too_large:
                _, newline, content = content.partition(b"\n")
                too_large = not newline
                count[0] += not too_large
            end = content.rfind(b"\n") + 1
            rest.append(content[:end] if end else content)
            if not end and sum(map(len, rest)) > trouble.most:
                trouble.report_size(count[0] + 1, "line")
                rest, too_large = [], True
            if end:
                yield from _segment(b"".join(rest), count[0] + 1, trouble)
                count[0] += content.count(b"\n")
                rest = [content[end:]]
    if any(rest):
        yield from _segment(b"".join(rest) + b"\n", count[0] + 1, trouble)


def _segment(content: bytes, number: int, trouble: Trouble) -> Iterator[tuple[int, str]]:
    """The text of whole lines; line by line where some are not UTF-8."""
    try:
        yield number, content.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        for place, line in enumerate(io.BytesIO(content), start=number):
            text = _decoded(line, place, trouble)
            if text is not None:
                yield place, text


def _text_documents(segments: Iterator[tuple[int, str]], trouble: Trouble) -> Iterator[Document]:
    gathered: list[str] = []
    first = size = 0  # line and characters of the document that is being gathered

    def add(part: str, number: int) -> None:
        nonlocal first, size
        first = first if size else number
        before, size = size, size + len(part) + 1
        if size <= trouble.most:
            gathered.append(part)
            return
        gathered.clear()
        if before <= trouble.most:
            trouble.report_size(first, "document, which a blank line ends,")

    for number, text in segments:
        text = "\n" + (_RETURNS.sub("", text) if "\r" in text else text)  # so that every line follows a newline
        place = 1
        for blank in _BLANK_LINES.finditer(text):
            if place < blank.start():
                add(text[place : blank.start()], number)
            if gathered:
                yield Document("\n".join(gathered), f"{trouble.path}:{first}")
                gathered.clear()
            size = 0
            number += text.count("\n", place, blank.end())
            place = blank.end()
        last = text[place:].removesuffix("\n")
        if last:
            add(last, number)
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


def _json_lines(lines: Iterable[tuple[int, str]], trouble: Trouble) -> Iterator[tuple[int, Any]]:
    for number, line in lines:
        if not line or line.isspace():
            continue
        try:
            yield number, parse_json(line)
        except ValueError as error:
            trouble.report("lines not JSON", number, f"not JSON ({error}); expected one JSON object a line")


def _json_list(lines: Iterator[tuple[int, str]], trouble: Trouble) -> Iterator[tuple[int, Any]]:
    """The records of a .json file: a list of them, counted from 1 and read into memory as a whole, or one in each line."""
    first = next((each for each in lines if each[1].strip()), (0, ""))
    if not first[1].lstrip().startswith("["):
        yield from _json_lines(itertools.chain([first], lines), trouble)
        return
    try:
        values = parse_json("\n".join(line for _, line in itertools.chain([first], lines)))
    except ValueError as error:
        trouble.report(
            "files not JSON", 0, f"not JSON ({error}); expected a list of objects, or one JSON object a line"
        )
        return
    yield from enumerate(values, start=1)


def _json_documents(values: Iterator[tuple[int, Any]], field: str, trouble: Trouble) -> Iterator[Document]:
    for number, fields in values:
        text = fields.get(field) if isinstance(fields, dict) else None
        if isinstance(text, str):
            if document := _document(text, fields.get(SPANS_FIELD), number, trouble):
                yield document
            continue
        what = f"the fields are {sorted(fields)}" if isinstance(fields, dict) else "not a JSON object"
        remedy = name_it(fields if isinstance(fields, dict) else {}, field)
        trouble.report("lines without text", number, f'no field "{field}" with a string ({what}); {remedy}')


def _cell_documents(records: Iterator[NumberedRecord], field: str, trouble: Trouble) -> Iterator[Document]:
    """The documents of a table of text, whose first record shows whether it has the column."""
    for number, record, problem in records:
        if record is None:
            trouble.report("bad rows", number, problem)
        elif field not in record:
            # the columns are those of every row, so that the file has no text at all
            message = f"no column {field!r} (the columns are {listed(record)}); {name_it(record, field)}"
            trouble.report("files without text", 0, message)
            return
        elif document := row_document(record[field], None, number, trouble):
            yield document


def name_it(record: Mapping[str, Any], field: str) -> str:
    """Remedy for a table whose text is in another column than `field`: the flag, with the likely column of this record."""
    table = Columns((TEXT,), (("text",),), "`text`", (f"text={field}",))
    return f"name it with {table.suggestion(record) or '--columns text=COLUMN'}"


def _arrow_rows(file: Any, field: str) -> tuple[Mapping[str, str], Iterator[Any]]:
    """(types of the columns, batches of rows) of an Arrow file; in slices, as one of its batches can be the whole file."""
    del field  # every column lies in memory as it is stored
    rows = arrow_rows(file)
    slices = (batch.slice(start, ROWS) for batch in rows.batches for start in range(0, batch.num_rows, ROWS))
    return rows.columns, slices


def _parquet_rows(file: Any, field: str) -> tuple[Mapping[str, str], Iterator[Any]]:
    """(types of the columns, batches of rows) of a Parquet file, of which only texts and spans are decoded."""
    from pyarrow import parquet

    table = parquet.ParquetFile(file)
    types = types_of(table.schema_arrow)

    def batches() -> Iterator[Any]:
        columns = [name for name in (field, SPANS_FIELD) if name in types]
        for group in range(table.num_row_groups):
            size = _rows_at_a_time(file, table, group, field)
            yield from table.iter_batches(size, [group], columns, use_threads=False)

    return types, batches()


_TYPED_ROWS = {"Arrow": _arrow_rows, "Parquet": _parquet_rows}


def _typed_documents(kind: str, field: str, trouble: Trouble) -> Iterator[Document]:
    """The documents of a file of this kind, one a row."""
    import pyarrow

    number = 0
    try:
        with open_bytes(trouble.path) as file:
            types, batches = _TYPED_ROWS[kind](file, field)
            if problem := _column_problem(types, field):
                trouble.report("files without text", 0, problem)
                return
            for batch in batches:
                texts = batch.column(field).to_pylist()
                spans = batch.column(SPANS_FIELD).to_pylist() if SPANS_FIELD in types else itertools.repeat(None)
                for text, marked in zip(texts, spans, strict=False):
                    number += 1
                    if document := row_document(text, marked, number, trouble):
                        yield document
    except (pyarrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # the system's error, not damage that --skip-bad may skip
        trouble.report("damaged files", number + 1, f"the {kind} file is damaged ({error}); get it again")


def _rows_at_a_time(file: Any, table: Any, group: int, field: str) -> int:
    """Rows of a row group to decode together: fewer where their texts are long."""
    about = table.metadata.row_group(group)
    columns = (about.column(number) for number in range(about.num_columns))
    size = sum(column.total_uncompressed_size for column in columns if column.path_in_schema == field)
    average = max(1, size // max(1, about.num_rows))
    return max(1, min(_PARQUET_ROWS, _PARQUET_BYTES // average, _PARQUET_BYTES // _longest_shared(file, group, field)))


def _longest_shared(file: Any, group: int, field: str) -> int:
    """Length of the longest text in the dictionary of a row group, which any number of rows may share; at least 1."""
    from pyarrow import parquet

    table = parquet.ParquetFile(file, read_dictionary=[field])
    longest = 1
    for batch in itertools.islice(table.iter_batches(1, [group], [field], use_threads=False), 1):
        column = batch.column(field)
        shared = column.dictionary if hasattr(column, "dictionary") else column
        longest = max(longest, *(len(text or "") for text in shared.to_pylist()))
    return longest


def row_document(text: str | bytes | None, spans: Any, number: int, trouble: Trouble) -> Document | None:
    """The document of a row with this text, as stored, if it is good and has text."""
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            trouble.report("lines not in UTF-8", number, f"byte {error.start + 1} of the text is not UTF-8; convert it")
            return None
    if text is None:
        trouble.report("lines without text", number, "the text of the row is null; fill it in or leave the row out")
        return None
    if len(text) > trouble.most:
        trouble.report_size(number, "text of the row")
        return None
    return _document(text, spans, number, trouble)


def _column_problem(columns: Mapping[str, str], field: str) -> str:
    """Reason why columns of these types have no text; "" where they have."""
    texts = {name: name for name, kind in columns.items() if _TEXT_COLUMN.fullmatch(kind)}
    if field not in columns:
        return f"no column {field!r} (the columns are {sorted(columns)}); {name_it(texts, field)}"
    if field not in texts:
        return f"the column {field!r} is {columns[field]}, expected strings; {name_it(texts, field)}"
    return ""
