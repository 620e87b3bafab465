"""spanjax's own environment variables, read and checked in one place.

They are no settings of `Run`: they describe the machines of one start and not the training, may differ when a run is resumed,
belong to the launch file, and are needed before jax starts and before a config file, which imports jax, is read.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from spanjax.bounds import raise_problems

EXPECTED, STARTUP, BARRIER = "SPANJAX_EXPECTED_DEVICES", "SPANJAX_STARTUP_TIMEOUT", "SPANJAX_BARRIER_TIMEOUT"
TOKEN = "SPANJAX_MEETING_TOKEN"
"""Word that the launcher gives to all processes of one start, and that strangers lack; unset if it gives none."""
STARTUP_SECONDS, BARRIER_SECONDS = 300, 600
_UNSET = {EXPECTED: "no check", STARTUP: f"{STARTUP_SECONDS} s", BARRIER: f"{BARRIER_SECONDS} s"}


class Variables(NamedTuple):
    """Values of the variables."""

    expected_devices: int | None
    """Devices that all processes together should see; None if it is not set."""
    startup_seconds: int
    """Seconds that processes wait for each other at the start."""
    barrier_seconds: int
    """Seconds that they wait for each other later."""


def own_variables(environment: Mapping[str, str]) -> Variables:
    """Reads the three variables, or their defaults. ValueError lists every one that is not a whole number above 0."""
    given = {name: environment.get(name, "").strip() for name in _UNSET}
    problems = [
        f"{name} is {value!r}: expected a whole number, 1 or more; leave it unset for {_UNSET[name]}"
        for name, value in given.items()
        if value and not re.fullmatch("0*[1-9][0-9]*", value)
    ]
    raise_problems(problems)
    expected, startup, barrier = (int(value) if value else None for value in given.values())
    return Variables(expected, startup or STARTUP_SECONDS, barrier or BARRIER_SECONDS)


def xla_flag(environment: Mapping[str, str], name: str) -> str | None:
    """Returns the value of a flag in XLA_FLAGS, the last of several; None if it is not set."""
    words = (word.partition("=") for word in environment.get("XLA_FLAGS", "").split())
    return next((value for key, _, value in reversed([*words]) if key == name), None)
