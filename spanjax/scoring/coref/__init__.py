"""Coreference: MUC, B-cubed, CEAF, BLANC and LEA of key and response clusters, as the CoNLL scorer v8.01 computes them.

MUC (Vilain et al. 1995), B-cubed (Bagga and Baldwin 1998), CEAF with phi3 and phi4 (Luo 2005) and BLANC (Luo et al. 2014) are
those of Pradhan et al. 2014: mentions of one side alone stay unchanged, nothing is added or removed for their sake. LEA is
that of Moosavi and Strube 2016; the scorer v8.01 has none. Numerators and denominators are summed over documents.
scoring/coref/mention_chains.py decides which mentions are the same, and which are dropped. docs/coref_scores.md has more detail.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from spanjax.scoring.coref.link_counts import Links, links, pairs
from spanjax.scoring.coref.mention_chains import Chains, Clusters, chains, shared
from spanjax.scoring.counts import Summed, harmonic


@dataclasses.dataclass(frozen=True)
class Ratio(Summed):
    """Recall and precision as the sums that they are quotients of; a quotient with 0 below is 0."""

    recall_numerator: float = 0.0
    recall_denominator: float = 0.0
    precision_numerator: float = 0.0
    precision_denominator: float = 0.0

    @property
    def recall(self) -> float:
        """In percent."""
        return 100.0 * self.recall_numerator / self.recall_denominator if self.recall_denominator else 0.0

    @property
    def precision(self) -> float:
        """In percent."""
        return 100.0 * self.precision_numerator / self.precision_denominator if self.precision_denominator else 0.0

    @property
    def f1(self) -> float:
        """In percent."""
        return harmonic(self.precision, self.recall)


@dataclasses.dataclass(frozen=True)
class Blanc(Summed):
    """The mean of two scores of links; that of one kind alone where the key has no link of the other kind, 0 where of none."""

    coreference: Ratio = Ratio()
    non_coreference: Ratio = Ratio()

    def _mean(self, name: str) -> float:
        kinds = [one for one in (self.coreference, self.non_coreference) if one.recall_denominator]
        return sum(getattr(one, name) for one in kinds) / len(kinds) if kinds else 0.0

    @property
    def recall(self) -> float:
        """In percent."""
        return self._mean("recall")

    @property
    def precision(self) -> float:
        """In percent."""
        return self._mean("precision")

    @property
    def f1(self) -> float:
        """In percent: the mean of the two F1, not the F1 of the means."""
        return self._mean("f1")


@dataclasses.dataclass(frozen=True)
class CorefScores(Summed):
    """All scores of some documents together."""

    muc: Ratio = Ratio()
    bcub: Ratio = Ratio()
    ceafe: Ratio = Ratio()
    """CEAF with phi4, of clusters."""
    ceafm: Ratio = Ratio()
    """CEAF with phi3, of mentions."""
    blanc: Blanc = Blanc()
    lea: Ratio = Ratio()
    mention: Ratio = Ratio()
    """Mentions that are found, each counted once a document."""
    dropped: int = 0
    """Repeated mentions that were dropped from the responses; the official scorer gives up at eleven."""

    @property
    def conll_average(self) -> float:
        """The mean F1 of MUC, B-cubed and CEAF-phi4, in percent: the score of CoNLL-2012."""
        return (self.muc.f1 + self.bcub.f1 + self.ceafe.f1) / 3


def muc(document: Chains) -> Ratio:
    """Links that join the mentions of a cluster: one less than it has mentions; found ones join mentions of both sides."""
    found = sum(number - 1 for number in shared(document.response, document.key_of).values())
    in_key, in_response = (sum(len(cluster) - 1 for cluster in side) for side in (document.key, document.response))
    return Ratio(found, in_key, found, in_response)


def bcub(document: Chains) -> Ratio:
    """B-cubed: of each mention, the share of its cluster that the other side's cluster of the mention has."""
    common = shared([{*cluster} for cluster in document.key], document.response_of)
    recall = precision = 0.0
    for place, cluster in enumerate(document.response):
        for mention in cluster:
            if mention in document.key_of:
                number = common[document.key_of[mention], place]
                recall += number / len(document.key[document.key_of[mention]])
                precision += number / len(cluster)
    return Ratio(recall, sum(map(len, document.key)), precision, sum(map(len, document.response)))


def _best_total(similarity: dict[tuple[int, int], float]) -> float:
    """The largest sum of similarities with each key cluster and each response cluster taken at most once."""
    if not similarity:
        return 0.0
    from scipy.optimize import linear_sum_assignment
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # pairs of clusters that share nothing add 0, so each connected part is solved on its own, as a small table
    keys, responses = np.array(list(similarity)).T
    values, offset = np.array(list(similarity.values()), np.float64), int(keys.max()) + 1
    size = offset + int(responses.max()) + 1
    _, part = connected_components(coo_array((values, (keys, responses + offset)), shape=(size, size)), directed=False)
    order = np.argsort(part[keys], kind="stable")
    bounds = np.flatnonzero(np.diff(part[keys][order])) + 1
    total = 0.0
    for cells in np.split(order, bounds):
        if len(cells) == 1:
            total += float(values[cells[0]])
            continue
        rows, row = np.unique(keys[cells], return_inverse=True)
        columns, column = np.unique(responses[cells], return_inverse=True)
        table = np.zeros((len(rows), len(columns)))
        table[row, column] = values[cells]
        total += float(table[linear_sum_assignment(table, maximize=True)].sum())
    return total


def ceaf(document: Chains) -> tuple[Ratio, Ratio]:
    """CEAF with phi4 (clusters) and with phi3 (mentions): the best one-to-one alignment of clusters."""
    common = shared(document.key, document.response_of)
    key, response = document.key, document.response
    of_clusters = {(i, j): 2 * number / (len(key[i]) + len(response[j])) for (i, j), number in common.items()}
    clusters, mentions = _best_total(of_clusters), _best_total({pair: float(n) for pair, n in common.items()})
    sizes = sum(map(len, key)), sum(map(len, response))
    return Ratio(clusters, len(key), clusters, len(response)), Ratio(mentions, sizes[0], mentions, sizes[1])


def _lea_side(
    clusters: Sequence[Sequence[int]], others: Sequence[Sequence[int]], other_of: Mapping[int, int]
) -> tuple[float, int]:
    found = 0.0
    for (place, other), number in shared(clusters, other_of).items():
        size = len(clusters[place])
        if size == 1:
            found += len(others[other]) == 1
        else:
            found += size * pairs(number) / pairs(size)
    return found, sum(map(len, clusters))


def lea(document: Chains) -> Ratio:
    """LEA: the share of a cluster's links that are found, weighted by its size; a singleton's link is to itself.

    So a singleton is found where the other side has it as a singleton.
    """
    recall = _lea_side(document.key, document.response, document.response_of)
    return Ratio(*recall, *_lea_side(document.response, document.key, document.key_of))


def blanc(document: Chains) -> Blanc:
    """BLANC: links inside clusters and links between clusters."""

    def ratio(found: Links) -> Ratio:
        return Ratio(found.both, found.key, found.both, found.response)

    same, other = links(document)
    return Blanc(ratio(same), ratio(other))


def found_mentions(document: Chains) -> Ratio:
    """Mentions that are on both sides; repeated ones count once."""
    return Ratio(document.in_both, document.in_key, document.in_both, document.in_response)


def score(documents: Iterable[tuple[Clusters, Clusters]]) -> CorefScores:
    """The scores of documents, given as (key, response); a document without a response has an empty one.

    The order of clusters matters only where a mention is in several. ValueError on invalid mentions.
    """
    total = CorefScores()
    for key, response in documents:
        one = chains(key, response)
        clusters, mentions = ceaf(one)
        total += CorefScores(
            muc(one), bcub(one), clusters, mentions, blanc(one), lea(one), found_mentions(one), one.dropped
        )
    return total


METRICS = ("muc", "bcub", "ceafe", "ceafm", "blanc", "lea", "mention")


def percents(documents: Iterable[tuple[Clusters, Clusters]]) -> dict[str, float]:
    """`f1`, the CoNLL average, then recall, precision and F1 of every metric by name (`muc_recall`), all in percent."""
    found = score(documents)
    figures = {"f1": found.conll_average}
    for name in METRICS:
        figures |= {f"{name}_{part}": getattr(getattr(found, name), part) for part in ("recall", "precision", "f1")}
    return figures
