"""Parts of a corpus: documents, the groups that they are read in, and sources of groups.

A group is a part of the input that can be read on its own, in a fixed order, in any process: it can be pickled. The groups and
their content follow from the input alone, never from who reads it.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from spanjax.bounds import AtLeast1

KEY_BYTES = 16


def content_key(text: str) -> bytes:
    """16 bytes that are equal for texts that are equal but for surrounding whitespace (BLAKE2b of the UTF-8)."""
    return hashlib.blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def held_out(text: str, share: float) -> bool:
    """True if a document belongs to the held-out `share`, 0 to 1, of all documents; its content alone decides.

    A larger share holds out every document that a smaller one does.
    """
    return int.from_bytes(content_key(text)[:8], "big") < share * 2.0**64


Spans = Mapping[str, tuple[tuple[int, int], ...]]


class _NoSpans(Mapping[str, tuple[tuple[int, int], ...]]):
    """An empty mapping that nothing can change and that can be pickled, which a mapping proxy cannot."""

    __slots__ = ()

    def __getitem__(self, layer: str) -> tuple[tuple[int, int], ...]:
        raise KeyError(layer)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "{}"

    def __reduce__(self) -> str:
        return "NO_SPANS"


NO_SPANS: Spans = _NoSpans()


class Document(NamedTuple):
    """A text, where it begins ("file:line"), and character spans [start, end) of the text by layer ("entities", say)."""

    text: str
    where: str
    spans: Spans = NO_SPANS


class Group(Protocol):
    """A part of the input that is read on its own, by any process."""

    @property
    def name(self) -> str:
        """Short, the same at every call: for plans and logs."""
        ...

    @property
    def bytes(self) -> int | None:
        """Its stored size (compressed, if it is), None if unknown."""
        ...

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        """Yields the documents in a fixed order; counts in `skipped`, by reason, what it skips."""
        ...


class Source(Protocol):
    """Documents in a fixed order, the same at every call."""

    @property
    def description(self) -> str:
        """Human-readable description, one line."""
        ...

    def groups(self) -> Sequence[Group]:
        """Its parts, in order; they depend on the input only."""
        ...

    def identity(self) -> list[Any]:
        """Names, sizes and times or versions, for JSON: equal as long as the input is the same."""
        ...

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        """The documents of all groups, one after the other."""
        for group in self.groups():
            yield from group.documents(skipped)


MAX_DOCUMENT = 32
"""MiB. Tokenizing a document takes about 40 bytes of memory a character."""


@dataclasses.dataclass(frozen=True)
class SourceSettings:
    """Settings for reading sources."""

    text_field: str = "text"
    """The field (JSON lines), column (Parquet) or feature (TFDS) that holds the text."""
    skip_bad: bool = False
    """Skip and count bad lines, rows and files instead of stopping at the first."""
    data_dir: str | None = None
    """Folder of TFDS data sets; None for TFDS's own default (TFDS_DATA_DIR, else ~/tensorflow_datasets)."""
    download: bool = False
    """Download and prepare TFDS data sets that are not in the folder yet."""
    max_document: AtLeast1 = MAX_DOCUMENT
    """Largest document, and largest line of a file, in MiB (2^20 bytes of a line, characters of a text)."""


@dataclasses.dataclass
class Trouble:
    """Bad input of one file: an error with the place and the remedy, or a count where bad input is to be skipped."""

    path: str
    skip_bad: bool
    skipped: collections.Counter[str]
    max_document: int = MAX_DOCUMENT
    seen: bool = False

    @property
    def most(self) -> int:
        """Most bytes of a line, most characters of a document."""
        return self.max_document << 20

    def report_size(self, line: int, what: str) -> None:
        """Reports that a document or line is too large."""
        remedy = f"has more than {self.max_document:,} MiB; split it, or allow more with --max-document MIB"
        self.report("documents too large", line, f"the {what} {remedy}")

    def report(self, kind: str, line: int, message: str) -> None:
        """Raises ValueError naming the file and the line (0: none); with `skip_bad` it counts the kind instead."""
        if not self.skip_bad:
            place = f"{self.path}:{line}" if line else self.path
            raise ValueError(f"{place}: {message} (--skip-bad skips and counts such input)")
        self.seen = True
        self.skipped[kind] += 1


def checked_spans(value: Any, length: int) -> Spans:
    """The spans of a document of `length` characters as read from a file; ValueError names the problem."""
    if value is None:
        return NO_SPANS
    if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        value = dict(value)  # a Parquet map
    if not isinstance(value, Mapping):
        raise ValueError(f'spans are {value!r:.60}, expected {{"LAYER": [[START, END], ...], ...}}')
    return {str(layer): _checked_layer(layer, pairs, length) for layer, pairs in value.items() if pairs is not None}


def _checked_layer(layer: str, pairs: Any, length: int) -> tuple[tuple[int, int], ...]:
    if not isinstance(pairs, list):
        raise ValueError(f"spans of {layer!r} are {pairs!r:.60}, expected a list of [START, END]")
    found = []
    for pair in pairs:
        good = isinstance(pair, list) and len(pair) == 2 and all(type(place) is int for place in pair)
        if not good or not 0 <= pair[0] < pair[1] <= length:
            raise ValueError(
                f"span {pair!r:.60} of {layer!r}: expected [START, END], characters with 0 <= START < END <= {length:,},"
                " the length of the text"
            )
        found.append((pair[0], pair[1]))
    return tuple(found)
