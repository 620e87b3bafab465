"""Sphinx extension of the documentation site: generated reference pages, and links into the repository.

A page with a line `<!-- generated: NAME -->` gets the Markdown of the module NAME of this package in the place of that line, at
every build; on GitHub the page shows only what is written around it.
"""

import importlib
import os
import pathlib
import re
from typing import Any

DOCS = pathlib.Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
SCHEME = "repository"
GENERATED = ("api", "commands", "presets", "settings")
_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=(?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.MULTILINE | re.DOTALL)


def repository_base() -> str:
    """Returns the address of the files of this commit where GitHub builds the site, else "": links then lead into the clone."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_SHA")
    server, repository, commit = (os.environ.get(name, "") for name in names)
    return f"{server}/{repository}/blob/{commit}/" if server and repository and commit else ""


def with_generated(text: str) -> str:
    """Returns the text of a page with the generated Markdown in the place of its mark. ValueError for an unknown name."""

    def generated(mark: re.Match[str]) -> str:
        if mark[1] not in GENERATED:
            raise ValueError(f"<!-- generated: {mark[1]} -->: expected one of {', '.join(GENERATED)}")
        return importlib.import_module(f"{__name__}.{mark[1]}").page()

    return _MARK.sub(generated, text)


def with_repository_links(text: str, file: pathlib.Path) -> str:
    """Returns Markdown whose links to files of the repository outside of docs/ are `repository:PATH`; blocks of code stay.

    `file` is the page, from which its links are relative. A link to a missing file stays: Sphinx reports it.
    """

    def link(found: re.Match[str]) -> str:
        path = pathlib.Path(os.path.normpath(file.parent / found[1]))
        outside = path.is_relative_to(ROOT) and not path.is_relative_to(DOCS)
        return f"{SCHEME}:{path.relative_to(ROOT).as_posix()}" if outside and path.exists() else found[1]

    parts, start = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[start : fence.start()]), fence[0]]
        start = fence.end()
    return "".join([*parts, _LINK.sub(link, text[start:])])


def with_language(text: str) -> str:
    """Returns a page whose notebook header names the language of its cells, which are coloured by it where they are not run."""
    header = re.match(r"---\n.*?^---\n", text, re.DOTALL | re.MULTILINE)
    if not header or re.search(r"^ +language:", header[0], re.MULTILINE):
        return text
    return re.sub(r"^kernelspec:\n", "kernelspec:\n  language: ipython3\n", text, count=1, flags=re.MULTILINE)


def _read(app: Any, docname: str, source: list[str]) -> None:
    """Completes the text of a page that Sphinx is about to parse."""
    text = with_language(with_generated(source[0]))
    source[0] = with_repository_links(text, pathlib.Path(app.env.doc2path(docname)))


def _resolve(app: Any, doctree: Any, docname: str) -> None:
    """Replaces `repository:PATH` in a parsed page by the address of the file, on GitHub or in the clone."""
    from docutils import nodes  # of the extra `docs`, without which tests import this package

    base, folder = repository_base(), pathlib.Path(app.builder.get_outfilename(docname)).parent
    for link in doctree.findall(nodes.reference):
        scheme, _, path = link.get("refuri", "").partition(":")
        if scheme == SCHEME:
            link["refuri"] = base + path if base else os.path.relpath(ROOT / path, folder)


def _changed(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Returns the pages that depend on the code, which Sphinx then reads again at every build."""
    return [f"reference/{name}" for name in GENERATED if f"reference/{name}" in env.found_docs]


def setup(app: Any) -> dict[str, bool]:
    """Connects the extension; Sphinx calls it."""
    app.connect("source-read", _read)
    app.connect("doctree-resolved", _resolve)
    app.connect("env-get-outdated", _changed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
