"""The meeting of the processes with strangers on its port: what they say or do not say ends nothing and holds nothing up."""

import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spanjax.distributed import ProcessesMissing, meeting
from spanjax.distributed.meeting import GREETING, attend, receive

pytestmark = pytest.mark.unit

TOKEN = "3b1f0c"


def greeting(each: int, count: int = 2, **more: Any) -> dict[str, Any]:
    """What a process says."""
    return {"greeting": GREETING, "process": each, "processes": count, "host": f"h{each}", "jax": "1", **more}


class Meeting:
    """Process 0 of two, on a thread."""

    def __init__(self, timeout: float = 20.0, **more: Any):
        self.server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port, self.result = self.server.getsockname()[1], None
        ours = {**greeting(0), **more}
        self.thread = threading.Thread(target=self._receive, args=(ours, timeout), daemon=True)
        self.thread.start()

    def _receive(self, ours: dict[str, Any], timeout: float) -> None:
        try:
            self.result: Any = receive(self.server, ours, {}, timeout)
        except BaseException as error:
            self.result = error

    def stranger(self, says: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        with contextlib.suppress(OSError):
            connection.sendall(says)
        return connection

    def process_1(self, timeout: float = 10.0, **more: Any) -> dict[int, str]:
        return attend(f"127.0.0.1:{self.port}", greeting(1, **more), timeout)

    def end(self, seconds: float = 30.0) -> Any:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "process 0 is held up"
        self.server.close()
        return self.result


def line(**changed: Any) -> bytes:
    said = {**greeting(1, host="evil"), **changed}
    return json.dumps({name: value for name, value in said.items() if value is not None}).encode() + b"\n"


STRANGE = [
    b"GET / HTTP/1.1\r\n",
    b"[" * 4000 + b"\n",
    b"{" * 10_000,
    b"\xff\x00\n",
    b"[]\n",
    b"5\n",
    *(line(processes=None), line(jax=None), line(host=None), line(greeting="hello")),
    *(line(process=float("inf")), line(process=True), line(process="1"), line(process=1.5), line(process=[1])),
    *(line(process=7), line(process=-1), line(host="a\nb"), line(host=5), line(token=5)),
]


@pytest.mark.parametrize("said", STRANGE)
def test_a_strange_line_is_closed_and_the_run_starts(said: bytes) -> None:
    run = Meeting()
    with run.stranger(said) as stranger, contextlib.suppress(OSError):
        assert stranger.recv(100) == b""
    assert run.process_1() == run.end() == {0: "h0", 1: "h1"}


def test_silent_and_slow_connections_keep_nobody_out() -> None:
    """30 that say nothing, and one that says a byte at a time, before process 1 comes."""
    run, ended = Meeting(), threading.Event()
    silent = [run.stranger() for _ in range(30)]
    drip = run.stranger()

    def slowly() -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(0.2):
                drip.sendall(b" ")

    dripping = threading.Thread(target=slowly)
    dripping.start()
    began = time.monotonic()
    assert run.process_1() == run.end() == {0: "h0", 1: "h1"}
    assert time.monotonic() - began < meeting.READ_SECONDS + 3
    ended.set()
    dripping.join()
    for each in (*silent, drip):
        each.close()


def test_a_slow_drip_does_not_move_the_deadline() -> None:
    run, began = Meeting(timeout=3.0), time.monotonic()
    while run.thread.is_alive() and time.monotonic() - began < 30:
        with run.stranger() as drip, contextlib.suppress(OSError):
            for _ in range(10):
                drip.sendall(b"{")
                time.sleep(0.1)
    assert isinstance(run.end(), ProcessesMissing) and time.monotonic() - began < 3.0 + 4


def test_a_flood_and_a_port_scan_are_said_in_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    run = Meeting()
    with caplog.at_level(logging.WARNING):
        for _ in range(300):
            run.stranger().close()
            run.stranger(b"x\n").close()
        held = [run.stranger() for _ in range(100)]
        assert run.process_1() == run.end() == {0: "h0", 1: "h1"}
    for each in held:
        each.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == meeting.MOST_WARNINGS + 1 and "connections to the coordinator's port were not" in said[-1]


def test_too_many_connections_push_the_oldest_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MOST_WAITING", 10)
    run = Meeting()
    held = [run.stranger() for _ in range(50)]
    assert run.process_1() == run.end() == {0: "h0", 1: "h1"}
    for each in held:
        each.close()


def test_an_impostor_without_the_token_takes_no_place() -> None:
    run = Meeting(token=TOKEN)
    for said in (line(), line(token="guess"), line(token=""), line(processes=9), line(jax="2"), line(process=0)):
        with run.stranger(said) as stranger:
            assert b"SPANJAX_MEETING_TOKEN" in stranger.recv(1000) and stranger.recv(1) == b""
    assert run.process_1(token=TOKEN) == run.end() == {0: "h0", 1: "h1"}


def test_a_process_without_the_token_hears_why() -> None:
    run = Meeting(timeout=3.0, token=TOKEN)
    with pytest.raises(ProcessesMissing, match="process 0 refused process 1: its SPANJAX_MEETING_TOKEN"):
        run.process_1()
    assert isinstance(run.end(), ProcessesMissing)


def test_without_a_token_at_process_0_one_of_another_is_no_matter() -> None:
    run = Meeting()
    assert run.process_1(token=TOKEN) == run.end() == {0: "h0", 1: "h1"}


def test_one_that_was_killed_while_others_were_awaited_is_awaited_again() -> None:
    run, results = Meeting(processes=3), dict[int, dict[int, str]]()
    address = f"127.0.0.1:{run.port}"
    run.stranger(line(processes=3)).close()
    time.sleep(0.5)  # it is there, and gone, before the others come

    def come(each: int) -> None:
        results[each] = attend(address, greeting(each, 3), 10.0)

    second = threading.Thread(target=come, args=(2,))
    second.start()
    time.sleep(0.5)
    assert run.thread.is_alive(), "process 0 goes on with one that is dead"
    come(1)
    second.join()
    assert results[1] == results[2] == run.end() == {0: "h0", 1: "h1", 2: "h2"}


@pytest.fixture
def loopback_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that /etc/hosts of this host gives a loopback address, where nobody listens."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        return resolve("127.0.0.1" if host == "node001" else host, *arguments, **options)

    monkeypatch.setattr(meeting.socket, "getaddrinfo", resolved)
    return "node001"


def test_a_process_that_waits_names_the_loopback_it_looks_at(
    loopback_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(meeting, "SAY_EVERY", 0.3)
    words = "node001, the host of process 0, leads to 127.0.0.1 on"
    with caplog.at_level(logging.WARNING), pytest.raises(ProcessesMissing, match=words):
        attend(f"{loopback_name}:1", greeting(1), 1.0)
    assert 1 <= len(caplog.records) <= 3
    assert re.search(rf"waiting for process 0 at node001:1 since \d+ s \(.*refused\)\. {words}", caplog.text)


def test_process_0_names_the_loopback_to_those_that_came(loopback_name: str) -> None:
    note = meeting.loopback_note(f"{loopback_name}:1")
    assert note and not any(map(meeting.loopback_note, ("127.0.0.1:1", "localhost:1", "name.invalid:1")))
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ProcessesMissing, match="leads to 127.0.0.1"):
        receive(server, greeting(0), {}, 0.3, note)


@contextlib.contextmanager
def holder(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Another program on the coordinator's port."""
    server, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()
    server.settimeout(0.1)

    def serve() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    ended.set()
    thread.join()
    server.close()


@pytest.mark.parametrize(
    "answer",
    [b"{}", b"[]", b'{"hosts": 5}', b'{"hosts": ["a"]}', b'{"hosts": [1, 2]}', b'{"error": 5, "missing": true}']
    + [b'{"error": "x"}', b"[" * 5000, b"HTTP/1.1 400 Bad Request", b"\xff"],
)
def test_another_program_on_the_port_is_not_process_0(answer: bytes) -> None:
    words = "what answers there is not process 0 of this run"
    with (
        holder(lambda connection: connection.sendall(answer + b"\n")) as address,
        pytest.raises(ProcessesMissing, match=words),
    ):
        attend(address, greeting(1), 1.0)


def test_an_answer_without_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "READ_SECONDS", 0.5)

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for _ in range(200):
                connection.sendall(b" ")
                time.sleep(0.1)

    began = time.monotonic()
    with holder(drip) as address:
        with pytest.raises(ProcessesMissing, match=r"within 1 s \((it does not answer|timed out)\)"):
            attend(address, greeting(1), 1.0)
        assert time.monotonic() - began < 8
