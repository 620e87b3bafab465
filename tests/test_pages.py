"""The pages: every path that they name exists, their links lead somewhere, and the map of docs/design.md is that of the tree."""

import pathlib
import re

import pytest

pytestmark = pytest.mark.unit

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "launch/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
WRITTEN = {"docs/errors.md"}
"""Pages that a test writes, with paths that are wrong on purpose."""
TREES = ("spanjax", "configs", "tests", "benchmarks", "launch", "docs")
ROOMS = sorted(path.name for path in (ROOT / "spanjax").iterdir() if (path / "__init__.py").exists())


def missing(text: str, folder: pathlib.Path, root: pathlib.Path = ROOT) -> list[str]:
    """Paths in a text of Markdown that are not in the tree, and links that lead nowhere from its folder."""
    found = []
    for path in re.findall(rf"(?<![\w/.-])((?:{'|'.join(TREES)})/[\w./*-]*\w)", text):
        found += [path] if not list(root.glob(path)) else []
    # paths below spanjax/, as `data/feed/rows.py`
    for path in re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w/]+\.py)", text):
        found += [path] if not any((root / tree / path).exists() for tree in (".", "spanjax")) else []
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        found += [link] if not (folder / link).exists() else []
    return found


def anchors(text: str) -> set[str]:
    """Anchors that GitHub and the site give the headings of a page."""
    plain = re.sub(r"^(`{3,}).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = [title.strip().lower() for title in re.findall(r"^#+ (.+)$", plain, re.MULTILINE)]
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


def without_heading(text: str, page: pathlib.Path) -> list[str]:
    """Links of a page to headings that the page or another one lacks; docs/_ext/links.py checks those of generated pages."""
    found = []
    for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text):
        other = page.parent / link if link else page
        if not link or (other.suffix == ".md" and other.is_file()):
            linked = other.read_text() if link else text
            if "<!-- generated: " not in linked and anchor not in anchors(linked):
                found.append(f"{link}#{anchor}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_exists(page: pathlib.Path) -> None:
    if str(page.relative_to(ROOT)) not in WRITTEN:
        assert missing(page.read_text(), page.parent) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_heading_exists(page: pathlib.Path) -> None:
    assert without_heading(page.read_text(), page) == []


def test_a_heading_that_is_gone_is_found(tmp_path: pathlib.Path) -> None:
    (tmp_path / "other.md").write_text("# A page\n\n```\n# Code\n```\n\n## `one`, two: three-four (5)\n")
    (tmp_path / "generated.md").write_text("# Names\n\n<!-- generated: api -->\n")
    text = (
        "# Here\n[up](#here) [a](other.md#a-page) [b](other.md#one-two-three-four-5) [c](generated.md#run) [d](x.py#L3)"
    )
    page = tmp_path / "page.md"
    assert without_heading(text, page) == []
    text += " [e](#gone) [f](other.md#code) [g](other.md#here)"
    assert without_heading(text, page) == ["#gone", "other.md#code", "other.md#here"]


def test_a_path_that_is_gone_is_found(tmp_path: pathlib.Path) -> None:
    (tmp_path / "spanjax" / "data").mkdir(parents=True)
    (tmp_path / "spanjax" / "data" / "rows.py").touch()
    text = (
        "`spanjax/data/rows.py`, `data/rows.py`, spanjax/data/*.py, [rows](spanjax/data/rows.py#L1), `runs/spanjax/x`;"
    )
    assert missing(text, tmp_path, tmp_path) == []
    text = "`spanjax/rows.py`, `data/gone.py`, tests/data/test_*.py. [a page](docs.md) [another](https://a.b/c.md)"
    assert missing(text, tmp_path, tmp_path) == ["spanjax/rows.py", "tests/data/test_*.py", "data/gone.py", "docs.md"]


def test_the_map_is_that_of_the_tree() -> None:
    drawn = (ROOT / "docs" / "design.md").read_text().split("```\nspanjax/\n")[1].split("```")[0]
    files = [path.relative_to(ROOT / "spanjax") for path in (ROOT / "spanjax").rglob("*.py")]
    folders = {path.name for path in (ROOT / "spanjax").rglob("*") if path.is_dir()} - {"__pycache__"}
    loose = {path.name for path in files if len(path.parts) == 1 and path.name != "__init__.py"}
    assert sorted(name for name in folders if f"{name}/" not in drawn) == []
    assert sorted(loose - set(re.findall(r"^  (\w+\.py)", drawn, re.MULTILINE))) == []
    assert sorted(set(re.findall(r"\w+\.py", drawn)) - {path.name for path in files} - {"encoders.py"}) == []
    assert sorted(set(re.findall(r"(\w+)/", drawn.split("configs/")[0])) - folders) == []
