"""McNemar's test (1947): do two systems, judged on the same examples, differ in how many they get right?"""

import dataclasses
import math
from collections.abc import Sequence

from spanjax.scoring.checks import counted, raise_problems


@dataclasses.dataclass(frozen=True)
class McNemar:
    """Examples that only one system got right, and p-values (0 to 1) of so uneven a split under equal chances.

    `exact_p` is the two-sided binomial test. `chi_square` has the continuity correction (Edwards 1948) and one degree of
    freedom; both it and `chi_square_p` are rough below about 25 examples in all.
    """

    only_first: int
    only_second: int
    exact_p: float
    chi_square: float
    chi_square_p: float


def _exact_p(few: int, total: int) -> float:
    """P(at most `few` or at least `total - few` heads in `total` tosses), in whole numbers until the division."""
    if 2 * few >= total:
        return 1.0
    ways = term = 1
    for k in range(few):
        term = term * (total - k) // (k + 1)
        ways += term
    return 2 * ways / 2**total


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> McNemar:
    """Tests two systems; first[i], second[i]: True or 1 where that system got example i right, else False or 0.

    Systems that are right on the same examples have p-values of 1.
    """
    problems = []
    if len(first) != len(second):
        lengths = f"{len(first)} judgements of the first system and {len(second)} of the second"
        problems.append(f"{lengths}: expected one of each for every example, in order")
    for which, scored in (("first", first), ("second", second)):
        wrong = [one for one in scored if one not in (0, 1)]
        problems += counted(
            wrong, f"judgements of the {which} system are neither right nor wrong", "expected True or False"
        )
    raise_problems("McNemar's test", problems)
    only_first = sum(bool(a) and not b for a, b in zip(first, second, strict=True))
    only_second = sum(bool(b) and not a for a, b in zip(first, second, strict=True))
    total = only_first + only_second
    chi_square = max(abs(only_first - only_second) - 1, 0) ** 2 / total if total else 0.0
    exact = _exact_p(min(only_first, only_second), total)
    return McNemar(only_first, only_second, exact, chi_square, math.erfc(math.sqrt(chi_square / 2)))
