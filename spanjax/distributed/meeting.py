"""Rendezvous of the processes of a run, on the coordinator's port before jax takes it over.

jax itself aborts without naming anybody when a process does not come. Here process 0 listens, every other one identifies itself,
and after the time limit process 0 tells all that came who is missing. A connection is one line of JSON each way.

Anybody who reaches the port may connect, so a connection gets a few seconds and a few bytes, all are read at once, and process 0
closes those without a greeting of this run. If the launcher gave a token (SPANJAX_MEETING_TOKEN), only those with it count.
"""

import contextlib
import errno
import hmac
import json
import logging
import selectors
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

log = logging.getLogger(__name__)
GREETING = "spanjax meeting 1"
RETRY_SECONDS, READ_SECONDS, SAY_EVERY, PORT_TAKEN_SECONDS = 0.2, 2.0, 30.0, 30.0
MOST_GREETING, MOST_ANSWER = 4096, 2**20  # bytes of a line; an answer holds the names of all hosts
MOST_WAITING = 512  # connections that have not sent a line yet; a flood pushes the oldest out
MOST_WARNINGS = 5
LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


class ProcessesMissing(RuntimeError):
    """Processes of the run did not come to a rendezvous; the message names them."""


def split_address(address: str) -> tuple[str, int]:
    """ "[::1]:80" -> ("::1", 80)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """("::1", 80) -> "[::1]:80"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(host: str) -> bool:
    """Returns True if an address is this machine's own loopback."""
    return host in LOCAL_NAMES or host.startswith("127.") or host == "::1"


def name_processes(ids: list[int], hosts: Mapping[int, str], most: int = 20) -> str:
    """ "process 3 (node004) and process 7", at most so many by name."""
    words = [f"process {each}" + (f" ({hosts[each]})" if each in hosts else "") for each in ids[:most]]
    if len(ids) > most:
        words.append(f"{len(ids) - most} more")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def loopback_note(coordinator: str) -> str:
    """Returns a warning, with the remedy, if the name of the coordinator leads to nothing but loopback on this host; else "".

    Debian writes a host's own name as 127.0.1.1 into /etc/hosts. On another host such a line hides process 0.
    """
    host, port = split_address(coordinator)
    addresses = [] if is_local(host) else [str(info[4][0]) for info in _resolved(host, port)]
    if not addresses or not all(is_local(each) for each in addresses):
        return ""
    return (
        f"{host}, the host of process 0, leads to {addresses[0]} on {socket.gethostname()}, the loopback of this host itself: if"
        f" processes run on other hosts, correct /etc/hosts, or set JAX_COORDINATOR_ADDRESS=ADDRESS:{port} on all, one that"
        " every host reaches"
    )


def listen(coordinator: str, bind: str, deadline: float) -> tuple[socket.socket, str]:
    """Opens a listening socket; also returns its address: loopback for a local coordinator, the coordinator's own interface
    if its name leads to one, and all interfaces only if it leads to none but loopback, or if `bind` says so.

    ValueError if the port is taken.
    """
    host, port = split_address(coordinator)
    if bind:
        wanted = [split_address(bind)]
    elif is_local(host):
        wanted = [("::1" if host == "::1" else "127.0.0.1", port)]
    else:
        found = [str(info[4][0]) for info in _resolved(host, port)]
        wanted = [(each, port) for each in found if not is_local(each)][:1] + [("::", port), ("0.0.0.0", port)]
    deadline = min(deadline, time.monotonic() + PORT_TAKEN_SECONDS)
    while wanted:
        address = wanted[0]
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        try:
            server = socket.create_server(address, family=family, backlog=1024, dualstack_ipv6=both)
            return server, join_address(*address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                del wanted[0]  # no interface of that address here
            elif time.monotonic() > deadline:
                raise ValueError(
                    f"port {port} of the coordinator is taken on this host: end what holds it (an earlier run?), or set another"
                    " JAX_COORDINATOR_PORT or JAX_COORDINATOR_ADDRESS on every process"
                ) from error
            else:
                time.sleep(RETRY_SECONDS)
    raise ValueError(f"this host cannot listen on {bind or coordinator}: it should be an address of process 0's host")


def _resolved(host: str, port: int) -> list[Any]:
    with contextlib.suppress(OSError):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return []


class _Pending:
    """Connections to a listening socket that have not sent their greeting yet, read side by side."""

    def __init__(self, server: socket.socket):
        self.server, self.strangers = server, 0
        self.selector = selectors.DefaultSelector()
        self.waiting: dict[socket.socket, tuple[str, bytearray, float]] = {}
        """Connection -> its address, the bytes received, and its deadline; the oldest first."""
        server.setblocking(False)
        self.selector.register(server, selectors.EVENT_READ)

    def __enter__(self) -> "_Pending":
        return self

    def __exit__(self, *_: object) -> None:
        for connection in [*self.waiting]:
            self._drop(connection)
        self.selector.close()
        if self.strangers > MOST_WARNINGS:
            log.warning("%d connections to the coordinator's port were not processes of this run", self.strangers)

    def lines(self, seconds: float) -> Iterator[tuple[socket.socket, str, bytes]]:
        """Yields connection, address and line of those that have sent one, after at most so many seconds of waiting."""
        for key, _ in self.selector.select(max(0.0, seconds)):
            if key.fileobj is self.server:
                self._accept()
                continue
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            # `_accept` may have dropped it in this very round
            if connection not in self.waiting:
                continue
            address, received, _ = self.waiting[connection]
            try:
                new = connection.recv(MOST_GREETING)
            except BlockingIOError:
                continue
            except OSError:
                new = b""
            received += new
            if not new or len(received) > MOST_GREETING:
                self.reject(connection, address)
            elif b"\n" in new:
                self._forget(connection)
                yield connection, address, bytes(received)
        now = time.monotonic()
        for connection, (address, _, until) in [*self.waiting.items()]:
            if now > until:
                self.reject(connection, address)

    def reject(self, connection: socket.socket, address: str, why: str = "is not a process of this run") -> None:
        """Closes a connection that does not belong to the run; logs the first ones."""
        self.strangers += 1
        if self.strangers <= MOST_WARNINGS:
            log.warning("a connection from %s to the coordinator's port %s: closed", address, why)
        self._drop(connection)

    def _accept(self) -> None:
        for _ in range(64):  # then `lines` reads those that have come
            try:
                connection, address = self.server.accept()
            except BlockingIOError:
                return
            except OSError:  # too many open files: the oldest must go
                if not self.waiting:
                    time.sleep(RETRY_SECONDS)
                    return
                self._drop(next(iter(self.waiting)))
                self.strangers += 1
                continue
            connection.setblocking(False)
            self.waiting[connection] = (str(address[0]), bytearray(), time.monotonic() + READ_SECONDS)
            self.selector.register(connection, selectors.EVENT_READ)
            if len(self.waiting) > MOST_WAITING:
                self._drop(next(iter(self.waiting)))
                self.strangers += 1

    def _forget(self, connection: socket.socket) -> None:
        if self.waiting.pop(connection, None):
            self.selector.unregister(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()


def _parsed(line: bytes) -> dict[str, Any]:
    """Parses a line of JSON that is an object; ValueError for anything else."""
    try:
        found = json.loads(line)
    except RecursionError:
        raise ValueError("lists in lists without end") from None
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def receive(
    server: socket.socket, ours: Mapping[str, Any], hosts: Mapping[int, str], timeout: float, note: str = ""
) -> dict[int, str]:
    """Waits, on process 0, for the others and tells them that all have come, or who has not. Returns process id -> host.

    `note`, a possible reason, ends the messages about those that are missing. ProcessesMissing after the time limit; ValueError
    if two claim to be the same or the runs are not the same.
    """
    began, warned = time.monotonic(), time.monotonic()
    count = ours["processes"]
    there: dict[int, tuple[str, socket.socket | None]] = {0: (ours["host"], None)}
    with _Pending(server) as pending:
        try:
            while len(there) < count:
                left = began + timeout - time.monotonic()
                names = name_processes([each for each in range(count) if each not in there], hosts)
                if left <= 0:
                    raise ProcessesMissing(
                        f"{len(there)} of {count} processes started within {timeout:.0f} s; missing: {names}. Start the same"
                        " command there and look at its output, or wait longer with SPANJAX_STARTUP_TIMEOUT=SECONDS"
                        + (note and f". {note}")
                    )
                if time.monotonic() - warned > SAY_EVERY:
                    warned = time.monotonic()
                    log.warning("waiting for %s since %.0f s%s", names, warned - began, note and f". {note}")
                for connection, address, line in pending.lines(min(left, 1.0)):
                    _admit(pending, connection, address, line, ours, there)
                if len(there) == count:  # one may have been killed while the others were awaited
                    for each in [each for each, (_, connection) in there.items() if _gone(connection)]:
                        del there[each]
        except (ProcessesMissing, ValueError) as error:
            message = {"error": str(error), "missing": isinstance(error, ProcessesMissing)}
            _answer(there, message)
            if isinstance(error, ValueError):
                _answer_late(pending, message)
            raise
    roster = {each: host for each, (host, _) in sorted(there.items())}
    _answer(there, {"hosts": list(roster.values())})
    return roster


def _greeting(line: bytes) -> dict[str, Any] | None:
    """Returns the greeting of a process of spanjax; None for any other line."""
    with contextlib.suppress(ValueError):
        greeting = _parsed(line)
        texts = [greeting.get(name) for name in ("greeting", "host", "jax")] + [greeting.get("token", "")]
        numbers = [greeting.get(name) for name in ("process", "processes")]
        good = all(isinstance(each, str) and each.isprintable() for each in texts)
        good &= all(type(each) is int and each >= 0 for each in numbers)
        return greeting if good and greeting["greeting"] == GREETING else None
    return None


def _admit(
    pending: _Pending,
    connection: socket.socket,
    address: str,
    line: bytes,
    ours: Mapping[str, Any],
    there: dict[int, tuple[str, socket.socket | None]],
) -> None:
    """Admits a process by its greeting and rejects strangers. ValueError if these processes cannot form a run."""
    greeting = _greeting(line)
    if greeting is None:
        pending.reject(connection, address)
        return
    each, host, token = greeting["process"], greeting["host"], ours.get("token", "")
    if token and not hmac.compare_digest(greeting.get("token", "").encode(), token.encode()):
        error = (
            f"process 0 refused process {each}: its SPANJAX_MEETING_TOKEN is not set or another one; all need the same"
        )
        _tell(connection, {"error": error, "missing": True})
        pending.reject(connection, address, f"says that it is process {each} and has not the token of this run")
        return
    known = there.get(each)
    there[each if known is None else -1] = (host, connection)  # answered with the others in any case
    for name in ("processes", "jax"):
        if greeting[name] != ours[name]:
            raise ValueError(
                f"process {each} ({host}) says {name} = {greeting[name]!r}, process 0 ({ours['host']}) {ours[name]!r}:"
                " every process needs the same"
            )
    if each >= ours["processes"]:
        del there[each]
        pending.reject(connection, address, f"says that it is process {each} of {ours['processes']}")
        return
    if known is not None and not _gone(known[1]):
        raise ValueError(
            f"two processes say that they are process {each}: on {known[0]} and on {host}; every process needs an id of its own"
            " (JAX_PROCESS_ID, or one launcher for all)"
        )
    if known is not None:
        there[each] = there.pop(-1)  # it was started again


def _gone(connection: socket.socket | None) -> bool:
    """True if the other side has closed a connection on which it sends nothing; then closes it here, too."""
    if connection is None:
        return False
    connection.settimeout(0.0)
    try:
        gone = connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        gone = True
    if gone:
        connection.close()
    return gone


def _answer(there: Mapping[int, tuple[str, socket.socket | None]], message: Mapping[str, Any]) -> None:
    """Sends the message to all, and waits a moment for them to hang up first: then the port is free at once."""
    line = json.dumps(message).encode() + b"\n"
    connections = [connection for _, connection in there.values() if connection is not None]
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.settimeout(READ_SECONDS)
            connection.sendall(line)
    until = time.monotonic() + READ_SECONDS
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.settimeout(max(0.01, until - time.monotonic()))
            connection.recv(1)
        connection.close()


def _tell(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends an answer without waiting until it is read."""
    with contextlib.suppress(OSError):
        connection.send(json.dumps(message).encode() + b"\n")


def _answer_late(pending: _Pending, message: Mapping[str, Any]) -> None:
    """Sends the message to those that come in the next moment as well."""
    until = time.monotonic() + READ_SECONDS
    while (left := until - time.monotonic()) > 0:
        for connection, _, line in pending.lines(left):
            if _greeting(line):
                _tell(connection, message)
            connection.close()


def attend(coordinator: str, ours: Mapping[str, Any], timeout: float) -> dict[int, str]:
    """Identifies any other process to process 0 and waits until all have come. Returns process id -> host.

    ProcessesMissing if process 0 does not answer or somebody does not come; ValueError if process 0 refuses this process.
    """
    host, port = split_address(coordinator)
    began = warned = time.monotonic()
    last = "not tried"
    while (left := began + timeout - time.monotonic()) > 0:
        if time.monotonic() - warned > SAY_EVERY:
            # not at once: on a single host such a name is right, and process 0 only starts later
            warned, note = time.monotonic(), loopback_note(coordinator)
            text = f"waiting for process 0 at {coordinator} since {warned - began:.0f} s ({last})"
            log.warning("%s", text + (note and f". {note}"))
        try:
            with socket.create_connection((host, port), timeout=min(left, 5.0)) as connection:
                connection.sendall(json.dumps(ours).encode() + b"\n")
                # process 0 may have started after this one
                reply = _answered(connection, time.monotonic() + timeout + 2 * READ_SECONDS, ours["processes"])
            break
        except ValueError:
            last = "what answers there is not process 0 of this run"
        except OSError as error:
            last = str(error)
        time.sleep(RETRY_SECONDS)
    else:
        raise ProcessesMissing(
            f"process 0 did not answer at {coordinator} within {timeout:.0f} s ({last}): is it started, is the address right on"
            " every process, is the port open between the hosts? SPANJAX_STARTUP_TIMEOUT=SECONDS waits longer"
            + ((note := loopback_note(coordinator)) and f". {note}")
        )
    if "error" in reply:
        raise (ProcessesMissing if reply["missing"] else ValueError)(reply["error"])
    return dict(enumerate(reply["hosts"]))


def _answered(connection: socket.socket, deadline: float, count: int) -> dict[str, Any]:
    """Reads the answer of process 0; OSError if none comes until `deadline`, ValueError for a line that is none."""
    line = bytearray()
    while b"\n" not in line:
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("it does not answer")
        connection.settimeout(left)
        new = connection.recv(65536)
        if not new:
            raise ConnectionError("it hung up: see the output of process 0")
        line += new
        if len(line) > MOST_ANSWER:
            raise ValueError("an answer without end")
    reply = _parsed(bytes(line))
    hosts = reply.get("hosts")
    roster = isinstance(hosts, list) and len(hosts) == count and all(isinstance(each, str) for each in hosts)
    if not roster and not (isinstance(reply.get("error"), str) and isinstance(reply.get("missing"), bool)):
        raise ValueError("no answer of process 0")
    return reply
