"""Pages in the system's Chromium: requests to other hosts, errors, overflow, contrast and dead links.

    with chromium() as browser, opened(browser, address(path), scheme="dark", width=390) as look:
        assert problems(look) == []

Every check returns a list of sentences, empty for a page without fault. The tests in `test_looking.py` prove each check by a
broken page.
"""

import contextlib
import dataclasses
import functools
import http.server
import ipaddress
import pathlib
import re
import shutil
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Literal

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: make install-dev")

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, Route, WebSocketRoute, sync_playwright

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
WIDE, PHONE = 1280, 390
WIDTHS = (WIDE, PHONE)
HEIGHTS = {WIDE: 900, PHONE: 844}
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Starts the installed browser; the test is skipped without one. Nothing is downloaded."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser is installed: none of {', '.join(PROGRAMS)} is on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclasses.dataclass
class Look:
    """A page in the browser, and what happened while it loaded."""

    page: Page
    foreign: list[str] = dataclasses.field(default_factory=list)
    """Requests to other hosts; all were blocked."""
    errors: list[str] = dataclasses.field(default_factory=list)
    """Uncaught exceptions, errors on the console, and files that did not load."""


def is_local(address: str) -> bool:
    """True for an address that leaves this machine alone: a file, data, or a loopback host."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme in ("file", "data", "about", "blob"):
        return True
    name = parts.hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


def address(path: pathlib.Path) -> str:
    """The address of a local file."""
    return path.resolve().as_uri()


@contextlib.contextmanager
def opened(browser: Browser, url: str, scheme: Scheme = "light", width: int = WIDE) -> Iterator[Look]:
    """Opens a page in a context of its own, without the cache and the cookies of others."""
    # reduced motion: a colour that is still fading would be measured halfway
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": HEIGHTS.get(width, 900)}, reduced_motion="reduce"
    )
    try:
        look = Look(context.new_page())

        def routed(route: Route) -> None:
            if is_local(route.request.url):
                return route.continue_()
            look.foreign.append(route.request.url)
            return route.abort()

        def connected(socket: WebSocketRoute) -> None:
            if is_local(socket.url):
                socket.connect_to_server()
            else:
                look.foreign.append(socket.url)

        def told(message: ConsoleMessage) -> None:
            if message.type == "error":
                look.errors.append(f"console: {message.text}")

        def failed(request: Request) -> None:
            if is_local(request.url):
                look.errors.append(f"{request.url} did not load: {request.failure}")

        def answered(response: Response) -> None:
            if response.status >= 400:
                look.errors.append(f"{response.url} answered {response.status}")

        context.route("**/*", routed)
        context.route_web_socket("**/*", connected)
        look.page.on("console", told)
        look.page.on("pageerror", lambda error: look.errors.append(f"exception: {error}"))
        look.page.on("requestfailed", failed)
        look.page.on("response", answered)
        look.page.goto(url, wait_until="load")
        # two frames: style and layout have settled, and late requests of scripts at the page's end are under way
        look.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        yield look
    finally:
        context.close()


@contextlib.contextmanager
def served(folder: pathlib.Path) -> Iterator[str]:
    """Serves a folder on a free loopback port and yields its address, for pages that need http."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Keeps the output of the tests short."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def unfold(page: Page) -> None:
    """Opens every <details>, so that the checks see what it holds."""
    page.evaluate("() => document.querySelectorAll('details').forEach(each => { each.open = true })")


_CHECKS = (pathlib.Path(__file__).parent / "checks.js").read_text("utf-8")


def overflow(page: Page) -> list[str]:
    """Horizontal overflow: of the page, of elements outside of scrollable containers, of text in drawings."""
    return page.evaluate(f"{_CHECKS}.overflow()")


def low_contrast(page: Page) -> list[str]:
    """Visible text whose contrast with its effective background is below WCAG's AA; text on pictures is not measured."""
    return page.evaluate(f"{_CHECKS}.lowContrast()")


def _targets(text: str) -> set[str]:
    return {value for _, value in re.findall(r"""\b(?:id|name)\s*=\s*(["'])(.*?)\1""", text)}


def _text_of(url: str) -> str | None:
    """The text behind an address of this machine; None if there is nothing."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        path = pathlib.Path(urllib.request.url2pathname(parts.path))
        path = path / "index.html" if path.is_dir() else path
        return path.read_text("utf-8", "replace") if path.is_file() else None
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.read().decode("utf-8", "replace")
    except urllib.error.URLError:
        return None


def dead_links(page: Page) -> list[str]:
    """Links to a missing place in the page, to a missing file or page of this machine, or to a missing place in that."""
    here = urllib.parse.urldefrag(page.url).url
    links: list[tuple[str, str]] = page.evaluate(
        "() => [...document.querySelectorAll('a[href], area[href]')].map(a => [a.getAttribute('href'), a.href])"
    )
    # places that scripts make count too, so that those of this page come from the browser
    own = set(page.evaluate("() => [...document.querySelectorAll('[id], a[name]')].flatMap(e => [e.id, e.name])"))
    texts: dict[str, str | None] = {}
    found = []
    for written, absolute in dict.fromkeys((written, absolute) for written, absolute in links):
        if urllib.parse.urlsplit(absolute).scheme not in ("file", "http", "https") or not is_local(absolute):
            continue
        target, fragment = urllib.parse.urldefrag(absolute)
        name = urllib.parse.unquote(fragment)
        if target == here:
            if name and name != "top" and name not in own:
                found.append(f"{written}: the page has no such place")
            continue
        if target not in texts:
            texts[target] = _text_of(target)
        text = texts[target]
        if text is None:
            found.append(f"{written}: there is no such page")
        elif name and name not in _targets(text):
            found.append(f"{written}: {target} has no such place")
    return found


def problems(look: Look) -> list[str]:
    """All faults of a page."""
    requests = [f"a request to another host: {url}" for url in look.foreign]
    return [*requests, *look.errors, *overflow(look.page), *low_contrast(look.page), *dead_links(look.page)]
