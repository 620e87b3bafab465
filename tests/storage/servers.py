"""Object stores on loopback for tests: moto's S3, a stand-in for Google Cloud Storage, and a proxy that injects faults.

Every server runs on threads of this process, closes with its `with` block, and is found by other processes through the
variables in `environment`.
"""

import base64
import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import http.client
import http.server
import importlib.util
import json
import logging
import random
import re
import socket
import struct
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c

BUCKET = "bucket"
MISSING = [name for name in ("moto", "s3fs", "gcsfs", "flask") if importlib.util.find_spec(name) is None]
"""Packages that the servers or their clients need and that are not installed: tests skip with them as the reason."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are gone are part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one segment for headers and body: else Nagle's algorithm delays the body
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test reads counts."""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handle_expect_100(self) -> bool:
        """Sends the answer at once: the client waits for it."""
        found = super().handle_expect_100()
        self.wfile.flush()
        return found

    def body(self) -> bytes:
        """The whole body of the request, chunked or not."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def answer(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()


@contextlib.contextmanager
def _serving(handler: type[_Handler], **attributes: Any) -> Iterator[str]:
    """Yields the address of a server on a free port of loopback."""
    kind = type("Handler", (handler,), attributes)
    server = _Server(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@dataclasses.dataclass
class _Object:
    data: bytes
    generation: int
    metadata: dict[str, str]

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """Checksums as the API reports them."""
        crc = struct.pack(">I", google_crc32c.value(self.data))
        md5 = hashlib.md5(self.data).digest()
        return {"md5Hash": base64.b64encode(md5).decode(), "crc32c": base64.b64encode(crc).decode()}


class Google:
    """State of the stand-in: buckets with objects, and uploads that are not complete."""

    def __init__(self, page: int = 1000):
        self.buckets: dict[str, dict[str, _Object]] = {BUCKET: {}}
        self.uploads: dict[str, dict[str, Any]] = {}
        self.lock = threading.RLock()
        self.page = page
        self.generation = int(time.time() * 1e6)

    def store(
        self, bucket: str, name: str, data: bytes, metadata: dict[str, str], condition: str | None
    ) -> _Object | None:
        """Writes an object; None if `ifGenerationMatch` does not hold."""
        with self.lock:
            old = self.buckets[bucket].get(name)
            if condition is not None and int(condition) != (old.generation if old else 0):
                return None
            self.generation += 1
            self.buckets[bucket][name] = found = _Object(data, self.generation, metadata)
            return found


class _GoogleHandler(_Handler):
    google: Google

    def _parts(self) -> tuple[list[str], dict[str, str]]:
        path, _, query = self.path.partition("?")
        return [urllib.parse.unquote(each) for each in path.strip("/").split("/")], dict(urllib.parse.parse_qsl(query))

    def _problem(self, status: int, text: str) -> None:
        self._json({"error": {"code": status, "message": text}}, status)

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _described(self, bucket: str, name: str, found: _Object) -> dict[str, Any]:
        return {
            "kind": "storage#object", "bucket": bucket, "name": name, "generation": str(found.generation),
            "size": str(len(found.data)), "metadata": found.metadata,
            **found.digests, "updated": "2026-01-01T00:00:00Z",
            "timeCreated": "2026-01-01T00:00:00Z",
        }  # fmt: skip

    def _bucket(self, name: str) -> dict[str, _Object] | None:
        found = self.google.buckets.get(name)
        if found is None:
            self._problem(404, "The specified bucket does not exist.")
        return found

    def do_GET(self) -> None:
        """Metadata, content, a range of it, or a page of a listing."""
        parts, query = self._parts()
        if parts[:3] != ["storage", "v1", "b"] and parts[:4] != ["download", "storage", "v1", "b"]:
            return self._problem(404, "Not Found")
        parts = parts[parts.index("b") + 1 :]
        objects = self._bucket(parts[0])
        if objects is None:
            return None
        if len(parts) == 1:
            return self._json({"kind": "storage#bucket", "name": parts[0]})
        if len(parts) == 2:
            return self._list(parts[0], objects, query)
        name = "/".join(parts[2:])
        with self.google.lock:
            found = objects.get(name)
        if found is None:
            return self._problem(404, f"No such object: {parts[0]}/{name}")
        if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != found.generation:
            return self._problem(412, "At least one of the pre-conditions you specified did not hold.")
        if query.get("alt") != "media":
            return self._json(self._described(parts[0], name, found))
        return self._media(found)

    def _media(self, found: _Object) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        headers = {"x-goog-generation": str(found.generation), "Content-Type": "application/octet-stream"}
        if asked is None:
            return self.answer(200, found.data, headers)
        start = int(asked[1])
        stop = min(len(found.data), int(asked[2]) + 1 if asked[2] else len(found.data))
        if start >= len(found.data):
            return self.answer(416, b"", headers)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(found.data)}"
        return self.answer(206, found.data[start:stop], headers)

    def _list(self, bucket: str, objects: dict[str, _Object], query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        with self.google.lock:
            names = sorted(name for name in objects if name.startswith(prefix))
            found, prefixes = list[str](), dict[str, None]()
            for name in names:
                inner, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                if cut:
                    prefixes[prefix + inner + delimiter] = None
                else:
                    found.append(name)
            start = int(query.get("pageToken", "0"))
            size = min(self.google.page, int(query.get("maxResults", "1000")))
            answer: dict[str, Any] = {
                "kind": "storage#objects",
                "items": [self._described(bucket, name, objects[name]) for name in found[start : start + size]],
            }
        if prefixes and start == 0:
            answer["prefixes"] = list(prefixes)
        if start + size < len(found):
            answer["nextPageToken"] = str(start + size)
        self._json(answer)

    def do_POST(self) -> None:
        """A multipart upload, or the start of a resumable one."""
        body, (parts, query) = self.body(), self._parts()
        if parts[:1] != ["upload"] or self._bucket(parts[4]) is None:
            return self._problem(404, "Not Found") if parts[:1] != ["upload"] else None
        bucket, condition = parts[4], query.get("ifGenerationMatch")
        if query["uploadType"] == "resumable":
            name = uuid.uuid4().hex
            described = json.loads(body or b"{}")
            self.google.uploads[name] = {
                "bucket": bucket, "name": described.get("name") or query["name"], "data": bytearray(), "condition": condition,
                "done": None,
            }  # fmt: skip
            location = (
                f"http://{self.headers['Host']}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={name}"
            )
            return self._json({}, headers={"Location": location})
        described, data = (
            self._multipart(body) if query["uploadType"] == "multipart" else ({"name": query["name"]}, body)
        )
        expected = described.get("md5Hash")
        if expected and expected != base64.b64encode(hashlib.md5(data).digest()).decode():
            return self._problem(400, f"Provided MD5 hash {expected!r} doesn't match calculated MD5 hash")
        metadata: Any = described.get("metadata", {})
        found = self.google.store(bucket, described["name"], data, metadata, condition)
        return self._stored(bucket, described["name"], found)

    def _stored(self, bucket: str, name: str, found: _Object | None) -> None:
        if found is None:
            return self._problem(412, "At least one of the pre-conditions you specified did not hold.")
        return self._json(self._described(bucket, name, found))

    def _multipart(self, body: bytes) -> tuple[dict[str, Any], bytes]:
        boundary = self.headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
        _, first, second = body.split(b"--" + boundary, 2)
        end = second.rindex(b"--" + boundary + b"--")
        split = re.compile(rb"\r?\n\r?\n")
        described = json.loads(split.split(first, maxsplit=1)[1])
        data = split.split(second[:end], maxsplit=1)[1]
        return described, data[:-2] if data.endswith(b"\r\n") else data[:-1]

    def do_PUT(self) -> None:
        """A part of a resumable upload, or the question how much has arrived."""
        body, (_, query) = self.body(), self._parts()
        upload = self.google.uploads.get(query.get("upload_id", ""))
        asked = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", self.headers.get("Content-Range", ""))
        if upload is None or asked is None:
            return self._problem(404, "No such upload")
        with self.google.lock:
            data = upload["data"]
            if asked[1] and upload["done"] is None:
                if int(asked[1]) != len(data):
                    return self._problem(503, "a part that does not follow the last one")
                data += body
            total = int(asked[2]) if asked[2] != "*" else -1
            if upload["done"] is None and len(data) == total:
                upload["done"] = (
                    self.google.store(upload["bucket"], upload["name"], bytes(data), {}, upload["condition"]),
                )
            if upload["done"] is not None:
                return self._stored(upload["bucket"], upload["name"], upload["done"][0])
        return self.answer(308, b"", {"Range": f"bytes=0-{len(data) - 1}"} if data else {})

    def do_DELETE(self) -> None:
        """Deletes an object."""
        parts, _ = self._parts()
        objects = self._bucket(parts[3])
        if objects is None:
            return None
        name = "/".join(parts[5:])
        with self.google.lock:
            if objects.pop(name, None) is None:
                return self._problem(404, f"No such object: {parts[3]}/{name}")
        return self.answer(204)


@contextlib.contextmanager
def google_storage(page: int = 1000) -> Iterator[tuple[str, Google]]:
    """Yields the address of a stand-in for Google Cloud Storage with an empty BUCKET, and its state."""
    google = Google(page)
    with _serving(_GoogleHandler, google=google) as address:
        yield address, google


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """Yields the address of moto's S3 with an empty BUCKET."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=30)) as connection:
            for method, path in (("POST", "/moto-api/reset"), ("PUT", f"/{BUCKET}")):
                connection.request(method, path, headers={"Authorization": "AWS4-HMAC-SHA256 Credential=x/s3/aws4"})
                connection.getresponse().read()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


class _PageHandler(_Handler):
    def do_GET(self) -> None:
        """A web page."""
        self.answer(200, b"<html>Welcome</html>", {"Content-Type": "text/html"})


def web_page() -> contextlib.AbstractContextManager[str]:
    """Serves a page that is no object store's answer."""
    return _serving(_PageHandler)


def environment(scheme: str, address: str) -> dict[str, str]:
    """Variables with which clients of a scheme find a server."""
    if scheme == "gs":
        return {"STORAGE_EMULATOR_HOST": address}
    return {
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip


class Fault(enum.Enum):
    """Faults of a request."""

    BUSY, ERROR, UNAVAILABLE = 429, 500, 503
    RESET = "reset before the answer, the request is not carried out"
    LOST = "the request is carried out, then a reset instead of the answer"
    HALF = "reset in the middle of the answer's body"
    TRUNCATED = "the connection closes in the middle of the answer's body"
    DELAY = "the answer comes late"


@dataclasses.dataclass
class Faults:
    """Faults that a proxy injects: planned ones first, then random ones at a rate; and how many there were."""

    seed: int = 0
    rate: float = 0.0
    kinds: tuple[Fault, ...] = tuple(Fault)
    delay: float = 0.3
    """Seconds of DELAY."""
    consecutive: int = 2
    """Random faults in a row for the same request, at most."""
    deny: frozenset[str] = frozenset()
    """Methods that are answered with 403."""
    counts: collections.Counter[Fault] = dataclasses.field(default_factory=collections.Counter)
    requests: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """Number of requests by method."""

    def __post_init__(self) -> None:
        self._random, self._lock = random.Random(self.seed), threading.Lock()
        self._planned: list[tuple[Fault, str, str]] = []
        self._row: dict[str, int] = {}

    def plan(self, *faults: Fault, method: str = "", path: str = "") -> None:
        """Injects these faults into the next requests of a method whose path or query contains `path`; empty: any."""
        with self._lock:
            self._planned += [(fault, method, path) for fault in faults]

    def next(self, method: str, path: str) -> Fault | None:
        """Chooses the fault of a request."""
        with self._lock:
            self.requests[method] += 1
            chosen = next(
                (
                    each
                    for each in self._planned
                    if each[1] in ("", method) and urllib.parse.unquote(path).find(each[2]) >= 0
                ),
                None,
            )
            fault = None
            if chosen is not None:
                self._planned.remove(chosen)
                fault = chosen[0]
            elif self._random.random() < self.rate and self._row.get(method + path, 0) < self.consecutive:
                fault = self._random.choice(self.kinds)
            self._row[method + path] = self._row.get(method + path, 0) + 1 if fault else 0
            if fault:
                self.counts[fault] += 1
            return fault


class _ProxyHandler(_Handler):
    upstream: str
    faults: Faults

    def _forward(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        host = urllib.parse.urlsplit(self.upstream).netloc
        with contextlib.closing(http.client.HTTPConnection(host, timeout=120)) as connection:
            headers = {
                name: value for name, value in self.headers.items()
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "expect")
            }  # fmt: skip
            headers["Content-Length"] = str(len(body))
            connection.request(self.command, self.path, body=body or None, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
            kept = {
                name: value
                for name, value in answer.getheaders()
                if name.lower() not in ("transfer-encoding", "connection", "server", "date")
                and (name.lower() != "content-length" or self.command == "HEAD")
            }
            return answer.status, content, kept

    def _reset(self) -> None:
        # lingering for no time sends a reset
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _handle(self) -> None:
        body = self.body()
        if self.command in self.faults.deny:
            return self._deny()
        fault = self.faults.next(self.command, self.path)
        if fault is not None and isinstance(fault.value, int):
            return self.answer(fault.value, b"", {"Retry-After": "0"})
        if fault is Fault.RESET:
            return self._reset()
        status, content, headers = self._forward(body)
        if fault is Fault.LOST:
            return self._reset()
        if fault is Fault.DELAY:
            time.sleep(self.faults.delay)
        if fault in (Fault.HALF, Fault.TRUNCATED) and self.command == "HEAD":
            return self._reset()  # no body to cut: another Content-Length would be another size of the object
        if fault in (Fault.HALF, Fault.TRUNCATED):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(max(2, len(content)))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
            return self._reset() if fault is Fault.HALF else None
        return self.answer(status, content, headers)

    def _deny(self) -> None:
        text = "does not have storage access"
        if "/storage/v1/" in self.path:
            return self.answer(403, json.dumps({"error": {"code": 403, "message": f"caller {text}"}}).encode())
        return self.answer(403, f"<Error><Code>AccessDenied</Code><Message>{text}</Message></Error>".encode())

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle


@contextlib.contextmanager
def faulty(upstream: str, faults: Faults) -> Iterator[str]:
    """Yields the address of a proxy in front of a server."""
    with _serving(_ProxyHandler, upstream=upstream, faults=faults) as address:
        yield address


@contextlib.contextmanager
def serving(scheme: str, faults: Faults | None = None) -> Iterator[dict[str, str]]:
    """Yields the variables of a server for a scheme, behind a proxy if there are faults."""
    with contextlib.ExitStack() as opened:
        opening: Callable[[], Any] = s3 if scheme == "s3" else google_storage
        found = opened.enter_context(opening())
        address = found if isinstance(found, str) else found[0]
        if faults is not None:
            address = opened.enter_context(faulty(address, faults))
        yield environment(scheme, address)
