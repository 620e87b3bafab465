"""What `start` does before jax: the metadata of a TPU VM, the devices of one process."""

from typing import Any

import pytest

from spanjax import distributed
from spanjax.distributed import Launch, ProcessesMissing, detect, meeting, own_address, start

VM = detect({}, tpu_chips=4)


def answer(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    """Lets jax's own detection say this."""

    def detection(*_: Any) -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(distributed, "detected_pod", detection)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (("10.0.0.2:8482", 4, 3, None), ("10.0.0.2:8482", 4, 3)),
        (("10.0.0.2:8482", 1, 0, None), (None, 1, 0)),
        ((None, None, None, None), (None, 1, 0)),
    ],
)
def test_metadata_of_a_tpu_vm(
    said: tuple[Any, ...], expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, said)
    launch = distributed._ask_jax(VM, 1.0)
    assert (launch.coordinator, launch.processes, launch.process_id) == expected and launch.platform == "tpu"


def test_no_metadata_is_an_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, ConnectionError("no route"))
    with pytest.raises(ValueError, match="4 TPU chips.*no route.*JAX_NUM_PROCESSES=1"):
        distributed._ask_jax(VM, 1.0)


def test_one_process_counts_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "tpu_chips", lambda: 0)
    assert start() == Launch("none")
    monkeypatch.setenv("SPANJAX_EXPECTED_DEVICES", "4")
    assert start().devices == 4
    monkeypatch.setenv("SPANJAX_EXPECTED_DEVICES", "8")
    with pytest.raises(ValueError, match="jax sees 4 device.*expected 8 .SPANJAX_EXPECTED_DEVICES"):
        start()


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    for name, value in (environment | {"SPANJAX_STARTUP_TIMEOUT": "1"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ProcessesMissing, match="process 0 did not answer at 127.0.0.1:1 within 1 s .*refused"):
        start()


@pytest.mark.parametrize(
    ("coordinator", "expected"),
    [("127.0.0.1:80", "127.0.0.1"), ("localhost:80", "127.0.0.1"), ("[::1]:80", "::1"), ("name.invalid:80", None)],
)
def test_the_address_on_the_way_to_the_coordinator(coordinator: str, expected: str | None) -> None:
    assert own_address(coordinator) == expected


def test_a_name_that_leads_to_loopback_here_is_no_address_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "is_local", lambda host: host != "localhost" and meeting.is_local(host))
    assert own_address("localhost:80") is None
