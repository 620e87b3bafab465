"""Each check of `looking` against a page that breaks its rule, and one that keeps all of them."""

import pathlib
import urllib.parse

import pytest
from playwright.sync_api import Browser

from tests.browser.looking import (
    PHONE,
    SCHEMES,
    Scheme,
    address,
    dead_links,
    is_local,
    low_contrast,
    opened,
    overflow,
    problems,
    served,
    unfold,
)

pytestmark = pytest.mark.slow


def data(body: str, head: str = "") -> str:
    """A page as an address."""
    text = f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>t</title>{head}</head><body>{body}'
    return "data:text/html;charset=utf-8," + urllib.parse.quote(text)


GOOD = """<style>:root { color-scheme: light dark }</style><h1 id="a b">Words</h1><a href="#a%20b">up</a><a href="#">top</a>
<div style="overflow-x: auto"><div style="width: 3000px">wide, in its own container</div></div>
<svg viewBox="0 0 100 20" width="100" height="20"><text x="2" y="14" fill="currentColor" font-size="12">text</text></svg>
<p style="position: absolute; left: -9999px">for readers of the screen</p><p style="display: none; color: #eee">hidden</p>"""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_page_without_fault(browser: Browser, scheme: Scheme) -> None:
    links = "<style>a { color: #15c } @media (prefers-color-scheme: dark) { a { color: #8bf } }</style>"
    with opened(browser, data(GOOD, links), scheme, PHONE) as look:
        assert problems(look) == []
        dark = look.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        assert dark == (scheme == "dark") and look.page.viewport_size == {"width": PHONE, "height": 844}


def test_requests_to_other_hosts_are_blocked_and_listed(browser: Browser) -> None:
    urls = ["https://example.com/a.png", "http://example.org/b.css", "https://example.net/c", "wss://example.com/d"]
    body = f"<img src={urls[0]} alt=''><script>fetch('{urls[2]}').catch(() => 0); new WebSocket('{urls[3]}')</script>"
    with opened(browser, data(body, f"<link rel=stylesheet href={urls[1]}>")) as look:
        look.page.wait_for_timeout(300)
        assert sorted(look.foreign) == sorted(urls)
        assert "a request to another host: https://example.net/c" in problems(look)
    local = ("file:///a", "data:,", "http://127.0.0.1:1/", "http://localhost/", "http://[::1]:80/")
    assert all(map(is_local, local))
    assert not any(map(is_local, ("http://10.0.0.1/", "https://localhost.example.com/", "http://127.0.0.1.nip.io/")))


def test_errors_are_listed(browser: Browser, tmp_path: pathlib.Path) -> None:
    (tmp_path / "page.html").write_text(
        "<!DOCTYPE html><script>console.error('one'); setTimeout(() => { throw Error('two') })</script><img src=none.png>"
    )
    with opened(browser, address(tmp_path / "page.html")) as look:
        found = "\n".join(look.errors)
        assert "console: one" in found and "exception: two" in found and "none.png did not load" in found
    with served(tmp_path) as url, opened(browser, f"{url}page.html") as look:
        assert any(each.endswith("none.png answered 404") for each in look.errors)


def test_overflow_is_found(browser: Browser) -> None:
    wide = "<main><p>fits</p><table><tr><td style='min-width: 900px'>too wide</table></main>"
    with opened(browser, data(wide), width=PHONE) as look:
        found = overflow(look.page)
        assert found[0].startswith("the page is 9") and "<table>" in found[1] and len(found) == 2
    with opened(browser, data(wide)) as look:
        assert overflow(look.page) == []
    hidden = "<style>body { overflow-x: hidden }</style><p style='margin-left: -30px'>cut</p><b style='margin: 380px'>out</b>"
    with opened(browser, data(hidden), width=PHONE) as look:
        found = overflow(look.page)
        assert [each.split(">")[0] for each in found[1:]] == ["<p", "<b"] and "790 px" in found[0]
    drawing = "<svg viewBox='0 0 100 20' width='100' height='20'><text x='80' y='15'>too long</text></svg>"
    with opened(browser, data(drawing)) as look:
        assert overflow(look.page) == ['<text> "too long" is cut at the edge of its drawing']


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("<p style='color: #777'>grey</p>", "contrast 4.48, #777777 on #ffffff, expected 4.5"),
        ("<p style='color: #767676'>grey</p>", ""),
        ("<p style='color: #0006'>seen through</p>", "#999999 on #ffffff"),
        ("<div style='background: #000'><p style='opacity: .4; color: #fff'>dim</p></div>", "#666666 on #000000"),
        ("<p style='background: #000a; color: #000'>on grey</p>", "#000000 on #555555"),
        ("<div style='opacity: .5'><p style='background: #000; color: #888'>group</p></div>", "on #808080"),
        ("<p style='font-size: 24px; color: #777'>large</p>", ""),
        ("<p style='font-size: 19px; font-weight: 700; color: #949494'>bold</p>", ""),
        ("<p style='font-size: 24px; color: #999'>large</p>", "expected 3"),
        ("<p style='color: oklch(0.7 0 0)'>grey</p>", "#9e9e9e on #ffffff"),
        ("<svg width=50 height=20><text y=15 fill='#aaa'>drawn</text></svg>", "#aaaaaa on #ffffff"),
        ("<svg width=50 height=20><text y=15 fill='#000' fill-opacity='.3'>drawn</text></svg>", "#b3b3b3 on #ffffff"),
        ("<details><summary>open</summary><p style='color: #ccc'>inside</p></details>", "<p>"),
    ],
)
def test_contrast(browser: Browser, body: str, found: str) -> None:
    with opened(browser, data(body)) as look:
        unfold(look.page)
        faults = low_contrast(look.page)
        assert len(faults) == bool(found) and all(found in fault for fault in faults), faults


def test_contrast_follows_the_scheme(browser: Browser) -> None:
    """Words that are right on white alone, on a page that leaves its ground to the browser."""
    body = "<style>:root { color-scheme: light dark }</style><p style='color: #1a3'>green</p><p style='color: #225'>blue</p>"
    for scheme, words in zip(SCHEMES, ("green", "blue"), strict=True):
        with opened(browser, data(body), scheme) as look:
            (fault,) = low_contrast(look.page)
            assert f'"{words}"' in fault and ("on #ffffff" in fault) == (scheme == "light")


def test_dead_links_are_found(browser: Browser, tmp_path: pathlib.Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").write_text("<p id='place'>x")
    links = ["#here", "#gone", "folder/", "folder/index.html#place", "folder/index.html#none", "none.html", "#", "#top"]
    links += ["https://example.com/", "mailto:a@example.com"]
    body = "".join(f"<a href='{link}'>{link}</a>" for link in links)
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html><p id='here'>x</p>{body}")
    with served(tmp_path) as url:
        for page in (address(tmp_path / "page.html"), f"{url}page.html"):
            with opened(browser, page) as look:
                assert [fault.split(":")[0] for fault in dead_links(look.page)] == [
                    "#gone",
                    "folder/index.html#none",
                    "none.html",
                ]
