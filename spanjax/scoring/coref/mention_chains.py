"""Numbers the mentions of key and response of one document, matches equal ones, and drops repeated ones as the scorer does.

As the CoNLL scorer v8.01 does it: mentions are the same where first and last word are. A mention of the key that the response
has once more, in the same cluster or another, is dropped there; one that the key lacks stays as often as it is given. Nothing
is dropped in the key. Singletons stay on both sides.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from spanjax.scoring.checks import counted, raise_problems

Mention = tuple[int, int]
"""First and last word of a mention, the last included, counted over the whole document."""
Clusters = Sequence[Sequence[Mention]]


@dataclasses.dataclass(frozen=True)
class Chains:
    """Clusters of mention numbers: 0 to in_key - 1 are the key's mentions, those behind are in the response alone."""

    key: list[list[int]]
    response: list[list[int]]
    key_of: Mapping[int, int]
    """The cluster of the key that has a mention; the last one where there are several."""
    response_of: Mapping[int, int]
    mentions: list[Mention]
    """Every mention once, by its number."""
    in_key: int
    in_response: int
    in_both: int
    dropped: int
    """Repeated mentions that were dropped from the response; the official scorer gives up where a run has more than ten."""


def clusters_problems(clusters: Clusters, which: str) -> list[str]:
    """The problem of mentions that are not two whole numbers in order."""

    def wrong(mention: Sequence[int]) -> bool:
        return len(mention) != 2 or not 0 <= mention[0] <= mention[1] or any(int(place) != place for place in mention)

    bad = [mention for cluster in clusters for mention in cluster if wrong(mention)]
    return counted(bad, f"{which} mentions", "expected the first and the last word, from 0, the last included")


def clusters_of(clusters: Sequence[Sequence[int]]) -> dict[int, int]:
    """Mention -> its cluster, the last one where there are several."""
    return {mention: place for place, cluster in enumerate(clusters) for mention in cluster}


def shared(clusters: Iterable[Iterable[int]], other_of: Mapping[int, int]) -> collections.Counter[tuple[int, int]]:
    """Number of mentions that a cluster shares with a cluster of the other side, by both their indices, where above 0."""
    return collections.Counter(
        (place, other_of[mention])
        for place, cluster in enumerate(clusters)
        for mention in cluster
        if mention in other_of
    )


def chains(key: Clusters, response: Clusters) -> Chains:
    """The clusters of one document as numbers, without empty clusters. ValueError on invalid mentions."""
    problems = clusters_problems(key, "wrong key") + clusters_problems(response, "wrong response")
    raise_problems("coreference scores", problems)
    numbers: dict[Mention, int] = {}
    numbered = [[numbers.setdefault((first, last), len(numbers)) for first, last in cluster] for cluster in key]
    in_key, dropped = len(numbers), 0
    matched: set[int] = set()
    kept: list[list[int]] = []
    for cluster in response:
        kept.append([])
        for first, last in cluster:
            mention = numbers.setdefault((first, last), len(numbers))
            if mention in matched:
                dropped += 1
                continue
            # a mention that the key lacks is never marked, so it stays as often as it is given, as in the official scorer
            if mention < in_key:
                matched.add(mention)
            kept[-1].append(mention)
    gold, found = [cluster for cluster in numbered if cluster], [cluster for cluster in kept if cluster]
    response_of = clusters_of(found)
    return Chains(
        key=gold,
        response=found,
        key_of=clusters_of(gold),
        response_of=response_of,
        mentions=list(numbers),
        in_key=in_key,
        in_response=len(response_of),
        in_both=len(matched),
        dropped=dropped,
    )
