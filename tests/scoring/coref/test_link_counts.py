"""Links for BLANC: against sets of pairs, with mentions that are repeated in the key, in the response and in both."""

import random

import pytest

from spanjax.scoring import coref
from spanjax.scoring.coref.link_counts import Links, links, pairs
from spanjax.scoring.coref.mention_chains import chains
from tests import coref_brute

Clusters = list[list[tuple[int, int]]]


def first_kept(response: Clusters, key: Clusters) -> Clusters:
    """The response with what the scorer drops left out: mentions of the key after the first time."""
    gold, seen, kept = {mention for cluster in key for mention in cluster}, set(), []
    for cluster in response:
        kept.append([])
        for mention in cluster:
            if mention not in seen or mention not in gold:
                kept[-1].append(mention)
            seen.add(mention)
    return kept


def expected(key: Clusters, response: Clusters) -> tuple[Links, ...]:
    """Links as sets."""
    sides = zip(coref_brute.blanc_links(key), coref_brute.blanc_links(first_kept(response, key)), strict=True)
    return tuple(Links(len(gold & found), len(gold), len(found)) for gold, found in sides)


def test_repeated_mentions() -> None:
    draw = random.Random(3)
    repeated = 0
    for _ in range(600):
        key, response = ([[] for _ in range(draw.randint(1, 4))] for _ in range(2))
        for clusters, times in ((key, 8), (response, 9)):
            for _ in range(times):
                word = draw.randint(0, 10)
                draw.choice(clusters).append((word, word))
        found = links(chains(key, response))
        assert found == expected(key, response)
        repeated += any(len(cluster) != len(set(cluster)) for cluster in (*key, *response))
    assert repeated > 300


def test_cases_without_links_of_one_kind() -> None:
    one, alone = [[(0, 0), (1, 1), (2, 2)]], [[(0, 0)], [(1, 1)], [(2, 2)]]
    half = [[(0, 0), (1, 1)], [(2, 2)]]
    blanc = [coref.score([pair]).blanc for pair in ((one, one), (alone, alone), (one, alone), (alone, one))]
    assert [score.f1 for score in blanc] == [100, 100, 0, 0]
    # only the kind of links that the key has counts
    score = coref.score([(one, half)]).blanc
    assert (score.recall, score.precision) == pytest.approx((100 / 3, 100))
    score = coref.score([(alone, half)]).blanc
    assert (score.recall, score.precision) == pytest.approx((200 / 3, 100))
    # both kinds in the key, one in the response: its precision of the other kind is 0
    score = coref.score([(half, one)]).blanc
    assert (score.recall, score.precision) == pytest.approx((50, 100 / 6))


def test_pairs() -> None:
    assert [pairs(size) for size in range(5)] == [0, 0, 1, 3, 6]
