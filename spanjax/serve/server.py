"""HTTP server of the page: GET / is the page, POST /api/predict takes a record as JSON and returns the model's answer.

Strict, as a browser brings requests of other pages too: it answers only requests for its own host (against DNS rebinding),
reads only `application/json` (which other pages cannot send without a permission that is never given), and limits sizes.
"""

import contextlib
import http.server
import importlib.resources
import ipaddress
import json
import queue
import secrets
import socket
import socketserver
import sys
import threading
import traceback
import urllib.parse
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from spanjax.json_files import JsonError, parse_json

LOOPBACK = "127.0.0.1"
MOST_BYTES, MOST_CHARACTERS = 2**17, 20_000  # of a body, of a text in it
DRAINED = 2**24  # bytes of a body that is too large which are read, so that its sender sees the answer
METHODS = {"/": "GET", "/api/predict": "POST"}
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Answering(Protocol):
    """A model behind the page, see `playground.Playground`."""

    @property
    def settings(self) -> dict[str, Any]:
        """Values that the page needs."""
        ...

    def answer(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a record; ValueError describes one that cannot be used."""
        ...


class RefusedError(Exception):
    """A request that gets no answer of the model, with its HTTP status."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def is_loopback(host: str) -> bool:
    """True for `localhost` and addresses that only this machine reaches."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def is_every_interface(host: str) -> bool:
    """True for the address that stands for all interfaces of this machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def is_served(header: str, host: str) -> bool:
    """True if a Host header names a server on `host`. An address cannot be rebound, so a server of a network takes any."""
    name = urllib.parse.urlsplit(f"//{header}").hostname or ""
    if is_loopback(name) or name == host.lower():
        return True
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name)) and not is_loopback(host)
    return not is_loopback(host) and name == socket.gethostname().lower()


class PageServer(http.server.ThreadingHTTPServer):
    """The server: a thread for every request, and one thread that computes all answers, one at a time."""

    allow_reuse_port = False  # or a second server could share the port of the first

    def __init__(self, host: str, port: int):
        self.host = host
        self._waiting: queue.SimpleQueue[tuple[dict[str, Any], Future[tuple[int, str]]] | None] = queue.SimpleQueue()
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), PageHandler)

    def server_bind(self) -> None:
        """Binds without the look-up of a full name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Reports errors but those of a client that has gone."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def run(self, model: Answering) -> None:
        """Answers requests until `stop`, and computes on the calling thread.

        No other thread ever refers to the model, its arrays or its exceptions: one that frees an array of jax while Python ends
        aborts the process. Imports at first use also run here, not on threads of requests.
        """
        page = (importlib.resources.files("spanjax.serve") / "page.html").read_text("utf-8")
        # inside of <script> no text may close the element
        self.page = page.replace("@@SETTINGS@@", json.dumps(model.settings).replace("<", "\\u003c"))
        thread = threading.Thread(target=self.serve_forever, name="spanjax-serve", daemon=True)
        thread.start()
        while waiting := self._waiting.get():
            record, answer = waiting
            answer.set_result(answered(model, record))
        self.shutdown()
        thread.join()

    def stop(self) -> None:
        """Ends `run` after the answer that is being computed."""
        self._waiting.put(None)

    def answer(self, record: dict[str, Any]) -> tuple[int, str]:
        """Returns the status and the text of the model's answer, computed by `run`."""
        answer: Future[tuple[int, str]] = Future()
        self._waiting.put((record, answer))
        return answer.result()


def answered(model: Answering, record: dict[str, Any]) -> tuple[int, str]:
    """Returns status 200 and the model's answer as JSON, or the status of an error and its message."""
    try:
        return 200, json.dumps(model.answer(record), allow_nan=False)
    except ValueError as error:
        return 400, str(error)
    except Exception as error:
        traceback.print_exc()
        return 500, f"the model failed ({type(error).__name__}): see the terminal of `spanjax serve`"


@contextlib.contextmanager
def opened(host: str, port: int) -> Iterator[PageServer]:
    """Opens the server and closes it at the end. ValueError for an address or a port that cannot be used."""
    try:
        server = PageServer(host, port)
    except (OSError, UnicodeError) as error:
        remedy = "give another --port (0 takes a free one), or stop the program that uses it"
        if isinstance(error, socket.gaierror | UnicodeError):
            remedy = f"give an address of this machine as --host, such as {LOOPBACK}"
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot listen on --host {host} --port {port} ({reason}): {remedy}") from None
    with server:
        yield server


class PageHandler(http.server.BaseHTTPRequestHandler):
    """Answers one request. A failing request is an answer too, and never ends the server."""

    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 30.0  # seconds that a silent client may keep its thread
    server_version, sys_version = "spanjax", ""

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing: texts are nobody's business, and errors are in the answers."""

    def do_GET(self) -> None:
        """Sends the page, with a fresh nonce for its own script and style."""
        if self._accepted():
            nonce = secrets.token_urlsafe(16)
            page = self.server.page.replace("@@NONCE@@", nonce).encode()
            self._send(200, "text/html; charset=utf-8", page, {"Content-Security-Policy": POLICY.format(nonce=nonce)})

    def do_POST(self) -> None:
        """Sends the answer to a record."""
        if not self._accepted():
            return
        try:
            status, text = self.server.answer(self._record())
        except RefusedError as error:
            return self.send_error(error.status, str(error))
        except (ConnectionError, TimeoutError):  # the client has gone, or is silent
            self.close_connection = True
            return None
        return self._send(200, "application/json", text.encode()) if status == 200 else self.send_error(status, text)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Sends an error as JSON, those that the base class finds too."""
        if code == 501:
            code, message = 405, f"no method {self.command}: expected GET / or POST /api/predict"
        more = {"Allow": METHODS.get(self.path.partition("?")[0], "GET, POST")} if code == 405 else {}
        self._send(code, "application/json", json.dumps({"error": message or explain}).encode(), more)

    def _send(self, status: int, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more
            self.send_response(status)
            for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": len(body), **(more or {})}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

    def _accepted(self) -> bool:
        """Returns True for a request to this host, path and method; else sends the error."""
        hosts, path = self.headers.get_all("Host", []), self.path.partition("?")[0]
        try:
            ours = len(hosts) == 1 and is_served(hosts[0], self.server.host)
        except ValueError:  # brackets of no address
            ours = False
        if not ours:
            self.send_error(
                403, f"the Host header is {', '.join(hosts)!r}: open the address that `spanjax serve` printed"
            )
        elif path not in METHODS:
            self.send_error(404, f"no path {path}: expected / or /api/predict")
        elif self.command != METHODS[path]:
            self.send_error(405, f"{self.command} {path}: expected {METHODS[path]}")
        else:
            return True
        return False

    def _record(self) -> dict[str, Any]:
        """Reads the body. RefusedError for another type, no length, too much, or what is no JSON object."""
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(415, f"Content-Type is {self.headers.get('Content-Type')}: expected application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdecimal():
            raise RefusedError(411, f"Content-Length is {length!r}: expected the number of bytes of the body")
        if len(length) > 18 or int(length) > MOST_BYTES:
            left = int(length) if len(length) < 9 and int(length) <= DRAINED else 0
            while left and (part := self.rfile.read1(min(left, MOST_BYTES))):
                left -= len(part)
            raise RefusedError(413, f"a body of {length} bytes: expected at most {MOST_BYTES:,}")
        try:
            record = parse_json(self.rfile.read(int(length)), dict)
        except JsonError as error:
            raise RefusedError(400, f"the body is no record ({error}): expected a JSON object") from None
        for name, value in record.items():
            if isinstance(value, str) and len(value) > MOST_CHARACTERS:
                raise RefusedError(413, f"`{name}` has {len(value):,} characters: expected at most {MOST_CHARACTERS:,}")
        return record
