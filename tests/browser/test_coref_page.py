"""The page of clusters in the browser: light and dark, on a desk and on a phone."""

import itertools
import pathlib

import pytest
from playwright.sync_api import Browser

from spanjax.predict.coref_page import coref_page
from spanjax.tasks.coref.documents import CorefDocument, sorted_clusters
from tests.browser.looking import SCHEMES, WIDTHS, Scheme, address, opened, problems

pytestmark = pytest.mark.slow

STORY = (
    "Ida Lovelace wrote to Charles Babbage about the engine that he had built in his workshop .",
    "She said that the engine could weave algebra , and he thanked her for it .",
    "The workshop of the inventor , which his sons kept , still has the first part of the engine .",
)


def document(name: str, *sentences: str) -> CorefDocument:
    words = tuple(tuple(sentence.split()) for sentence in sentences)
    return CorefDocument(name, 0, words, ("",) * sum(map(len, words)))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Documents with nested mentions, a dozen chains in a row, a long word, and no chain at all."""
    story = document("news/story.txt", *STORY)
    nested = [
        [(0, 1), (17, 17), (29, 29)],
        [(4, 5), (10, 10), (27, 27), (36, 37)],
        [(7, 8), (20, 21), (31, 31), (50, 51)],
    ]
    nested += [[(14, 15), (33, 37)], [(33, 42), (40, 40)]]
    rainbow = document("rainbow", " ".join(f"mention{number}" for number in range(48)))
    hues = [[(number, number), (number + 24, number + 24)] for number in range(24)]
    long = document("a/" * 60 + "name", "x" * 300 + " and it")
    documents = [story, rainbow, long, document("", "Nothing refers to anything .")]
    clusters = [sorted_clusters(each) for each in (nested, hues, [[(0, 0), (2, 2)]], [])]
    path = tmp_path_factory.mktemp("coref") / "clusters.html"
    path.write_text(coref_page(documents, clusters), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_clusters(browser: Browser, page: pathlib.Path, width: int, scheme: Scheme) -> None:
    with opened(browser, address(page), scheme, width) as look:
        assert problems(look) == []
        dark = look.page.evaluate("[...getComputedStyle(document.body).backgroundColor.matchAll(/\\d+/g)].map(Number)")
        assert (sum(dark) < 120) == (scheme == "dark")
        # a chain is told from its neighbours by its edge
        edges = "() => [...document.querySelectorAll('li:nth-child(-n+12) mark')].map(e => getComputedStyle(e).borderBottomColor)"
        colours = [colour for colour, _ in itertools.groupby(look.page.evaluate(edges))]
        assert len(colours) > 12 and all(one != other for one, other in itertools.pairwise(colours))


def test_its_headline_counts(browser: Browser, page: pathlib.Path) -> None:
    with opened(browser, address(page)) as look:
        assert look.page.locator(".headline").inner_text() == "30 chains with 65 mentions in 4 documents"
        assert "No chains, 5 words" in look.page.locator("section").last.inner_text()
        assert look.page.locator("section ol").count() == 3
