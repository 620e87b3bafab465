"""Links of one document for BLANC: pairs of mentions in one cluster, and pairs in two, in key, response and both.

Luo et al. 2014 (extended to system mentions), counted as the CoNLL scorer v8.01 counts them: links are sets. So a mention
that is given twice links to itself, and a pair of mentions may be a link of both kinds.
Shapes: M mentions of the document, by number.
"""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from spanjax.scoring.coref.mention_chains import Chains, clusters_of, shared
from spanjax.scoring.counts import Summed


@dataclasses.dataclass(frozen=True)
class Links(Summed):
    """Numbers of links of one kind."""

    both: int = 0
    key: int = 0
    response: int = 0


def pairs(size: int) -> int:
    """Number of pairs of `size` things."""
    return size * (size - 1) // 2


class _Side:
    """The clusters of each mention in the key or in the response."""

    def __init__(self, clusters: Sequence[Sequence[int]], mentions: int) -> None:
        self.members = [np.unique(cluster) for cluster in clusters]
        self.times = [collections.Counter(cluster) for cluster in clusters]
        self.clusters_of: dict[int, list[int]] = collections.defaultdict(list)
        for place, cluster in enumerate(self.times):
            for mention in cluster:
                self.clusters_of[mention].append(place)
        self.number_M, self.last_M = np.zeros(mentions, np.int64), np.zeros(mentions, np.int64)
        for mention, places in self.clusters_of.items():
            self.number_M[mention], self.last_M[mention] = len(places), places[-1]

    def linked(self, mention: int) -> tuple[np.ndarray, np.ndarray]:
        """bool [M] twice: mentions that share a cluster with the mention, and mentions in another cluster."""
        places = self.clusters_of.get(mention, [])
        same_M = np.zeros(len(self.number_M), bool)
        for place in places:
            same_M[self.members[place]] = True
        other_M = self.number_M > (0 if len(places) > 1 else 1)
        other_M |= (self.number_M == 1) & (self.last_M != places[0]) if places else False
        other_M &= bool(places)
        same_M[mention] = any(self.times[place][mention] > 1 for place in places)
        other_M[mention] = len(places) > 1
        return same_M, other_M


def _plain(key: Sequence[Sequence[int]], response: Sequence[Sequence[int]]) -> tuple[Links, Links]:
    """Links between mentions that no side repeats, from the sizes of clusters and of their intersections."""
    common = shared(key, clusters_of(response))
    by_key, by_response = collections.Counter(), collections.Counter()
    for (place, other), number in common.items():
        by_key[place] += number
        by_response[other] += number
    both = sum(pairs(number) for number in common.values())
    apart = pairs(common.total()) + both
    apart -= sum(pairs(number) for number in (*by_key.values(), *by_response.values()))
    inside = [sum(pairs(len(cluster)) for cluster in clusters) for clusters in (key, response)]
    across = [pairs(sum(map(len, clusters))) - found for clusters, found in zip((key, response), inside, strict=True)]
    return Links(both, *inside), Links(apart, *across)


def _repeated(clusters: Sequence[Sequence[int]]) -> set[int]:
    times = collections.Counter(mention for cluster in clusters for mention in cluster)
    return {mention for mention, number in times.items() if number > 1}


def links(chains: Chains) -> tuple[Links, Links]:
    """Coreference links and non-coreference links of one document."""
    repeated = _repeated(chains.key) | _repeated(chains.response)
    rest = [[[m for m in cluster if m not in repeated] for cluster in side] for side in (chains.key, chains.response)]
    same, other = _plain(*rest)
    if not repeated:
        return same, other
    key, response = (_Side(clusters, len(chains.mentions)) for clusters in (chains.key, chains.response))
    open_M = np.ones(len(chains.mentions), bool)
    for mention in sorted(repeated):
        found = [key.linked(mention), response.linked(mention)]
        same_key_M, same_response_M = (side[0] & open_M for side in found)
        other_key_M, other_response_M = (side[1] & open_M for side in found)
        same += Links(*(int(x.sum()) for x in (same_key_M & same_response_M, same_key_M, same_response_M)))
        other += Links(*(int(x.sum()) for x in (other_key_M & other_response_M, other_key_M, other_response_M)))
        open_M[mention] = False
    return same, other
