"""The server of the page by real requests: what it answers, what it refuses, and that no request ends it."""

import concurrent.futures
import gc
import http.client
import json
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from spanjax.serve.server import MOST_BYTES, MOST_CHARACTERS, is_every_interface, is_loopback, is_served, opened
from tests.serve.playgrounds import served_page

pytestmark = pytest.mark.unit
JSON = {"Content-Type": "application/json"}


class Echo:
    """A model that answers with the record, or fails as the record says."""

    settings = {"name": "</script><script>alert(1)</script>"}
    at_once = most_at_once = 0

    def answer(self, record: Mapping[str, Any]) -> dict[str, Any]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        threading.Event().wait(0.02)
        self.at_once -= 1
        if "fault" in record:
            raise {"value": ValueError("a `text` is missing"), "ours": KeyError("x")}[record["fault"]]
        return {"record": record, "number": float(record.get("number", 0))}


@pytest.fixture
def url() -> Iterator[str]:
    with served_page(Echo()) as address:
        yield address


def request(
    url: str, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str], str]:
    """Status, headers and body of the answer; a header that is "" is not sent."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=20)
    given = {"Host": parts.netloc, **(headers or {})}
    if body is not None:
        given = {"Content-Length": str(len(body)), **given}
    connection.putrequest(method, path, skip_host=True)
    for name, value in given.items():
        if value:
            connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.headers), text


def predict(url: str, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    status, found, text = request(url, "POST", "/api/predict", body, {**JSON, **(headers or {})})
    assert found["Content-Type"] == "application/json" and "Access-Control-Allow-Origin" not in found
    return status, json.loads(text).get("error", text)


def test_the_page_and_its_headers(url: str) -> None:
    status, headers, page = request(url, "GET", "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Server"].strip() == "spanjax"
    policy = headers["Content-Security-Policy"]
    (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    # the style and the script have the nonce, another time another one; nothing is loaded from elsewhere
    assert page.count(f'nonce="{nonce}"') == 2 and nonce not in request(url, "GET", "/")[2]
    assert not re.findall(r"https?://|//\w|@import|url\(", page)
    assert "@@" not in page and page.count("</script>") == 2 and "alert(1)" in page
    assert not re.findall(r"innerHTML|insertAdjacent|outerHTML|document\.write|eval\(", page)


def test_a_record_is_answered(url: str) -> None:
    body = '{"text": "Zoë 😀"}'.encode()
    status, text = predict(url, body, {"Content-Type": "application/json; charset=utf-8"})
    assert status == 200 and json.loads(text) == {"record": {"text": "Zoë 😀"}, "number": 0.0}
    assert predict(url, b'{"text": "\\ud800"}')[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"{}", {"Content-Type": "text/plain"}, 415, "Content-Type is text/plain: expected application/json"),
        (b"{}", {"Content-Type": ""}, 415, "Content-Type is None"),
        (b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "expected application/json"),
        (b"{", {}, 400, "the body is no record (Expecting"),
        (b"\xff", {}, 400, "the body is no record ('utf-8' codec"),
        (b"[1]", {}, 400, "it holds a list, expected an object"),
        (b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}", {}, 200, '"record"'),
        (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}", {}, 400, "brackets more than 100 deep"),
        (b"{}", {"Content-Length": ""}, 411, "Content-Length is ''"),
        (b"{}", {"Content-Length": "-2"}, 411, "Content-Length is '-2'"),
        (b"{}", {"Content-Length": "9" * 4400}, 413, "expected at most 131,072"),
        (b'{"a": "%s"}' % (b"x" * MOST_BYTES), {}, 413, "bytes: expected at most 131,072"),
        (b"x" * (40 * MOST_BYTES), {}, 413, "bytes: expected at most 131,072"),
        (b'{"text": "%s"}' % (b"x" * (MOST_CHARACTERS + 1)), {}, 413, "`text` has 20,001 characters"),
        (b'{"fault": "value"}', {}, 400, "a `text` is missing"),
        (b'{"number": NaN}', {}, 400, "not JSON compliant"),
        (b"{}", {"Host": "evil.example"}, 403, "the Host header is 'evil.example'"),
        (b"{}", {"Host": "127.0.0.1.evil.example:8000"}, 403, "open the address that `spanjax serve` printed"),
        (b"{}", {"Host": "10.1.2.3"}, 403, "Host header"),
        (b"{}", {"Host": "[::1"}, 403, "Host header"),
        (b"{}", {"Host": ""}, 403, "the Host header is ''"),
    ],
)
def test_what_is_refused(url: str, body: bytes, headers: dict[str, str], status: int, message: str) -> None:
    found, error = predict(url, body, headers)
    assert found == status and message in error
    assert predict(url, b"{}")[0] == 200, "it still answers"


def test_other_paths_and_methods(url: str) -> None:
    for method, path, expected, allowed in (
        ("GET", "/api/predict", 405, "POST"),
        ("POST", "/", 405, "GET"),
        ("PUT", "/", 405, "GET"),
        ("OPTIONS", "/api/predict", 405, "POST"),
        ("GET", "/../../etc/hostname", 404, ""),
        ("GET", "/favicon.ico", 404, ""),
        ("GET", "/?q=1", 200, ""),
    ):
        status, headers, text = request(url, method, path, b"" if method == "POST" else None)
        assert (status, headers.get("Allow", "")) == (expected, allowed), (method, path)
        assert expected == 200 or "expected " in json.loads(text)["error"]
    assert request(url, "GET", "/", headers={"Host": "evil.example"})[0] == 403


def test_no_request_ends_the_server(url: str, capfd: pytest.CaptureFixture) -> None:
    """A fault of the model, and clients that send nonsense or leave."""
    status, error = predict(url, b'{"fault": "ours"}')
    assert status == 500 and error.startswith("the model failed (KeyError)") and "KeyError" in capfd.readouterr().err
    parts = urllib.parse.urlsplit(url)
    head = f"POST /api/predict HTTP/1.0\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n".encode()
    for sent in (
        b"",
        b"\x16\x03\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        head,
        head + b"Content-Length: 9\r\n\r\n{",
    ):
        with socket.create_connection((parts.hostname, parts.port), timeout=20) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
    assert predict(url, b"{}")[0] == 200 and capfd.readouterr() == ("", "")


def test_one_answer_at_a_time() -> None:
    model = Echo()
    with served_page(model) as url, concurrent.futures.ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda number: predict(url, b'{"number": %d}' % number), range(12)))
    assert [json.loads(text)["number"] for _, text in found] == list(range(12)) and model.most_at_once == 1


def test_no_thread_of_a_request_keeps_the_model() -> None:
    """The arrays of jax in it would be freed there while Python ends, which aborts the process."""
    freed = []

    class Model(Echo):
        def __del__(self) -> None:
            freed.append(threading.current_thread())

    with opened("127.0.0.1", 0) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{server.server_port}/"

        def ask() -> list[int]:
            try:
                return [predict(url, body)[0] for body in (b"{}", b'{"fault": "value"}', b'{"fault": "ours"}')]
            finally:
                server.stop()

        asked = pool.submit(ask)
        server.run(Model())
        gc.collect()
        assert freed == [threading.current_thread()] and asked.result() == [200, 400, 500]


def test_hosts() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "example.com", "")))
    for header in ("127.0.0.1:8000", "localhost:9000", "LOCALHOST", "[::1]:8000"):
        assert is_served(header, "127.0.0.1") and is_served(header, "0.0.0.0")
    for header in ("10.0.0.1:8000", "[fe80::1]:8000", "box.lan:8000", f"{socket.gethostname()}:8000"):
        assert not is_served(header, "127.0.0.1") or is_loopback(header.partition(":")[0])
        assert is_served(header, "box.lan" if "box" in header else "0.0.0.0")
    assert list(map(is_every_interface, ("0.0.0.0", "::", "127.0.0.1", "box.lan", ""))) == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert not is_served("evil.example", "0.0.0.0") and not is_served("evil.example", "box.lan")


def test_an_address_that_cannot_be_used() -> None:
    with opened("127.0.0.1", 0) as server:
        for host, port, message in (
            ("127.0.0.1", server.server_port, "Address already in use): give another --port (0 takes a free one)"),
            ("no.such.host.invalid", 8000, "give an address of this machine as --host, such as 127.0.0.1"),
            ("http://x/" * 40, 8000, "give an address of this machine as --host"),
        ):
            with pytest.raises(ValueError, match=r"cannot listen on --host") as raised, opened(host, port):
                pass
            assert message in str(raised.value)


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        with served_page(Echo(), "::1") as url:
            assert predict(url, b"{}")[0] == 200 and url.startswith("http://[::1]:")
    except ValueError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
