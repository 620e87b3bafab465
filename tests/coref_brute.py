"""Coreference scores by their definitions, in plain loops over mentions, links and alignments; for small documents.

Every function takes key and response clusters without repeated mentions, but `blanc_links`, and gives
(recall numerator, recall denominator, precision numerator, precision denominator).
"""

import itertools

Mention = tuple[int, int]
Clusters = list[list[Mention]]
Sums = tuple[float, float, float, float]


def own(mention: Mention, clusters: Clusters) -> set[Mention]:
    """The cluster of a mention, empty where it has none."""
    return next((set(cluster) for cluster in clusters if mention in cluster), set())


def both_ways(side, key: Clusters, response: Clusters) -> Sums:
    """A recall's numerator and denominator, and those with the two sides exchanged."""
    return (*side(key, response), *side(response, key))


def muc(key: Clusters, response: Clusters) -> Sums:
    """Links of a cluster less those that would join the parts into which the other side cuts it."""

    def side(clusters: Clusters, others: Clusters) -> tuple[int, int]:
        found = total = 0
        for cluster in clusters:
            parts = {frozenset(own(mention, others) or {("alone", mention)}) for mention in cluster}
            found += len(cluster) - len(parts)
            total += len(cluster) - 1
        return found, total

    return both_ways(side, key, response)


def bcub(key: Clusters, response: Clusters) -> Sums:
    """Mention by mention."""

    def side(clusters: Clusters, others: Clusters) -> tuple[float, int]:
        mentions = [mention for cluster in clusters for mention in cluster]
        shares = [len(own(m, clusters) & own(m, others)) / len(own(m, clusters)) for m in mentions]
        return sum(shares), len(mentions)

    return both_ways(side, key, response)


def ceaf(key: Clusters, response: Clusters, of_clusters: bool) -> Sums:
    """Every alignment of the clusters is tried; a cluster's similarity with itself makes the denominators."""

    def similarity(one: list[Mention], other: list[Mention]) -> float:
        common = len(set(one) & set(other))
        return 2 * common / (len(one) + len(other)) if of_clusters else common

    few, many = sorted((key, response), key=len)
    best = max(
        sum(similarity(a, b) for a, b in zip(few, order, strict=True))
        for order in itertools.permutations(many, len(few))
    )
    sizes = [sum(similarity(cluster, cluster) for cluster in clusters) for clusters in (key, response)]
    return best, sizes[0], best, sizes[1]


def lea(key: Clusters, response: Clusters) -> Sums:
    """Link by link; the one link of a singleton is to itself."""

    def links(cluster: set[Mention]) -> set[frozenset[Mention]]:
        return {frozenset(pair) for pair in itertools.combinations(cluster, 2)} or {frozenset(cluster)}

    def side(clusters: Clusters, others: Clusters) -> tuple[float, int]:
        given = [links(set(other)) for other in others]
        found = 0.0
        for cluster in clusters:
            mine = links(set(cluster))
            found += len(cluster) * sum(len(mine & other) for other in given) / len(mine)
        return found, sum(len(cluster) for cluster in clusters)

    return both_ways(side, key, response)


def blanc_links(clusters: Clusters) -> tuple[set[tuple[Mention, Mention]], set[tuple[Mention, Mention]]]:
    """Links inside clusters and between them, each as a sorted pair; mentions may be repeated."""
    inside, between = set(), set()
    places = [(mention, place) for place, cluster in enumerate(clusters) for mention in cluster]
    for (mention, place), (other, other_place) in itertools.combinations(places, 2):
        (inside if place == other_place else between).add((min(mention, other), max(mention, other)))
    return inside, between


def blanc(key: Clusters, response: Clusters) -> tuple[float, float, float]:
    """Recall, precision and F1."""
    scores = []
    for gold, found in zip(blanc_links(key), blanc_links(response), strict=True):
        if gold:
            recall = len(gold & found) / len(gold)
            precision = len(gold & found) / len(found) if found else 0.0
            f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
            scores.append((recall, precision, f1))
    recall, precision, f1 = (sum(part) / len(scores) for part in zip(*scores, strict=True)) if scores else (0.0,) * 3
    return recall, precision, f1
