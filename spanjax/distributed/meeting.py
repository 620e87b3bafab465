"""The processes of a run meet on the coordinator's port before jax takes it over.

jax itself aborts without naming anybody when a process does not come. Here process 0 listens, every other one says who it is,
and after the time limit all that came are told who is missing. A connection is one line of JSON each way.
"""

import contextlib
import errno
import json
import logging
import socket
import time
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)
GREETING = "spanjax meeting 1"
RETRY_SECONDS, READ_SECONDS, SAY_EVERY, PORT_TAKEN_SECONDS = 0.2, 2.0, 30.0, 30.0
LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


class ProcessesMissing(RuntimeError):
    """Processes of the run did not come to a place where all meet; the message names them."""


def split_address(address: str) -> tuple[str, int]:
    """ "[::1]:80" -> ("::1", 80)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """The other way."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(host: str) -> bool:
    """Whether an address is this machine's own loopback."""
    return host in LOCAL_NAMES or host.startswith("127.") or host == "::1"


def name_processes(ids: list[int], hosts: Mapping[int, str], most: int = 20) -> str:
    """ "process 3 (node004) and process 7", at most so many by name."""
    words = [f"process {each}" + (f" ({hosts[each]})" if each in hosts else "") for each in ids[:most]]
    if len(ids) > most:
        words.append(f"{len(ids) - most} more")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def listen(coordinator: str, bind: str, deadline: float) -> tuple[socket.socket, str]:
    """A listening socket and the address it is bound to: loopback for a local coordinator, the coordinator's own interface
    where its name leads to one, and all interfaces only where it leads to none but loopback, or where `bind` says so.

    ValueError where the port is taken.
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


def receive(server: socket.socket, ours: Mapping[str, Any], hosts: Mapping[int, str], timeout: float) -> dict[int, str]:
    """Process 0: waits for the others and tells them that all are there, or who is not. Returns process id -> host.

    ProcessesMissing after the time limit; ValueError where two claim to be the same or the runs are not the same.
    """
    began, said = time.monotonic(), time.monotonic()
    count = ours["processes"]
    there: dict[int, tuple[str, socket.socket | None]] = {0: (ours["host"], None)}
    try:
        while len(there) < count:
            left = began + timeout - time.monotonic()
            names = name_processes([each for each in range(count) if each not in there], hosts)
            if left <= 0:
                raise ProcessesMissing(
                    f"{len(there)} of {count} processes started within {timeout:.0f} s; missing: {names}. Start the same command"
                    " there and look at its output, or wait longer with SPANJAX_STARTUP_TIMEOUT=SECONDS"
                )
            if time.monotonic() - said > SAY_EVERY:
                said = time.monotonic()
                log.warning("waiting for %s since %.0f s", names, said - began)
            server.settimeout(min(left, 1.0))
            with contextlib.suppress(TimeoutError):
                connection, address = server.accept()
                _admit(connection, str(address[0]), ours, there)
    except (ProcessesMissing, ValueError) as error:
        message = {"error": str(error), "missing": isinstance(error, ProcessesMissing)}
        _answer(there, message)
        if isinstance(error, ValueError):
            _answer_late(server, message)
        raise
    roster = {each: host for each, (host, _) in sorted(there.items())}
    _answer(there, {"hosts": list(roster.values())})
    return roster


def _admit(
    connection: socket.socket, address: str, ours: Mapping[str, Any], there: dict[int, tuple[str, socket.socket | None]]
) -> None:
    """Reads who has come; strangers are let go."""
    try:
        connection.settimeout(READ_SECONDS)
        said = json.loads(connection.makefile("rb").readline(4096))
        if said["greeting"] != GREETING:
            raise ValueError
        each, host = int(said["process"]), str(said["host"])
    except (OSError, ValueError, KeyError, TypeError):
        log.warning("a connection from %s to the coordinator's port is not a process of this run: closed", address)
        connection.close()
        return
    known = there.get(each)
    there[each if known is None else -1] = (host, connection)  # answered with the others in any case
    for name in ("processes", "jax"):
        if said[name] != ours[name]:
            raise ValueError(
                f"process {each} ({host}) says {name} = {said[name]!r}, process 0 ({ours['host']}) {ours[name]!r}:"
                " every process needs the same"
            )
    if known is not None and not _gone(known[1]):
        raise ValueError(
            f"two processes say that they are process {each}: on {known[0]} and on {host}; every process needs an id of its own"
            " (JAX_PROCESS_ID, or one launcher for all)"
        )
    if known is not None:
        there[each] = there.pop(-1)  # it was started again


def _gone(connection: socket.socket | None) -> bool:
    """Whether the other side of a connection on which nothing is sent has closed it."""
    if connection is None:
        return False
    try:
        connection.settimeout(0.0)
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _answer(there: Mapping[int, tuple[str, socket.socket | None]], message: Mapping[str, Any]) -> None:
    """Tells everybody, and waits a moment for them to hang up first: then the port is free at once."""
    line = json.dumps(message).encode() + b"\n"
    connections = [connection for _, connection in there.values() if connection is not None]
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.settimeout(READ_SECONDS)
            connection.sendall(line)
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.recv(1)
        connection.close()


def _answer_late(server: socket.socket, message: Mapping[str, Any]) -> None:
    """Tells those that come in the next moment as well."""
    until = time.monotonic() + READ_SECONDS
    while (left := until - time.monotonic()) > 0:
        server.settimeout(left)
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            connection.settimeout(READ_SECONDS)
            connection.makefile("rb").readline(4096)
            _answer({-1: ("", connection)}, message)


def attend(coordinator: str, ours: Mapping[str, Any], timeout: float) -> dict[int, str]:
    """Any other process: says who it is and waits until all are there. Returns process id -> host.

    ProcessesMissing where process 0 does not answer or somebody does not come; ValueError for what process 0 refuses.
    """
    host, port = split_address(coordinator)
    began, last = time.monotonic(), "not tried"
    while (left := began + timeout - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=min(left, 5.0)) as connection:
                connection.sendall(json.dumps(ours).encode() + b"\n")
                connection.settimeout(timeout + 2 * READ_SECONDS)  # process 0 may have started after this one
                line = connection.makefile("rb").readline()
            if not line:
                raise ConnectionError("it hung up: see the output of process 0")
            said = json.loads(line)
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
        )
    if "error" in said:
        raise (ProcessesMissing if said["missing"] else ValueError)(said["error"])
    return dict(enumerate(said["hosts"]))
