"""McNemar's test against SciPy's binomial and chi-square distributions."""

import random

import pytest
import scipy.stats

from spanjax.scoring.significance import mcnemar


def judgements(only_first: int, only_second: int, both: int = 3, none: int = 2) -> tuple[list[bool], list[bool]]:
    """Two lists with so many examples of each kind, shuffled together."""
    pairs = (
        [(True, False)] * only_first + [(False, True)] * only_second + [(True, True)] * both + [(False, False)] * none
    )
    random.Random(0).shuffle(pairs)
    return [a for a, _ in pairs], [b for _, b in pairs]


def test_every_small_split() -> None:
    for total in range(1, 41):
        for few in range(total + 1):
            found = mcnemar(*judgements(few, total - few))
            assert (found.only_first, found.only_second) == (few, total - few)
            assert found.exact_p == pytest.approx(scipy.stats.binomtest(few, total).pvalue, rel=1e-11)
            chi_square = max(0, abs(total - 2 * few) - 1) ** 2 / total
            assert found.chi_square == chi_square
            assert found.chi_square_p == pytest.approx(scipy.stats.chi2.sf(chi_square, 1), rel=1e-11)


def test_large_splits() -> None:
    draw = random.Random(1)
    for _ in range(40):
        few, many = draw.randint(0, 900), draw.randint(500, 1500)
        found = mcnemar(*judgements(few, many))
        assert found.exact_p == pytest.approx(scipy.stats.binomtest(few, few + many).pvalue, rel=1e-9, abs=1e-300)
        assert mcnemar(*reversed(judgements(few, many))).exact_p == found.exact_p


def test_by_hand() -> None:
    found = mcnemar(*judgements(1, 9))
    assert (found.exact_p, found.chi_square) == (22 / 1024, 4.9)
    same = mcnemar([True, False], [True, False])
    assert (same.only_first, same.exact_p, same.chi_square, same.chi_square_p) == (0, 1.0, 0.0, 1.0)


def test_all_problems_at_once() -> None:
    with pytest.raises(
        ValueError, match="(?s)2 judgements of the first system and 1 of the second.*1 judgements of the first .*: 0.5;"
    ):
        mcnemar([True, 0.5], [False])  # pyright: ignore[reportArgumentType]
