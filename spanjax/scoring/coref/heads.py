"""Head match of CorefUD: mentions of key and response are the same where their heads are, whatever their other words.

As the CorefUD scorer matches them since the shared task of CRAC 2023: mentions of the same words first; then, among the others
with one head, those pairs whose words overlap most in all, as a share of the key's words.
"""

import collections
from collections.abc import Mapping

import numpy as np

from spanjax.scoring.coref.mention_chains import Clusters, Mention


def by_heads(key: Clusters, response: Clusters, heads: Mapping[Mention, int]) -> list[list[Mention]]:
    """Returns the response with every mention that matches one of the key in the key's words; `heads` are those of mentions."""
    known, found = ({mention for cluster in side for mention in cluster} for side in (key, response))
    groups: dict[int, tuple[list[Mention], list[Mention]]] = collections.defaultdict(lambda: ([], []))
    for mention in sorted(known - found):
        groups[heads[mention]][0].append(mention)
    for mention in sorted(found - known):
        groups[heads[mention]][1].append(mention)
    renamed = {other: mention for mentions, others in groups.values() for mention, other in _aligned(mentions, others)}
    return [[renamed.get(mention, mention) for mention in cluster] for cluster in response]


def _aligned(mentions: list[Mention], others: list[Mention]) -> list[tuple[Mention, Mention]]:
    """Pairs of mentions of the key and of the response, all of one head, that overlap most in all."""
    if not mentions or not others:
        return []
    from scipy.optimize import linear_sum_assignment

    (first, last), (begin, end) = np.array(mentions).T[:, :, None], np.array(others).T[:, None]
    share = np.maximum(0, np.minimum(last, end) - np.maximum(first, begin) + 1) / (last - first + 1)
    pairs = zip(*linear_sum_assignment(share, maximize=True), strict=True)
    return [(mentions[row], others[column]) for row, column in pairs if share[row, column] > 0]
