"""Access to buckets is tried right by right, and the right that is missing is named."""

import pytest

from spanjax.doctor.storage import NEEDED, check_storage
from spanjax.storage import objects
from spanjax.storage.objects import Place, open_store
from tests.storage.conftest import opened
from tests.storage.servers import Faults


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "RETRY_SECONDS", 2.0)


@pytest.mark.parametrize("scheme", ["memory", "s3", "gs"])
def test_full_access(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(scheme, Faults(), monkeypatch) as address:
        found = check_storage(address)
        assert {each.name.removeprefix("storage "): each.status for each in found} == dict.fromkeys(NEEDED, "ok")
        assert open_store(Place.parse(address)).list(Place.parse(address)) == [], "the probe is gone"


@pytest.mark.parametrize(
    ("method", "failing", "noted"),
    [
        ("PUT", {"write"}, {"condition", "read", "delete"}),
        ("GET", {"list", "read"}, set()),
        ("POST", {"delete"}, set()),
    ],
)
def test_the_missing_right_is_named(
    method: str, failing: set[str], noted: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(deny=frozenset({method}))
    with opened("s3", faults, monkeypatch) as address:
        found = {each.name.removeprefix("storage "): each for each in check_storage(address)}
    assert {name for name, each in found.items() if each.status == "fail"} == failing
    assert {name for name, each in found.items() if each.status == "note"} == noted
    assert all("access is denied" in found[name].message and NEEDED[name] in found[name].message for name in failing)


def test_a_service_that_ignores_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    from spanjax.storage.objects_memory import Memory

    whole = Memory.put
    monkeypatch.setattr(Memory, "put", lambda self, place, data, only_if, nonce: whole(self, place, data, None, nonce))
    with opened("memory", Faults(), monkeypatch) as address:
        (failed,) = (each for each in check_storage(address) if each.status == "fail" and "condition" in each.name)
    assert "the service ignores conditions" in failed.message


@pytest.mark.parametrize(("address", "message"), [("runs/x", "expected an address"), ("s3://elsewhere/x", "no bucket")])
def test_wrong_addresses(address: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened("s3", Faults(), monkeypatch):
        assert any(each.status == "fail" and message in each.message for each in check_storage(address))
