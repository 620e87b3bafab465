"""Portions: consecutive documents of one group of a source, the unit of work of prepare.

Where a portion begins and ends follows from the input alone, and everything after it (cleaning, tokens, rows, a shard) is
done to a portion on its own, so that any number of processes on any machines in any order write the same files.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spanjax.data.sources.documents import Document, content_key

FEWEST, USUAL, MOST = 1_000_000, 4_000_000, 64_000_000  # characters of a portion
DUPLICATES = "duplicate documents"


class Portion(NamedTuple):
    """Documents in their order, cut before duplicates are skipped."""

    group: int
    number: int  # 0, 1, ... in the group
    documents: list[Document]
    repeated: frozenset[int] = frozenset()  # places of documents that occurred before

    @property
    def name(self) -> str:
        """Name of its shards; names sort as the groups and portions do."""
        return portion_name(self.group, self.number)


def portion_name(group: int, number: int) -> str:
    """The name of the shards of a portion, without suffix."""
    return f"rows-{group:05d}-{number:05d}"


def portion_characters(sizes: Sequence[int | None]) -> int:
    """Characters of a portion: 4 million, more from 2 GB on (about 512 portions until 32 GB), less below 12 MB.

    A function of the bytes of all groups of the input (None: not known), so that all runners cut alike. Rows of 512
    positions of the wiki text of 39 MB are filled to 96.75 % with portions of 1 million characters, 97.01 % with 4 and
    97.11 % with 40.
    """
    known = [size for size in sizes if size is not None]
    total = sum(known)
    least = max(FEWEST, total // 3) if len(known) == len(sizes) else USUAL
    return min(max(total // 512, min(USUAL, least)), MOST)


def cut(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Cuts documents, in order, into lists of `size` characters and a little more; the last has half of it or more.

    The function yields a list when the next one has half its size, so that a small rest joins the last: rows of small portions
    are less full. The cuts of a list do not depend on anything after the half of the next.
    """
    waiting: list[Document] = []
    gathered: list[Document] = []
    characters = 0
    for document in documents:
        gathered.append(document)
        characters += len(document.text)
        if waiting and characters >= size // 2:
            yield waiting
            waiting = []
        if not waiting and characters >= size:
            waiting, gathered, characters = gathered, [], 0
    if waiting or gathered:
        yield waiting + gathered


class Occurred:
    """The documents that have occurred so far, by their content: about 110 MB a million documents."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def repeated(self, documents: Sequence[Document]) -> frozenset[int]:
        """Places of the documents whose content has occurred before, in an earlier call or an earlier place."""
        places = set()
        for place, document in enumerate(documents):
            key = content_key(document.text)
            if key in self._keys:
                places.add(place)
            self._keys.add(key)
        return frozenset(places)
