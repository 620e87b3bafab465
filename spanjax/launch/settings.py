"""Common settings of the launch files: name, training command, and checks of values that go into names and paths."""

import dataclasses
import importlib.resources
import re
from typing import ClassVar

from spanjax.bounds import flag_problems
from spanjax.cli import DONE, PROCESSES_MISSING, STOPPED, WRONG_INPUT
from spanjax.distributed.launchers import TOKEN
from spanjax.launch.quoting import fill, word

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@%+-]*")
DRAWN_TOKEN = f"{TOKEN}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')"
"""Shell: a fresh token for the rendezvous of the processes."""
ON_SHARE = (
    *("--config", "configs/pretrain/spanbert_base.py", "--rows", "/data/rows"),
    *("--workdir", "/data/runs/spanbert_base"),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a launch file. The arguments of spanjax.train follow `--`."""

    FILE: ClassVar[str] = ""
    """The file in launch/ that has the defaults; in templates/ it has names of values after @@."""
    TRAIN: ClassVar[tuple[str, ...]] = ON_SHARE
    """Default arguments of spanjax.train."""

    print: bool = False
    """Print the file."""
    output: str = ""
    """Write the file there."""
    name: str = "spanjax"
    """Name of the job: lower-case letters, digits and hyphens."""
    env: tuple[str, ...] = ()
    """More variables of the processes, NAME=VALUE each."""

    def problems(self) -> list[str]:
        """Problems with these values, as text; empty if there are none."""
        found = flag_problems(self)
        if not LABEL.fullmatch(self.name) or len(self.name) > 40:
            found.append(
                f"--name is {self.name!r}: expected at most 40 lower-case letters, digits and hyphens, a letter first"
            )
        for pair in self.env:
            name, sign, _ = pair.partition("=")
            if not sign or not VARIABLE.fullmatch(name):
                found.append(f"--env has {pair!r}: expected NAME=VALUE")
        for field in dataclasses.fields(self):
            found += one_line(f"--{field.name.replace('_', '-')}", getattr(self, field.name))
        return found

    def variables(self, *first: tuple[str, object]) -> dict[str, str]:
        """Variables of the file, overridden by those of --env."""
        return {name: str(value) for name, value in first} | dict(pair.split("=", 1) for pair in self.env)

    def text(self, train: tuple[str, ...]) -> str:
        """The file; `train` are the arguments of spanjax.train."""
        raise NotImplementedError

    def filled(self, **values: object) -> str:
        """Fills the template with the settings by name, what all templates know, and `values`."""
        known = {"file": word(self.output or f"launch/{self.FILE}"), "token": DRAWN_TOKEN, "token_name": TOKEN}
        codes = {"done": DONE, "wrong": WRONG_INPUT, "missing": PROCESSES_MISSING, "stopped": STOPPED}
        template = importlib.resources.files("spanjax.launch") / "templates" / self.FILE
        return fill(template.read_text(), {**vars(self), **known, **codes, **values})


def one_line(option: str, value: object) -> list[str]:
    """Reports values with a line break or another control character, which no launch file can hold."""
    values = value if isinstance(value, tuple) else (value,)
    return [
        f"{option} is {each!r}: expected text of one line"
        for each in values
        if isinstance(each, str) and not each.isprintable()
    ]


def plain(settings: object, *names: str, needed: bool = True) -> list[str]:
    """Reports each field that is not one plain word, such as a zone or an image; empty is fine unless `needed`."""
    values = {name: getattr(settings, name) for name in names}
    return [
        f"--{name.replace('_', '-')} is {value!r}: expected one word of letters, digits and ._:/@%+-"
        for name, value in values.items()
        if not PLAIN.fullmatch(value) and (needed or value)
    ]


def train_problems(train: tuple[str, ...]) -> list[str]:
    """Problems with the arguments of spanjax.train that show without reading the config."""
    given = {word.split("=", 1)[0] for word in train}
    found = [problem for word in train for problem in one_line("an argument of spanjax.train", word)]
    if "--config" not in given:
        found.append(f"the arguments of spanjax.train are {' '.join(train)!r}: expected --config FILE among them")
    if not given & {"--workdir", "--dry-run"}:
        found.append(
            f"the arguments of spanjax.train are {' '.join(train)!r}: expected --workdir FOLDER, which all hosts share"
        )
    return found
