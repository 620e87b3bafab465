"""Sources of documents: text files, JSON-lines files and the docstrings of installed packages."""

import collections
import contextlib
import dataclasses
import glob
import gzip
import json
import lzma
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple, Protocol, cast

from spanjax.data.docstrings import PACKAGES, package_documents

INSTALLED_DOCS = "installed-docs"


class Document(NamedTuple):
    """A text and where it begins, as "file:line"."""

    text: str
    where: str


class Source(Protocol):
    """Documents in a fixed order, the same at every call."""

    @property
    def description(self) -> str:
        """What it is, in a line."""
        ...

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        """Yields the documents; counts in `skipped`, by reason, what it leaves out."""
        ...


@dataclasses.dataclass(frozen=True)
class InstalledDocs:
    """English prose of the docstrings of installed packages, read from their source; nothing is imported."""

    packages: tuple[str, ...] = PACKAGES

    @property
    def description(self) -> str:
        """What it is, in a line."""
        return f"{INSTALLED_DOCS} ({', '.join(self.packages)})"

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        """Yields a document for every module or long class that has prose; ValueError where no package has any."""
        found = package_documents(self.packages)
        if not found:
            raise ValueError(
                f"none of the packages {', '.join(self.packages)} has docstrings here; give text files instead"
            )
        yield from (Document(text, where) for text, where in found)


@dataclasses.dataclass(frozen=True)
class Files:
    """Text files (a blank line between documents) and JSON-lines files (*.jsonl, *.json), plain or .gz or .xz."""

    paths: tuple[pathlib.Path, ...]
    skip_bad: bool = False

    @property
    def description(self) -> str:
        """What it is, in a line."""
        return ", ".join(path.name for path in self.paths)

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        """Yields every document; ValueError naming file, line and remedy at the first bad one, unless `skip_bad`."""
        for path in self.paths:
            reader = _json_documents if _plain_name(path).endswith((".jsonl", ".json")) else _text_documents
            trouble = _Trouble(path, self.skip_bad, skipped)
            some = False
            for document in reader(_lines(path, trouble), trouble):
                some = True
                yield document
            if not some and not trouble.seen:
                trouble.report("empty files", 0, "the file holds no text; remove it or leave it out of the input")


@dataclasses.dataclass
class _Trouble:
    path: pathlib.Path
    skip_bad: bool
    skipped: collections.Counter[str]
    seen: bool = False

    def report(self, kind: str, line: int, message: str) -> None:
        if not self.skip_bad:
            raise ValueError(
                f"{self.path}{f':{line}' if line else ''}: {message} (--skip-bad skips and counts such input)"
            )
        self.seen = True
        self.skipped[kind] += 1


def find_files(patterns: Sequence[str]) -> tuple[pathlib.Path, ...]:
    """Files that paths or globs name, each once, sorted within a pattern; ValueError lists all that match nothing."""
    found: dict[pathlib.Path, None] = {}
    problems = []
    for pattern in patterns:
        matches = [pathlib.Path(pattern)] if pathlib.Path(pattern).exists() else []
        matches = matches or [pathlib.Path(path) for path in sorted(glob.glob(pattern, recursive=True))]
        files = [path for path in matches if path.is_file()]
        if not matches:
            problems.append(f"{pattern}: no such file")
        elif not files:
            problems.append(f"{pattern}: a folder, expected files; write {pattern.rstrip('/')}/* for the files in it")
        problems += [f"{path}: the file is empty" for path in files if path.stat().st_size == 0]
        found.update(dict.fromkeys(files))
    if problems:
        raise ValueError("\n".join(problems))
    return tuple(found)


def _plain_name(path: pathlib.Path) -> str:
    return path.name.lower().removesuffix(".gz").removesuffix(".xz")


def _open(path: pathlib.Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix.lower() == ".xz":
        return cast(IO[bytes], lzma.open(path, "rb"))
    return open(path, "rb")


def _lines(path: pathlib.Path, trouble: _Trouble) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with contextlib.closing(_open(path)) as file:
            for number, content in enumerate(file, start=1):
                try:
                    yield number, content.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    message = f"byte {error.start + 1} of the line is not UTF-8; convert the file (iconv -t UTF-8)"
                    trouble.report("lines not in UTF-8", number, message)
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        trouble.report("damaged files", number + 1, f"the compressed file is damaged ({error}); get it again")


def _text_documents(lines: Iterator[tuple[int, str]], trouble: _Trouble) -> Iterator[Document]:
    gathered: list[str] = []
    first = 0
    for number, line in lines:
        if line.strip():
            first = first if gathered else number
            gathered.append(line.rstrip("\r\n"))
        elif gathered:
            yield Document("\n".join(gathered), f"{trouble.path}:{first}")
            gathered = []
    if gathered:
        yield Document("\n".join(gathered), f"{trouble.path}:{first}")


def _json_documents(lines: Iterator[tuple[int, str]], trouble: _Trouble) -> Iterator[Document]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            trouble.report("lines not JSON", number, f"not JSON ({error}); expected one JSON object a line")
            continue
        text = fields.get("text") if isinstance(fields, dict) else None
        if not isinstance(text, str):
            what = f"the fields are {sorted(fields)}" if isinstance(fields, dict) else "not a JSON object"
            trouble.report(
                "lines without text", number, f'no field "text" with a string ({what}); rename the field of the text'
            )
        elif text.strip():
            yield Document(text, f"{trouble.path}:{number}")
        else:
            trouble.skipped["empty documents"] += 1
