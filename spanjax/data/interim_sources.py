"""Interim: the new sources on top of the old ones, until `corpus` has them. To be deleted."""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from spanjax.data.corpus import INSTALLED_DOCS, Files, InstalledDocs, find_files
from spanjax.data.documents import Document, SourceSettings
from spanjax.data.sentences import clean, sentences


@dataclasses.dataclass(frozen=True)
class Group:
    """One file."""

    name: str
    bytes: int
    inner: Any

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        """Documents."""
        for each in self.inner.documents(skipped):
            yield Document(each.text, each.where)


@dataclasses.dataclass(frozen=True)
class Source:
    """Files."""

    inner: Any

    @property
    def description(self) -> str:
        """What."""
        return self.inner.description

    def groups(self) -> Sequence[Group]:
        """Groups."""
        if isinstance(self.inner, InstalledDocs):
            return [Group("docs", 10_000_000, self.inner)]
        return [Group(path.name, path.stat().st_size, Files((path,), self.inner.skip_bad)) for path in self.inner.paths]

    def identity(self) -> list[Any]:
        """Identity."""
        if isinstance(self.inner, InstalledDocs):
            return ["docs"]
        return [[str(path), path.stat().st_size] for path in self.inner.paths]


def open_sources(patterns: Sequence[str], settings: SourceSettings) -> Source:
    """Opens."""
    if tuple(patterns) == (INSTALLED_DOCS,):
        return Source(InstalledDocs())
    return Source(Files(find_files(patterns), settings.skip_bad))


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """Cleaning."""

    normalization: str = "none"

    def __call__(self, text: str) -> str:
        return clean(text)

    def with_spans(self, text: str, spans: Any) -> tuple[str, Any]:
        """Spans."""
        return clean(text), spans


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Spans of sentences."""
    found, place = [], 0
    for sentence in sentences(text):
        place = text.index(sentence, place)
        found.append((place, place + len(sentence)))
        place += len(sentence)
    return found
