"""One run at a time in a bucket: by what a taker observes itself, whatever clocks and pauses there are."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from spanjax.storage import lease as leases
from spanjax.storage.commits import FencedError
from spanjax.storage.lease import HeldError, Lease
from spanjax.storage.objects import Place, open_store
from tests.storage.servers import Fault, Faults

held = list[Lease]()
WRITES = {"s3": {"method": "PUT", "path": "run.lock"}, "gs": {"method": "POST"}}


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leases of fractions of a second, whose renewals end with the test."""
    monkeypatch.setattr(leases, "VALID_SECONDS", 0.6)
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(leases, "WATCH_SECONDS", 0.05)
    yield
    end_all()


@pytest.fixture
def store(served: str) -> Iterator[str]:
    """An empty folder of a server; no renewal outlives the server, which it would look for until the retries end."""
    yield served
    end_all()


def end_all() -> None:
    while held:
        found = held.pop()
        found._ended.set()
        if found._thread.is_alive():
            found._thread.join()


def lease(address: str) -> Lease:
    place = Place.parse(address)
    held.append(Lease(open_store(place), place / "run.lock", address))
    return held[-1]


def paused(address: str) -> Lease:
    """A lease whose holder sleeps: nothing renews it, and it does not know."""
    found = lease(address)
    found.take()
    found._ended.set()
    found._thread.join()
    found._ended = threading.Event()
    return found


def test_a_released_lease_is_free_at_once_and_numbers_rise(memory: str) -> None:
    one, two = lease(memory), lease(memory)
    assert one.take() == 1
    one.release()
    assert two.take() == 2 and two.lost is None
    two.release()
    assert lease(memory).take(at_least=7) == 8


def test_a_renewed_lease_is_refused_with_its_holder(memory: str) -> None:
    lease(memory).take()
    with pytest.raises(HeldError, match=rf"in use by another run: host \S+, process {os.getpid()}, started"):
        lease(memory).take()


def test_a_silent_lease_is_taken_over_and_its_holder_finds_out(memory: str) -> None:
    one, two = paused(memory), lease(memory)
    assert two.take() == 2
    with pytest.raises(FencedError, match="taken over by another run, host"):
        one.renew()
    with pytest.raises(FencedError):
        one.check()
    one.release()  # which does not free that of the other
    two.renew()


def test_the_clock_of_the_holder_does_not_count(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A taker waits for the whole validity from its first look, however long ago the last renewal was."""
    paused(memory)
    waited = list[float]()
    monkeypatch.setattr(leases.time, "monotonic", lambda: 1e6 + sum(waited))
    lease(memory).take(sleep=waited.append)
    assert 0.6 < sum(waited) < 0.8


def test_one_of_many_takers_wins(store: str) -> None:
    """All begin in the same moment, on S3 and on GCS."""
    count, start = 6, threading.Barrier(6)
    won, lost = list[int](), list[HeldError]()

    def take() -> None:
        mine = lease(store)
        start.wait()
        try:
            won.append(mine.take())
        except HeldError as error:
            lost.append(error)

    threads = [threading.Thread(target=take) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [1] and len(lost) == count - 1


def test_a_renewal_whose_answer_is_lost_keeps_the_lease(store: str, faults: Faults) -> None:
    one = paused(store)
    for _ in range(3):
        faults.plan(Fault.LOST, **WRITES[store[:2]])
        one.renew()
    assert one.lost is None and faults.counts[Fault.LOST] == 3


def test_a_process_of_this_machine_that_ended_is_not_waited_for(memory: str) -> None:
    one = paused(memory)
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    place = Place.parse(memory) / "run.lock"
    content = json.loads(one.store.read(place)[0])
    one.store.write(place, json.dumps({**content, "pid": int(ended.stdout)}).encode())

    def never(seconds: float) -> None:
        raise AssertionError(f"waited for {seconds} s")

    assert lease(memory).take(sleep=never) == 2
    # the same number on another machine proves nothing
    one.store.write(place, json.dumps({**content, "pid": int(ended.stdout), "machine": "another"}).encode())
    with pytest.raises(AssertionError, match="waited"):
        lease(memory).take(sleep=never)


def test_a_damaged_lease_is_watched_and_replaced(memory: str) -> None:
    place = Place.parse(memory) / "run.lock"
    open_store(place).write(place, b"\x00 not JSON")
    assert lease(memory).take(at_least=4) == 5
