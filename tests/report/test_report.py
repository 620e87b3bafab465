"""The command: a page that is well formed and needs nothing else, the same as Markdown, wrong input."""

import html.parser
import json
import os
import pathlib
import re
import shutil

import pytest

from spanjax.cli import escaped
from spanjax.pages.document import TITLE
from spanjax.pages.markdown import escaped as markdown_escaped
from spanjax.report import main
from spanjax.report.masking import opened
from spanjax.report.runs import read_run
from tests.report.made_runs import cola, made_run

EVIL = "<script>alert('x')</script>&\"|`*_\ud800\x00"


class Page(html.parser.HTMLParser):
    """Checks that elements nest; keeps the text and the addresses."""

    EMPTY = ("meta", "wbr")

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag in self.EMPTY:
            return
        assert self.open and self.open.pop() == tag, f"</{tag}> after {self.open}"

    def handle_data(self, data: str) -> None:
        self.words += data
        if {"td", "th"} & {*self.open}:
            self.cells[-1] += data


def checked(path: pathlib.Path) -> Page:
    """The page, well formed and without anything from elsewhere."""
    text = path.read_text("utf-8")
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not {"src", "href", "srcset", "onclick", "onload"} & {name for name, _ in page.attributes}
    assert not re.search(r"url\(|@import|https?://", text)
    return page


def test_pretraining_beside_fine_tuning(run_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    runs = [str(run.path) for run in cola(tmp_path, "cola", [61.0, 63.0], init_from=str(run_folder))]
    arguments = [str(run_folder), *runs, "--rows", "40", "--examples", "2"]
    page, text = tmp_path / "new" / "report.html", tmp_path / "report.md"
    page.parent.mkdir()
    assert main([*arguments, "--output", str(page), "--markdown", str(text)]) == 0
    found = checked(page)
    for heading in (
        "Runs",
        "Settings",
        "Compared with the paper",
        "Differences tested",
        "Curves",
        "Masking and filled",
    ):
        assert heading in found.words
    assert "62.0 ± 1.4 (2)" in found.cells  # CoLA of the two seeds
    assert "64.3" in found.cells  # SpanBERT's in table 5
    for title in (
        "mlm/loss",
        "sbo/loss",
        "MLM loss",
        "SBO accuracy, %",
        "Learning rate",
        "Gradient norm",
        "Tokens per second",
        "Waiting for data, % of the time",
    ):
        assert title in found.words
    assert "Figure 2 of the paper, words, mean 3.80" in found.words
    assert "measured, words, mean" in found.words and "measured, tokens, mean" in found.words
    assert "filled in by the checkpoint of step 2" in found.words and "Right pieces: by MLM" in found.words
    assert "[MASK]" in found.words and "by SBO" in found.cells
    for record in (json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()):
        if "eval/loss" in record:
            assert f"{record['eval/loss']:.4f}" in found.cells
    written = text.read_text("utf-8")
    fingerprint = json.loads((run_folder / "run.json").read_text())["rows_fingerprint"]
    assert f"{fingerprint[:12]}…" in found.cells and fingerprint in written
    assert "Best CoLA Matthews correlation 62.00 (× 100)" in found.words
    assert "- Best CoLA Matthews correlation **62.00 (× 100)**. Mean of 2 seeds of cola" in written
    assert "- Best held-out MLM loss **" in written and "nats**, " in written and "the unigram entropy. " in written
    assert "62.0 ± 1.4 (2)" in written and "*64.3*" in written and "| 1 | 22.4 |" in written
    first = page.read_bytes()
    assert main([*arguments, "--output", str(page)]) == 0
    assert page.read_bytes() == first
    assert sorted(each.name for each in page.parent.iterdir()) == ["report.html"]


def test_without_checkpoint_or_rows_it_says_so(run_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    bare = pathlib.Path(shutil.copytree(run_folder, tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints")))
    gone = pathlib.Path(shutil.copytree(bare, tmp_path / "gone"))
    other = pathlib.Path(shutil.copytree(bare, tmp_path / "other"))
    for path, change in ((gone, {"data": {"rows": ["nowhere/rows"]}}), (other, {"rows_fingerprint": "f" * 64})):
        settings = json.loads((path / "run.json").read_text())
        settings |= {"batch_size": settings["batch_size"] + len(path.name), **change}
        (path / "run.json").write_text(json.dumps(settings))
    (gone / "metrics.jsonl").unlink()
    (gone / "summary.json").unlink()
    page = tmp_path / "report.html"
    assert main([str(bare), str(gone), str(other), "--output", str(page), "--rows", "10", "--examples", "1"]) == 0
    words = checked(page).words
    assert "No examples of what bare fills in: there is no checkpoint yet." in words
    assert "its rows are not here any more (nowhere/rows)" in words
    assert "are not those that it was trained on" in words


def test_rows_with_a_relative_path_are_found_from_elsewhere(
    rows_folder: pathlib.Path, run_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = json.loads((run_folder / "run.json").read_text())
    assert stored["started_in"] == str(pathlib.Path.cwd())
    project, away = tmp_path / "project", tmp_path / "away"
    (project / "runs").mkdir(parents=True)
    (away / "runs").mkdir(parents=True)
    shutil.copytree(rows_folder, project / "data" / "rows")
    monkeypatch.chdir(away)
    for place, started in ((project / "runs" / "inside", ""), (away / "runs" / "outside", str(project))):
        shutil.copytree(run_folder, place)
        settings = {**stored, "data": {**stored["data"], "rows": ["data/rows"]}, "started_in": started}
        (place / "run.json").write_text(json.dumps(settings))
        assert len(opened(read_run(place)).rows) > 0, place
    (away / "runs" / "outside" / "run.json").write_text(json.dumps({**settings, "started_in": ""}))
    with pytest.raises(ValueError, match=r"its rows are not here any more \(data/rows\)"):
        opened(read_run(away / "runs" / "outside"))


def test_user_text_is_escaped(tmp_path: pathlib.Path) -> None:
    run = made_run(tmp_path / "<b>run&", [{"mean": 1.0}], init_from=f"models/{EVIL}", tracking={"uri": "http://x"})
    page, text = tmp_path / "report.html", tmp_path / "report.md"
    assert main([str(run), "--output", str(page), "--markdown", str(text)]) == 0
    content = page.read_text("utf-8")
    found = Page(content)
    assert "script" not in found.tags and "b" not in found.tags
    assert "<b>run&" in found.words and "<script>alert('x')</script>&\"|`*_" in found.words
    assert "<script" not in text.read_text("utf-8") and "\x00" not in content
    assert escaped(EVIL).endswith("|`*_\ufffd\ufffd")
    assert markdown_escaped("a|b\n*c* <i>") == "a\\|b \\*c\\* &lt;i&gt;"


def test_thousands_of_lines_are_thinned(tmp_path: pathlib.Path) -> None:
    records = [{"step": n, "train/task/loss": 5.0 + (n == 4321) * 80, "speed/data_wait": 0.1} for n in range(1, 9001)]
    lines = [*map(json.dumps, records), "broken"]
    run = made_run(tmp_path / "run", lines=lines)
    page = tmp_path / "report.html"
    assert main([str(run), "--output", str(page)]) == 0
    found = checked(page)
    assert page.stat().st_size < 100_000
    assert "thinned to at most 400 points" in found.words
    assert found.cells[found.cells.index("fine-tuning, CoLA") + 4] == "1"  # broken lines


def test_wrong_input_is_told_at_once(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, page = made_run(tmp_path / "run"), tmp_path / "page.html"
    page.write_text("as it was")
    arguments = [str(run), str(tmp_path / "none"), "--output", str(page / "x.html"), "--rows", "-1"]
    assert main([*arguments, "--markdown", str(run)]) == 2
    said = capsys.readouterr().err
    for words in ("cannot report", "no such folder", "is a file, expected a folder", "is a folder", "--rows is -1"):
        assert words in said
    assert main([]) == 2
    assert "no run is given" in capsys.readouterr().err
    assert main([str(run), "--output", str(page), "--markdown", str(page)]) == 2
    assert main([str(run), "--output", ""]) == 2
    assert main([str(run), "--output", str(page)]) == 2
    assert "page.html is there and no report of spanjax" in capsys.readouterr().err
    assert main([str(run), "--output", str(tmp_path / "no" / "d" / "x.html")]) == 2
    assert f"there is no folder {tmp_path / 'no' / 'd'}: make it" in capsys.readouterr().err
    assert page.read_text() == "as it was" and not (tmp_path / "no").exists()
    page.write_text(own := f"<title>{TITLE}</title>")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert main([str(run), "--output", str(page)]) == 2
    assert "No space left" in capsys.readouterr().err
    assert page.read_text() == own
    assert sorted(each.name for each in tmp_path.iterdir()) == ["page.html", "run"]
