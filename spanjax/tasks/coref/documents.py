"""A document with its words, sentences, speakers and coreference clusters, shared by all readers and scorers."""

import dataclasses
from collections.abc import Iterable, Mapping

from spanjax.scoring.coref.heads import by_heads

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
    mentions: tuple[Mention, ...] | None = None
    """Mentions that are resolved, and no others; None where the model finds them."""

    heads: Mapping[Mention, int] = dataclasses.field(default_factory=dict)
    """Head of each gold mention, a word; empty where heads are not annotated."""
    governors: tuple[int, ...] = ()
    """The word that governs each word in its sentence's tree, -1 for a root; empty where there are no trees."""

    @property
    def words(self) -> list[str]:
        """All words in order."""
        return [word for sentence in self.sentences for word in sentence]


def head_of(document: CorefDocument, mention: Mention) -> int:
    """The head of a mention: as annotated, else its first word that a word outside of it governs, else its last word."""
    first, last = mention
    if mention in document.heads or not document.governors:
        return document.heads.get(mention, last)
    inside = range(first, last + 1)
    return next((word for word in inside if document.governors[word] not in inside), last)


def with_key_words(document: CorefDocument, key: Clusters, response: Clusters) -> Clusters:
    """The response with every mention whose head is that of a mention of the key in the key's words, see `by_heads`."""
    heads = {mention: head_of(document, mention) for side in (key, response) for cluster in side for mention in cluster}
    return sorted_clusters(by_heads(key, response, heads))


def sorted_clusters(clusters: Iterable[Iterable[Mention]]) -> Clusters:
    """Sorts mentions within clusters, and clusters by their first mentions; drops empty clusters."""
    return tuple(sorted(tuple(sorted(cluster)) for cluster in map(tuple, clusters) if cluster))
