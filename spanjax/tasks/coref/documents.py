"""A document with its words, sentences, speakers and coreference clusters, shared by all readers and scorers."""

import dataclasses
from collections.abc import Iterable

Mention = tuple[int, int]
"""First and last word of a mention, the last included, counted over the whole document."""
Clusters = tuple[tuple[Mention, ...], ...]


@dataclasses.dataclass(frozen=True)
class CorefDocument:
    """One part of a document: coreference is resolved inside it."""

    name: str
    """As CoNLL-2012 names it, `bc/cctv/00/cctv_0000`."""
    part: int
    sentences: tuple[tuple[str, ...], ...]
    """Words of each sentence; no sentence is empty."""
    speakers: tuple[str, ...]
    """Speaker of each word of the document; "" where nobody is known to speak."""
    clusters: Clusters | None = None
    """Gold clusters, mentions sorted, clusters in the order of their first mentions; None where they are not known."""
    genre: str = ""
    """The part of the name before the first slash (`bc`, `nw`), or the user's value."""
    text: str = ""
    """The input text, verbatim; empty where the input is lists of words."""
    offsets: tuple[tuple[int, int], ...] = ()
    """First character of each word in `text`, and the one behind its last."""

    @property
    def words(self) -> list[str]:
        """All words in order."""
        return [word for sentence in self.sentences for word in sentence]


def sorted_clusters(clusters: Iterable[Iterable[Mention]]) -> Clusters:
    """Sorts mentions within clusters, and clusters by their first mentions; drops empty clusters."""
    return tuple(sorted(tuple(sorted(cluster)) for cluster in map(tuple, clusters) if cluster))
