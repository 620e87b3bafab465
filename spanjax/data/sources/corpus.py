"""Sources of documents by name: files of text, the docstrings of installed packages, TFDS data sets, and several at once.

A name is a path or a glob, here or behind scheme:// (`paths`, `readers`), the word installed-docs, or
tfds:NAME[/CONFIG][:VERSION][@SPLIT] (`tfds`).
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from spanjax.bounds import flag_problems, raise_problems
from spanjax.data.sources.docstrings import PACKAGES, package_documents
from spanjax.data.sources.documents import Document, Group, Source, SourceSettings
from spanjax.data.sources.paths import File, find, is_local
from spanjax.data.sources.readers import file_problem, read_documents
from spanjax.data.sources.tfds import TFDS_PREFIX, is_tfds, open_tfds

INSTALLED_DOCS = "installed-docs"
_GROUP_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class InstalledDocs:
    """English prose of the docstrings of installed packages, read from their source; nothing is imported. One group."""

    packages: tuple[str, ...] = PACKAGES

    @property
    def name(self) -> str:
        """Its name as an input."""
        return INSTALLED_DOCS

    @property
    def description(self) -> str:
        """Human-readable description, one line."""
        return f"{INSTALLED_DOCS} ({', '.join(self.packages)})"

    @property
    def bytes(self) -> int | None:
        """Characters of all its documents."""
        return sum(len(text) for text, _ in package_documents(self.packages))

    def groups(self) -> Sequence[Group]:
        """Itself."""
        return [self]

    def identity(self) -> list[Any]:
        """The number of its documents and characters: they change with the versions that are installed."""
        return [INSTALLED_DOCS, list(self.packages), len(package_documents(self.packages)), self.bytes]

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        """Yields a document for every module or long class that has prose; ValueError where no package has any."""
        found = package_documents(self.packages)
        if not found:
            raise ValueError(
                f"none of the packages {', '.join(self.packages)} has docstrings here; give text files instead"
            )
        yield from (Document(text, where) for text, where in found)


@dataclasses.dataclass(frozen=True)
class FileGroup:
    """Files that are read one after the other."""

    files: tuple[File, ...]
    settings: SourceSettings

    @property
    def name(self) -> str:
        """The first file's name, and how many follow it."""
        return self.files[0].name + (f" and {len(self.files) - 1:,} more" if len(self.files) > 1 else "")

    @property
    def bytes(self) -> int | None:
        """Its stored size, None where that of a file is unknown."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if len(sizes) == len(self.files) else None

    @property
    def counted_bytes(self) -> int | None:
        """Its stored size if reading it counts in `CountedFile`, else None."""
        return self.bytes if all(is_local(file.path) for file in self.files) else None

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        """Yields every document, see `read_documents`."""
        for file in self.files:
            yield from read_documents(file.path, self.settings, skipped)


@dataclasses.dataclass(frozen=True)
class FileSource(Source):
    """Files in a fixed order; small ones are grouped until they reach 64 MiB."""

    files: tuple[File, ...]
    settings: SourceSettings = SourceSettings()

    @property
    def description(self) -> str:
        """The names of the files."""
        names = [file.name for file in self.files]
        return ", ".join(names if len(names) <= 20 else [*names[:10], f"... ({len(names) - 11:,} more)", names[-1]])

    def groups(self) -> Sequence[FileGroup]:
        """A group for every file of 64 MiB or more; the files between two of them are grouped until they reach that size."""
        groups: list[list[File]] = []
        size = _GROUP_BYTES
        for file in self.files:
            more = _GROUP_BYTES if file.size is None else file.size
            if size >= _GROUP_BYTES or size and more >= _GROUP_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(file)
            size += more
        return [FileGroup(tuple(files), self.settings) for files in groups]

    def identity(self) -> list[Any]:
        """Path, size and time or etag of every file."""
        return [list(file) for file in self.files]


@dataclasses.dataclass(frozen=True)
class Sources(Source):
    """Several sources, one after the other."""

    parts: tuple[Source, ...]

    @property
    def description(self) -> str:
        """Descriptions of the parts."""
        return ", ".join(part.description for part in self.parts)

    def groups(self) -> Sequence[Group]:
        """The groups of all parts."""
        return [group for part in self.parts for group in part.groups()]

    def identity(self) -> list[Any]:
        """The identities of the parts."""
        return [part.identity() for part in self.parts]


def open_sources(patterns: Sequence[str], settings: SourceSettings = SourceSettings()) -> Source:  # noqa: B008 frozen
    """The source that these names request, in their order, each file once; one ValueError lists all problems."""
    problems = flag_problems(settings)
    parts: list[Source] = []
    taken: set[str] = set()  # over all runs: `find` removes repeated files only within one
    if not patterns:
        problems.append(f"no input: give files, globs, {INSTALLED_DOCS} or {TFDS_PREFIX}NAME@SPLIT")
    for files, names in _runs(patterns):
        if files:
            found, wrong = find(names)
            wrong += filter(None, (file_problem(file.path) for file in found))
            problems += wrong
            new = tuple(file for file in found if file.path not in taken)
            taken.update(file.path for file in new)
            parts += [FileSource(new, settings)] if new else []
            continue
        for name in dict.fromkeys(names):
            try:
                if name not in taken:
                    parts.append(InstalledDocs() if name == INSTALLED_DOCS else open_tfds(name, settings))
            except ValueError as error:
                problems.append(str(error))
            taken.add(name)
    raise_problems(dict.fromkeys(problems))
    return parts[0] if len(parts) == 1 else Sources(tuple(parts))


def _runs(patterns: Sequence[str]) -> Iterator[tuple[bool, list[str]]]:
    """Consecutive names of files, and of other sources."""
    for files, names in itertools.groupby(patterns, lambda name: name != INSTALLED_DOCS and not is_tfds(name)):
        yield files, list(names)
