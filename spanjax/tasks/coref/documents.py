"""A document with its words, sentences, speakers and coreference clusters: what every reader gives and every scorer takes."""

import dataclasses
from collections.abc import Iterable

Mention = tuple[int, int]
"""First and last word of a mention, the last included, counted over the whole document."""
Clusters = tuple[tuple[Mention, ...], ...]


@dataclasses.dataclass(frozen=True)
class Document:
    """One part of a document: coreference is resolved inside it."""

    name: str
    """As CoNLL-2012 names it, `bc/cctv/00/cctv_0000`."""
    part: int
    sentences: tuple[tuple[str, ...], ...]
    """Words of each sentence; no sentence is empty."""
    speakers: tuple[str, ...]
    """Of each word of the document; "" where nobody is known to speak."""
    clusters: Clusters | None = None
    """Gold clusters, mentions sorted, clusters in the order of their first mentions; None where they are not known."""
    genre: str = ""
    """What stands before the first slash of the name (`bc`, `nw`), or what a user says."""
    text: str = ""
    """The text as it was given, where it was a text."""
    offsets: tuple[tuple[int, int], ...] = ()
    """Of each word in `text`: its first character, and the one behind its last."""

    @property
    def words(self) -> list[str]:
        """All words in order."""
        return [word for sentence in self.sentences for word in sentence]


def sorted_clusters(clusters: Iterable[Iterable[Mention]]) -> Clusters:
    """Mentions sorted within clusters, clusters sorted by their first mentions; empty ones are left out."""
    return tuple(sorted(tuple(sorted(cluster)) for cluster in map(tuple, clusters) if cluster))
