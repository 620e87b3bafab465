"""The check of the built site: every link and anchor, the repository's files, and nothing from other hosts."""

import pathlib

import pytest

from docs._ext.links import main, problems

pytestmark = pytest.mark.unit

RIGHT = """<link rel="canonical" href="https://a.b/"><link rel="stylesheet" href="_static/site.css?v=1">
<h1 id="top">A page</h1> <a href="#top">up</a> <a href="other.html#place">other</a> <a href="below/">a folder</a>
<a href="https://a.b/c">elsewhere</a> <a href="mailto:a@b.c">a person</a> <a href="../../configs/tiny.py">a file</a>
<img src="data:image/png;base64,AA"> <a href="https://host/us/spanjax/blob/1a2b/configs/tiny.py#L3">the same</a>"""
REPOSITORY = "https://host/us/spanjax/blob/1a2b/"


def site(root: pathlib.Path, page: str, style: str = "@import 'more.css'; p { color: red }") -> pathlib.Path:
    """A clone with a built site of three pages, the first with this text."""
    folder = root / "build" / "docs"
    files = {
        "build/docs/index.html": page,
        "build/docs/other.html": '<p><span id="place">x</span></p>',
        "build/docs/below/index.html": '<a href="../index.html">up</a>',
        "build/docs/_static/site.css": f"/* url(https://a.b/comment.png) */ {style}",
        "build/docs/_static/more.css": "",
        "build/docs/_static/templates.html": '<script src="{{ path }}"></script>',
        "configs/tiny.py": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return folder


def test_right_links_pass(tmp_path: pathlib.Path) -> None:
    assert problems(site(tmp_path, RIGHT), tmp_path, REPOSITORY) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<a href="gone.html">x</a>', "index.html:1: gone.html: no such file"),
        ('\n<a href="other.html#gone">x</a>', "index.html:2: other.html#gone: no #gone there"),
        ('<a href="#gone">x</a>', "index.html:1: #gone: no #gone there"),
        ('<a href="../../configs/gone.py">x</a>', "index.html:1: ../../configs/gone.py: no such file"),
        (f'<a href="{REPOSITORY}configs/gone.py">x</a>', "no such file in the repository"),
        ('<a href="../../../x.md">x</a>', "leads out of the site and of the repository"),
        ('<img src="gone.png">', "gone.png: no such file"),
        ('<script src="https://cdn.a/x.js"></script>', "https://cdn.a/x.js: is loaded from another host"),
        ('<link rel="stylesheet" href="//fonts.a/x.css">', "//fonts.a/x.css: is loaded from another host"),
        ('<img src="https://badges.a/x.svg">', "is loaded from another host"),
        ('<link rel="preload" href="https://fonts.a/x.woff2">', "is loaded from another host"),
    ],
)
def test_a_wrong_link_is_found(text: str, reason: str, tmp_path: pathlib.Path) -> None:
    (found,) = problems(site(tmp_path, text), tmp_path, REPOSITORY)
    assert reason in found


@pytest.mark.parametrize(
    "style",
    ["@font-face { src: url('https://a.b/x.woff') }", "@import 'https://a.b/x.css';", "p { src: url(gone.png) }"],
)
def test_a_wrong_style_is_found(style: str, tmp_path: pathlib.Path) -> None:
    (found,) = problems(site(tmp_path, RIGHT, style), tmp_path, REPOSITORY)
    assert found.startswith("_static/site.css: ") and ("another host" in found or "no such file" in found)


def test_the_command_prints_the_front_page_or_the_problems(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    folder = site(tmp_path, '<a href="other.html#place">x</a>')
    assert main([str(folder)]) == 0
    assert f"file://{folder}/index.html" in capsys.readouterr().out
    (folder / "other.html").write_text("")
    assert main([str(folder)]) == 1
    assert "1 wrong links" in capsys.readouterr().err
    assert main([str(tmp_path / "gone")]) == 1
