"""spanjax's own environment variables: defaults, and everything that is no number."""

import pytest

from spanjax.distributed.launchers import BARRIER, EXPECTED, STARTUP, Variables, own_variables, startup_limit, xla_flag


def test_defaults_and_values() -> None:
    assert own_variables({}) == own_variables({STARTUP: " "}) == Variables(None, None, 600)
    assert own_variables({EXPECTED: "8", STARTUP: "007", BARRIER: " 60 "}) == Variables(8, 7, 60)


def test_many_processes_wait_longer() -> None:
    """As many hosts load the same libraries from one file system, the last one comes later."""
    assert [startup_limit(count) for count in (1, 2, 64, 65, 1024)] == [300, 300, 300, 302, 2220]


@pytest.mark.parametrize("value", ["0", "00", "-1", "nan", "inf", "1.5", "1e3", "ten", "²", "٣"])
def test_everything_else_is_refused_all_at_once(value: str) -> None:
    """0 was taken for the default without a word."""
    with pytest.raises(ValueError, match="unset for no check") as caught:
        own_variables(dict.fromkeys((EXPECTED, STARTUP, BARRIER), value))
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [f"{name} is {value!r}" for name in (EXPECTED, STARTUP, BARRIER)]


def test_the_last_value_of_an_xla_flag_counts() -> None:
    assert xla_flag({}, "--xla_a") is None and xla_flag({"XLA_FLAGS": "--xla_ab=1"}, "--xla_a") is None
    assert xla_flag({"XLA_FLAGS": "--xla_a=1 --xla_b=3 --xla_a=2"}, "--xla_a") == "2"
