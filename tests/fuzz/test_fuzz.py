"""Hostile files and flags for every command: no traceback, a documented exit code, bounded time and memory."""

import collections
import os
import pathlib
from collections.abc import Iterator

import pytest

from tests.bad_inputs import World
from tests.fuzz.cases import every_case, sample
from tests.fuzz.running import Fuzz, Server, apart, problems, run_case, told
from tests.fuzz.server import CPU_SECONDS, Ended

SAMPLED, AT_LEAST = 24, 600


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def world(
    rows_folder: pathlib.Path,
    run_folder: pathlib.Path,
    tuned_folder: pathlib.Path,
    weights_folder: pathlib.Path,
    corpus_file: pathlib.Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> World:
    folder = tmp_path_factory.mktemp("world")
    return World(folder, rows_folder, run_folder, weights_folder, corpus_file, tuned_folder)


def failures(server: Server, world: World, cases: list[Fuzz], folder: pathlib.Path) -> list[str]:
    """What went wrong in these cases."""
    found, before = [], os.getcwd()
    try:
        for number, case in enumerate(cases):
            here = apart(world, folder / str(number))
            ended = run_case(server, case, here)
            if problems(case, ended):
                found.append(told(case, ended))
    finally:
        os.chdir(before)
    return found


@pytest.mark.timeout(1200)
def test_a_sample_of_hostile_inputs(server: Server, world: World, tmp_path: pathlib.Path) -> None:
    cases = sample(every_case(server, world, tmp_path), SAMPLED)
    found = failures(server, world, cases, tmp_path)
    assert not found, "\n".join([f"{len(found)} of {len(cases)} cases:", *found])


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_hostile_input(server: Server, world: World, tmp_path: pathlib.Path) -> None:
    cases = every_case(server, world, tmp_path)
    counted = collections.Counter(case.kind for case in cases)
    assert len(cases) >= AT_LEAST and len(counted) >= 6, counted
    found = failures(server, world, cases, tmp_path)
    assert not found, "\n".join([f"{len(found)} of {len(cases)} cases {dict(counted)}:", *found])


def ended(**changed: object) -> Ended:
    """How a good refusal ends, with something changed."""
    return Ended(**{"code": 2, "said": "wrong", "cpu": 1.0, "wall": 1.0, "growth": 0, **changed})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("expected", "how", "found"),
    [
        ("either", ended(), []),
        ("either", ended(said="Traceback (most recent call last)\n"), ["a traceback"]),
        ("either", ended(code=1), ["exit code 1"]),
        ("either", ended(code=-6), ["exit code -6"]),
        ("either", ended(cpu=CPU_SECONDS + 1), [f"{CPU_SECONDS + 1:.0f} CPU seconds"]),
        ("either", ended(code=-9, killed="over 2 GiB"), ["killed: over 2 GiB"]),
        ("refused", ended(code=0), ["accepted, and should not be"]),
        ("accepted", ended(), ["refused, and should not be"]),
        ("either", ended(said=" "), ["refused without a word"]),
        ("either", ended(said="name \x1b]0;x\x07"), ["an escape sequence of the input on the terminal"]),
    ],
)
def test_what_counts_as_a_failure(expected: str, how: Ended, found: list[str]) -> None:
    case = Fuzz("kind", "name", "train", lambda world: [], expected)  # pyright: ignore[reportArgumentType]
    assert problems(case, how) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()", "a traceback"),
        ("kept = [b'x' * 2**30 for _ in range(3)]", "killed: over 2 GiB"),
        ("import os; os.abort()", "exit code -6"),
    ],
)
def test_the_server_notices(code: str, found: str, server: Server, tmp_path: pathlib.Path) -> None:
    (tmp_path / "hostile.py").write_text(code)
    case = Fuzz("self-test", code, "train", lambda world: [f"--config={tmp_path / 'hostile.py'}"])
    here = World(tmp_path, *[tmp_path] * 5)
    assert found in problems(case, run_case(server, case, here))
