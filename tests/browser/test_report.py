"""The report in the browser: light and dark, on a desk and on a phone, and on paper."""

import json
import pathlib
import random

import pytest
from playwright.sync_api import Browser

from spanjax.report import main
from tests.browser.looking import SCHEMES, WIDE, WIDTHS, Scheme, address, opened, problems, unfold
from tests.report.made_runs import cola, made_run

pytestmark = pytest.mark.slow

METRICS = ("muc", "bcub", "ceafe", "ceafm", "blanc", "lea", "mention")


@pytest.fixture(scope="module")
def page(run_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A report with what a page can hold: pretraining with filled spans, groups of seeds, many scores, one point, long names."""
    folder, chance = tmp_path_factory.mktemp("reports"), random.Random(0)
    runs = cola(folder, "spans", [61.0, 63.0, 62.5], init_from=str(run_folder))
    runs += cola(folder, "words", [58.0, 57.0], init_from=str(run_folder), batch_size=16)
    scores = {"f1": 70.0} | {f"{name}_{part}": chance.uniform(60, 70) for name in METRICS for part in ("f1", "recall")}
    long = folder / ("a_run_with_a_long_name_" * 4)
    objective = {"class": "Coref"}
    made = [made_run(long, [scores, {**scores, "f1": 72.0}], objective=objective, init_from=str(run_folder))]
    lines = [json.dumps({"step": step, "train/task/loss": 3.0 + chance.random()}) for step in range(1, 2000)]
    made.append(made_run(folder / "rte", [{"accuracy": 66.0, "mean": 66.0}], objective={"task": "RTE"}, lines=lines))
    paths = [str(run_folder), *(str(run.path) for run in runs), *map(str, made)]
    assert main([*paths, "--output", str(folder / "report.html"), "--rows", "40", "--examples", "2"]) == 0
    return folder / "report.html"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_report(browser: Browser, page: pathlib.Path, width: int, scheme: Scheme) -> None:
    with opened(browser, address(page), scheme, width) as look:
        assert problems(look) == []
        unfold(look.page)
        assert problems(look) == []
        assert look.page.locator("script, link, img").count() == 0


def ground(look_page: object) -> int:
    return sum(look_page.evaluate("[...getComputedStyle(document.body).backgroundColor.matchAll(/\\d+/g)].map(Number)"))  # pyright: ignore


def test_night_and_paper(browser: Browser, page: pathlib.Path) -> None:
    """Curves and ground follow the scheme; a page printed at night is light."""
    stroke = "() => getComputedStyle(document.querySelector('figure path[stroke-width]')).stroke"
    with opened(browser, address(page)) as light, opened(browser, address(page), "dark") as dark:
        assert ground(light.page) > 700 > 120 > ground(dark.page)
        by_day = light.page.evaluate(stroke)
        assert by_day != dark.page.evaluate(stroke)
        dark.page.emulate_media(media="print")
        assert ground(dark.page) > 700 and dark.page.evaluate(stroke) == by_day
        assert problems(dark) == []


def test_what_a_reader_sees_first(browser: Browser, page: pathlib.Path) -> None:
    with opened(browser, address(page), width=WIDE) as look:
        headline = look.page.locator(".headline")
        box = headline.bounding_box()
        assert box is not None and box["y"] < 200
        words = headline.inner_text()
        assert "Best held-out MLM loss" in words and "nats" in words and "unigram entropy" in words
        assert (
            "Best CoLA Matthews correlation 62.17 (× 100)" in words
            and "Best of 2 groups: 4.67 above the next, words" in words
        )
        assert "Best RTE accuracy 66.00 %" in words and "Best Coreference F1 72.00 %" in words
        # a curve of one value is a dot that is large enough to see
        size = "() => Math.min(...[...document.querySelectorAll('figure circle')].map(dot => dot.getBoundingClientRect().width))"
        assert look.page.evaluate(size) >= 4
        figures = look.page.locator("figure figcaption").all_inner_texts()
        assert "MLM loss mlm/loss" in figures and "Waiting for data, % of the time speed/data_wait" in figures


def test_words_in_tables_are_whole(browser: Browser, page: pathlib.Path) -> None:
    """A name of a setting breaks behind a dot or an underscore at most; a fingerprint is short, with the whole in its tooltip."""
    broken = """() => [...document.querySelectorAll('td:first-child code')].flatMap(code => [...code.childNodes]
        .filter(node => node.nodeType === 3).filter(node => {
            const range = document.createRange();
            range.selectNodeContents(node);
            return range.getClientRects().length > 1;
        }).map(node => node.data))"""
    for width in WIDTHS:
        with opened(browser, address(page), width=width) as look:
            unfold(look.page)
            assert look.page.evaluate(broken) == []
            short = look.page.locator("td .short").first
            title = short.get_attribute("title") or ""
            assert len(title) == 64 and short.inner_text() == f"{title[:12]}…"
