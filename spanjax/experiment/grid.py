"""The grid file of a sweep: named arms or factors, and seeds; TOML, or Python with the same names in capitals."""

import dataclasses
import itertools
import pathlib
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from spanjax.bounds import raise_problems
from spanjax.data.sources.tables import is_whole
from spanjax.run import Run
from spanjax.run_format import execute
from spanjax.storage.shipped import find_config

KEYS = ("arms", "factors", "seeds", "base", "equal_flops")
OF_THE_SWEEP = ("--seed", "--workdir", "--sweep", "--dry-run", "--list", "--help")
"""Flags that no arm may set."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")


@dataclasses.dataclass(frozen=True)
class Arm:
    """A named variant."""

    name: str
    settings: tuple[str, ...] = ()
    """Words of a command line that follow those of the sweep."""
    run: Run | None = None
    """Run to start from; None: that of --config."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """Arms and seeds of a sweep; the first arm is the base."""

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    equal_flops: bool = False
    """Give every arm as many steps as the FLOPs of the base arm allow."""


def read_grid(path: str) -> Grid:
    """Reads a grid file. One ValueError with all problems."""
    found = _content(path)
    arms, problems = _arms(found)
    unknown = sorted(found.keys() - {*KEYS})
    problems += [f"{name}: expected {', '.join(KEYS)}" for name in unknown]
    seeds, equal_flops = found.get("seeds", ()), found.get("equal_flops", False)
    whole = isinstance(seeds, list | tuple) and all(is_whole(seed) and seed >= 0 for seed in seeds)
    if not seeds or not whole or len({*seeds}) < len(seeds):
        problems.append(f"seeds is {seeds!r}: expected different whole numbers from 0 on, such as [0, 1, 2]")
    if not isinstance(equal_flops, bool):
        problems.append(f"equal_flops is {equal_flops!r}: expected true or false")
    base = found.get("base", arms[0].name if arms else "")
    if base not in (names := [arm.name for arm in arms]):
        problems.append(f"base is {base!r}: expected one of the arms {', '.join(names)}")
    raise_problems([f"  - {problem}" for problem in problems], f"--sweep {path} is no grid:")
    return Grid(tuple(sorted(arms, key=lambda arm: arm.name != base)), tuple(seeds), equal_flops)


def _content(path: str) -> dict[str, Any]:
    """Returns the names of a grid file with their values."""
    if path.endswith(".toml"):
        try:
            return tomllib.loads(pathlib.Path(path).read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:  # also an arm that is named twice
            raise ValueError(f"--sweep {path} is no TOML: {error}") from error
    try:
        file = find_config(path)
    except ValueError:
        raise ValueError(
            f"--sweep {path}: no such file: give one in TOML or Python that names arms and seeds"
        ) from None
    if file.suffix != ".py":
        raise ValueError(f"--sweep {path}: expected a file in TOML or Python that names arms and seeds")
    try:
        module = execute(file)
    except (Exception, SystemExit) as error:  # a program of the user, which may raise anything
        raise ValueError(f"--sweep {path} does not load: {type(error).__name__}: {error}") from error
    return {name: getattr(module, name.upper()) for name in KEYS if hasattr(module, name.upper())}


def _arms(found: Mapping[str, Any]) -> tuple[list[Arm], list[str]]:
    """Returns the arms, or the products of the factors, and problems."""
    given, factors = found.get("arms"), found.get("factors")
    if (given is None) == (factors is None):
        return [], ["expected either arms or factors: a table of names with settings, or a table of such tables"]
    problems: list[str] = []
    if factors is None:
        arms = list(_variants(given, "arms", problems))
    elif not isinstance(factors, Mapping) or not factors:
        return [], [f"factors is {factors!r}: expected tables of names with settings"]
    else:
        levels = [list(_variants(each, f"factors.{name}", problems)) for name, each in factors.items()]
        if any(arm.run for level in levels for arm in level):
            problems.append("factors: a Run is no part of a product; give settings, or arms")
        arms = [
            Arm("-".join(arm.name for arm in each), tuple(word for arm in each for word in arm.settings))
            for each in itertools.product(*levels)
        ]
    folded = [arm.name.casefold() for arm in arms]  # folders of some file systems have no case
    twice = dict.fromkeys(arm.name for arm in arms if folded.count(arm.name.casefold()) > 1)
    return arms, problems + [f"arm {name}: another arm has the same name" for name in twice]


def _variants(table: Any, where: str, problems: list[str]) -> Iterator[Arm]:
    """Yields the entries of a table of settings, and appends problems."""
    if not isinstance(table, Mapping) or not table:
        problems.append(f"{where} is {table!r}: expected a table of names with settings")
        return
    for name, value in table.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(".json"):
            problems.append(
                f"{where} {name!r}: a folder gets this name: expected letters, digits and _ . + = -, and no .json"
            )
        if isinstance(value, Run):
            yield Arm(str(name), run=value)
            continue
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            problems.append(f"{where} {name}: {value!r}: expected settings as on the command line, in a text or a list")
            continue
        try:
            words = tuple(word for text in texts for word in shlex.split(text))
        except ValueError as error:
            problems.append(f"{where} {name}: {value!r}: {error}")
            continue
        wrong = sorted({word.partition("=")[0] for word in words} & {*OF_THE_SWEEP})
        problems += [f"{where} {name}: {flag} is not of an arm: leave it away" for flag in wrong]
        yield Arm(str(name), words)
