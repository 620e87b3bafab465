"""The playground of `spanjax serve` in the browser: every kind of model, light and dark, on a desk and on a phone."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.looking import PHONE, SCHEMES, WIDTHS, Scheme, opened, problems
from tests.serve.playgrounds import KINDS, NAME, example, made_playground, served_page

pytestmark = pytest.mark.slow
TASKS = [kind for kind in KINDS if kind != "fill"]
HOSTILE = "<img src=x onerror=alert(1)></script>"


@pytest.fixture(scope="module")
def pages() -> Iterator[Mapping[str, str]]:
    """Kind of a model -> address of its page. The programs are compiled before a browser waits for them."""
    models = {kind: made_playground(kind) for kind in KINDS}
    for model in models.values():
        model.answer(example(model))
    with contextlib.ExitStack() as stack:
        yield {kind: stack.enter_context(served_page(model)) for kind, model in models.items()}


def pressed(page: Page) -> list[str]:
    """The words that are hidden."""
    return page.locator("#words button[aria-pressed=true]").all_inner_texts()


def settled(page: Page) -> None:
    """Waits until the last answer is on the page."""
    page.wait_for_selector("#result[aria-busy=false] > *")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_hidden_span_has_the_candidates_of_every_head(
    browser: Browser, pages: Mapping[str, str], width: int, scheme: Scheme
) -> None:
    with opened(browser, pages["fill"], scheme, width) as look:
        page = look.page
        assert problems(look) == [] and "Select the words to hide" in page.locator("#status").inner_text()
        assert page.locator("h1").inner_text() == f"{NAME} · spanjax playground"
        page.fill("#field-text", "Anna lives in Bonn. The cat sat at Bonn.")
        words = page.locator("#words button")
        words.nth(8).click()
        words.nth(6).click(modifiers=["Shift"])
        words.nth(2).click()
        settled(page)
        assert pressed(page) == ["in", "cat", "sat", "at"]
        headings = page.locator("#result h2").all_inner_texts()
        assert headings == ["“in” was hidden", "“cat sat at” was hidden"]
        heads = page.locator("#result section").nth(1).locator("h3").all_inner_texts()
        assert [head.partition(":")[0] for head in heads] == ["token head (mlm)", "span boundaries (sbo)", "both heads"]
        assert all(" · original " in head for head in heads)
        # one token by three heads, and three tokens by three heads, each with five candidates
        assert page.locator("#result ol").count() == 12 and page.locator("#result ol > li").count() == 60
        assert problems(look) == []
        ground = "[...getComputedStyle(document.body).backgroundColor.matchAll(/\\d+/g)].map(Number)"
        assert (sum(page.evaluate(ground)) < 120) == (scheme == "dark")
        words.nth(2).click()
        settled(page)
        assert page.locator("#result h2").count() == 1
        # another occurrence of the same word is another span
        for word in (6, 7, 8):
            words.nth(word).click()
        words.nth(9).click()
        settled(page)
        assert page.locator("#result h2").all_inner_texts() == ["“Bonn” was hidden"]
        assert (
            pressed(page) == ["Bonn"] and page.locator("#words button").nth(9).get_attribute("aria-pressed") == "true"
        )


def test_words_are_selected_by_keys_and_by_dragging(browser: Browser, pages: Mapping[str, str]) -> None:
    with opened(browser, pages["fill"]) as look:
        page = look.page
        page.focus("#field-text")
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Space")
        page.keyboard.press("Shift+ArrowRight")
        assert pressed(page) == ["old", "sailor"]
        settled(page)
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Space")
        assert pressed(page) == ["sailor"]
        words = page.locator("#words button")
        words.nth(5).hover()
        page.mouse.down()
        words.nth(7).hover()
        page.mouse.up()
        assert pressed(page) == ["sailor", "wooden", "boat", "to"]
        settled(page)
        assert look.errors == []


def test_a_text_with_masks_and_other_letters(browser: Browser, pages: Mapping[str, str]) -> None:
    """Offsets are those of Python: an emoji is one character. A hostile text stays text."""
    with opened(browser, pages["fill"], width=PHONE) as look:
        page = look.page
        page.fill("#field-text", f"😀 [MASK] the cat {HOSTILE}")
        settled(page)
        assert page.locator("#result h2").all_inner_texts() == ["1 [MASK]"]
        page.locator("#words button", has_text="cat").click()
        settled(page)
        assert page.locator("#result h2").all_inner_texts() == ["1 [MASK]", "“cat” was hidden"]
        assert page.locator("img, b, #result script").count() == 0 and problems(look) == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", TASKS)
def test_a_task(browser: Browser, pages: Mapping[str, str], kind: str, width: int, scheme: Scheme) -> None:
    with opened(browser, pages[kind], scheme, width) as look:
        page = look.page
        page.click(".run")
        settled(page)
        assert problems(look) == []
        for label in page.locator("label").all():
            assert page.locator(f"textarea#{label.get_attribute('for')}").count() == 1
        if kind in ("ner", "coref", "qa"):
            text = page.input_value("textarea >> nth=-1")
            assert page.locator("#result .text mark").count() > 0
            page.evaluate("() => document.querySelectorAll('#result .text sub').forEach(note => note.remove())")
            assert page.locator("#result .text").text_content() == text


def test_marks_of_chains_are_nested_and_coloured(browser: Browser, pages: Mapping[str, str]) -> None:
    with opened(browser, pages["coref"]) as look:
        answer: dict[str, Any] = look.page.evaluate("""() => {
            const ranges = [[0, 9, 0], [2, 4, 1], [3, 6, 2], [7, 12, 3], [12, 13, 4]];
            const made = marked(
                '😀bcdefghijklmn', ranges.map(([start, end, number]) => ({start, end, number, note: `${number}`})));
            at('result').replaceChildren(made);
            const all = [...made.querySelectorAll('mark')];
            return {html: made.innerHTML.replace(/ style="[^"]*"/g, ''),
                    colours: new Set(all.map(each => getComputedStyle(each).borderBottomColor)).size};
        }""")
        # a mark that crosses the one around it ends with it
        inner = "<mark>c<mark>d<sub>2</sub></mark><sub>1</sub></mark>"
        outer = f"<mark>😀b{inner}efg<mark>hi<sub>3</sub></mark><sub>0</sub></mark>"
        assert answer == {"html": f"{outer}jkl<mark>m<sub>4</sub></mark>n", "colours": 5}


def test_errors_are_on_the_page(browser: Browser, pages: Mapping[str, str]) -> None:
    """A record that cannot be used, no JSON, and a server that is gone; the page still works afterwards."""
    with opened(browser, pages["classify"]) as look:
        page = look.page
        page.fill("#field-sentence1", "")
        page.fill("#field-sentence2", HOSTILE)
        page.click(".run")
        page.wait_for_selector("#status.bad")
        assert "expected `sentence`, or `sentence1` and `sentence2`" in page.locator("#status").inner_text()
        page.fill("#field-sentence1", "the cat")
        page.click(".run")
        settled(page)
        assert page.locator("#result .bars li").count() == 2 and "<b>no</b>" in page.locator("#result").inner_text()
        assert page.locator("#status.bad").count() == 0
    with opened(browser, pages["task"]) as look:
        look.page.fill("#field-record", "{")
        look.page.click(".run")
        assert "The record is not JSON" in look.page.locator("#status").inner_text()
    with served_page(made_playground("ner")) as url, opened(browser, url) as look:
        look.page.route("**/api/predict", lambda route: route.abort())
        look.page.click(".run")
        look.page.wait_for_selector("#status.bad")
        assert "start `spanjax serve` again" in look.page.locator("#status").inner_text()
