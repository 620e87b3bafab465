"""python -m spanjax.launch KIND --print [settings] -- ARGUMENTS OF spanjax.train: a launch file for a cluster, or processes here.

The files in launch/ are its output without settings. `local` without --print trains on this machine. It starts nothing
else, and contacts no cloud. Exit codes: 0 done, 2 wrong input; `local` returns the exit code of spanjax.train.
"""

import dataclasses
import pathlib
import re
import sys

import tyro

from spanjax.bounds import raise_problems
from spanjax.cli import WRONG_INPUT, exit_code
from spanjax.launch.jobset import JobSet
from spanjax.launch.local import Local
from spanjax.launch.processes import run_local
from spanjax.launch.settings import Settings, train_problems
from spanjax.launch.skypilot import SkyPilot
from spanjax.launch.slurm import Slurm
from spanjax.launch.tpu_vm import TpuVm
from spanjax.launch.xpk import Xpk

KINDS: dict[str, type[Settings]] = {
    "local": Local,
    "tpu-vm": TpuVm,
    "xpk": Xpk,
    "jobset": JobSet,
    "slurm": Slurm,
    "skypilot": SkyPilot,
}
PLACE = re.compile(r"\b(PROJECT|REGION|CLUSTER|BUCKET|ADDRESS|SHARE)\b")


def split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Splits the command line into our settings and the arguments after the first `--`."""
    if "--" not in arguments:
        return arguments, ()
    place = arguments.index("--")
    return arguments[:place], tuple(arguments[place + 1 :])


def checked(settings: Settings, train: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the arguments of spanjax.train, or the kind's example without any. ValueError with all problems."""
    runs = isinstance(settings, Local) and not (settings.print or settings.output)
    problems = settings.problems()
    if train or not runs:
        train = train or settings.TRAIN
        problems += train_problems(train)
    else:
        problems.append("nothing to train: give the arguments of spanjax.train after --, or --print")
    if not (settings.print or settings.output or runs):
        problems.append("neither --print nor --output FILE is given: nothing but `local` is started from here")
    raise_problems(problems, "")
    return train


def to_fill_in(settings: Settings) -> list[str]:
    """Settings whose placeholder the user must still replace."""
    return [
        f"--{field.name.replace('_', '-')}"
        for field in dataclasses.fields(settings)
        if isinstance(value := getattr(settings, field.name), str) and PLACE.search(value)
    ]


def launch(kind: str, arguments: list[str]) -> int:
    """Prints or writes a launch file, or trains here; returns the exit code."""
    ours, train = split(arguments)
    settings = tyro.cli(KINDS[kind], args=ours, prog=f"python -m spanjax.launch {kind}")
    train = checked(settings, train)
    if settings.print:
        sys.stdout.write(settings.text(train))
    if settings.output:
        pathlib.Path(settings.output).write_text(settings.text(train))
    if isinstance(settings, Local) and not (settings.print or settings.output):
        return run_local(settings, train)
    if blanks := to_fill_in(settings):
        print(f"spanjax.launch: still to be filled in: {', '.join(blanks)}", file=sys.stderr)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Entry point: user errors are one message on stderr and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        about = {name: (kind.__doc__ or "").split(". ")[0].rstrip(".") for name, kind in KINDS.items()}
        print(f"{__doc__}\n" + "\n".join(f"  {name:10s}{what}" for name, what in about.items()))
        return 0 if words else WRONG_INPUT
    kind, *rest = words
    if kind not in KINDS:
        print(f"spanjax.launch: no kind {kind!r}: expected one of {', '.join(KINDS)}", file=sys.stderr)
        return WRONG_INPUT
    return exit_code("spanjax.launch", lambda: launch(kind, rest), cannot="these settings do not make a launch")
