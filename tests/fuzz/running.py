"""Runs cases through the server and judges how they ended."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tests.bad_inputs import World
from tests.fuzz.server import CPU_SECONDS, Ended, Job
from tests.running import ROOT, environment

Expected = Literal["accepted", "refused", "either"]
DOCUMENTED = {0: "done", 2: "wrong input", 4: "some records failed"}


@dataclasses.dataclass(frozen=True, eq=False)
class Fuzz:
    """One hostile input."""

    kind: str
    """flags, text, json, bytes, ...: the class it is counted in."""
    name: str
    command: str
    make: Callable[[World], list[Any]]
    """Writes its files into the folder of the case; the words after the command."""
    expected: Expected = "either"
    stop: str = ""
    """See `Job.stop`."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Server:
    """The warm process, as a context."""

    def __init__(self, folder: pathlib.Path):
        variables = environment(1, TOKENIZERS_PARALLELISM="false", COLUMNS="500")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.server", str(folder)],
            cwd=ROOT,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def run(self, job: Job) -> Ended:
        """How this command line ended."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(dataclasses.asdict(job)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the server ended with {self.process.wait()}"
        return Ended(**json.loads(answer))


def run_case(server: Server, case: Fuzz, world: World) -> Ended:
    """Makes the input in the folder of this world and runs the command there."""
    words = [*case.command.split(), *map(str, case.make(world))]
    return server.run(Job(words, str(world.here), case.stop, dict(case.variables)))


def problems(case: Fuzz, ended: Ended) -> list[str]:
    """What was not as it should be; empty where all was."""
    found = []
    if ended.killed:
        found.append(f"killed: {ended.killed}")
    if "Traceback (most recent call last)" in ended.said:
        found.append("a traceback")
    if ended.cpu > CPU_SECONDS:
        found.append(f"{ended.cpu:.0f} CPU seconds")
    if ended.code not in DOCUMENTED and not ended.killed:
        found.append(f"exit code {ended.code}")
    if ended.code == 0 and case.expected == "refused":
        found.append("accepted, and should not be")
    if ended.code in (2, 4) and case.expected == "accepted":
        found.append("refused, and should not be")
    if ended.code == 2 and not ended.said.strip():
        found.append("refused without a word")
    if any(sign in ended.said for sign in ("\x1b]", "\x07")):
        found.append("an escape sequence of the input on the terminal")
    return found


def told(case: Fuzz, ended: Ended) -> str:
    """One failed case for the report of the test."""
    last = "\n    ".join(ended.said.strip().splitlines()[-6:])
    return f"{case.kind}: {case.command}: {case.name}: {', '.join(problems(case, ended))}\n    {last}"


def apart(world: World, folder: pathlib.Path) -> World:
    """The same inputs with an empty folder for the next case."""
    folder.mkdir()
    os.chdir(folder)
    return dataclasses.replace(world, here=folder)
