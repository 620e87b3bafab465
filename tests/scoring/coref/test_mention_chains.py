"""Mentions of key and response: what is the same, what is dropped, and what repeated mentions do to the scores."""

import dataclasses

import pytest

from spanjax.scoring import coref
from spanjax.scoring.coref.mention_chains import chains
from tests import coref_columns

A, B, C, X, Y = [(place, place) for place in range(5)]


def test_numbers() -> None:
    found = chains([[A, B], [], [C]], [[(1, 1), X], [], [(2, 3), C]])
    assert (found.key, found.response) == ([[0, 1], [2]], [[1, 3], [4, 2]])
    assert found.mentions == [A, B, C, X, (2, 3)]
    assert (found.in_key, found.in_response, found.in_both, found.dropped) == (3, 4, 2, 0)
    assert (found.key_of[2], found.response_of[2], found.response_of[3]) == (1, 1, 0)


def test_mentions_of_the_key_are_dropped_when_repeated() -> None:
    found = chains([[A, B], [C]], [[A, B, A], [A], [C, B, X]])
    assert found.response == [[0, 1], [2, 3]]
    assert found.dropped == 3
    clean = coref.score([([[A, B], [C]], [[A, B], [C, X]])])
    assert coref.score([([[A, B], [C]], [[A, B, A], [A], [C, B, X]])]) == dataclasses.replace(clean, dropped=3)


def test_mentions_that_the_key_lacks_count_as_often_as_given() -> None:
    found = coref.score([([[A, B]], [[A, B, X], [X, X], [Y]])])
    assert found.dropped == 0
    assert dataclasses.astuple(found.muc) == (1, 1, 1, 3)
    assert dataclasses.astuple(found.bcub) == pytest.approx((2, 2, 2 * 2 / 3, 6))
    assert dataclasses.astuple(found.ceafe) == pytest.approx((4 / 5, 1, 4 / 5, 3))
    assert dataclasses.astuple(found.ceafm) == (2, 2, 2, 6)
    assert dataclasses.astuple(found.mention) == (2, 2, 2, 4)


def test_mentions_repeated_in_the_key() -> None:
    """In two clusters: B counts in both sizes; the response's B belongs to the last, shares are of sets of mentions."""
    found = coref.score([([[A, B], [B, C]], [[A, B], [C]])])
    assert dataclasses.astuple(found.muc) == (0, 2, 0, 1)
    # A: 2 of 2; B, as of the second: 1 of 2; C: 1 of 2
    assert dataclasses.astuple(found.bcub) == pytest.approx((1 + 0.5 + 0.5, 4, 1 + 0.5 + 1, 3))
    assert dataclasses.astuple(found.ceafm) == (3, 4, 3, 3)
    assert dataclasses.astuple(found.ceafe) == pytest.approx((1 + 2 / 3, 2, 1 + 2 / 3, 2))
    assert dataclasses.astuple(found.mention) == (3, 3, 3, 3)

    # twice in one cluster: the alignment counts both, so that a precision of mentions can be above 100
    found = coref.score([([[A, A, B]], [[A, B]])])
    assert dataclasses.astuple(found.muc) == (1, 2, 1, 1)
    assert dataclasses.astuple(found.bcub) == pytest.approx((2 * 2 / 3, 3, 2, 2))
    assert dataclasses.astuple(found.ceafm) == (3, 3, 3, 2)
    assert dataclasses.astuple(found.ceafe) == pytest.approx((6 / 5, 1, 6 / 5, 1))


@pytest.mark.parametrize(
    ("cells", "clusters"),
    [
        (["(1)", "-", "(1)"], [[(0, 0), (2, 2)]]),
        (["(3)|(1(2)", "1)"], [[(0, 0)], [(0, 0)], [(0, 1)]]),
        (["(1|(3", "1)|3)"], [[(0, 1)], [(0, 1)]]),
        (["(12(12", "12)", "12)", "(1)(12)"], [[(0, 1), (0, 2), (3, 3)], [(3, 3)]]),
        (["(1(3(3", "", "3)3)1)"], [[(0, 2)], [(0, 2), (0, 2)]]),
        (["-", "_", "*", ""], []),
    ],
)
def test_columns(cells: list[str], clusters: list[coref_columns.Cluster]) -> None:
    """The reader of these tests' files."""
    assert sorted(map(sorted, coref_columns.read_clusters(cells))) == sorted(map(sorted, clusters))
