"""Head match: mentions of one head are the same, and of several those that overlap most in all."""

import itertools
import random

import pytest

from spanjax.scoring import coref
from spanjax.scoring.coref.heads import by_heads

pytestmark = pytest.mark.unit
Mention = tuple[int, int]


def test_a_mention_with_the_head_of_a_key_mention_is_that_one():
    key = [[(0, 4), (10, 10)], [(20, 25), (30, 31)]]
    response = [[(2, 4), (10, 11)], [(21, 25), (40, 40)]]
    heads = {(0, 4): 3, (2, 4): 3, (10, 10): 10, (10, 11): 11, (20, 25): 20, (21, 25): 22, (30, 31): 31, (40, 40): 40}
    assert by_heads(key, response, heads) == [[(0, 4), (10, 11)], [(21, 25), (40, 40)]]
    assert coref.percents([(key, by_heads(key, response, heads))])["mention_f1"] == pytest.approx(25)


def test_equal_words_come_first():
    """Two mentions of one head: the one with the same words keeps its own, and the other cannot take them."""
    heads = {(0, 9): 5, (4, 6): 5, (5, 5): 5}
    assert by_heads([[(0, 9)], [(4, 6)]], [[(4, 6)], [(5, 5)]], heads) == [[(4, 6)], [(0, 9)]]
    assert by_heads([[(4, 6)]], [[(5, 5)], [(4, 6)]], heads) == [[(5, 5)], [(4, 6)]]


def test_pairs_of_one_head_overlap_most_in_all():
    """Against all alignments, tried one by one."""
    rng = random.Random(3)
    for _ in range(60):
        spans = [(rng.randint(0, 10), rng.randint(10, 20)) for _ in range(8)]
        key: list[Mention] = sorted({*spans[:4]})
        response: list[Mention] = sorted({*spans[4:]} - {*key})
        found = by_heads([key], [response], dict.fromkeys(spans, 10))[0]

        def share(mention: Mention, other: Mention) -> float:
            inside = min(mention[1], other[1]) - max(mention[0], other[0]) + 1
            return max(0, inside) / (mention[1] - mention[0] + 1)

        most = min(len(key), len(response))
        best = max(
            sum(share(a, b) for a, b in zip(some, others, strict=True))
            for some in itertools.permutations(key, most)
            for others in itertools.combinations(response, most)
        )
        pairs = [(new, old) for new, old in zip(found, response, strict=True) if new != old]
        assert len(pairs) == most and len({new for new, _ in pairs}) == most
        assert sum(share(new, old) for new, old in pairs) == pytest.approx(best)
