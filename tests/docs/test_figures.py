"""The README's figure is the one that the masking code draws."""

import importlib.util
import xml.etree.ElementTree

import numpy as np
import pytest

from spanjax.data.feed.masking import GeometricSpans, TextRows
from spanjax.data.vocab.base import Specials
from tests.running import ROOT

pytestmark = pytest.mark.unit
SCRIPT = ROOT / "docs" / "figures" / "span_masking.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("span_masking", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("theme", ("light", "dark"))
def test_the_files_are_what_the_script_draws(script, theme: str) -> None:
    stored = SCRIPT.with_name(f"span_masking_{theme}.svg").read_text()
    assert stored == script.drawn(script.masked_sentence(), theme)


def test_the_figure_is_one_picture_of_the_masked_words(script) -> None:
    found = script.masked_sentence()
    texts = [each.text for each in xml.etree.ElementTree.fromstring(script.drawn(found, "dark")).iter() if each.text]
    masked = found.words[found.first : found.last + 1]
    assert texts.count("[MASK]") == len(masked) == 4
    # the neighbours are seen by the encoder, the masked words only as what was there
    assert all(texts.count(word) >= 1 for word in masked) and found.words[found.first - 1] in texts


def test_the_span_is_one_that_training_would_mask(script) -> None:
    """Independent check: some key of the masking policy gives exactly these places."""
    found, count = script.masked_sentence(), len(script.SENTENCE.split())
    ids = np.array([[2, *range(5, 5 + count), 3]], np.int32)
    starts = (ids > 4) & (ids < 5 + count)
    rows = TextRows(ids, np.ones_like(ids), starts, None)
    wanted = [*range(found.first + 1, found.last + 2)]
    keys = (np.array([key], np.uint64) for key in range(2_000))
    rate = np.array([script.RATE])
    assert any(
        GeometricSpans().masked_places(rows, Specials(0, 1, 2, 3, 4), key, rate).tolist() == wanted for key in keys
    )
