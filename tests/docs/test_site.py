"""The documentation site: all pages are in a table of contents, it builds without a warning, and loads nothing from elsewhere."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.running import ROOT, environment

DOCS = ROOT / "docs"


def unlisted(folder: pathlib.Path) -> list[str]:
    """Pages below a folder that no table of contents of its index.md names."""
    tables = re.findall(r"^```\{toctree\}\n(.*?)^```", (folder / "index.md").read_text(), re.MULTILINE | re.DOTALL)
    listed = {line.strip() for table in tables for line in table.splitlines() if line and not line.startswith(":")}
    pages = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.md")}
    return sorted(pages - listed - {"index"})


@pytest.mark.unit
def test_every_page_is_in_a_table_of_contents() -> None:
    assert unlisted(DOCS) == []


@pytest.mark.unit
def test_a_page_that_no_table_names_is_found(tmp_path: pathlib.Path) -> None:
    (tmp_path / "howto").mkdir()
    for name in ("listed", "howto/listed", "howto/forgotten", "named"):
        (tmp_path / f"{name}.md").touch()
    table = "```{toctree}\n:caption: A\n:maxdepth: 1\n\nlisted\nhowto/listed\n```"
    (tmp_path / "index.md").write_text(f"# A site\n\n[named](named.md)\n\n{table}\n")
    assert unlisted(tmp_path) == ["howto/forgotten", "named"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The built site."""
    for name in ("sphinx", "sphinx_book_theme", "myst_nb", "sphinx_copybutton"):
        if subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode:
            pytest.skip(f"{name} is not installed: the extra `docs`")
    folder = tmp_path_factory.mktemp("docs")
    command = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "read"), str(DOCS)]
    # in a process of its own: Sphinx and its parsers raise warnings that tests turn into errors
    done = subprocess.run(
        [sys.executable, *command, str(folder / "site")],
        cwd=ROOT,
        env=environment(1, EXECUTE=""),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_site_builds_and_its_links_lead_somewhere(site: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "docs._ext.links", str(site)],
        cwd=ROOT,
        env=environment(1),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (site / "index.html").as_uri() in done.stdout
    settings, commands = ((site / "reference" / f"{name}.html").read_text() for name in ("settings", "commands"))
    assert 'id="run-batch-size"' in settings and 'id="spanjax-convert-to-torch"' in commands
    assert "mathjax" not in settings.lower() and "generated:" not in settings


@pytest.mark.slow
def test_a_browser_asks_no_other_host(site: pathlib.Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium")
    asked: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        for file in (site / "index.html", site / "reference" / "api.html", site / "results.html", site / "search.html"):
            page.goto(file.as_uri())
        browser.close()
    assert len(asked) > 4 and [url for url in asked if not url.startswith(("file:", "data:"))] == []
