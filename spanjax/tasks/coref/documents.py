"""A document with its words, sentences, speakers and coreference clusters, shared by all readers and scorers."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

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
    lines: tuple[str, ...] = dataclasses.field(default=(), repr=False, compare=False)
    """Lines of the CoNLL-U file that it was read from, line ends included; empty for other documents."""

    @property
    def words(self) -> list[str]:
        """All words in order."""
        return [word for sentence in self.sentences for word in sentence]


def head_of(document: CorefDocument, mention: Mention) -> int:
    """The head of a mention: as annotated; else in the tree, as udapi's corefud.MoveHead, the word that governs all others, or
    where there is none the first that no word of the mention governs; without a tree the last word."""
    first, last = mention
    if mention in document.heads or not document.governors:
        return document.heads.get(mention, last)
    inside = range(first, last + 1)
    tops = [word for word in inside if document.governors[word] not in inside]
    above = [_above(document.governors, top) for top in tops]
    return next((top for top in tops if all(top in words for words in above)), tops[0] if tops else last)


def _above(governors: Sequence[int], word: int) -> list[int]:
    """The word and all that govern it; ends where a broken tree goes round in a circle."""
    found = [word]
    while governors[found[-1]] >= 0 and governors[found[-1]] not in found:
        found.append(governors[found[-1]])
    return found


def with_key_words(document: CorefDocument, key: Clusters, response: Clusters) -> Clusters:
    """The response with every mention whose head is that of a mention of the key in the key's words, see `by_heads`."""
    heads = {mention: head_of(document, mention) for side in (key, response) for cluster in side for mention in cluster}
    return sorted_clusters(by_heads(key, response, heads))


def sorted_clusters(clusters: Iterable[Iterable[Mention]]) -> Clusters:
    """Sorts mentions within clusters, and clusters by their first mentions; drops empty clusters."""
    return tuple(sorted(tuple(sorted(cluster)) for cluster in map(tuple, clusters) if cluster))
