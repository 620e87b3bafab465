"""The documentation's site as `make docs` builds it, in the browser: light and dark, on a desk and on a phone."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
from playwright.sync_api import Browser

from tests.browser.looking import PHONE, SCHEMES, WIDTHS, Scheme, address, opened, problems
from tests.conftest import shared
from tests.running import ROOT

pytestmark = pytest.mark.slow

PAGES = ("index.html", "tutorials/first_model.html", "reference/api.html", "reference/settings.html", "search.html")
BUILT = ROOT / "build" / "docs"
VARIABLE = "SPANJAX_SITE"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The site in build/docs, where `make docs` builds it, brought up to date; or the built one in SPANJAX_SITE."""
    if not (ROOT / "docs" / "conf.py").is_file():
        pytest.skip("docs/conf.py is absent: there is no site to build")
    if VARIABLE in os.environ:
        return pathlib.Path(os.environ[VARIABLE])
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("sphinx is not installed: make docs, or name a built site in SPANJAX_SITE")

    def make(folder: pathlib.Path) -> None:
        del folder  # its lock alone: one worker builds
        command = [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-b",
            "html",
            "-d",
            str(BUILT.parent / "doctrees"),
            "docs",
            str(BUILT),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]

    shared(tmp_path_factory, "site", make)
    return BUILT


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_site(browser: Browser, site: pathlib.Path, name: str, width: int, scheme: Scheme) -> None:
    assert (site / name).is_file(), f"the site has no {name}"
    with opened(browser, address(site / name), scheme, width) as look:
        assert problems(look) == []
        # the theme takes the scheme of the system: a page that stays white at night would pass the contrast alone
        ground = "[...getComputedStyle(document.body).backgroundColor.matchAll(/\\d+/g)].map(Number)"
        dark = sum(look.page.evaluate(ground)[:3]) < 300
        assert dark == (scheme == "dark")


def test_every_page_fits_a_phone(browser: Browser, site: pathlib.Path) -> None:
    found = {}
    for file in sorted(site.rglob("*.html")):
        name = file.relative_to(site).as_posix()
        if not name.startswith("_"):  # the theme puts templates of its own among the static files
            with opened(browser, address(file), width=PHONE) as look:
                found[name] = problems(look)
    assert len(found) > 40 and {name: faults for name, faults in found.items() if faults} == {}


def test_the_search_finds_a_page_without_a_server(browser: Browser, site: pathlib.Path) -> None:
    with opened(browser, f"{address(site / 'search.html')}?q=geometric") as look:
        look.page.locator("#search-results li", has_text="Settings").first.wait_for()
        assert look.errors == look.foreign == []
