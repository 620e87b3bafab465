"""python -m docs._ext.links FOLDER: checks the links of a built site without a network, and prints the address of its front page.

Every link inside the site leads to a file, and its anchor to an id in it; every link into the repository leads to a file of this
clone; no page and no style sheet loads a script, style, font or picture of another host. Exit codes: 0 all are right, 1 the
problems are on stderr.
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse
from collections.abc import Iterator
from typing import NamedTuple

from docs._ext import ROOT, repository_base

LOADED = {
    "script": "src",
    "img": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "iframe": "src",
    "embed": "src",
}
"""Elements whose file a browser loads with the page -> the attribute that names it."""
NOT_LOADED = frozenset({"canonical", "next", "prev", "author", "license"})
"""Values of `rel` of a <link> that a browser does not load."""
_STYLES = re.compile(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""")


class Link(NamedTuple):
    """A link of a page."""

    line: int
    target: str
    loaded: bool
    """A browser loads it with the page."""


class Page(html.parser.HTMLParser):
    """Links and ids of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[Link] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the ids and links of an element."""
        named = {name: value for name, value in attrs if value}
        self.ids |= {named[name] for name in ("id", "name") if name in named and (name == "id" or tag == "a")}
        line = self.getpos()[0]
        if tag == "a" and "href" in named:
            self.links.append(Link(line, named["href"], False))
        elif tag == "link" and "href" in named:
            self.links.append(Link(line, named["href"], not NOT_LOADED & set(named.get("rel", "").split())))
        elif LOADED.get(tag) in named:
            self.links.append(Link(line, named[LOADED[tag]], True))


def problems(folder: pathlib.Path, root: pathlib.Path = ROOT, repository: str = "") -> list[str]:
    """Lists the wrong links of a built site: "PAGE:LINE: ...". `repository` is the address of the files of `root`, if known."""
    folder, root = folder.resolve(), root.resolve()
    # the theme puts templates of its own among the static files
    files = [file for file in sorted(folder.rglob("*.html")) if "_static" not in file.relative_to(folder).parts]
    pages = {file: Page(file.read_text("utf-8")) for file in files}
    found = [] if files else [f"{folder}: no page"]
    for file, page in pages.items():
        for link in page.links:
            if reason := _problem(link, file, folder, root, repository, pages):
                found.append(f"{file.relative_to(folder)}:{link.line}: {link.target}: {reason}")
    for file in sorted(folder.rglob("*.css")):
        for target in _style_targets(file.read_text("utf-8", errors="replace")):
            if reason := _problem(Link(0, target, True), file, folder, root, repository, pages):
                found.append(f"{file.relative_to(folder)}: {target}: {reason}")
    return found


def _style_targets(text: str) -> Iterator[str]:
    """Yields what a style sheet loads."""
    yield from (match[1] or match[2] for match in _STYLES.finditer(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))


def _problem(
    link: Link,
    file: pathlib.Path,
    folder: pathlib.Path,
    root: pathlib.Path,
    repository: str,
    pages: dict[pathlib.Path, Page],
) -> str:
    """Returns the reason why a link of a file is wrong; "" if it is right."""
    parts = urllib.parse.urlsplit(link.target)
    if repository and link.target.startswith(repository):
        path = urllib.parse.unquote(link.target.removeprefix(repository).partition("#")[0])
        return "" if (root / path).exists() else "no such file in the repository"
    if parts.scheme in ("http", "https") or parts.netloc:
        return "is loaded from another host" if link.loaded else ""
    if parts.scheme:  # mailto, data
        return ""
    target = (file.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else file
    target = target / "index.html" if target.is_dir() and target.is_relative_to(folder) else target
    if not target.is_relative_to(folder) and not target.is_relative_to(root):
        return "leads out of the site and of the repository"
    if not target.exists():
        return "no such file"
    anchor = urllib.parse.unquote(parts.fragment)
    return f"no #{anchor} there" if anchor and target in pages and anchor not in pages[target].ids else ""


def main(arguments: list[str]) -> int:
    """Checks the site in a folder; returns the exit code."""
    folder = pathlib.Path(arguments[0])
    found = problems(folder, repository=repository_base())
    if found:
        print(f"{len(found)} wrong links:", *found, sep="\n", file=sys.stderr)
        return 1
    print(f"every link leads somewhere; the front page is {(folder / 'index.html').resolve().as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
